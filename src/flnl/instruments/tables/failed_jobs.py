"""Jobs that failed before creating a run.

The sweep's ledger lists those of the last launch; ``fruitless.json`` keeps those of earlier launches.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from flnl.storage.atomic import write_atomically
from flnl.storage.input_file import read_json_file
from flnl.sweep.ledger import Ledger

NAME = "fruitless.json"
ENDED = ("refused", "failed")


def failed_jobs(folder: Path) -> dict[str, str | None]:
    """Error messages of the jobs in ``folder`` whose last attempt failed or was refused, by folder name."""
    errors = _earlier(folder)
    for job in Ledger(folder).jobs():
        if job.folder:
            errors.pop(Path(job.folder).name, None)
            if job.status in ENDED:
                errors[Path(job.folder).name] = job.error
    return errors


def remember(folder: Path, again: Collection[str]) -> None:
    """Save the failed jobs before a launch overwrites the ledger, except those that are tried ``again``.

    Raises:
        OSError: if the file cannot be written.
    """
    kept = {name: error for name, error in failed_jobs(folder).items() if name not in again}
    if kept or (folder / NAME).exists():
        write_atomically(folder / NAME, json.dumps(kept, indent=1).encode())


def _earlier(folder: Path) -> dict[str, str | None]:
    try:
        errors = read_json_file(folder / NAME)
    except (OSError, ValueError):
        return {}
    return errors if isinstance(errors, dict) else {}
