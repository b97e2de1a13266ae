"""Make the folders of finished runs again from their compact records, so runs of another machine are not repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from flnl.config import identity
from flnl.core.errors import UserError
from flnl.storage.atomic import write_atomically
from flnl.storage.lines import CHECKSUMS, CORRECTIONS, METRICS, Lines, described
from flnl.storage.records import LOCK, RESULT
from flnl.tables import run_record
from flnl.tables.identity import Composer
from flnl.tables.plan import Plan, Wanted
from flnl.tables.run_record import RECORD, RECORDS, Compact

NOT_RESULT = ("command", "seed", "folder", "evaluation", "round", "evaluations")
"""The keys of a compact record that ``result.json`` does not have."""
RESTORED = "restored_from"
"""The key in ``result.json`` that tells a restored run, with the path of its record."""


@dataclass(frozen=True)
class Restored:
    """What came of records."""

    runs: int  # restored now
    known: int  # runs of the plan that have a record, restored now or not
    records: int  # all records in the folder


def restore(plan: Plan, records: Path) -> Restored:
    """Restore the missing runs of ``plan`` that ``records`` has, such as ``results/small/runs``.

    A restored folder holds ``result.json`` and ``metrics.jsonl``, the latter with the accuracies of all evaluations and
    all numbers of the last: what tables and curves read, but no model and no labels. Runs that have begun here stay as
    they are, also those that begin meanwhile.

    Raises:
        UserError: if ``records`` is no folder or has no record, or one of the records is damaged or not complete.
    """
    if not records.is_dir():
        raise UserError(f"records={records}: there is no such folder; records are in results/SCALE/runs")
    of = sum(RECORD.fullmatch(file.name) is not None for file in records.glob("*.json"))
    if not of:
        inside = f"; did you mean {records / RECORDS}?" if (records / RECORDS).is_dir() else ""
        raise UserError(f"records={records}: the folder has no record of a run{inside}")
    known = [(run, file) for run in plan.runs.values() if (file := records / f"{run.identity.folder}.json").is_file()]
    composer, restored = Composer(), 0
    for run, file in known:
        if run.identity.key not in plan.records:
            compact = _read(file, run)
            with _unused(plan.at(run)) as unused:
                if unused:
                    _write(plan.at(run), file, compact, composer.plain(run.overrides), run.overrides)
                    restored += 1
    return Restored(restored, len(known), of)


@contextmanager
def _unused(folder: Path) -> Iterator[bool]:
    """Whether no process works in a run's folder, and no run has begun there since the plan was made; hold it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield not (folder / RESULT).exists()
    finally:
        lock.release()


def _read(file: Path, run: Wanted) -> Compact:
    compact = run_record.compact(file)
    if compact.record["key"] != run.identity.key or compact.record["status"] != "finished":
        raise UserError(f"{file} is not the record of the finished run {run.command}")
    return compact


def _write(folder: Path, file: Path, compact: Compact, config: Mapping[str, Any], overrides: list[str]) -> None:
    metrics, corrections = (Lines(folder / name) for name in (METRICS, CORRECTIONS))
    for lines in (metrics, corrections):
        lines.path.unlink(missing_ok=True)
    for row in compact.rows:
        metrics.write(row)
    result = {key: value for key, value in compact.record.items() if key not in NOT_RESULT}
    about = {
        "config": config,
        "identity": identity.identity(config),
        "key_format": identity.FORMAT,
        "overrides": overrides,
        RESTORED: str(file),
        CHECKSUMS: described([metrics, corrections]),
    }
    write_atomically(folder / RESULT, json.dumps({**result, **about}).encode())
