"""The files in a sweep's folder that name its jobs: ``sweep.json``, and ``jobs/<number>.json`` with the job's state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flnl.record.run import RESULT
from flnl.storage.input_file import read_json_file

PLAN, JOBS = "sweep.json", "jobs"


def read_json(file: Path) -> dict[str, Any]:
    """The mapping in a file; an empty one if the file is missing or holds none."""
    try:
        content = read_json_file(file)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def runs_of(sweep: Path) -> list[Path | None]:
    """The folder of each planned job's run, by the job's number; None for a job without a recorded run.

    A job that continued an earlier run has that run's folder, which may be in another sweep's. It is named relative to
    the folder in which the command was started: that is looked for above the sweep, too.
    """
    planned = read_json(sweep / PLAN).get("jobs")
    count = len(planned) if isinstance(planned, list) else 0
    return [_run(sweep, number) for number in range(count)]


def _run(sweep: Path, number: int) -> Path | None:
    place = read_json(sweep / JOBS / f"{number}.json").get("folder")
    named = [base / place for base in (Path.cwd(), *sweep.resolve().parents)] if isinstance(place, str) else []
    candidates = (*named, sweep / str(number))  # the last one, too, if the sweep has been moved
    return next((path.resolve() for path in candidates if (path / RESULT).exists()), None)
