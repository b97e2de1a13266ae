"""From a row and a column to the words of a run, at a scale.

A scale is words that come after the column's experiment and before everything else that the column and the row say: it
replaces data, protocol and network, and keeps partition, noise and method. A word that means something else at the
scale is exchanged, and one that cannot be had there makes the cell ``n/a``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from flnl.tables.results import Scale
from flnl.tables.table import Column, Row, Table

FIRST = ("experiment",)
"""Groups whose choice comes before a scale's words."""


@dataclass(frozen=True)
class Scaling:
    """What a scale does to the words of tables."""

    name: str
    title: str
    changes: tuple[str, ...]  # sentences, for readers of a table
    seeds: tuple[int, ...] | None  # at least one; None: as many as the paper's trials
    overrides: tuple[str, ...]
    instead: Mapping[str, tuple[str, ...]]  # a word of a table -> what it becomes
    unavailable: Mapping[str, str]  # a word, or a pattern of words -> why there is no such thing here
    papers: bool = False  # whether its conditions are the papers' own

    def of(self, table: Table, seeds: int | None = None) -> Scale:
        """The scale as readers of ``table`` see it, with the first ``seeds`` seeds where that is given.

        Where there are fewer, those that follow the largest are added.
        """
        chosen = tuple(range(1, (table.trials or 1) + 1)) if self.seeds is None else self.seeds
        if seeds is not None:
            after = max(chosen) + 1
            chosen = (*chosen, *range(after, after + seeds - len(chosen)))[:seeds]
        return Scale(self.name, self.title, self.changes, chosen, self.papers)

    def unmatched(self, tables: Iterable[Table]) -> list[str]:
        """The words and patterns of ``instead`` and ``unavailable`` that no cell of ``tables`` says."""
        words = {word for t in tables for row in t.rows for column in t.columns for word in said(row, column)}
        return [word for word in self.instead if word not in words] + [
            pattern for pattern in self.unavailable if not any(fnmatchcase(word, pattern) for word in words)
        ]

    def not_available(self, row: Row, column: Column) -> str | None:
        """Why the cell cannot be had at this scale; None where it can."""
        for word in said(row, column):
            for pattern, reason in self.unavailable.items():
                if fnmatchcase(word, pattern):
                    return reason
        return None

    def words(self, row: Row, column: Column) -> tuple[str, ...]:
        """The overrides of the cell's runs, without a seed; of words about one key the last one stands.

        >>> scaling = Scaling("s", "", (), (1,), ("dataset=digits", "model=mlp"), {"lr=3": ()}, {})
        >>> column = Column("c", ("experiment=x", "noise.rho=0.6"))
        >>> scaling.words(Row("r", "r", ("method=fedavg", "model=cnn", "lr=3"), None), column)
        ('experiment=x', 'dataset=digits', 'model=cnn', 'noise.rho=0.6', 'method=fedavg')
        """
        found = [w for word in said(row, column) for w in self.instead.get(word, (word,))]
        first = [word for word in found if _key(word) in FIRST]
        return _last(first + list(self.overrides) + [word for word in found if word not in first])


def said(row: Row, column: Column) -> list[str]:
    """The words of a cell at no scale."""
    further = [word for trigger, words in row.where if trigger in column.overrides for word in words]
    return [*column.overrides, *row.overrides, *further]


def _key(word: str) -> str:
    return word.lstrip("+").split("=")[0]


def _last(words: Sequence[str]) -> tuple[str, ...]:
    """Each key once, where it first came, with its last value."""
    return tuple({_key(word): word for word in words}.values())


def merged(label: Iterable[str]) -> str:
    """One label for columns that became one: what they share once, what differs side by side.

    >>> merged(["CIFAR-10 · η=0.2", "CIFAR-100 · η=0.2"])
    'CIFAR-10/CIFAR-100 · η=0.2'
    """
    parts = [one.split(" · ") for one in label]
    if len({len(part) for part in parts}) > 1:
        return "/".join(dict.fromkeys(" · ".join(part) for part in parts))
    return " · ".join("/".join(dict.fromkeys(column)) for column in zip(*parts, strict=True))
