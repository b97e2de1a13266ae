"""Find the runs below the given folders, and group those that differ only in their seed."""

from __future__ import annotations

import glob
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from flnl.config.identity import OF_FEDERATION, PLACES
from flnl.config.override_text import key_of
from flnl.console.terminal import print_line
from flnl.core.errors import UserError
from flnl.core.grouping import group_by_key
from flnl.record.run import RESULT, TUNING, RunRecord
from flnl.record.sweeps import PLAN, runs_of
from flnl.record.tuned import Tuned

OF_SETTING = (*OF_FEDERATION, "fault.", "eval.benchmark")
"""Beginnings of the keys of what methods are compared on."""
OF_TRAINING = ("dataset.augment", "dataset.normalize", "dataset.verify")
"""Keys of data sets that change how a method trains, or nothing, and not what it is compared on."""

Draw = tuple[int, int]
"""Seed and data seed of a run."""


def given_to(runs: Sequence[RunRecord]) -> str:
    """What methods were given beyond their federation, in brackets; "" if nothing."""
    kinds = {"the noise rate": any(run.given for run in runs), "clean samples": any(run.clean_samples for run in runs)}
    given = [kind for kind, there in kinds.items() if there]
    return f" (given {' and '.join(given)})" if given else ""


def configured(run: RunRecord) -> dict[str, Any]:
    """The settings that determine a run's results on its data, without seeds: values by dotted key."""
    return _without_seeds(run.defining)


def draw(run: RunRecord) -> Draw:
    """What pairs a run with that of another method: its seed, and that of its data."""
    return run.seed, run.data_seed


def _identity(run: RunRecord) -> dict[str, Any]:
    """As ``configured``, with digests of its data: runs of one configuration on different data are different."""
    return {**configured(run), **run.told_by}


@dataclass(frozen=True)
class Row:
    """Runs that differ only in their seed, sorted by it; ``data_seed`` is None if it follows the seed.

    ``places`` is where their data lie, by key, if another row has the same settings on other data; and the files that
    another row does without.
    """

    runs: tuple[RunRecord, ...]
    data_seed: int | None = None
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Any]:
        """The settings that its runs have in common: values by dotted key."""
        data_seed = {} if self.data_seed is None else {"data_seed": self.data_seed}
        return {**_without_seeds(self.runs[0].settings), **data_seed, **self.places}

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration of its first run."""
        return self.runs[0].config

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return self.runs[0].name_of("dataset")

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The settings that its runs have in common and that determine their results: values by dotted key."""
        return _identity(self.runs[0]) | ({} if self.data_seed is None else {"data_seed": self.data_seed})

    @cached_property
    def setting(self) -> dict[str, Any]:
        """What methods are compared on: the data, who holds which, their noise, and the share that is not tested on."""
        return {key: value for key, value in self.identity.items() if of_setting(key)}

    @property
    def draws(self) -> frozenset[Draw]:
        """The draws of its runs."""
        return frozenset(map(draw, self.runs))


def of_setting(key: str) -> bool:
    """Whether a key says what methods are compared on."""
    return f"{key}.".replace("/", ".").startswith(OF_SETTING) and key not in OF_TRAINING


def _without_seeds(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in ("seed", "data_seed")}


def note(line: str) -> None:
    """Print a note to the standard error."""
    print_line(line, to=sys.stderr)


# ------------------------------------------------------------------------------------------------------------ find


