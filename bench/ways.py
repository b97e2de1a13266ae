"""The ways to run a workload, and the process that runs one of them."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.memory import Sampler, cpu_seconds, started, tree
from flnl.console.cores import multiplies_bf16

ROOT = Path(__file__).resolve().parent.parent
PEERS_PYTHON = ROOT / "bench/.venv-peers/bin/python"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "WANDB_MODE": "disabled",
    "PYTHONUNBUFFERED": "1",
}
Kind = Literal["hand", "centralised", "ours", "peer"]


class WayError(Exception):
    """A way has failed; the message gives the reason."""


@dataclass(frozen=True)
class Way:
    """A named command; ``{job}`` and ``{folder}`` are replaced."""

    name: str
    kind: Kind
    command: tuple[str, ...]
    start_timeout: float = 240.0


HAND = Way("hand", "hand", (sys.executable, "-m", "bench.hand", "{job}"))
CENTRALISED = Way("centralised", "centralised", (sys.executable, "-m", "bench.centralised", "{job}"))
PEERS = tuple(
    Way(name, "peer", (str(PEERS_PYTHON), "-m", f"bench.peers.{name}", "{job}")) for name in ("flower", "pfl", "fluke")
)


def executors(conf: Path = ROOT / "conf/executor") -> list[str]:
    """The configured executors, the sequential one first; without ``served``, which ``flnl serve`` alone can begin."""
    names = (p.stem for p in conf.glob("*.yaml") if p.stem != "served")
    return sorted(names, key=lambda name: (name != "sequential", name))


def ways(conf: Path = ROOT / "conf/executor") -> dict[str, Way]:
    """All ways by name: the baseline, the bound, our executors, workers that stack, bf16 if a CPU has AMX, others'."""
    command = (sys.executable, "-m", "bench.ours", "{job}")
    ours = [Way(name, "ours", (*command, name, "{folder}")) for name in executors(conf)]
    stacks = Way("workers-stack", "ours", (*command, "processes", "{folder}", "executor/inner=stacked"))
    bf16 = Way("bf16", "ours", (*command, "auto", "{folder}", "precision=bf16"))
    more = [stacks, bf16] if multiplies_bf16() else [stacks]
    return {way.name: way for way in (HAND, CENTRALISED, *ours, *more, *PEERS)}


def environment() -> dict[str, str]:
    """The environment of all processes: one thread, no telemetry or accounts, this checkout."""
    paths = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **dict.fromkeys(THREADS, "1"), **SILENT, "PYTHONPATH": paths, "CUDA_VISIBLE_DEVICES": ""}


class Running:
    """A started way. All failures raise ``WayError``, and every wait has a timeout."""

    def __init__(self, way: Way, job: Path, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.way, self.log = way, folder / f"{way.name}.log"
        self.about: dict[str, Any] = {}
        self.peak, self.processes = 0, 1
        self._seen: dict[int, str] = {}  # its processes, with their start times
        self._began = time.perf_counter()
        filled = [word.format(job=job, folder=folder / way.name) for word in way.command]
        try:
            with self.log.open("w") as log:
                self._process = subprocess.Popen(
                    filled,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    cwd=ROOT,
                    env=environment(),
                    start_new_session=True,
                )
        except OSError as error:
            raise WayError(f"could not be started: {error.strerror} ({filled[0]})") from error
        self._lines: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ready(self) -> float:
        """Wait for the end of the first round and return the seconds since the start.

        Raises:
            WayError: if the process ends before that, or takes too long.
        """
        with Sampler(self._process.pid, every=0.5) as sampler:
            self.about = self._answer(self.way.start_timeout - (time.perf_counter() - self._began))
        self._remember(sampler)
        seconds = time.perf_counter() - self._began
        self._signal(signal.SIGSTOP)
        return seconds

    def turn(self, rounds: int, timeout: float) -> tuple[float, float]:
        """Run rounds and return wall-clock and CPU seconds per round.

        Raises:
            WayError: if it fails or takes too long.
        """
        members = self._signal(signal.SIGCONT)
        before = cpu_seconds(members)
        with Sampler(self._process.pid, every=3.0) as sampler:
            self._ask(rounds)
            answer = self._answer(timeout)
        spent = cpu_seconds(members) - before
        self._remember(sampler)
        self.about = {**self.about, **answer}
        self._signal(signal.SIGSTOP)
        return float(answer["seconds"]) / rounds, spent / rounds

    def _signal(self, number: signal.Signals) -> list[int]:
        """Stop its processes while others have their turn, or let them go on; those that got the signal."""
        members = tree(self._process.pid)
        for member in members:
            with suppress(ProcessLookupError):
                os.kill(member, number)
        return members

    def _remember(self, sampler: Sampler) -> None:
        self.peak = max(self.peak, sampler.peak)
        self.processes = max(self.processes, sampler.processes)
        self._seen |= sampler.seen

    def _ask(self, rounds: int) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"rounds": rounds}) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:  # ValueError: the pipe is closed
            raise WayError(f"ended by itself: {self._reason()}") from error

    def _answer(self, timeout: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=max(timeout, 0.1))
        except queue.Empty:
            raise WayError(f"no answer in {timeout:.0f} s") from None
        if not line:
            raise WayError(f"ended by itself: {self._reason()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _reason(self) -> str:
        """The last line of the process's log, or the last error if there is one."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error" in line]
        return (errors or lines or ["no output"])[-1][-300:]

    def close(self, patience: float = 15.0) -> None:
        """Ask the process to end; after ``patience`` seconds, kill it and its children."""
        sampler = Sampler(self._process.pid, every=1.0)
        sampler.look()
        self._remember(sampler)
        self._signal(signal.SIGCONT)
        try:
            self._ask(0)
            self._process.wait(patience)
        except (WayError, subprocess.TimeoutExpired):
            pass
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self._left():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            end = time.monotonic() + 5.0
            while self._left() and time.monotonic() < end:
                time.sleep(0.1)
        self._process.wait()
        self._listener.join(5.0)
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                assert pipe is not None
                pipe.close()

    def _left(self) -> list[int]:
        """Its processes that still exist."""
        return [pid for pid, at in self._seen.items() if started(pid) == at]
