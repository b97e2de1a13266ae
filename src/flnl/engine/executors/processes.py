"""Worker processes on this machine, which live as long as the run and share its images.

Where forking is safe, workers are forked: they inherit network and images, and the system copies only modified pages.
Elsewhere workers are spawned and map the images from shared memory. Parameters are written once per call to memory
that all workers share.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import traceback
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch

from flnl.console.cores import usable_cores
from flnl.core.errors import UserError
from flnl.core.images import Images
from flnl.core.payload import Params
from flnl.core.ranges import PositiveCount
from flnl.engine.executors.dispatch import LostWorker, PooledExecutor, WorkerPool
from flnl.engine.executors.serialization import pack
from flnl.engine.executors.shared_memory import Place, place
from flnl.engine.executors.worker import CALL, SIGNALS, WORK, serve
from flnl.engine.executors.worker_context import Inner, Recipe, WorkerContext
from flnl.engine.network import Network

Start = Literal["fork", "spawn"]

WORKER_BYTES = 2 * 2**30
"""Memory of a GPU to expect for each worker: its context, its copy of the images, and the training of one client."""


def best_start() -> Start:
    """Fork on Linux if torch has no threads of its own here; a fork loses them and would wait for them forever.

    On a machine with a GPU, backward passes use such threads even on the CPU.
    """
    safe = sys.platform == "linux" and torch.get_num_threads() == 1 and not torch.cuda.is_available()
    return "fork" if safe else "spawn"


def that_fit(device: torch.device) -> int:
    """How many workers fit ``device`` by ``WORKER_BYTES``, of the memory that is free now; at least one."""
    free, _ = torch.get_device_module(device).mem_get_info(device)
    return max(1, int(free) // WORKER_BYTES)


def python_path() -> str:
    """A ``PYTHONPATH`` that gives another Python process this one's import path."""
    return os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)


