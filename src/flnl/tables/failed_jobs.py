"""Jobs of tables that came to no run: the sweep's ledger knows those of the last launch, and this file the earlier."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from flnl.storage.atomic import write_atomically
from flnl.sweep.ledger import Ledger

NAME = "fruitless.json"
ENDED = ("refused", "failed")


def fruitless(folder: Path) -> dict[str, str | None]:
    """Of the runs in ``folder``, by name, those that ended, when last tried, without having to go on; and why."""
    found = _earlier(folder)
    for job in Ledger(folder).jobs():
        if job.folder:
            found.pop(Path(job.folder).name, None)
            if job.status in ENDED:
                found[Path(job.folder).name] = job.error
    return found


def remember(folder: Path, again: Collection[str]) -> None:
    """Keep what the ledger will have forgotten after another launch, but for the runs that are tried ``again``.

    Raises:
        OSError: if it cannot be written.
    """
    kept = {name: error for name, error in fruitless(folder).items() if name not in again}
    if kept or (folder / NAME).exists():
        write_atomically(folder / NAME, json.dumps(kept, indent=1).encode())


def _earlier(folder: Path) -> dict[str, str | None]:
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
