"""Make the folders of finished runs again from their records, so runs of another machine are not repeated."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from flnl.config import compose, identity
from flnl.core.errors import UserError
from flnl.instruments.tables import run_record
from flnl.instruments.tables.identity import Composer
from flnl.instruments.tables.plan import Plan, Wanted
from flnl.instruments.tables.run_record import KEPT, RUNS, Written
from flnl.record.lines import CORRECTIONS, METRICS, Lines, described
from flnl.record.run import LOCK, RESULT, RunRecord

if TYPE_CHECKING:
    from flnl.run.reuse import Reuse

WITH_PLACES = 4
"""The format of the key of a record whose key names its folder and is not the run's."""


@dataclass(frozen=True)
class Restored:
    """What came of records."""

    runs: int  # restored now
    known: int  # runs of the plan that have a record, restored now or not
    records: int  # all records there


def restore(plan: Plan, place: Path) -> Restored:
    """Restore the missing runs of ``plan`` that a file of records has, such as ``results/small/runs.jsonl``.

    A restored folder holds ``result.json`` and ``metrics.jsonl``, the latter with the accuracies of all evaluations and
    all numbers of the last: what tables and curves read, but no model and no labels. Runs that have begun here stay as
    they are, also those that begin meanwhile.

    Args:
        plan: the plan.
        place: the file, or its folder.

    Raises:
        UserError: if there is no record, or one of the records is damaged or not complete.
    """
    held = _Held(run_record.load(place))
    if not held.runs:
        other = next((file for file in (place.with_suffix(".jsonl"), place.parent / RUNS) if file.is_file()), None)
        raise UserError(
            f"records={place}: there is no record of a run; "
            + ("records are in results/SCALE/runs.jsonl" if other is None else f"did you mean {other}?")
        )
    known = [(run, found) for run in plan.runs.values() if (found := held.of(run)) is not None]
    composer, restored = Composer(), 0
    for run, found in known:
        if run.identity.folder not in plan.records:
            key = found.record.key  # one with the places of data names the folder
            of_run = key == run.identity.key or key.startswith(run.identity.folder)
            if not of_run or not found.record.finished:
                told = found.record.raw["folder"]
                raise UserError(f"{place}: {told} is not the record of the finished run {run.command}")
            folder = plan.at(run)
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(Timeout), FileLock(folder / LOCK, timeout=0):  # else a process works there
                if not (folder / RESULT).exists():  # else the run has begun since the plan was made
                    _write(folder, place, found, composer.plain(run.overrides), run)
                    restored += 1
    return Restored(restored, len(known), len(held.runs))


@dataclass(frozen=True)
class _Held:
    """Records by the name of their run's folder where it ran."""

    runs: Mapping[str, Written]

    def of(self, run: Wanted) -> Written | None:
        """The record of a run: that of its name, or of its key on the data that are here; None if there is none."""
        if run.identity.folder in self.runs:
            return self.runs[run.identity.folder]
        if run.identity.key.startswith(run.identity.folder):  # the same wherever its data lie
            return None
        alike = (one for _, one in sorted(self.runs.items()) if one.record.key == run.identity.key)
        return next((one for one in alike if self._reuse.same(compose.load(run.overrides), one.record)), None)

    @cached_property
    def _reuse(self) -> Reuse:
        from flnl.run.reuse import Reuse  # torch takes seconds to import

        return Reuse()


def _write(folder: Path, place: Path, found: Written, config: Mapping[str, Any], run: Wanted) -> None:
    metrics, corrections = (Lines(folder / name) for name in (METRICS, CORRECTIONS))
    for lines in (metrics, corrections):
        lines.path.unlink(missing_ok=True)
    for row in found.rows:
        metrics.write(row)
    restored = replace(
        RunRecord.of({key: found.record.raw[key] for key in KEPT if key in found.record.raw}),
        config=config,
        identity=identity.identity(config),
        key_format=identity.FORMAT if found.record.key == run.identity.key else WITH_PLACES,
        overrides=[*run.overrides],
        restored_from=str(place),
        lines=described([metrics, corrections]),
    )
    restored.write(folder)
