"""Make the folders of finished runs again from their compact records, so runs of another machine are not repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from flnl.config import compose, identity
from flnl.core.errors import UserError
from flnl.storage.atomic import write_atomically
from flnl.storage.lines import CHECKSUMS, CORRECTIONS, METRICS, Lines, described
from flnl.storage.records import LOCK, RESULT
from flnl.tables import run_record
from flnl.tables.identity import Composer
from flnl.tables.plan import Plan, Wanted
from flnl.tables.run_record import RECORD, RECORDS, Compact

if TYPE_CHECKING:
    from flnl.run.reuse import Reuse

NOT_RESULT = ("command", "seed", "folder", "evaluation", "round", "evaluations")
"""The keys of a compact record that ``result.json`` does not have."""
WITH_PLACES = 4
"""The format of the key in a compact record whose key names its file and is not the run's."""
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
    held = _Held(records)
    known = [(run, file) for run in plan.runs.values() if (file := held.file(run)) is not None]
    composer, restored = Composer(), 0
    for run, file in known:
        if run.identity.folder not in plan.records:
            compact = _read(file, run)
            with _unused(plan.at(run)) as unused:
                if unused:
                    _write(plan.at(run), file, compact, composer.plain(run.overrides), run)
                    restored += 1
    return Restored(restored, len(known), of)


@dataclass(frozen=True)
class _Held:
    """Compact records in a folder, each named as its run's folder was where it ran."""

    folder: Path

    def file(self, run: Wanted) -> Path | None:
        """The record of a run: that of its name, or of its key on the data that are here; None if there is none."""
        file = self.folder / f"{run.identity.folder}.json"
        if file.is_file():
            return file
        if run.identity.key.startswith(run.identity.folder):  # the same wherever its data lie
            return None
        alike = self._by_key.get(run.identity.key, ())
        return next(
            (other for other in alike if self._reuse.same(compose.load(run.overrides), _placeless(other))), None
        )

    @cached_property
    def _by_key(self) -> Mapping[str, Sequence[Path]]:
        found: dict[str, list[Path]] = {}
        for file in sorted(self.folder.glob("*.json")):
            if RECORD.fullmatch(file.name):
                found.setdefault(str(run_record.compact(file).record["key"]), []).append(file)
        return found

    @cached_property
    def _reuse(self) -> Reuse:
        from flnl.run.reuse import Reuse  # torch takes seconds to import

        return Reuse()


def _placeless(file: Path) -> dict[str, Any]:
    """A compact record, which does not have where its run's data lay."""
    return {**run_record.compact(file).record, "config": {}}


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
    key = str(compact.record["key"])  # one with the places of data names the folder
    if not (key == run.identity.key or key.startswith(run.identity.folder)) or compact.record["status"] != "finished":
        raise UserError(f"{file} is not the record of the finished run {run.command}")
    return compact


def _write(folder: Path, file: Path, compact: Compact, config: Mapping[str, Any], run: Wanted) -> None:
    metrics, corrections = (Lines(folder / name) for name in (METRICS, CORRECTIONS))
    for lines in (metrics, corrections):
        lines.path.unlink(missing_ok=True)
    for row in compact.rows:
        metrics.write(row)
    result = {key: value for key, value in compact.record.items() if key not in NOT_RESULT}
    about = {
        "config": config,
        "identity": identity.identity(config),
        "key_format": identity.FORMAT if result["key"] == run.identity.key else WITH_PLACES,
        "overrides": run.overrides,
        RESTORED: str(file),
        CHECKSUMS: described([metrics, corrections]),
    }
    write_atomically(folder / RESULT, json.dumps({**result, **about}).encode())
