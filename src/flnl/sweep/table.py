"""The table of a sweep's jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from flnl.console.terminal import cell, console, print_line
from flnl.sweep.ledger import Job

COLOURS: Mapping[str, str] = {"finished": "green", "stopped": "yellow", "waiting": "dim", "running": "cyan"}
"""All other statuses are red."""


def labels(jobs: Sequence[Job]) -> dict[int, str]:
    """A label for each job: the overrides that not all jobs share."""
    common = set.intersection(*(set(job.overrides) for job in jobs)) if len(jobs) > 1 else set()
    return {job.number: " ".join(w for w in job.overrides if w not in common) or "(defaults)" for job in jobs}


def show(folder: Path, jobs: Sequence[Job]) -> None:
    """Print every job with its status to the standard output."""
    named = labels(jobs)
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, title=cell(f"sweep {folder}"), title_justify="left", title_style=""
    )
    for name in ("job", "status", "overrides"):
        table.add_column(name, overflow="fold")
    table.add_column("mean of last 10, %", justify="right")
    table.add_column("time, s", justify="right")
    table.add_column("what, where", overflow="fold")
    for job in jobs:
        accuracy = job.metrics.get("mean_last_10")
        table.add_row(
            str(job.number),
            cell(job.status, COLOURS.get(job.status, "red")),
            cell(named[job.number]),
            "" if accuracy is None else f"{100 * accuracy:.2f}",
            "" if job.seconds is None else f"{job.seconds:.1f}",
            cell(_what(job, folder)),
        )
    console().print(table)
    counts = {status: sum(job.status == status for job in jobs) for status in dict.fromkeys(j.status for j in jobs)}
    print_line(f"{len(jobs)} jobs: {', '.join(f'{count} {status}' for status, count in counts.items())}")


def _what(job: Job, sweep: Path) -> str:
    """The error of a job, and its folder if it is not the one of its number."""
    parts = [job.error] if job.error and job.status != "interrupted" else []
    if job.folder is not None and (job.status == "failed" or Path(job.folder) != (sweep / str(job.number)).absolute()):
        parts.append(f"{job.folder}/error.log" if job.status == "failed" else job.folder)
    return "; ".join(parts)
