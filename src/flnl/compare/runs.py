"""Which runs there are below what was named, and which of them differ in their seed only."""

from __future__ import annotations

import glob
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flnl.config.identity import recorded_identity, settings
from flnl.core.errors import UserError
from flnl.core.terminal import print_line
from flnl.storage import order
from flnl.storage.lines import damage
from flnl.storage.records import RESULT, read_record


@dataclass(frozen=True)
class Run:
    """A folder and its ``result.json``."""

    folder: Path
    result: Mapping[str, Any]

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration."""
        found: Mapping[str, Any] = self.result["config"]
        return found

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.config["seed"])

    @property
    def status(self) -> str:
        """Finished, stopped, interrupted or failed."""
        return str(self.result.get("status"))

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.status == "finished"

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The closing numbers; none of a run that failed early."""
        found = self.result.get("metrics")
        return found if isinstance(found, dict) else {}

    @property
    def words(self) -> list[str]:
        """The overrides as typed; none where the run was not started from the command line."""
        found = self.result.get("overrides")
        return [str(word) for word in found] if isinstance(found, list) else []

    @cached_property
    def values(self) -> dict[str, Any]:
        """Its settings without its seeds, as dotted keys that a person types, and values."""
        return _without_seeds(settings(self.config))

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What makes the run what it is, without its seeds: dotted keys and values."""
        return _without_seeds(recorded_identity(self.result))

    @property
    def data_seed(self) -> int:
        """The seed of partition and noise."""
        return int(self.config.get("data_seed", self.seed))


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed only, in its order; ``data_seed`` is None where it follows the seed."""

    runs: tuple[Run, ...]
    data_seed: int | None = None

    @property
    def values(self) -> dict[str, Any]:
        """What its runs have in common, as dotted keys and values."""
        own = {} if self.data_seed is None else {"data_seed": self.data_seed}
        return self.runs[0].values | own

    @property
    def config(self) -> Mapping[str, Any]:
        """The resolved configuration of its first run."""
        return self.runs[0].config

    @property
    def dataset(self) -> str:
        """The name of the data set."""
        return str(self.config["dataset"]["name"])


def _without_seeds(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in ("seed", "data_seed")}


def note(line: str) -> None:
    """Say what a person should know beside the table."""
    print_line(line, to=sys.stderr)


# ------------------------------------------------------------------------------------------------------------ find


def find(names: Sequence[str], *, unfinished: bool = False) -> list[Run]:
    """The finished runs in and below the folders ``names``, which may be patterns; each once, the others in a note.

    Raises:
        UserError: if a folder is not there, or there is nothing to compare.
    """
    found = {name: list(_folders(name)) for name in names}
    if not any(found.values()):
        raise UserError(f"no run is recorded in or below {', '.join(names)} (a folder with a readable {RESULT})")
    for name in names:
        if not found[name]:
            note(f"{name}: no run is recorded in or below it")
    read = {folder: _read(folder) for folders in found.values() for folder in folders}
    unread = [folder for folder, run in read.items() if run is None]
    if len(unread) == len(read):
        raise UserError(f"{', '.join(map(shown, unread))}: {RESULT} cannot be read as that of a run")
    runs = []
    for folder, run in read.items():
        if run is None:
            note(f"{shown(folder)} is left out: its {RESULT} cannot be read as that of a run")
        elif not (run.finished or unfinished):
            note(f"{shown(folder)} is left out: {run.status} after round {run.result.get('rounds', '?')}")
        elif (wrong := damage(folder, run.result)) is not None:
            note(f"{shown(folder)} is left out: {wrong}; put back a copy of the file, or make the run again")
        else:
            runs.append(run)
    if not runs:
        others = not unfinished and any(run is not None and not run.finished for run in read.values())
        what, hint = ("is finished", "; --unfinished takes the others, too") if others else ("can be read whole", "")
        raise UserError(f"no run {what} in or below {', '.join(names)}{hint}")
    return runs


def _folders(name: str) -> Iterator[Path]:
    """The folders of runs that a word stands for, resolved.

    Raises:
        UserError: if it stands for nothing that is there.
    """
    path = Path(name).expanduser()
    if path.exists():
        tops = [path]
    elif glob.has_magic(name):
        tops = [Path(found) for found in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 (absolute, too)
    else:
        raise UserError(f"{name} is not there: name folders of runs, folders that hold some, or patterns in quotes")
    for top in tops:
        yield from _below(top)


def _below(top: Path) -> Iterator[Path]:
    if top.name == RESULT:
        yield top.resolve().parent
    elif top.is_dir():
        for folder, inner, files in os.walk(top.resolve()):
            inner.sort()
            if RESULT in files:
                inner.clear()
                yield Path(folder)


def _read(folder: Path) -> Run | None:
    run = Run(folder, read_record(folder) or {})
    try:
        _ = run.seed, run.data_seed, run.config["method"]["name"], run.config["dataset"]["name"]
    except (KeyError, TypeError, ValueError):
        return None
    return run


def shown(folder: Path) -> str:
    """A folder as a person here would write it."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


# ----------------------------------------------------------------------------------------------------------- group


def grouped(runs: Sequence[Run]) -> list[Row]:
    """The runs as rows. Of two that are equal in their seed, too, the one that is finished counts, then the newest."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(json.dumps(run.identity, sort_keys=True, default=str), []).append(run)
    return [row for found in alike.values() for row in _by_data_seed(found)]


def _by_data_seed(runs: Sequence[Run]) -> Iterator[Row]:
    """Rows whose data follow the seed, or stay while it changes.

    A run whose two seeds are equal may be either; it is of those that stay if that was typed or nothing else follows.
    """
    pinned = {run.data_seed for run in runs if run.data_seed != run.seed}
    equal = [run for run in runs if run.data_seed == run.seed]
    others = {run.seed for run in equal} - pinned
    rows: dict[int | None, list[Run]] = {}
    for run in runs:
        typed = any(word.lstrip("+").startswith("data_seed=") for word in run.words)
        stays = run.data_seed != run.seed or (run.data_seed in pinned and (typed or not others))
        rows.setdefault(run.data_seed if stays else None, []).append(run)
    for data_seed, found in rows.items():
        yield Row(tuple(_newest(found)), data_seed)


def _newest(runs: Sequence[Run]) -> Iterator[Run]:
    """One run a seed, in the order of seeds."""
    for seed in sorted({run.seed for run in runs}):
        first, *rest = sorted(
            (run for run in runs if run.seed == seed),
            key=lambda run: (run.finished, *order.age(run.result), str(run.folder)),
            reverse=True,
        )
        if rest:
            others = ", ".join(shown(run.folder) for run in rest)
            note(f"{shown(first.folder)} counts for seed {seed}; the same configuration again is left out: {others}")
        yield first
