"""Steps recorded once and replayed: on a GPU a step is hundreds of launches, each of which costs the host more than the
device, and a CUDA graph is one.

A graph computes on tensors of its own, since it knows addresses, not values: what its clients hold is copied in before
its steps and back after them, each batch before each step. What is no tensor is part of the recording. So a graph
serves as long as all of that is equal, and which of a round's and a batch's numbers matter is seen by watching who asks
for them (``flnl.engine.stacked.tracing``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from flnl.core.payload import Params
from flnl.engine.stacked.errors import NotStackable, line
from flnl.engine.stacked.joining import Joined, alike
from flnl.engine.stacked.objective import Batch, Objective
from flnl.engine.stacked.step import Stepper, View
from flnl.engine.stacked.tracing import NUMBER, RECEIVED, ROUND, Waits

LEAST = 4
"""Fewer consecutive steps than this are not worth copying what clients hold into a graph and back."""
WARM = 3
"""Steps that run as they are before one is recorded: libraries set themselves up in them, and the last is watched."""
MOST = 8
"""Graphs that are kept; each holds its clients' models, gradients and momenta, and what a step leaves in between."""


class Capture(Protocol):
    """Records what one call does to tensors, and does it again."""

    def warm(self, step: Callable[[], Tensor]) -> Tensor:
        """Run ``step`` as it must be run before it is recorded."""
        ...

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        """Record ``step`` and change nothing; the tensor in which its result will be."""
        ...

    def replay(self) -> None:
        """Do again what was recorded, on the same tensors."""
        ...


class CudaGraph:
    """``torch.cuda.CUDAGraph`` in a memory pool of its own, recorded on a stream of its own."""

    def __init__(self) -> None:
        self._graph, self._stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()

    def warm(self, step: Callable[[], Tensor]) -> Tensor:
        """On the side stream, where torch wants it."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            found = step()
        torch.cuda.current_stream().wait_stream(self._stream)
        found.record_stream(torch.cuda.current_stream())
        return found

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        """Kernels are recorded and not run. Other threads may go on with the device meanwhile."""
        with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
            return step()

    def replay(self) -> None:
        """On the current stream."""
        self._graph.replay()


@dataclass(frozen=True)
class Constants:
    """What a recording takes for granted besides the forms of what it is given."""

    terms: Any
    gradient: Any
    training: Any
    rowwise: tuple[str, ...]
    stage: int
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, stepper: Stepper) -> Constants:
        """Those of a step."""
        job, sent = stepper.job, stepper.objective.tasks[0].broadcast
        rowwise = tuple(stepper.objective.rowwise)
        return cls(job.terms, job.gradient, job.training, rowwise, sent.stage, sent.lengths)


@dataclass(frozen=True)
class Given:
    """What terms and transforms may see of some clients besides their batches, each as one value for all of them."""

    received: Joined
    kept: Joined
    held: Joined | None  # states of terms; None where no term has any

    @classmethod
    def of(cls, objective: Objective, members: tuple[int, ...]) -> Given | None:
        """What the members' steps see; None where they see rows alone."""
        if not objective.sees_steps:
            return None
        held = objective.held(members) if objective.others else None
        return cls(objective.received(members), objective.kept(members), held)

    def serves(self, other: Given | None) -> bool:
        """Whether ``other`` differs in the numbers of tensors alone, the round aside, for which there is a watch."""
        return other is not None and alike(self._timeless(), other._timeless())

    def take(self, other: Given) -> None:
        """Copy the numbers of ``other``."""
        for own, its in ((self.received, other.received), (self.kept, other.kept), (self.held, other.held)):
            if own is not None and its is not None:
                _copy(own.held(), its.held())

    def copied(self) -> Given:
        """The same values in tensors of their own."""
        held = None if self.held is None else self.held.each(torch.clone)
        return Given(self.received.each(torch.clone), self.kept.each(torch.clone), held)

    def _timeless(self) -> Given:
        return replace(self, received=replace(self.received, form=replace(self.received.form, round=0)))


