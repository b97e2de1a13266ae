"""Finds runs of a list whose data lay elsewhere when they began, such as on another machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flnl.config import compose
from flnl.config.identity import places
from flnl.record.run import RESULT, RunRecord

if TYPE_CHECKING:
    from flnl.run.reuse import Reuse

FOLDER = re.compile("[0-9a-f]{16}")
"""Names of folders of listed runs: the beginning of a key with the places of data."""


class Moved:
    """The folders of listed runs below a root, which are named after their configuration and where its data lie."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names: dict[str, str] = {}

    def folder(self, name: str, key: str, overrides: Sequence[str]) -> str:
        """The name of a run's folder: that of a run of the same key on the same data elsewhere, or else its own.

        Data are read only if there is a run of the key, and none in the folder of this name.

        Args:
            name: the name of the run's own folder.
            key: its key.
            overrides: its overrides.
        """
        if name not in self._names:
            self._names[name] = name if key.startswith(name) else self._of_the_same_data(name, key, overrides)
        return self._names[name]

    def _of_the_same_data(self, name: str, key: str, overrides: Sequence[str]) -> str:
        if (self._root / name / RESULT).exists():
            return name
        return next(
            (
                record.file("").name
                for record in self._placed.get(key, ())
                if self._reuse.same(compose.load(overrides), record)
            ),
            name,
        )

    @cached_property
    def _placed(self) -> Mapping[str, Sequence[RunRecord]]:
        """The runs whose data may be others elsewhere, by key, finished ones first."""
        found: dict[str, list[RunRecord]] = {}
        for file in sorted(self._root.glob(f"*/{RESULT}")):
            record = RunRecord.read(file.parent) if FOLDER.fullmatch(file.parent.name) else None
            if record is not None and places(record.config):
                found.setdefault(record.run_key, []).append(record)
        return {key: sorted(runs, key=lambda run: not run.finished) for key, runs in found.items()}

    @cached_property
    def _reuse(self) -> Reuse:
        from flnl.run.reuse import Reuse  # torch takes seconds to import

        return Reuse()
