"""What ``flnl tune`` and ``flnl tables tune`` chose, for the rows of tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flnl.config.choosable import refusal
from flnl.config.override_text import key_of
from flnl.console.shell import joined
from flnl.console.terminal import visible
from flnl.core.errors import UserError
from flnl.instruments.tables.table import Table
from flnl.instruments.tune.scores import MEASURES, ON_TEST_SET
from flnl.record.tuned import Tuned, overrides_of

DECIDING = ("method", "centralized")
"""Keys that decide, with the parts of a method, what a row is. What was chosen for one such row is not another's."""


@dataclass(frozen=True)
class Chosen:
    """Overrides that were chosen for cells of one method."""

    when: frozenset[str]  # overrides that a cell must have, the method among them; it may choose no other parts
    overrides: tuple[str, ...]

    def fits(self, cell: Iterable[str]) -> bool:
        """Whether these overrides of a cell are of the method that was tuned."""
        return self.when <= set(cell) and set(deciding(cell)) <= self.when


@dataclass(frozen=True)
class Choices:
    """What a file of ``flnl tune`` or ``flnl tables tune`` chose, for readers too."""

    chosen: tuple[Chosen, ...]
    sentence: str
    only: str | None = None  # the paper, or one's own table, that the choices are for; None: all tables
    seeds: frozenset[int] = frozenset()  # whose test accuracies decided; results under them favour the choice

    @classmethod
    def of(cls, tuned: Tuned) -> Choices:
        """Those of a file. A study of which every combination failed has no part in them.

        Raises:
            UserError: if a study names no method, two are of the same one, none of them chose anything, or one chose
                what a file may not give.
        """
        chosen = []
        for study in tuned.studies:
            when = deciding(study.fixed)
            if not any(key_of(one) == "method" for one in when):
                raise UserError("it names no method: make it by flnl tune method=A,B --each method")
            if study.chosen is not None:
                overrides = tuple(overrides_of(study.chosen.values))
                for one in overrides:
                    if (reason := refusal(one)) is not None:
                        raise UserError(f"{one} cannot come from a file: {reason}")
                chosen.append(Chosen(frozenset({*when, *overrides_of(study.each)}), overrides))
        if not chosen:
            raise UserError("it has no choice: every combination has a run that failed")
        if len({one.when for one in chosen}) < len(chosen):
            raise UserError("it has two choices for one method")
        keys = list(dict.fromkeys(key_of(override) for one in chosen for override in one.overrides))
        methods = ", ".join(" ".join(sorted(one.when)) for one in chosen)
        commands = ", ".join(f"`{joined(command)}`" for command in (*tuned.earlier, tuned.command))
        only = tuned.subject.get("paper") or tuned.subject.get("table")
        where = f" in the tables of {only}" if only else ""
        seeds = frozenset(tuned.seeds if tuned.measure in ON_TEST_SET else ())
        were = "was" if len(keys) == 1 else "were"
        chose = f"But {', '.join(keys)}{where} {were} chosen for {methods} by {commands}."
        sentence = " ".join([chose, _how(tuned), *_at_edges(tuned)])
        return cls(tuple(chosen), visible(sentence), only, seeds)

    def concern(self, table: Table) -> bool:
        """Whether these choices are for the table."""
        return self.only in (None, table.paper, table.name)


def _how(tuned: Tuned) -> str:
    """What decided, and what it shares with the tables' results."""
    score, seeds = MEASURES.get(tuned.measure, tuned.measure), ", ".join(map(str, tuned.seeds))
    shares = "on the images that results are measured on" if tuned.measure in ON_TEST_SET else "on no test image"
    dropped = any(study.dropped(trial) for study in tuned.studies for trial in study.trials)
    fewer = " (values that were far behind under the first ones: under these alone)" if dropped else ""
    return f"The score was the {score}, under seed{'s' if len(tuned.seeds) > 1 else ''} {seeds}{fewer}, {shares}."


def _at_edges(tuned: Tuned) -> Iterator[str]:
    for edge, studies in tuned.edges.items():
        methods = ", ".join(" ".join(sorted({*deciding(study.fixed), *overrides_of(study.each)})) for study in studies)
        yield f"At the edge of the grid, so that one beyond it may be better: {edge}, for {methods}."


def read(paths: Sequence[Path], scale: str) -> tuple[Choices, ...]:
    """What was tuned for the rows of tables at ``scale``: of files, and of all ``.json`` files in folders.

    A file of ``flnl tables tune`` is for the tables of its paper, one of ``flnl tune`` for all tables.

    Raises:
        UserError: if a file is no such file, chose nothing, or is of another scale; if a folder has none; if two files
            choose for the same rows of the same tables.
    """
    found: dict[tuple[str | None, frozenset[str]], Path] = {}
    every = []
    for file in (file for path in paths for file in _files(path)):
        tuned = Tuned.load(file)
        if (other := tuned.subject.get("scale", scale)) != scale:
            raise UserError(f"tuned: {file} was tuned at scale={other}, not {scale}")
        try:
            one = Choices.of(tuned)
        except UserError as error:
            raise UserError(f"tuned: {file}: {error}") from None
        for chosen in one.chosen:
            place = one.only, chosen.when
            if (earlier := found.setdefault(place, file)) != file:
                tables = f"the tables of {one.only}" if one.only else "all tables"
                cells = " ".join(sorted(chosen.when))
                raise UserError(f"tuned: {earlier} and {file} both choose for {cells} in {tables}; keep one of them")
        every.append(one)
    return tuple(every)


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("[!.]*.json")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"tuned={path}: the folder has no .json file; flnl tables tune writes them")
    return files


def deciding(overrides: Iterable[str]) -> list[str]:
    """The overrides that decide what a row is: its method, the parts that it chooses, and whether it is centralised."""
    return [one for one in overrides if key_of(one) in DECIDING or one.startswith("method/")]