class Graph:
    """The step of so many clients on batches of one size: run as it is at first, then recorded, then replayed."""

    def __init__(self, capture: Capture, stepper: Stepper, view: View) -> None:
        self.constants = Constants.of(stepper)
        self.refusal: str | None = None
        self._round = stepper.objective.tasks[0].broadcast.round
        self._asked: set[str] = set()
        self._capture, self._steps, self._recorded = capture, 0, False
        self._view = View.of(stepper.many, stepper.job.training, view.members, _own(view.kept), _own(view.momenta))
        given = Given.of(stepper.objective, view.members)
        self._given = None if given is None else given.copied()
        self._batch: Batch | None = None
        self._loss: Tensor | None = None
        self._now: Stepper | None = None

    # ---------------------------------------------------------------------------------------------- from and to clients

    def serves(self, stepper: Stepper, members: tuple[int, ...]) -> bool:
        """Whether what is or will be recorded holds for these clients in this round."""
        if Constants.of(stepper) != self.constants:
            return False
        if ROUND in self._asked and stepper.objective.tasks[0].broadcast.round != self._round:
            return False
        given = Given.of(stepper.objective, members)
        return given is None if self._given is None else self._given.serves(given)

    def take(self, stepper: Stepper, view: View) -> None:
        """Step for the clients of ``view`` from now on."""
        _copy(self._view.everything(), view.everything())
        objective, given = replace(stepper.objective, asked=self._asked), Given.of(stepper.objective, view.members)
        if given is not None and self._given is not None:
            self._given.take(given)
            objective = objective.given(view.members, self._given.received, self._given.kept, self._given.held)
        if RECEIVED in self._asked:
            stepper.network.receive(stepper.objective.tasks[view.members[0]].broadcast)
        self._view = replace(self._view, members=view.members)
        self._now = replace(stepper, objective=objective)

    def give(self, stepper: Stepper, view: View) -> None:
        """Give the clients of ``view`` what they hold after the steps."""
        _copy(view.everything(), self._view.everything())
        if self._given is not None and self._given.held is not None:
            held = self._stepper.objective.held(view.members)
            stepper.objective.hold(view.members, held.each(torch.clone))
        self._now = None  # nobody's data is kept alive

    # --------------------------------------------------------------------------------------------------------- steps

    def __call__(self, _: View, batch: Batch) -> Tensor:
        """One step of the clients taken in; the losses before it, as ``Stepper`` gives them."""
        if self.refusal is not None or not self._holds(batch):
            return self._step(batch)
        assert self._batch is not None
        if self._steps < WARM:
            return self._warmed(self._batch)
        if not self._recorded and not self._record(self._batch):
            return self._step(self._batch)
        self._capture.replay()
        assert self._loss is not None
        return self._loss.clone()

    def _holds(self, batch: Batch) -> bool:
        """Copy the batch to where a recording finds it; False, and nothing is copied, if it is of another form."""
        if self._batch is None:
            self._batch = batch.each(torch.clone)
        elif not alike(replace(batch, number=0), replace(self._batch, number=0)):
            return False
        else:
            _copy(self._batch.held(), batch.held())
            self._batch = replace(self._batch, number=batch.number)
        return True

    def _warmed(self, batch: Batch) -> Tensor:
        self._steps += 1
        last = self._steps == WARM
        with Waits(self._refuse) if last else nullcontext():
            loss = self._capture.warm(lambda: self._step(batch))
        if last and NUMBER in self._asked:
            self._refuse("a part of the method counts the batches")
        return loss

    def _record(self, batch: Batch) -> bool:
        """Whether the step could be recorded. If not, nothing has moved."""
        self._without_gradients()
        try:
            self._loss = self._capture.capture(lambda: self._step(batch))
        except NotStackable:
            raise
        except Exception as error:  # whatever a library does in a step
            self._refuse(line(error))
            self._without_gradients()
            if self._given is not None and self._given.held is not None:
                self._stepper.objective.hold(self._view.members, self._given.held)
        self._recorded = self.refusal is None
        return self._recorded

    def _step(self, batch: Batch) -> Tensor:
        """One step, after which what terms hold is where it was."""
        stepper = self._stepper
        loss = stepper(self._view, batch)
        if self._given is not None and self._given.held is not None:
            after = stepper.objective.held(self._view.members)
            if alike(after, self._given.held):
                _copy(self._given.held.held(), after.held())
                stepper.objective.hold(self._view.members, self._given.held)
            else:
                self._refuse("what a term keeps changes its form")
        return loss

    @property
    def _stepper(self) -> Stepper:
        assert self._now is not None, "clients have been taken in"
        return self._now

    def _without_gradients(self) -> None:
        for parameter in self._view.live.values():
            parameter.grad = None

    def _refuse(self, reason: str) -> None:
        self.refusal = self.refusal or reason


class Graphs:
    """The graphs of one network, one for each number of clients and size of batches; none without ``capture``."""

    def __init__(self, capture: Callable[[], Capture] | None, say: Callable[[str], object]) -> None:
        self._capture, self._say = capture, say
        self._graphs: dict[tuple[int, int], Graph] = {}  # the one that was used last is the last
        self._refused: dict[tuple[int, int], tuple[Constants, str]] = {}
        self._used: set[tuple[int, int]] = set()

    def __bool__(self) -> bool:
        return self._capture is not None

    @property
    def kept(self) -> list[Graph]:
        """Those that wait for more steps, the one that was used last at the end."""
        return list(self._graphs.values())

    def begin(self) -> None:
        """Another stack trains: the graphs of the last one may make room."""
        self._used.clear()

    @contextmanager
    def of(self, stepper: Stepper, view: View, steps: int, size: int) -> Iterator[Callable[[View, Batch], Tensor]]:
        """How ``view``'s next steps on batches of ``size`` are made."""
        key = len(view.members), size
        graph = self._graph(key, stepper, view, steps)
        if graph is None:
            yield stepper
            return
        graph.take(stepper, view)
        try:
            yield graph
        except BaseException:
            self._graphs.pop(key, None)
            raise
        graph.give(stepper, view)
        if graph.refusal is not None:
            del self._graphs[key]
            self._refused[key] = graph.constants, graph.refusal
            self._say(graph.refusal)

    def _graph(self, key: tuple[int, int], stepper: Stepper, view: View, steps: int) -> Graph | None:
        if self._capture is None:
            return None
        if steps < LEAST:
            self._say(f"less than {LEAST} of their kind follow each other (last batches, clients of unlike size)")
            return None
        if key in self._refused and self._refused[key][0] == Constants.of(stepper):
            return None
        found = self._graphs.pop(key, None)
        if found is None or not found.serves(stepper, view.members):
            if len(self._graphs) >= MOST:
                oldest = next(iter(self._graphs))
                if oldest in self._used:
                    self._say(f"there are more than {MOST} numbers of clients to a step")
                    return None
                del self._graphs[oldest]
            found = Graph(self._capture(), stepper, view)
        self._graphs[key] = found
        self._used.add(key)
        return found


EAGER = Graphs(None, lambda _: None)
"""Steps are not recorded."""


def _own(tensors: Params) -> Params:
    return {name: t.clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def _copy(into: list[Tensor], values: list[Tensor]) -> None:
    with torch.no_grad():
        for own, value in zip(into, values, strict=True):
            own.copy_(value, non_blocking=True)