def find(names: Sequence[str], *, unfinished: bool = False) -> list[RunRecord]:
    """Find the finished runs in and below folders; runs that are left out are named in a note.

    Args:
        names: folders, patterns of folders, or files of ``flnl tune``.
        unfinished: whether to include unfinished runs.

    Returns:
        The runs, each once.

    Raises:
        UserError: if a folder does not exist, or there is no run to compare.
    """
    folders_of = {name: list(_folders(name)) for name in names}
    if not any(folders_of.values()):
        raise UserError(f"no run is recorded in or below {', '.join(names)} (a folder with a readable {RESULT})")
    for name in names:
        if not folders_of[name]:
            note(f"{name}: no run is recorded in or below it")
    read = {folder: _read(folder) for folders in folders_of.values() for folder in folders}
    unread = [folder for folder, run in read.items() if run is None]
    if len(unread) == len(read):
        raise UserError(f"{', '.join(map(shown, unread))}: {RESULT} cannot be read as that of a run")
    runs = []
    for folder, run in read.items():
        if run is None:
            note(f"{shown(folder)} is left out: its {RESULT} cannot be read as that of a run")
        elif not (run.finished or unfinished):
            note(f"{shown(folder)} is left out: {run.how_far}")
        elif (wrong := run.damage()) is not None:
            note(f"{shown(folder)} is left out: {wrong}; restore the file, or repeat the run")
        else:
            runs.append(run)
    if not runs:
        others = not unfinished and any(run is not None and not run.finished for run in read.values())
        what, hint = ("is finished", "; --unfinished includes the others") if others else ("can be read completely", "")
        raise UserError(f"no run {what} in or below {', '.join(names)}{hint}")
    return runs


def _folders(name: str) -> Iterator[Path]:
    """The resolved folders of runs in and below a folder, or in and below all that match a pattern.

    Raises:
        UserError: if the folder does not exist.
    """
    path = Path(name).expanduser()
    if path.is_file() and path.suffix == ".json" and path.name != RESULT:
        yield from _reported(path)
        return
    if path.exists():
        tops = [path]
    elif glob.has_magic(name):
        tops = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 (absolute, too)
    else:
        raise UserError(f"{name} does not exist: name folders of runs, folders that contain some, or quoted patterns")
    asked = TUNING.name in path.parts or (path.exists() and _is_tuning(path))
    for top in tops:
        yield from _below(top, tuning=asked)


def _is_tuning(folder: Path) -> bool:
    """Whether a folder is one of the runs of ``flnl tune``, or below it."""
    return any(above.parts[-2:] == TUNING.parts for above in (folder.resolve(), *folder.resolve().parents))


def _below(top: Path, *, tuning: bool) -> Iterator[Path]:
    if not tuning and _is_tuning(top.parent):  # of a pattern that goes into it
        return
    if top.name == RESULT:
        yield top.resolve().parent
    elif top.is_dir():
        for folder, inner, files in os.walk(top.resolve()):
            inner.sort()
            if not tuning and _is_tuning(Path(folder)):
                note(f"{shown(Path(folder))} is left out: its runs are those of flnl tune; name it to take them")
                inner.clear()
                continue
            if PLAN in files:
                yield from _elsewhere(Path(folder))
            if RESULT in files:
                inner.clear()
                yield Path(folder)


def _elsewhere(sweep: Path) -> Iterator[Path]:
    """The runs of a sweep's jobs that are outside of its folder; a note counts the jobs without a run."""
    runs = runs_of(sweep)
    yield from (run for run in runs if run is not None and not run.is_relative_to(sweep))
    if missing := sum(run is None for run in runs):
        note(
            f"{shown(sweep)}: {missing} of its {len(runs)} jobs {'has' if missing == 1 else 'have'} no run here; "
            "if another sweep continued this one, name its folder, too"
        )


def _reported(file: Path) -> Iterator[Path]:
    """The runs of a file of ``flnl tune`` whose results it reports; those that are not here are named in a note.

    Raises:
        UserError: if it is no such file, reports none, or none of its runs is here.
    """
    reported = [study.reported for study in Tuned.load(file).studies if study.reported is not None]
    folders = [Path(folder) for each in reported for folder in each.runs.values()]
    if not folders:
        raise UserError(f"{file} reports no results: repeat its command with --report 1,2,3,4,5")
    missing = [folder for folder in folders if not (folder / RESULT).exists()]
    if len(missing) == len(folders):
        raise UserError(f"{file} names runs that are not here, such as {missing[0]}: go where flnl tune was run")
    for folder in missing:
        note(f"{folder} is left out: {file} names it, and it is not here")
    yield from (folder.resolve() for folder in folders if folder not in missing)


