"""Records training steps as CUDA graphs once and replays them.

On a GPU a step is hundreds of kernel launches, each of which costs the host more time than the device; a CUDA graph is
a single launch. A graph refers to memory addresses, so it computes on its own tensors: the clients' tensors are copied
in before its steps and back afterwards, and each batch before each step. Non-tensor values are constants of the
recording: a graph can be reused only while they are equal. ``flnl.engine.stacked.tracing`` detects whether a step
reads the numbers of the round and of the batch.

A graph may have several branches: steps of different stacks, each recorded on a stream of its own, so that the device
runs them at the same time. A branch computes to the bit what it computes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from flnl.core.payload import Params
from flnl.core.tally import Tally
from flnl.engine.cuda_graph import WARM, Capture, Captures, Waits
from flnl.engine.stacked.errors import line
from flnl.engine.stacked.joining import Joined
from flnl.engine.stacked.objective import Batch, Objective
from flnl.engine.stacked.step import Stepper, View
from flnl.engine.stacked.tracing import NUMBER, RECEIVED, ROUND
from flnl.engine.trees import same_structure

LEAST = 4
"""Fewer consecutive steps than this are not worth copying the clients' tensors into a graph and back."""
MOST = 8
"""Maximum number of kinds of step kept, each with its clients' models, gradients and momenta; and of graphs of each."""
IDLE = 100
"""To record a branch takes about as long as this many of its steps: so long a graph with idle branches is used."""


@dataclass(frozen=True)
class Constants:
    """Values that a recording assumes to be constant, besides the structure of its inputs."""

    terms: Any
    gradient: Any
    training: Any
    rowwise: tuple[str, ...]
    stage: int
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, stepper: Stepper) -> Constants:
        """The constants of a step."""
        job, sent = stepper.job, stepper.objective.tasks[0].broadcast
        rowwise = tuple(stepper.objective.rowwise)
        training = job.training if stepper.rate is None else replace(job.training, lr=1.0)  # the tensor has the rate
        return cls(job.terms, job.gradient, training, rowwise, sent.stage, sent.lengths)


@dataclass(frozen=True)
class Given:
    """What loss terms and gradient transforms see of some clients besides batches, joined over the clients."""

    received: Joined
    kept: Joined
    held: Joined | None  # states of terms; None if no term has a state

    @classmethod
    def of(cls, objective: Objective, members: tuple[int, ...]) -> Given | None:
        """What the members' steps see; None if all terms are rowwise."""
        if not objective.sees_steps:
            return None
        held = objective.held(members) if objective.others else None
        return cls(objective.received(members), objective.kept(members), held)

    def serves(self, other: Given | None) -> bool:
        """Whether ``other`` differs only in tensor values and in the round, whose use is traced separately."""
        return other is not None and same_structure(self._timeless(), other._timeless())

    def take(self, other: Given) -> None:
        """Copy the tensor values of ``other`` into these tensors."""
        for target, source in ((self.received, other.received), (self.kept, other.kept), (self.held, other.held)):
            if target is not None and source is not None:
                _copy(target.held(), source.held())

    def copied(self) -> Given:
        """A copy with cloned tensors."""
        held = None if self.held is None else self.held.each(torch.clone)
        return Given(self.received.each(torch.clone), self.kept.each(torch.clone), held)

    def _timeless(self) -> Given:
        return replace(self, received=replace(self.received, structure=replace(self.received.structure, round=0)))


