"""What a sweep's folder says of its jobs: ``sweep.json`` is the plan, ``jobs/<number>.json`` what became of one.

Files, because jobs run in other processes and on other machines, and may end without a word.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from flnl.core.credentials import redacted_in
from flnl.storage.atomic import write_atomically

PLAN, JOBS, STOP = "sweep.json", "jobs", ".stop"

Status = Literal["waiting", "running", "finished", "stopped", "interrupted", "failed", "refused", "killed"]
"""What may become of a job; refused: the command was wrong; killed: its process ended without a word."""

DONE: Sequence[Status] = ("finished", "stopped")
"""What a job should come to; stopped: at ``max_rounds``."""


@dataclass(frozen=True)
class Job:
    """One job of a sweep as far as it has come."""

    number: int
    overrides: Sequence[str]
    status: Status = "waiting"
    folder: str | None = None  # the run's, which is an earlier one's where it went on
    rounds: int | None = None  # that the run will have
    error: str | None = None
    started: float | None = None  # seconds since the epoch
    seconds: float | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    unsynchronised: str | None = None  # its offline folder of W&B
    host: str = ""
    pid: int = 0

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it in this sweep."""
        return self.status not in ("waiting", "running")

    @property
    def here(self) -> bool:
        """Whether it runs, or ran, on this machine."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether its process is there; true of other machines, which cannot be asked."""
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
    """The account of a sweep, in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def plan(self, jobs: Sequence[Sequence[str]], command: Sequence[str]) -> None:
        """Write down which jobs there will be, and forget those of an earlier sweep in this folder."""
        (self.folder / JOBS).mkdir(parents=True, exist_ok=True)
        for file in (self.folder / JOBS).glob("*.json"):
            file.unlink()
        (self.folder / STOP).unlink(missing_ok=True)
        text = redacted_in({"command": list(command), "jobs": [list(job) for job in jobs]})
        write_atomically(self.folder / PLAN, json.dumps(text, indent=1).encode())

    def write(self, job: Job) -> None:
        """Write down how far ``job`` has come."""
        (self.folder / JOBS).mkdir(parents=True, exist_ok=True)
        text = json.dumps(redacted_in(asdict(job)), indent=1, default=str)
        write_atomically(self.folder / JOBS / f"{job.number}.json", text.encode())

    def jobs(self) -> list[Job]:
        """Every job, by number; one whose process is gone without a word was killed."""
        planned = _read(self.folder / PLAN).get("jobs", [])
        found = {number: Job(number, overrides) for number, overrides in enumerate(planned)}
        for file in (self.folder / JOBS).glob("*.json"):
            if (job := _job(_read(file))) is not None:
                gone = job.status == "running" and not job.alive
                found[job.number] = replace(job, status="killed") if gone else job
        return [found[number] for number in sorted(found)]

    @property
    def stopping(self) -> bool:
        """Whether jobs that have not begun shall not."""
        return (self.folder / STOP).exists()

    def stop(self) -> None:
        """Ask jobs that have not begun not to."""
        (self.folder / STOP).touch()

    def go(self) -> None:
        """Withdraw what a job of an earlier sweep asked when its process was left behind."""
        (self.folder / STOP).unlink(missing_ok=True)


def _job(said: Mapping[str, Any]) -> Job | None:
    """The job that a file speaks of, as far as this version knows its words; None where it speaks of none."""
    known = {one.name for one in fields(Job)}
    try:
        return Job(**{name: value for name, value in said.items() if name in known})
    except TypeError:
        return None


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
