"""Worker processes on this machine, which live as long as the run and share its images.

A worker is forked where that is safe: it inherits network and images, and the system copies only pages that somebody
writes. Elsewhere it starts afresh and finds the images in shared memory. Parameters lie in one place that all workers
see and are written there once a call.
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
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch

from flnl.core.images import Images
from flnl.core.payload import Params
from flnl.core.ranges import PositiveCount
from flnl.engine.executors.dispatch import Crew, Crewed, Lost
from flnl.engine.executors.serialization import Shared, encode, pack
from flnl.engine.executors.shared_memory import Place, place
from flnl.engine.executors.worker import CALL, SIGNALS, WORK, serve
from flnl.engine.executors.worker_context import Inner, Recipe, Workbench
from flnl.engine.network import Network

Start = Literal["fork", "spawn"]


def usable_cores() -> int:
    """Cores that this process may use: those it is bound to, or fewer where its container has a share of time only."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(bound, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return bound


def best_start() -> Start:
    """Fork on Linux where this process has no threads of torch's own; a fork has none of them, and would wait for them.

    Where there is a GPU, backward passes run in such threads, even on the CPU.
    """
    safe = sys.platform == "linux" and torch.get_num_threads() == 1 and not torch.cuda.is_available()
    return "fork" if safe else "spawn"


def python_path() -> str:
    """``PYTHONPATH`` with which another Python finds what this one does."""
    return os.pathsep.join(folder or str(Path.cwd()) for folder in sys.path)


@dataclass(frozen=True)
class Processes(Crewed):
    """Clients in worker processes. ``inner`` is the executor that each of them has on its own network.

    ``workers=null`` takes as many as there are usable cores, each with as many threads as this process.
    """

    workers: PositiveCount | None
    start: Literal["auto", "fork", "spawn"]

    @property
    def count(self) -> int:
        """Workers at most."""
        return self.workers or max(1, usable_cores() // torch.get_num_threads())

    @property
    def _start(self) -> Start:
        return best_start() if self.start == "auto" else self.start

    def open(self, images: Sequence[Images], params: Params) -> Crew:
        """Workers that start when they get their first piece of work."""
        kind = Forked if self._start == "fork" else Spawned
        return kind(self.count, self.network, self.inner, images, params)

    def settings(self) -> dict[str, Any]:
        """As they were settled here."""
        return {**super().settings(), "start": self._start}


@dataclass
class Worker:
    """A worker as its parent sees it."""

    pid: int
    connection: Connection
    process: subprocess.Popen[bytes] | None = None  # of one that was started afresh
    begun: bool = False  # the call in hand is known to it
    busy: bool = False

    def end(self) -> int:
        """End it if it has not, and give its exit code, negative for a signal."""
        self.connection.close()
        try:
            os.kill(self.pid, signal.SIGKILL)  # to one that has ended, nothing
            if self.process is not None:
                return self.process.wait()
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except (ProcessLookupError, ChildProcessError):
            return 0


class Local(Crew):
    """Processes at the other ends of connections."""

    def __init__(self, workers: int, network: Network, inner: Inner, images: Sequence[Images], params: Params) -> None:
        self.workers = workers
        self._network, self._inner, self._images = network, inner, images
        self._received: Place = place(pack({name: p.cpu() for name, p in params.items()})[0])
        self._params: Params = self._received.map().value()
        self._call = b""
        self._at: dict[int, Worker] = {}  # those that run, by number

    @abstractmethod
    def start(self, theirs: Connection) -> tuple[int, subprocess.Popen[bytes] | None]:
        """Start a process that serves this end of a connection."""

    def begin(self, params: Params, call: bytes) -> None:
        """Write the parameters where the workers read them."""
        for name, shared in self._params.items():
            shared.copy_(params[name])
        self._call = CALL + call
        for found in self._at.values():
            found.begun = False

    def hand(self, worker: int, work: bytes) -> None:
        """Send a piece of work. That a worker is gone shows when its answer is read."""
        found = self._at.get(worker) or self._hire(worker)
        found.busy = True
        try:
            if not found.begun:
                found.connection.send_bytes(self._call)
                found.begun = True
            found.connection.send_bytes(WORK + work)
        except (BrokenPipeError, ConnectionResetError):
            return

    def _hire(self, number: int) -> Worker:
        ours, theirs = multiprocessing.Pipe()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the worker ignores them
        try:
            pid, process = self.start(theirs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._at[number] = Worker(pid, ours, process)
        return self._at[number]

    def answers(self) -> list[tuple[int, bytes | Lost]]:
        """What has come back."""
        busy = {found.connection: number for number, found in self._at.items() if found.busy}
        return [(busy[ready], self._answer(busy[ready])) for ready in wait(list(busy)) if isinstance(ready, Connection)]

    def _answer(self, number: int) -> bytes | Lost:
        found = self._at[number]
        found.busy = False
        try:
            return found.connection.recv_bytes()
        except (EOFError, OSError):
            del self._at[number]
            code = found.end()
            how = f"was killed by signal {-code}" if code < 0 else f"left with status {code}"
            return Lost(f"worker {number} (process {found.pid})", how)

    def abandon(self) -> None:
        """End the workers that are at something."""
        for number in [number for number, found in self._at.items() if found.busy]:
            self._at.pop(number).end()

    def close(self) -> None:
        """End all workers."""
        while self._at:
            self._at.popitem()[1].end()
        if self._received.descriptor >= 0:
            os.close(self._received.descriptor)


class Forked(Local):
    """Copies of this process as it was when they were made."""

    def start(self, theirs: Connection) -> tuple[int, None]:
        """Fork."""
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: nothing of theirs is used
            pid = os.fork()
        if pid == 0:
            self._become_worker(theirs)
        return pid, None

    def _become_worker(self, theirs: Connection) -> NoReturn:
        code = 1
        try:
            gc.freeze()  # what was the parent's is not collected here: that would close what is not ours
            for entry in list(Path("/proc/self/fd").iterdir()):
                if (descriptor := int(entry.name)) > 2 and descriptor != theirs.fileno():
                    _close(descriptor)  # the run's lock among them, which would outlive the parent
            serve(theirs, Workbench(self._network, self._inner, self._images), self._params)
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
        return  # that of the listing itself


class Spawned(Local):
    """Processes started afresh, which share the images."""

    def __init__(self, workers: int, network: Network, inner: Inner, images: Sequence[Images], params: Params) -> None:
        super().__init__(workers, network, inner, images, params)
        recipe = encode((Recipe.of(network), inner), Shared())
        packed, tensors = pack((recipe, list(images)))
        self._kit = place(packed)
        for tensor, shared in zip(tensors, pack(self._kit.map().value())[1], strict=True):
            tensor.set_(shared.untyped_storage(), 0, shared.size(), shared.stride())  # the same values, in memory once

    def start(self, theirs: Connection) -> tuple[int, subprocess.Popen[bytes]]:
        """Start a Python that imports what it needs."""
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

    def _hire(self, number: int) -> Worker:
        found = super()._hire(number)
        found.connection.send_bytes(pickle.dumps((self._kit, self._received)))
        return found

    def close(self) -> None:
        """End all workers and let go of the memory."""
        super().close()
        os.close(self._kit.descriptor)