class Branch:
    """The tensors on which a stack's steps of one kind run, eagerly at first, then recorded."""

    def __init__(self, captures: Captures, number: int, stepper: Stepper, view: View) -> None:
        self.constants = Constants.of(stepper)
        self.number = number
        self.refusal: str | None = None
        self._round = stepper.objective.tasks[0].broadcast.round
        self._asked: set[str] = set()
        self._captures, self._steps = captures, 0
        self._rate = None if stepper.rate is None else stepper.rate.clone()
        kept, momenta = _clone(view.kept), {name: _clone(stored) for name, stored in view.momenta.items()}
        self._view = View.of(stepper.many, stepper.job.training, view.members, kept, momenta, self._rate)
        given = Given.of(stepper.objective, view.members)
        self._given = None if given is None else given.copied()
        self._batch: Batch | None = None
        self._now: Stepper | None = None
        self._passed = Tally()  # in one step on the branch's batch

    # ---------------------------------------------------------------------------------------------- from and to clients

    @property
    def busy(self) -> bool:
        """Whether clients are in these tensors: between ``take`` and ``give``."""
        return self._now is not None

    def serves(self, stepper: Stepper, members: tuple[int, ...]) -> bool:
        """Whether a recording is valid for these clients in this round."""
        if Constants.of(stepper) != self.constants:
            return False
        if ROUND in self._asked and stepper.objective.tasks[0].broadcast.round != self._round:
            return False
        given = Given.of(stepper.objective, members)
        return given is None if self._given is None else self._given.serves(given)

    def take(self, stepper: Stepper, view: View) -> None:
        """Copy the clients of ``view`` in: the following steps train them."""
        _copy(self._view.everything(), view.everything())
        if self._rate is not None and stepper.rate is not None:
            _copy([self._rate], [stepper.rate])
        objective, given = replace(stepper.objective, asked=self._asked), Given.of(stepper.objective, view.members)
        if given is not None and self._given is not None:
            self._given.take(given)
            objective = objective.given(view.members, self._given.received, self._given.kept, self._given.held)
        if RECEIVED in self._asked:
            stepper.network.receive(stepper.objective.tasks[view.members[0]].broadcast)
        self._view = replace(self._view, members=view.members)
        self._view.leaves.renew()
        self._now = replace(stepper, objective=objective)

    def give(self, stepper: Stepper, view: View) -> None:
        """Copy the results of the steps back to the clients of ``view``."""
        _copy(view.everything(), self._view.everything())
        if self._given is not None and self._given.held is not None:
            held = self._stepper.objective.held(view.members)
            stepper.objective.hold(view.members, held.each(torch.clone))
        self.drop()

    def drop(self) -> None:
        """Keep nothing of the clients alive."""
        self._now = None

    # --------------------------------------------------------------------------------------------------------- steps

    def __call__(self, batch: Batch, copies: Copies) -> Tensor | None:
        """Run the step on ``batch`` if it must run eagerly, and return the losses before it, as ``Stepper`` does.

        None if it is to be recorded, or replayed, once ``copies`` are made, among which are those of the batch.
        """
        if self.refusal is not None or not self._fits(batch):
            return self._step(batch)
        assert self._batch is not None
        if self._steps >= WARM:
            copies.add(self._batch.held(), batch.held())
            return None
        _copy(self._batch.held(), batch.held())
        self._batch = replace(self._batch, number=batch.number)
        self._steps += 1
        last = self._steps == WARM
        with Waits(self.refuse) if last else nullcontext():
            loss = self._captures.warm(self.eager, self.number)
            self.count()
        if last and NUMBER in self._asked:
            self.refuse("a part of the method counts the batches")
        return loss

    def eager(self) -> Tensor:
        """One step on the batch in the branch's tensors; ``count`` counts its passes, as it may only be recorded."""
        assert self._batch is not None
        self._passed = Tally()
        with self._stepper.network.meter.into(self._passed):
            return self._step(self._batch)

    def count(self) -> None:
        """Count the passes of a step on the branch's batch, run or replayed."""
        self._stepper.network.meter.add(self._passed)

    def _fits(self, batch: Batch) -> bool:
        """Whether the batch differs from the branch's only in the values of its tensors."""
        if self._batch is None:
            self._batch = batch.each(torch.clone)
        return self._batch.alike(batch)

    def _step(self, batch: Batch) -> Tensor:
        """One step; afterwards the terms' states are copied back to the tensors they were in before."""
        stepper = self._stepper
        loss = stepper(self._view, batch)
        if self._given is not None and self._given.held is not None:
            after = stepper.objective.held(self._view.members)
            if same_structure(after, self._given.held):
                _copy(self._given.held.held(), after.held())
                self.as_before()
            else:
                self.refuse("a term's state changes its structure")
        return loss

    def as_before(self) -> None:
        """Let the terms' states be those in the branch's tensors."""
        if self._given is not None and self._given.held is not None:
            self._stepper.objective.hold(self._view.members, self._given.held)

    @property
    def _stepper(self) -> Stepper:
        assert self._now is not None, "take() has been called"
        return self._now

    def without_gradients(self) -> None:
        """Free the gradients."""
        self._view.leaves.without_gradients()

    def refuse(self, reason: str) -> None:
        """Record no step of this branch, for the first of all reasons given."""
        self.refusal = self.refusal or reason