@dataclass(frozen=True)
class Processes(PooledExecutor):
    """Clients in worker processes. ``inner`` is the executor that each worker runs on its network.

    ``workers=null`` starts as many workers as the usable cores allow if each has this process's number of threads; on
    a GPU, at most as many as fit its free memory.
    """

    workers: PositiveCount | None
    start: Literal["auto", "fork", "spawn"]

    def __post_init__(self) -> None:
        """Check the settings against the device.

        Raises:
            UserError: if workers that use a GPU are to be forked.
        """
        super().__post_init__()
        if self.start == "fork" and self._on_accelerator:
            raise UserError(
                f"executor.start=fork, but device={self.network.device.type}: a forked process cannot use the GPU; use "
                "executor.start=spawn"
            )

    @property
    def _on_accelerator(self) -> bool:
        return self.network.device.type != "cpu"

    @property
    def count(self) -> int:
        """Maximum number of workers."""
        if self.workers is not None:
            return self.workers
        cores = max(1, usable_cores() // torch.get_num_threads())
        return min(cores, self._that_fit) if self._on_accelerator else cores

    @property
    def shares_evaluation(self) -> bool:
        """Whether workers are forked, so that they have new images at once."""
        return self._start == "fork"

    @cached_property
    def _that_fit(self) -> int:
        return that_fit(self.network.device)

    @property
    def _start(self) -> Start:
        if self.start == "auto":
            return "spawn" if self._on_accelerator else best_start()
        return self.start

    def open(self, images: Sequence[Images], params: Params) -> WorkerPool:
        """Create workers, each of which starts when it gets its first piece of work."""
        kind = Forked if self._start == "fork" else Spawned
        return kind(self.count, self.network, self.inner, images, params)

    def settings(self) -> dict[str, Any]:
        """The effective settings."""
        return {**super().settings(), "start": self._start}


@dataclass
class Worker:
    """The parent's handle of a worker."""

    pid: int
    connection: Connection
    process: subprocess.Popen[bytes] | None = None  # None for a forked worker
    begun: bool = False  # it has received the current call
    busy: bool = False

    def end(self) -> int:
        """Kill the worker if it still runs; return its exit code, negative for a signal."""
        self.connection.close()
        try:
            os.kill(self.pid, signal.SIGKILL)  # no effect on a worker that has ended
            if self.process is not None:
                return self.process.wait()
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except (ProcessLookupError, ChildProcessError):
            return 0


class Local(WorkerPool):
    """Local worker processes, each at the other end of a connection."""

    def __init__(self, workers: int, network: Network, inner: Inner, images: Sequence[Images], params: Params) -> None:
        self.workers = workers
        self._network, self._inner, self._images = network, inner, images
        self._received: Place = place(pack({name: p.cpu() for name, p in params.items()})[0])
        self._params: Params = self._received.map().value()
        self._call = b""
        self._at: dict[int, Worker] = {}  # running workers by number

    @abstractmethod
    def start(self, theirs: Connection) -> tuple[int, subprocess.Popen[bytes] | None]:
        """Start a process that serves the connection ``theirs``."""

    def begin(self, params: Params, call: bytes) -> None:
        """Write the parameters to the memory that the workers read."""
        for name, shared in self._params.items():
            shared.copy_(params[name])
        self._call = CALL + call
        for worker in self._at.values():
            worker.begun = False

    def submit(self, worker: int, work: bytes) -> None:
        """Send a piece of work. A dead worker is noticed when its answer is read."""
        handle = self._at.get(worker) or self._start_worker(worker)
        handle.busy = True
        try:
            if not handle.begun:
                handle.connection.send_bytes(self._call)
                handle.begun = True
            handle.connection.send_bytes(WORK + work)
        except (BrokenPipeError, ConnectionResetError):
            return

    def _start_worker(self, number: int) -> Worker:
        ours, theirs = multiprocessing.Pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the worker ignores them
        try:
            pid, process = self.start(theirs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._at[number] = Worker(pid, ours, process)
        return self._at[number]

    def answers(self) -> list[tuple[int, bytes | LostWorker]]:
        """The answers that have arrived; waits for at least one."""
        busy = {worker.connection: number for number, worker in self._at.items() if worker.busy}
        return [(busy[ready], self._answer(busy[ready])) for ready in wait(list(busy)) if isinstance(ready, Connection)]

    def _answer(self, number: int) -> bytes | LostWorker:
        worker = self._at[number]
        worker.busy = False
        try:
            return worker.connection.recv_bytes()
        except (EOFError, OSError):
            del self._at[number]
            code = worker.end()
            how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
            return LostWorker(f"worker {number} (process {worker.pid})", how)

    def abandon(self) -> None:
        """End the busy workers."""
        for number in [number for number, worker in self._at.items() if worker.busy]:
            self._at.pop(number).end()

    def close(self) -> None:
        """End all workers."""
        while self._at:
            self._at.popitem()[1].end()
        if self._received.descriptor >= 0:
            os.close(self._received.descriptor)


class Forked(Local):
    """Workers forked from this process."""

    def start(self, theirs: Connection) -> tuple[int, None]:
        """Fork a worker."""
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads: the fork uses none
            pid = os.fork()
        if pid == 0:
            self._become_worker(theirs)
        return pid, None

    def _become_worker(self, theirs: Connection) -> NoReturn:
        code = 1
        try:
            gc.freeze()  # do not collect the parent's objects here: that would close the parent's resources
            for entry in list(Path("/proc/self/fd").iterdir()):
                if (descriptor := int(entry.name)) > 2 and descriptor != theirs.fileno():
                    _close(descriptor)  # includes the run's lock, which would otherwise outlive the parent
            serve(theirs, WorkerContext(self._network, self._inner, self._images), self._params)
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        return  # the descriptor of the directory listing itself


class Spawned(Local):
    """Workers started as new Python processes, which map the images from shared memory."""

    def __init__(self, workers: int, network: Network, inner: Inner, images: Sequence[Images], params: Params) -> None:
        super().__init__(workers, network, inner, images, params)
        recipe = Recipe.of(network).encoded(inner)
        packed, tensors = pack((recipe, list(images)))
        self._kit = place(packed)
        for tensor, shared in zip(tensors, pack(self._kit.map().value())[1], strict=True):
            tensor.set_(shared.untyped_storage(), 0, shared.size(), shared.stride())  # the parent uses the shared copy

    def start(self, theirs: Connection) -> tuple[int, subprocess.Popen[bytes]]:
        """Start a new Python process."""
        threads = str(torch.get_num_threads())
        environment = {**os.environ, "PYTHONPATH": python_path()}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        process = subprocess.Popen(
            [sys.executable, "-c", "from flnl.engine.executors.worker import main; main()", str(theirs.fileno())],
            pass_fds=(theirs.fileno(), self._kit.descriptor, self._received.descriptor),
            env=environment,
            stdin=subprocess.DEVNULL,
        )
        return process.pid, process

    def _start_worker(self, number: int) -> Worker:
        worker = super()._start_worker(number)
        worker.connection.send_bytes(pickle.dumps((self._kit, self._received)))
        return worker

    def close(self) -> None:
        """End all workers and release the shared memory."""
        super().close()
        os.close(self._kit.descriptor)
