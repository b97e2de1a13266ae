"""The ledger of a sweep: ``sweep.json`` lists its jobs, ``jobs/<number>.json`` holds the state of each.

It consists of files because jobs run in other processes and on other machines, and may be killed at any time.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from flnl.console.credentials import redacted_in
from flnl.record.sweeps import JOBS, PLAN, read_json
from flnl.storage.atomic import write_atomically

STOP = ".stop"
"""The file that keeps further jobs from beginning; it holds the number of the signal that asked for it."""

Status = Literal["waiting", "running", "finished", "stopped", "interrupted", "failed", "refused", "killed"]
"""Status of a job. refused: its overrides were invalid; killed: its process ended without recording a status."""

DONE: Sequence[Status] = ("finished", "stopped")
"""The successful ends of a job; stopped: at ``max_rounds``."""


@dataclass(frozen=True)
class Job:
    """The current state of one job of a sweep."""

    number: int
    overrides: Sequence[str]
    status: Status = "waiting"
    folder: str | None = None  # the run's; that of an earlier run if the job continues it
    rounds: int | None = None  # total number of rounds
    error: str | None = None
    started: float | None = None  # seconds since the epoch
    seconds: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    unsynchronised: str | None = None  # its offline W&B folder
    host: str = ""
    pid: int = 0

    @property
    def ended(self) -> bool:
        """Whether the job has ended in this sweep."""
        return self.status not in ("waiting", "running")

    @property
    def here(self) -> bool:
        """Whether it runs or has run on this machine."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether its process exists; assumed for jobs on other machines."""
        if not self.here:
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


class Ledger:
    """The ledger in a sweep's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def plan(self, jobs: Sequence[Sequence[str]], command: Sequence[str]) -> None:
        """Record the planned jobs, and remove those of an earlier sweep in this folder."""
        (self.folder / JOBS).mkdir(parents=True, exist_ok=True)
        for file in (self.folder / JOBS).glob("*.json"):
            file.unlink()
        (self.folder / STOP).unlink(missing_ok=True)
        text = redacted_in({"command": list(command), "jobs": [list(job) for job in jobs]})
        write_atomically(self.folder / PLAN, json.dumps(text, indent=1).encode())

    def write(self, job: Job) -> None:
        """Record the state of ``job``."""
        (self.folder / JOBS).mkdir(parents=True, exist_ok=True)
        text = json.dumps(redacted_in(asdict(job)), indent=1, default=str)
        write_atomically(self.folder / JOBS / f"{job.number}.json", text.encode())

    def jobs(self) -> list[Job]:
        """All jobs, sorted by number; a running job whose process is gone has been killed."""
        planned = read_json(self.folder / PLAN).get("jobs", [])
        jobs = {number: Job(number, overrides) for number, overrides in enumerate(planned)}
        for file in (self.folder / JOBS).glob("*.json"):
            if (job := _job(read_json(file))) is not None:
                gone = job.status == "running" and not job.alive
                jobs[job.number] = replace(job, status="killed") if gone else job
        return [jobs[number] for number in sorted(jobs)]

    def close(self) -> None:
        """Record as killed what still runs by its own account: the launcher has seen the end of every job."""
        for job in self.jobs():
            if job.status == "running":
                self.write(replace(job, status="killed"))

    @property
    def stopping(self) -> bool:
        """Whether jobs that have not begun must not begin."""
        return (self.folder / STOP).exists()

    def stop(self, by: int | None = None) -> None:
        """Prevent jobs that have not begun from beginning.

        Args:
            by: number of the signal that the sweep has received, if any.
        """
        (self.folder / STOP).write_text("" if by is None else str(int(by)))

    @property
    def stopped_by(self) -> int | None:
        """Number of the signal that has stopped the sweep, such as that of Ctrl-C; None if none has."""
        try:
            return int((self.folder / STOP).read_text())
        except (OSError, ValueError):
            return None

    def go(self) -> None:
        """Undo a ``stop`` that an orphaned job of an earlier sweep has requested."""
        (self.folder / STOP).unlink(missing_ok=True)


def _job(content: Mapping[str, Any]) -> Job | None:
    """Parse a job; fields that this version does not know are ignored. None if the content is not a job."""
    known = {one.name for one in fields(Job)}
    try:
        return Job(**{name: value for name, value in content.items() if name in known})
    except TypeError:
        return None