class Copies:
    """Copies to make at once, by the type of the tensors."""

    def __init__(self) -> None:
        self._lists: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}

    def add(self, into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Add copies of ``values``."""
        for target, value in zip(into, values, strict=True):
            targets, sources = self._lists.setdefault(target.dtype, ([], []))
            targets.append(target)
            sources.append(value)

    @torch.no_grad()
    def make(self) -> None:
        """Make them, in a kernel for many tensors where the device has one."""
        for targets, sources in self._lists.values():
            torch._foreach_copy_(targets, sources, non_blocking=True)
        self._lists.clear()


class Graph:
    """One step of each of some branches, recorded to run at the same time."""

    def __init__(self, capture: Capture, branches: Sequence[Branch]) -> None:
        self.branches = tuple(branches)
        self._capture = capture
        self._losses: Tensor | None = None

    def record(self) -> bool:
        """Record the steps; return whether that worked. If not, no tensor has changed, and a branch is refused."""
        begun: list[Branch] = []
        ended: list[Branch] = []

        def step(branch: Branch) -> Tensor:
            begun.append(branch)
            loss = branch.eager()
            ended.append(branch)
            return loss

        for branch in self.branches:
            branch.without_gradients()
        try:
            self._losses = self._capture.capture([(b.number, partial(step, b)) for b in self.branches])
        except Exception as error:  # any library may fail during a recording
            at_fault = [branch for branch in begun if branch not in ended] or self.branches
            for branch in at_fault:
                branch.refuse(line(error))
            for branch in self.branches:
                branch.without_gradients()
                branch.as_before()
        return all(branch.refusal is None for branch in self.branches)

    def replay(self) -> dict[int, Tensor]:
        """Run the steps on the batches that the branches hold; each one's losses before it, by the branch's number."""
        self._capture.replay()
        assert self._losses is not None
        losses = self._losses.clone().chunk(len(self.branches))
        return {branch.number: of_branch for branch, of_branch in zip(self.branches, losses, strict=True)}


@dataclass
class Kind:
    """What is kept of the steps of one number of clients and size of batch: branches by number, and their graphs."""

    branches: dict[int, Branch] = field(default_factory=dict)
    graphs: dict[tuple[int, ...], Graph] = field(default_factory=dict)  # by the numbers of their branches
    idle: Counter[tuple[int, ...]] = field(default_factory=Counter)  # steps of idle branches, beside these ones

    def put(self, branch: Branch) -> None:
        """Add a branch instead of one with its number."""
        self.remove(branch.number)
        self.branches[branch.number] = branch

    def remove(self, number: int) -> None:
        """Forget a branch and its graphs."""
        self.branches.pop(number, None)
        self.graphs = {numbers: graph for numbers, graph in self.graphs.items() if number not in numbers}

    def wider(self, numbers: tuple[int, ...]) -> Graph | None:
        """The smallest graph that has these branches and others that are not in use; None if none is worth using.

        The other branches compute, too, on what they held last, which nothing reads any more.
        """
        free = {number for number, branch in self.branches.items() if not branch.busy}
        fitting = [n for n in self.graphs if set(numbers) < set(n) <= {*numbers, *free}]
        if not fitting:
            return None
        least = min(fitting, key=len)
        full = len(self.graphs) >= MOST
        if not full and self.idle[numbers] >= IDLE * len(numbers):
            return None
        self.idle[numbers] += len(least) - len(numbers)
        return self.graphs[least]


class Graphs:
    """The graphs of one network, for each number of clients and batch size; none without ``captures``.

    ``say`` is called with the reason whenever steps cannot be recorded.
    """

    def __init__(self, captures: Captures | None, say: Callable[[str], object]) -> None:
        self._captures, self._say = captures, say
        self._kinds: dict[tuple[int, int], Kind] = {}  # in order of last use
        self._refused: dict[tuple[int, int], tuple[Constants, str]] = {}
        self.refusals: list[str] = []  # why steps could not be recorded, each reason once
        self._used: set[tuple[int, int]] = set()

    def __bool__(self) -> bool:
        return self._captures is not None

    @property
    def kept(self) -> list[Branch]:
        """The branches that can be reused, by kind in order of last use."""
        return [branch for kind in self._kinds.values() for branch in kind.branches.values()]

    def begin(self) -> None:
        """Start training new stacks: what was kept for the previous ones may be evicted."""
        self._used.clear()

    def enter(self, number: int, stepper: Stepper, view: View, steps: int, size: int) -> Branch | None:
        """The branch of this number, with the clients of ``view``, for their next ``steps`` on batches of ``size``.

        None if these steps are not to be recorded; else ``leave`` or ``forget`` follows.
        """
        if stepper.masks:  # they draw on a CPU, where nothing is recorded but in tests
            return None
        branch = self._branch((len(view.members), size), number, stepper, view, steps)
        if branch is not None:
            branch.take(stepper, view)
        return branch

    def leave(self, branch: Branch, stepper: Stepper, view: View, size: int) -> None:
        """Give the clients of ``view`` the results of their steps in the branch."""
        branch.give(stepper, view)
        if branch.refusal is None:
            return
        key = len(view.members), size
        kind = self._kinds[key]
        kind.remove(branch.number)
        same = [other for other in kind.branches.values() if other.constants == branch.constants]
        if all(other.refusal is not None for other in same):  # else it is something about these clients
            self._refused[key] = branch.constants, branch.refusal
        if not kind.branches:
            del self._kinds[key]
        if branch.refusal not in self.refusals:
            self.refusals.append(branch.refusal)
        self._say(branch.refusal)

    def forget(self, branch: Branch) -> None:
        """Forget a branch whose steps have failed."""
        branch.drop()
        for kind in self._kinds.values():
            if kind.branches.get(branch.number) is branch:
                kind.remove(branch.number)

    def graph(self, branches: Sequence[Branch], clients: int, size: int) -> Graph | None:
        """A graph of these branches and maybe idle ones, recorded now if need be; None if that has refused a branch.

        Args:
            branches: those that hold a batch of the next step, by increasing number.
            clients: number of clients in each.
            size: of each client's batch.
        """
        kind, numbers = self._kinds[clients, size], tuple(branch.number for branch in branches)
        graph = kind.graphs.get(numbers) or kind.wider(numbers)
        if graph is None:
            assert self._captures is not None
            graph = Graph(self._captures(), branches)
            if not graph.record():
                return None
            kind.graphs[numbers] = graph
        return graph

    def _branch(self, key: tuple[int, int], number: int, stepper: Stepper, view: View, steps: int) -> Branch | None:
        if self._captures is None:
            return None
        if steps < LEAST:
            self._say(f"fewer than {LEAST} equal steps follow each other (last batches, clients of different size)")
            return None
        if key in self._refused and self._refused[key][0] == Constants.of(stepper):
            return None
        kind = self._kinds.pop(key, None)
        if kind is None:
            if len(self._kinds) >= MOST:
                oldest = next(iter(self._kinds))
                if oldest in self._used:
                    self._say(f"a stack needs more than {MOST} graphs")
                    return None
                del self._kinds[oldest]
            kind = Kind()
        self._kinds[key] = kind
        self._used.add(key)
        branch = kind.branches.get(number)
        if branch is None or not branch.serves(stepper, view.members):
            branch = Branch(self._captures, number, stepper, view)
            kind.put(branch)
        return branch


EAGER = Graphs(None, lambda _: None)
"""Records nothing: all steps run eagerly."""


def _clone(tensors: Params) -> Params:
    return {name: t.clone() for name, t in tensors.items()}


def _copy(into: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    copies = Copies()
    copies.add(into, values)
    copies.make()
