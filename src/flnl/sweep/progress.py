"""Progress of a sweep whose jobs run in other processes: bars on a terminal, elsewhere a line when a job ends."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.markup import escape
from rich.progress import TaskID

from flnl.console.counting import bars
from flnl.console.terminal import cell, print_line, visible
from flnl.storage.input_file import parse_json
from flnl.sweep.ledger import Job, Ledger
from flnl.sweep.table import labels

SECONDS = 0.5
SECONDS_A_JOB = 0.01
"""Minimum interval between two updates, and the additional interval per job, since an update takes time."""
ENOUGH = 5
"""Number of ended jobs from which the remaining time is estimated."""
TAIL = 8192


class Watch:
    """A thread that reads the ledger and shows the progress."""

    def __init__(self, ledger: Ledger, named: Callable[[Sequence[Job]], dict[int, str]] = labels) -> None:
        self._ledger, self._named = ledger, named
        self._started = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._reported: set[int] = set()
        self._bars = bars()
        self._lively = self._bars.console.is_terminal
        self._all = self._bars.add_task("[bold]jobs", total=None)
        self._of: dict[int, TaskID] = {}

    def start(self) -> None:
        """Start watching."""
        if self._lively:
            self._bars.start()
        self._thread.start()

    def stop(self) -> None:
        """Show the last changes, and stop watching."""
        self._over.set()
        self._thread.join()
        self._look()
        if self._lively:
            self._bars.stop()

    def _look_on(self) -> None:
        pause = SECONDS
        while not self._over.wait(pause):
            pause = max(SECONDS, self._look() * SECONDS_A_JOB)

    def _look(self) -> int:
        """Update the display; return the number of jobs."""
        jobs = self._ledger.jobs()
        named = self._named(jobs)
        ended = sum(job.ended for job in jobs)
        self._bars.update(self._all, total=len(jobs), completed=ended)
        for job in jobs:
            if job.status == "running":
                self._running(job, named[job.number])
            elif job.ended and job.number not in self._reported:
                self._reported.add(job.number)
                if (bar := self._of.pop(job.number, None)) is not None:
                    self._bars.remove_task(bar)
                left = self._left(len(self._reported), len(jobs))
                self._print(f"[{len(self._reported)}/{len(jobs)}] {ending(job, named[job.number])}{left}")
        return len(jobs)

    def _left(self, ended: int, jobs: int) -> str:
        """The estimated remaining time; empty until enough jobs have ended."""
        if ended < ENOUGH or ended == jobs:
            return ""
        minutes = (time.monotonic() - self._started) / ended * (jobs - ended) / 60
        return f"  about {minutes:.0f} min left" if minutes >= 1 else ""

    def _running(self, job: Job, label: str) -> None:
        self._reported.discard(job.number)  # a scheduler may have restarted it
        if job.number not in self._of:
            self._of[job.number] = self._bars.add_task(escape(visible(label)), total=None)
            if not self._lively:
                self._print(f"job {job.number} begins: {label}")
        self._bars.update(self._of[job.number], total=job.rounds, completed=rounds_done(job))

    def _print(self, line: str) -> None:
        if self._lively:
            self._bars.console.print(cell(line), highlight=False)
        else:
            print_line(line, to=sys.stderr)


def ending(job: Job, label: str) -> str:
    """A line that reports how a job has ended."""
    parts = [f"job {job.number} {job.status}: {label}"]
    if (accuracy := job.metrics.get("mean_last_10")) is not None:
        parts.append(f"{100 * accuracy:.2f} %")
    if job.seconds is not None:
        parts.append(f"{job.seconds:.0f} s")
    return "  ".join([*parts, *([job.error] if job.error else [])])


def rounds_done(job: Job) -> int:
    """Number of rounds that a running job has recorded."""
    if job.folder is None:
        return 0
    try:
        with (Path(job.folder) / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            whole = file.read().rpartition(b"\n")[0]  # the last line may be incomplete
        return int(parse_json(whole.rpartition(b"\n")[2])["round"])
    except (OSError, ValueError, LookupError):
        return 0
