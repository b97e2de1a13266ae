"""CUDA graphs of one device: how they are recorded and replayed, and which operations they cannot contain."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

WARM = 3
"""Eager steps before the recording: libraries initialise during them, and the last one is traced."""

Call = Callable[[], Tensor]


class Capture(Protocol):
    """Records the tensor operations of some calls and replays them."""

    def capture(self, steps: Sequence[tuple[int, Call]]) -> Tensor:
        """Record calls, each with the number of its branch, without running them.

        Returns:
            The tensor to which replays write the results, one after another in the first dimension.
        """
        ...

    def replay(self) -> None:
        """Run the recorded operations, on the same tensors."""
        ...


class Captures(Protocol):
    """Makes captures."""

    def __call__(self) -> Capture:
        """A new one."""
        ...

    def warm(self, step: Call, branch: int) -> Tensor:
        """Run ``step`` eagerly, as a warm-up before it is recorded with this number."""
        ...


def can_record(device: torch.device) -> bool:
    """Whether torch can record steps on this device."""
    return device.type != "cpu" and hasattr(torch.get_device_module(device), "CUDAGraph")


class GraphRecorder:
    """Makes the graphs of one device. They share a memory pool, a side stream, and a stream for each branch.

    Sharing the pool is safe because graphs are replayed one at a time and their results are copied before the next;
    memory of one stream is never given to another, so the branches of a graph share none. Torch ends a pool with its
    last graph, so a graph that is recorded when no other is left begins a new pool; so does the next one after a
    failure, which may leave the pool unusable.
    """

    def __init__(self, device: torch.device) -> None:
        self.library = torch.get_device_module(device)
        self.stream = self.library.Stream()
        self._streams: list[Any] = []  # by branch
        self._pool: Any = None
        self._recorded = WeakSet[CudaGraph]()  # into this pool

    def __call__(self) -> CudaGraph:
        """A new graph."""
        return CudaGraph(self)

    def warm(self, step: Call, branch: int = 0) -> Tensor:
        """Run on the branch's stream, for which libraries make their handles and workspaces now."""
        current, stream = self.library.current_stream(), self._of(branch)
        stream.wait_stream(current)
        try:
            with self.library.stream(stream):
                loss = step()
        finally:  # also after a failure: what it has begun still computes on tensors that others may get
            current.wait_stream(stream)
        loss.record_stream(current)
        return loss

    def side_by_side(self, steps: Sequence[tuple[int, Call]]) -> Tensor:
        """Run each call on its branch's stream, after what the current stream has; this one then waits for them all."""
        current, streams = self.library.current_stream(), [self._of(branch) for branch, _ in steps]
        for stream in streams:
            stream.wait_stream(current)
        results = []
        try:
            for stream, (_, step) in zip(streams, steps, strict=True):
                with self.library.stream(stream):
                    results.append(step())
        finally:  # a recording that fails ends only when its branches have joined
            for stream in streams:
                current.wait_stream(stream)
        return results[0] if len(results) == 1 else torch.cat(results)

    def _of(self, branch: int) -> Any:
        while len(self._streams) <= branch:
            self._streams.append(self.library.Stream())
        return self._streams[branch]

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
    """``torch.cuda.CUDAGraph``, or that of another device, recorded on the streams of ``recorder``."""

    def __init__(self, recorder: GraphRecorder) -> None:
        self._recorder, self._torch = recorder, recorder.library
        self._graph = self._torch.CUDAGraph()

    def capture(self, steps: Sequence[tuple[int, Call]]) -> Tensor:
        """Record the kernels without running them. Other threads may use the device meanwhile."""
        back = self._torch.stream(self._torch.current_stream())  # if a recording fails, torch stays on the side stream
        with back, self._recorder.recording(self) as pool, warnings.catch_warnings():
            # torch adds this to a failure before the first operation, whose error says what happened
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            way = {"pool": pool, "stream": self._recorder.stream, "capture_error_mode": "thread_local"}
            with self._torch.graph(self._graph, **way):
                return self._recorder.side_by_side(steps)

    def replay(self) -> None:
        """Replay on the current stream."""
        self._graph.replay()


class Waits(TorchDispatchMode):
    """Calls ``report`` for every operation that makes the host wait for the device, or reads the host's memory.

    The operation itself runs as usual.
    """

    def __init__(self, report: Callable[[str], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._report = report

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reason = _waiting(func, args)
        result = func(*args, **(kwargs or {}))
        if reason is None and _crosses(args, result):
            reason = "copies between the host and the device"
        if reason is not None:
            self._report(f"{reason} ({func.name().removeprefix('aten::')})")
        return result


VALUES = ("_local_scalar_dense", "item", "equal", "is_nonzero")
SHAPES = ("nonzero", "masked_select", "unique", "_unique", "_unique2", "unique_dim", "unique_consecutive")


def _waiting(func: Any, args: Any) -> str | None:
    name = func.name().removeprefix("aten::").partition(".")[0]
    if name in VALUES:
        return "reads a tensor's value"
    if name in SHAPES:
        return "has a shape that depends on values"
    by_mask = name in ("index", "index_put", "index_put_", "_unsafe_index") and any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )
    return "selects elements by a mask" if by_mask else None


def _crosses(args: Any, result: Any) -> bool:
    """Whether an argument is on another kind of device than the result; scalar tensors do not count."""
    given = {t.device.type for t in args if isinstance(t, Tensor) and t.dim() > 0}
    return isinstance(result, Tensor) and result.dim() > 0 and bool(given - {result.device.type})
