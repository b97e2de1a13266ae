"""Records a training step as a CUDA graph once and replays it.

On a GPU a step is hundreds of kernel launches, each of which costs the host more time than the device; a CUDA graph is
a single launch. A graph refers to memory addresses, so it computes on its own tensors: the clients' tensors are copied
in before its steps and back afterwards, and each batch before each step. Non-tensor values are constants of the
recording: a graph can be reused only while they are equal. ``flnl.engine.stacked.tracing`` detects whether a step
reads the numbers of the round and of the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor

from flnl.core.payload import Params
from flnl.engine.stacked.errors import NotStackable, line
from flnl.engine.stacked.joining import Joined, alike
from flnl.engine.stacked.objective import Batch, Objective
from flnl.engine.stacked.step import Stepper, View
from flnl.engine.stacked.tracing import NUMBER, RECEIVED, ROUND, Waits

LEAST = 4
"""Fewer consecutive steps than this are not worth copying the clients' tensors into a graph and back."""
WARM = 3
"""Eager steps before the recording: libraries initialise during them, and the last one is traced."""
MOST = 8
"""Maximum number of graphs kept; each holds its clients' models, gradients, momenta and intermediate values."""


class Capture(Protocol):
    """Records the tensor operations of one call and replays them."""

    def warm(self, step: Callable[[], Tensor]) -> Tensor:
        """Run ``step`` eagerly, as a warm-up before the recording."""
        ...

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        """Record ``step`` without running it; return the tensor that replays write the result to."""
        ...

    def replay(self) -> None:
        """Run the recorded operations, on the same tensors."""
        ...


def can_record(device: torch.device) -> bool:
    """Whether torch can record steps on this device."""
    return device.type != "cpu" and hasattr(torch.get_device_module(device), "CUDAGraph")


class Recorder:
    """Makes the graphs of one device. They share a side stream and a memory pool.

    Sharing the pool is safe because graphs are replayed one at a time and their results are copied before the next.
    Torch ends a pool with its last graph, so a graph that is recorded when no other is left begins a new pool; so does
    the next one after a failure, which may leave the pool unusable.
    """

    def __init__(self, device: torch.device) -> None:
        self.library = torch.get_device_module(device)
        self.stream = self.library.Stream()
        self._pool: Any = None
        self._recorded = WeakSet[CudaGraph]()  # into this pool

    def __call__(self) -> CudaGraph:
        """A new graph."""
        return CudaGraph(self)

    @contextmanager
    def recording(self, graph: CudaGraph) -> Iterator[Any]:
        """Yields the memory pool to record ``graph`` into."""
        others = list(self._recorded)  # held here, so that none of them ends meanwhile
        if not others:
            self._pool = self.library.graph_pool_handle()
        try:
            yield self._pool
        except BaseException:
            self._recorded.clear()
            raise
        self._recorded.add(graph)


