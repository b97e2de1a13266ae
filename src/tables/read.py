"""Tables and scales as they are written in ``conf/table`` and ``conf/scale``."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from annotated_types import MinLen
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from src.config import CONF
from src.errors import UserError
from src.ranges import PositiveCount, Seed
from src.tables.scaling import Scaling
from src.tables.table import NEVER, Column, Metric, Number, Row, Table

TABLES, SCALES = CONF / "table", CONF / "scale"
PAPERS = ("FedCorr", "FedDiv", "FLR", "FedPeer", "FedES")
"""The order of papers; tables of one's own follow."""

Printed = float | tuple[float, float | None] | Literal["never"] | None
Words = tuple[str, ...]
Written = TypeVar("Written")
STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=STRICT)
class _Metric:
    name: str
    key: str
    unit: str = ""
    higher_is_better: bool | None = None


@dataclass(frozen=True, config=STRICT)
class _Column:
    label: str
    overrides: Words = ()
    key: str | None = None
    missing: str | None = None


@dataclass(frozen=True, config=STRICT)
class _Row:
    label: str
    overrides: Words = ()
    method: str | None = None
    missing: str | None = None
    where: Mapping[str, Words] = field(default_factory=dict)
    cells: tuple[Printed, ...] | None = None


@dataclass(frozen=True, config=STRICT)
class _Table:
    title: str
    metric: _Metric
    columns: Annotated[tuple[_Column, ...], MinLen(1)]
    rows: Annotated[tuple[_Row, ...], MinLen(1)]
    paper: str = ""
    number: str = ""
    trials: PositiveCount | None = None
    overrides: Words = ()
    notes: tuple[str, ...] = ()
    unstated: tuple[str, ...] = ()


@dataclass(frozen=True, config=STRICT)
class _Scale:
    title: str
    changes: tuple[str, ...]
    seeds: tuple[Seed, ...] | Literal["trials"]
    overrides: Words = ()
    instead: Mapping[str, Words] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    papers: bool = False


def names() -> list[str]:
    """The tables that there are: paper by paper, each in the order of its numbers."""
    return sorted((path.stem for path in TABLES.glob("*.yaml")), key=_place)


def _place(name: str) -> tuple[int, int, str]:
    paper, _, number = name.rpartition("_")
    papers = [known.lower() for known in PAPERS]
    return (papers.index(paper) if paper in papers else len(papers), int(number) if number.isdigit() else 0, name)


def scales() -> list[str]:
    """The scales that there are, from the smallest."""
    first = ("small", "mnist", "cifar", "paper")
    found = {path.stem for path in SCALES.glob("*.yaml")}
    return [*(name for name in first if name in found), *sorted(found - set(first))]


def known(name: str, there: Sequence[str], what: str) -> str:
    """``name``, if it is there.

    Raises:
        UserError: if not, with the nearest that is.
    """
    if name in there:
        return name
    close = difflib.get_close_matches(name, there, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UserError(f"{name} is not a {what}; {hint}there are {', '.join(there)}")


@cache
def table(name: str) -> Table:
    """The table in ``conf/table/NAME.yaml``.

    Raises:
        UserError: if there is none, or it says what a table cannot.
    """
    path = TABLES / f"{known(name, names(), 'table')}.yaml"
    said = _read(path, _Table)
    for row in said.rows:
        if row.cells is not None and len(row.cells) != len(said.columns):
            raise UserError(f"{_shown(path)}: {row.label} has {len(row.cells)} cells for {len(said.columns)} columns")
        if "never" in (row.cells or ()) and said.metric.higher_is_better is not False:
            raise UserError(
                f"{_shown(path)}: {row.label} has a cell “never”, which is of a metric where lower is better"
            )
        if idle := [
            word for word in row.where if not any(word in (*said.overrides, *c.overrides) for c in said.columns)
        ]:
            raise UserError(f"{_shown(path)}: {row.label} speaks of columns with {idle[0]}, and there are none")
    return Table(
        name=name,
        paper=said.paper,
        number=said.number,
        title=said.title,
        metric=Metric(**asdict(said.metric)),
        trials=said.trials,
        rows=tuple(
            Row(
                row.label,
                row.label if row.method is None else row.method,
                row.overrides,
                row.missing,
                tuple(row.where.items()),
            )
            for row in said.rows
        ),
        columns=tuple(Column(c.label, (*said.overrides, *c.overrides), c.key, c.missing) for c in said.columns),
        cells=tuple(tuple(map(_number, row.cells or [None] * len(said.columns))) for row in said.rows),
        notes=said.notes,
        unstated=said.unstated,
    )


def _number(printed: Printed) -> Number | None:
    if printed is None:
        return None
    if printed == "never":
        return Number(NEVER, None)
    return Number(*printed) if isinstance(printed, tuple) else Number(printed, None)


def scaling(name: str) -> Scaling:
    """The scale in ``conf/scale/NAME.yaml``.

    Raises:
        UserError: if there is none, it says what a scale cannot, or it speaks of a word that no table says: after a
            slip there the paper's own word would be run.
    """
    path = SCALES / f"{known(name, scales(), 'scale')}.yaml"
    said = _read(path, _Scale)
    seeds = None if said.seeds == "trials" else said.seeds
    found = Scaling(
        name, said.title, said.changes, seeds, said.overrides, dict(said.instead), dict(said.unavailable), said.papers
    )
    if (found.instead or found.unavailable) and (idle := found.unmatched(map(table, names()))):
        raise UserError(f"{_shown(path)}: no table says {' or '.join(idle)}; mend the word, or remove its line")
    return found


def _read(path: Path, kind: type[Written]) -> Written:
    """A file as what it should be.

    Raises:
        UserError: if it is something else, naming the first place where.
    """
    try:
        written: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return TypeAdapter(kind).validate_python(written)
    except yaml.YAMLError as error:
        raise UserError(f"{_shown(path)} is no YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UserError(f"{_shown(path)}: {f'{place}: ' if place else ''}{first['msg']}") from None


def _shown(path: Path) -> str:
    return path.relative_to(CONF.parent).as_posix()
