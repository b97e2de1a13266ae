"""What a worker has before it: a network, an executor on it, the images, and what the call in hand shares.

Whoever runs the worker, a process on this machine or an actor of Ray, brings it messages and takes its answers.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import threadpoolctl
import torch
from torch import nn

from flnl.core.execution import ClientJob, Executor, as_list
from flnl.core.images import Images
from flnl.core.payload import Params
from flnl.data.transforms import Transform
from flnl.engine.executors.serialization import Shared, decode, encode
from flnl.engine.network import PRECISIONS, Layout, Network, fabric_for

Inner = Callable[[Network], Executor]


@dataclass(frozen=True)
class Recipe:
    """How a process that has not inherited a network makes the same one."""

    module: nn.Module
    transform: Transform
    num_classes: int
    device: str
    precision: int | str
    threads: int
    layout: Layout

    @classmethod
    def of(cls, network: Network) -> Recipe:
        """The recipe of a network in this process."""
        names = {name: precision for precision, name in PRECISIONS.items()}
        precision = names[str(network.fabric.strategy.precision.precision)]
        device, threads = network.device.type, torch.get_num_threads()
        return cls(network.module, network.transform, network.num_classes, device, precision, threads, network.layout)

    def network(self) -> Network:
        """The network, and this process's threads as the recipe says."""
        torch.set_num_threads(self.threads)
        threadpoolctl.threadpool_limits(self.threads)
        fabric = fabric_for(self.device, self.precision)
        return Network(self.module, self.transform, self.num_classes, fabric, self.layout)


@dataclass(frozen=True)
class Failure:
    """What a job raised, and where."""

    error: Exception
    trace: str


class RaisedInWorkerError(Exception):
    """Where in a worker an error arose; the cause of that error here."""

    def __str__(self) -> str:
        return f"in a worker:\n{self.args[0]}"


class Workbench:
    """One worker's place."""

    def __init__(self, network: Network, inner: Inner, images: Sequence[Images]) -> None:
        self.network, self.images = network, images
        self.executor = inner(network)
        self.shared = Shared(images)
        self._job: ClientJob[Any] | None = None
        self._reduce: Any = None

    def begin(self, params: Params, call: bytes | memoryview) -> None:
        """A call begins: its parameters, and the encoded job and reduction."""
        # A mapping of its own: on the CPU every call's values lie in the memory of the last one's.
        here = {name: p.to(self.network.device) for name, p in params.items()}
        self.shared = Shared(self.images, here, self.network.device)
        self._job, self._reduce = decode(call, self.shared)

    def work(self, message: bytes | memoryview) -> bytes:
        """The encoded answer to an encoded piece of work, (tasks, whole): blocks, or single results, or a failure."""
        try:
            tasks, whole = decode(message, self.shared)
            assert self._job is not None, "a call has begun"
            if whole:
                return encode(list(self.executor.map(self._job, tasks, self._reduce)), self.shared)
            blocks = self.executor.map(self._job, tasks, as_list)
            return encode([result for block in blocks for result in block.results], self.shared)
        except Exception as error:
            return _failed(error)


def _failed(error: Exception) -> bytes:
    trace = traceback.format_exc()
    try:
        told = pickle.dumps(Failure(error, trace))
        pickle.loads(told)
    except Exception:  # an error whose constructor wants other things than its message
        told = pickle.dumps(Failure(RuntimeError(f"{type(error).__name__}: {error}"), trace))
    return told