class CudaGraph:
    """``torch.cuda.CUDAGraph``, or that of another device, recorded on the side stream of ``recorder``."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._torch, self._stream = recorder, recorder.library, recorder.stream
        self._graph = self._torch.CUDAGraph()

    def warm(self, step: Callable[[], Tensor]) -> Tensor:
        """Run on the side stream, as torch requires for warm-up."""
        current = self._torch.current_stream()
        self._stream.wait_stream(current)
        with self._torch.stream(self._stream):
            loss = step()
        current.wait_stream(self._stream)
        loss.record_stream(current)
        return loss

    def capture(self, step: Callable[[], Tensor]) -> Tensor:
        """Record the kernels without running them. Other threads may use the device meanwhile."""
        back = self._torch.stream(self._torch.current_stream())  # if a recording fails, torch stays on the side stream
        with back, self._recorder.recording(self) as pool, warnings.catch_warnings():
            # torch adds this to a failure before the first operation, whose error says what happened
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            way = {"pool": pool, "stream": self._stream, "capture_error_mode": "thread_local"}
            with self._torch.graph(self._graph, **way):
                return step()

    def replay(self) -> None:
        """Replay on the current stream."""
        self._graph.replay()


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
        return other is not None and alike(self._timeless(), other._timeless())

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
        return replace(self, received=replace(self.received, form=replace(self.received.form, round=0)))


class Graph:
    """The step for a fixed number of clients and batch size: run eagerly at first, then recorded, then replayed."""

    def __init__(self, capture: Capture, stepper: Stepper, view: View) -> None:
        self.constants = Constants.of(stepper)
        self.refusal: str | None = None
        self._round = stepper.objective.tasks[0].broadcast.round
        self._asked: set[str] = set()
        self._capture, self._steps, self._recorded = capture, 0, False
        self._rate = None if stepper.rate is None else stepper.rate.clone()
        kept, momenta = _clone(view.kept), {name: _clone(stored) for name, stored in view.momenta.items()}
        self._view = View.of(stepper.many, stepper.job.training, view.members, kept, momenta, self._rate)
        given = Given.of(stepper.objective, view.members)
        self._given = None if given is None else given.copied()
        self._batch: Batch | None = None
        self._loss: Tensor | None = None
        self._now: Stepper | None = None

    # ---------------------------------------------------------------------------------------------- from and to clients

    def serves(self, stepper: Stepper, members: tuple[int, ...]) -> bool:
        """Whether the recording is valid for these clients in this round."""
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
        self._now = replace(stepper, objective=objective)

    def give(self, stepper: Stepper, view: View) -> None:
        """Copy the results of the steps back to the clients of ``view``."""
        _copy(view.everything(), self._view.everything())
        if self._given is not None and self._given.held is not None:
            held = self._stepper.objective.held(view.members)
            stepper.objective.hold(view.members, held.each(torch.clone))
        self._now = None  # do not keep the clients' data alive

    # --------------------------------------------------------------------------------------------------------- steps

    def __call__(self, _: View, batch: Batch) -> Tensor:
        """Run one step of the current clients; return the losses before it, as ``Stepper`` does."""
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
        """Copy the batch into the recording's tensors; return False, without copying, if its structure differs."""
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
        """Record the step; return whether that worked. If not, no tensor has changed."""
        self._without_gradients()
        try:
            self._loss = self._capture.capture(lambda: self._step(batch))
        except NotStackable:
            raise
        except Exception as error:  # any library may fail during a recording
            self._refuse(line(error))
            self._without_gradients()
            if self._given is not None and self._given.held is not None:
                self._stepper.objective.hold(self._view.members, self._given.held)
        self._recorded = self.refusal is None
        return self._recorded

    def _step(self, batch: Batch) -> Tensor:
        """One step; afterwards the terms' states are copied back to the tensors they were in before."""
        stepper = self._stepper
        loss = stepper(self._view, batch)
        if self._given is not None and self._given.held is not None:
            after = stepper.objective.held(self._view.members)
            if alike(after, self._given.held):
                _copy(self._given.held.held(), after.held())
                stepper.objective.hold(self._view.members, self._given.held)
            else:
                self._refuse("a term's state changes its structure")
        return loss

    @property
    def _stepper(self) -> Stepper:
        assert self._now is not None, "take() has been called"
        return self._now

    def _without_gradients(self) -> None:
        for parameter in self._view.live.values():
            parameter.grad = None

    def _refuse(self, reason: str) -> None:
        self.refusal = self.refusal or reason


class Graphs:
    """The graphs of one network, one for each number of clients and batch size; none without ``capture``.

    ``say`` is called with the reason whenever steps cannot be recorded.
    """

    def __init__(self, capture: Callable[[], Capture] | None, say: Callable[[str], object]) -> None:
        self._capture, self._say = capture, say
        self._graphs: dict[tuple[int, int], Graph] = {}  # in order of last use
        self._refused: dict[tuple[int, int], tuple[Constants, str]] = {}
        self.refusals: list[str] = []  # why steps could not be recorded, each reason once
        self._used: set[tuple[int, int]] = set()

    def __bool__(self) -> bool:
        return self._capture is not None

    @property
    def kept(self) -> list[Graph]:
        """The graphs that can be reused, in order of last use."""
        return list(self._graphs.values())

    def begin(self) -> None:
        """Start training a new stack: graphs of the previous stack may be evicted."""
        self._used.clear()

    @contextmanager
    def of(self, stepper: Stepper, view: View, steps: int, size: int) -> Iterator[Callable[[View, Batch], Tensor]]:
        """The function that runs ``view``'s next ``steps`` on batches of ``size``: a graph, or ``stepper`` itself."""
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
            if graph.refusal not in self.refusals:
                self.refusals.append(graph.refusal)
            self._say(graph.refusal)

    def _graph(self, key: tuple[int, int], stepper: Stepper, view: View, steps: int) -> Graph | None:
        if self._capture is None:
            return None
        if steps < LEAST:
            self._say(f"fewer than {LEAST} equal steps follow each other (last batches, clients of different size)")
            return None
        if key in self._refused and self._refused[key][0] == Constants.of(stepper):
            return None
        graph = self._graphs.pop(key, None)
        if graph is None or not graph.serves(stepper, view.members):
            if len(self._graphs) >= MOST:
                oldest = next(iter(self._graphs))
                if oldest in self._used:
                    self._say(f"a stack needs more than {MOST} graphs")
                    return None
                del self._graphs[oldest]
            graph = Graph(self._capture(), stepper, view)
        self._graphs[key] = graph
        self._used.add(key)
        return graph


EAGER = Graphs(None, lambda _: None)
"""Records nothing: all steps run eagerly."""


def _clone(tensors: Params) -> Params:
    return {name: t.clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}


def _copy(into: list[Tensor], values: list[Tensor]) -> None:
    with torch.no_grad():
        for target, value in zip(into, values, strict=True):
            target.copy_(value, non_blocking=True)
