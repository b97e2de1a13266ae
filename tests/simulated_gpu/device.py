"""Registers the simulated GPU with torch: ``torch.device("sim")``, and ``torch.sim`` with ``torch.cuda``'s names."""

import contextlib
import itertools
import os
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch.utils import backend_registration

from tests.simulated_gpu.library import load
from tests.simulated_gpu.waits import Mode, Waits

NAME = "sim"
MEMORY = 8 * 2**30
"""Bytes of memory that it says it has."""

SITE = Path(__file__).with_name("site")
"""With this folder on its path and FLNL_SIMULATED_GPU=1, or 2, in its environment, a new process has so many GPUs."""

MODES: tuple[Mode, ...] = ("default", "warn", "error")
"""Ways to watch for waits, by their numbers."""

waits = Waits()
"""What made the host wait; for all tests of the process."""

_process = os.getpid()
_installed = False
_warned = False  # of the watch for waits, once in a process
_current: list[Any] = []  # the streams that blocks have chosen, the innermost last
_pools: dict[Any, WeakSet[Any]] = {}  # the graphs that live in each memory pool
_failed: set[Any] = set()  # pools in which a recording has failed
_numbers = itertools.count(1)


class Stream:
    """A stream; everything is synchronous, so it orders nothing."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.number, self.device = next(_numbers), torch.device(NAME, load().current())

    def wait_stream(self, other: Any) -> None:
        """Nothing is pending."""

    def wait_event(self, event: Any) -> None:
        """Nothing is pending."""

    def synchronize(self) -> None:
        """Nothing is pending."""

    def record_event(self, event: Any = None) -> Any:
        """An event that has happened."""
        return event or Event()

    def query(self) -> bool:
        """Whether all work is done."""
        return True


class Event:
    """An event, which has always happened."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Nothing is pending."""

    def wait(self, stream: Any = None) -> None:
        """Nothing is pending."""

    def synchronize(self) -> None:
        """Nothing is pending."""

    def elapsed_time(self, other: Any) -> float:
        """Milliseconds; none."""
        return 0.0


class CUDAGraph:
    """The operations between begin and end of a recording, repeated on the same memory."""

    def __init__(self) -> None:
        self.recording = load().Recording()
        self.complete = False

    def replay(self) -> None:
        """Repeat the operations."""
        assert self.complete, "Called CUDAGraph::replay without a preceding successful capture."
        self.recording.replay()

    def pool(self) -> Any:
        """The identity of a memory pool."""
        return (0, id(self))

    def reset(self) -> None:
        """Nothing is kept apart."""


@contextlib.contextmanager
def graph(cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "") -> Iterator[None]:
    """Record the operations of the block, as ``torch.cuda.graph`` does.

    As there, a recording that fails leaves its stream the current one and, up to torch 2.11, its pool in use. A pool
    ends with its last graph: torch then refuses it while any of its memory is in use, and this always.
    """
    _current.append(Stream() if stream is None else stream)
    pool = cuda_graph.pool() if pool is None else pool
    if pool in _failed:
        raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
    if pool in _pools and not _pools[pool]:
        raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED: all graphs of this memory pool are gone")
    _pools.setdefault(pool, WeakSet()).add(cuda_graph)
    cuda_graph.recording.begin()
    try:
        yield
    finally:
        try:
            cuda_graph.recording.end()
        except RuntimeError:
            _failed.add(pool)
            raise
        _current.pop()
        if not len(cuda_graph.recording):
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong "
                "device or stream.",
                stacklevel=3,
            )
        cuda_graph.complete = True


@contextlib.contextmanager
def use_stream(stream: Any) -> Iterator[Any]:
    """``torch.cuda.stream``; afterwards the stream before is the current one, whatever was left in between."""
    before = len(_current)
    _current.append(stream)
    try:
        yield stream
    finally:
        del _current[before:]


def count() -> int:
    """How many GPUs this process sees: as many as FLNL_SIMULATED_GPU says, or those of CUDA_VISIBLE_DEVICES."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    here = int(os.environ.get("FLNL_SIMULATED_GPU", "1"))
    return here if seen is None else len([one for one in seen.split(",") if one])


def _generator() -> torch.Generator:
    generator: torch.Generator = load().default_generator()
    return generator


def _module() -> types.ModuleType:
    """``torch.sim``."""
    library, device = load(), torch.device(NAME, 0)
    default = Stream()
    properties = types.SimpleNamespace(
        name="simulated GPU", total_memory=MEMORY, major=9, minor=0, multi_processor_count=1
    )
    names: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: os.getpid() != _process,
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "device_count": count,
        "current_device": library.current,
        "set_device": lambda device: library.set_current(torch.device(device).index),
        "synchronize": lambda device=None: None,
        "get_device_name": lambda device=None: properties.name,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_device_properties": lambda device=None: properties,
        "is_bf16_supported": lambda *_, **__: True,
        "mem_get_info": lambda device=None: (MEMORY - library.allocated(), MEMORY),
        "memory_allocated": lambda device=None: library.allocated(),
        "memory_reserved": lambda device=None: library.allocated(),
        "max_memory_allocated": lambda device=None: library.peak(),
        "reset_peak_memory_stats": lambda device=None: library.reset_peak(),
        "empty_cache": lambda: None,
        "default_generators": (_generator(),) * 2,
        "get_rng_state": lambda device=device: _generator().get_state(),
        "set_rng_state": lambda state, device=device: _generator().set_state(state),
        "get_rng_state_all": lambda: [_generator().get_state()],
        "set_rng_state_all": lambda states: _generator().set_state(states[0]),
        "manual_seed": lambda seed: _generator().manual_seed(seed),
        "manual_seed_all": lambda seed: _generator().manual_seed(seed),
        "initial_seed": lambda: _generator().initial_seed(),
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
        "device": lambda device=None: contextlib.nullcontext(),
        "device_of": lambda device=None: contextlib.nullcontext(),
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": CUDAGraph,
        "graph": graph,
        "graph_pool_handle": lambda: (0, next(_numbers)),
        "stream": use_stream,
        "current_stream": lambda device=None: _current[-1] if _current else default,
        "default_stream": lambda device=None: default,
        "is_current_stream_capturing": lambda: library.capturing(),
        "set_sync_debug_mode": _set_mode,
        "get_sync_debug_mode": lambda: MODES.index(waits.mode),
    }
    module = types.ModuleType(f"torch.{NAME}")
    vars(module).update(names)
    return module


def _set_mode(mode: Mode | int) -> None:
    """Set it, then warn the first time in a process, as torch does."""
    global _warned
    waits.mode = MODES[mode] if isinstance(mode, int) else mode
    if not _warned:
        _warned = True
        warnings.warn(
            "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations",
            stacklevel=3,
        )


def install() -> None:
    """Make the device known in this process; a second call does nothing.

    Raises:
        UnavailableError: if it cannot be built here.
    """
    global _installed
    if _installed:
        return
    library = load()
    backend_registration.rename_privateuse1_backend(NAME)
    library.hooks()
    library.poison(True)
    torch._register_device_module(NAME, _module())
    backend_registration.generate_methods_for_privateuse1_backend(for_storage=True)
    library.listen(waits)
    _accept_streams()
    _installed = True


def _accept_streams() -> None:
    """Let ``Tensor.record_stream`` take this device's streams, which torch does not know."""
    original = torch.Tensor.record_stream

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        if not isinstance(stream, Stream):
            original(self, stream)

    torch.Tensor.record_stream = record_stream  # type: ignore[method-assign, assignment]
