"""A worker's context: its network, the executor on it, the images, and the objects shared in the current call.

It is independent of the transport: a local process or a Ray actor passes it messages and returns its answers.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import threadpoolctl
import torch
from torch import nn

from flnl.core.errors import RaisedInWorkerError, UserError, in_one_line, in_users_code
from flnl.core.execution import BLOCK, ClientJob, Executor
from flnl.core.images import Images
from flnl.core.inputs import Preparation
from flnl.core.payload import Params
from flnl.core.tally import Tally
from flnl.core.usage import Usage, Used
from flnl.engine.executors.serialization import Shared, decode, encode
from flnl.engine.network import Layout, Network
from flnl.engine.placement import PRECISIONS, placement_for

Inner = Callable[[Network], Executor]


@dataclass(frozen=True)
class Recipe:
    """Everything a new process needs to rebuild the network."""

    module: nn.Module
    transform: Preparation
    num_classes: int
    device: str
    precision: int | str
    threads: int
    layout: Layout

    @classmethod
    def of(cls, network: Network) -> Recipe:
        """The recipe of a network in this process."""
        names = {name: precision for precision, name in PRECISIONS.items()}
        precision = names[network.placement.precision]
        device, threads = str(network.device), torch.get_num_threads()
        return cls(network.module, network.transform, network.num_classes, device, precision, threads, network.layout)

    def encoded(self, inner: Inner) -> bytes:
        """The recipe and the executor ``inner`` for a new process.

        Raises:
            UserError: if the network cannot be sent to another process.
        """
        try:
            return encode((self, inner), Shared())
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            network = f"{type(self.module).__module__}.{type(self.module).__qualname__}"
            raise UserError(
                f"the network {network} cannot be sent to a new worker process ({in_one_line(error)}): use "
                "executor=sequential or stacked, or replace what the error names, such as a lambda, by a function"
            ) from error

    def network(self) -> Network:
        """Build the network, and set this process's number of threads."""
        torch.set_num_threads(self.threads)
        threadpoolctl.threadpool_limits(self.threads)
        placement = placement_for(self.device, self.precision)
        return Network(self.module, self.transform, self.num_classes, placement, self.layout)


@dataclass(frozen=True)
class Failure:
    """An exception that a job raised, with its traceback and its place in the user's own code."""

    error: Exception
    cause: RaisedInWorkerError


@dataclass(frozen=True)
class Answer:
    """What a worker has made of a piece of work, and what that took."""

    results: list[Any]  # blocks, or single results
    tally: Tally  # of this piece
    usage: Usage  # of the worker since its last answer


class WorkerContext:
    """One worker's state, and the operations on it."""

    def __init__(self, network: Network, inner: Inner, images: Sequence[Images]) -> None:
        self.network, self.images = network, images
        self.executor = inner(network)
        self.shared = Shared(images)
        self._job: ClientJob[Any] | None = None
        self._reduce: Any = None
        self._failed: bytes | None = None  # the encoded failure to begin the current call
        self._used = Used(network.device, whole=True)

    def begin(self, params: Params, call: bytes | memoryview) -> None:
        """Start a call with its parameters and its encoded job, reduction and messages for all clients.

        An error is the answer to all work of the call, which this worker cannot do.
        """
        self._job = self._reduce = self._failed = None
        try:
            # A new mapping per call, so that identity checks notice it: on the CPU the tensors share one memory.
            here = {name: p.to(self.network.device) for name, p in params.items()}
            self.shared = Shared(self.images, here, self.network.device)
            self._job, self._reduce, messages = decode(call, self.shared)
            self.shared = replace(self.shared, messages=messages)
        except Exception as error:
            self._failed = _failed(error)

    def work(self, message: bytes | memoryview) -> bytes:
        """Run an encoded piece of work, (tasks, groups, whole); return the encoded answer or failure."""
        if self._failed is not None:
            return self._failed
        try:
            tasks, groups, whole = decode(message, self.shared)
            assert self._job is not None, "a call has begun"
            self.network.meter.pop()  # a forked worker has its parent's, and a piece that failed has left some
            results: list[Any] = [None] * len(tasks)
            for group in groups:
                for i, result in zip(group, self.executor.run_group(self._job, [tasks[i] for i in group]), strict=True):
                    results[i] = result
            if whole:
                results = [self._reduce(results[i : i + BLOCK]) for i in range(0, len(results), BLOCK)]
            return encode(Answer(results, self.network.meter.pop(), self._used.pop()), self.shared)
        except Exception as error:
            return _failed(error)


def _failed(error: Exception) -> bytes:
    cause = RaisedInWorkerError(traceback.format_exc(), in_users_code(error))
    try:
        encoded = pickle.dumps(Failure(error, cause))
        pickle.loads(encoded)
    except Exception:  # errors whose constructor takes more than a message cannot be unpickled
        encoded = pickle.dumps(Failure(RuntimeError(f"{type(error).__name__}: {error}"), cause))
    return encoded