def _read(folder: Path) -> RunRecord | None:
    run = RunRecord.read(folder)
    try:
        _ = run and (run.seed, run.data_seed, run.config["method"]["name"], run.config["dataset"]["name"])
    except (KeyError, TypeError, ValueError):
        return None
    return run


def shown(folder: Path) -> str:
    """A folder's path, relative to the working folder if it is below it."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


# ----------------------------------------------------------------------------------------------------------- group


def grouped(runs: Sequence[RunRecord]) -> list[Row]:
    """Group runs into rows. Of runs with the same settings and seed, a finished one is preferred, then the newest."""
    alike = group_by_key((json.dumps(_identity(run), sort_keys=True, default=str), run) for run in runs)
    rows = [row for same in alike.values() for row in _by_data_seed(same)]
    _tell_of_changed_data(rows)
    times = Counter(map(_settings_of, rows))
    without = {key for row in rows for key in PLACES if row.values.get(key, "") is None}
    return [
        replace(row, places={key: place for key, place in row.runs[0].whereabouts.items() if twice or key in without})
        for row in rows
        for twice in [times[_settings_of(row)] > 1]
    ]


def _settings_of(row: Row) -> str:
    return json.dumps([configured(row.runs[0]), row.data_seed], sort_keys=True, default=str)


def _tell_of_changed_data(rows: Sequence[Row]) -> None:
    """Name two runs whose configurations have the same data, if these were others when they ran."""
    first: dict[str, RunRecord] = {}
    for run in (run for row in rows for run in row.runs if run.data):
        named = {key: value for key, value in configured(run).items() if key.startswith(("dataset.", "shift."))}
        named |= run.whereabouts | ({"data_seed": run.data_seed} if "shift.level" in named else {})
        named["dataset.fingerprint"] = run.config["dataset"].get("fingerprint")
        other = first.setdefault(json.dumps(named, sort_keys=True, default=str), run)
        if other.data != run.data:
            note(
                f"{shown(other.folder)} and {shown(run.folder)} name the same data and had others: files have changed"
                " between them, so their numbers do not compare"
            )
            return


def _by_data_seed(runs: Sequence[RunRecord]) -> Iterator[Row]:
    """Split runs into rows whose data seed follows the seed, and rows with a fixed data seed.

    A run whose two seeds are equal fits both. It belongs to a row with a fixed data seed if the user has set it, or if
    no other run's data seed follows.
    """
    pinned = {run.data_seed for run in runs if run.data_seed != run.seed}
    equal = [run for run in runs if run.data_seed == run.seed]
    others = {run.seed for run in equal} - pinned
    rows: dict[int | None, list[RunRecord]] = {}
    for run in runs:
        typed = any(key_of(override) == "data_seed" for override in run.overrides)
        fixed = run.data_seed != run.seed or (run.data_seed in pinned and (typed or not others))
        rows.setdefault(run.data_seed if fixed else None, []).append(run)
    for data_seed, members in rows.items():
        yield Row(tuple(_newest(members)), data_seed)


def _newest(runs: Sequence[RunRecord]) -> Iterator[RunRecord]:
    """One run per seed, in the order of seeds."""
    for seed in sorted({run.seed for run in runs}):
        first, *rest = sorted(
            (run for run in runs if run.seed == seed),
            key=lambda run: (run.finished, *run.age, str(run.folder)),
            reverse=True,
        )
        if rest:
            others = ", ".join(shown(run.folder) for run in rest)
            note(f"{shown(first.folder)} is used for seed {seed}; repeated runs are left out: {others}")
        yield first
