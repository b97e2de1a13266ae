"""Tables and scales as they are written in ``conf/table`` and ``conf/scale``."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from annotated_types import MinLen
from pydantic import ConfigDict, PlainValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from flnl.config.resolvers import CONF
from flnl.core.errors import UserError
from flnl.core.ranges import PositiveCount, Seed
from flnl.tables.scaling import Scaling
from flnl.tables.table import NEVER, Column, Metric, Number, Row, Table

TABLES, SCALES = CONF / "table", CONF / "scale"
PAPERS = ("FedCorr", "FedDiv", "FLR", "FedPeer", "FedES")
"""The order of papers; tables of one's own follow."""

FAULTS = {
    "missing": " is missing",
    "too_short": " must not be empty",
    "tuple_type": " must be a list",
    "dataclass_type": " must have its keys, a line each",
    "dict_type": " must have its keys, a line each",
    "string_type": ": {value}: must be words; put quotes around them",
    "int_parsing": ": {value}: must be a whole number",
    "int_type": ": {value}: must be a whole number",
    "bool_parsing": ": {value}: must be true, false or null",
    "bool_type": ": {value}: must be true, false or null",
}
"""What is said instead of pydantic's words, by its types of errors."""


def _cell(written: Any) -> Number | None:
    """A cell as written: a number, with its deviation or without, or ``never``; None for an empty one."""
    if written is None:
        return None
    if written == "never":
        return Number(NEVER, None)
    mean, std = written if isinstance(written, list) and len(written) == 2 else (written, None)
    if not _finite(mean) or not (std is None or _finite(std)):
        raise ValueError("must be a number, [mean, std], never or null")
    return Number(float(mean), None if std is None else float(std))


def _finite(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)


def _seeds(written: object) -> tuple[int, ...] | None:
    """Seeds as written; None for as many as the paper's trials."""
    if written == "trials":
        return None
    found: list[int] = []
    with suppress(ValidationError):
        found = TypeAdapter(Annotated[list[Seed], MinLen(1)]).validate_python(written, strict=True)
    if not found or len(set(found)) < len(found):
        raise ValueError("must be distinct numbers, as in [1, 2], or trials")
    return tuple(found)


Printed = Annotated[Number | None, PlainValidator(_cell)]
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
    seeds: Annotated[tuple[int, ...] | None, PlainValidator(_seeds)]
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
    raise UserError(_unknown(name, there, what))


def _unknown(name: str, there: Sequence[str], what: str) -> str:
    close = difflib.get_close_matches(name, there, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    article = "an" if what[0] in "aeiou" else "a"
    return f"{name} is not {article} {what}; {hint}there are {', '.join(there)}"


@cache
def table(name: str) -> Table:
    """The table in ``conf/table/NAME.yaml``.

    Raises:
        UserError: if there is none, or it says what a table cannot.
    """
    path = TABLES / f"{known(name, names(), 'table')}.yaml"
    said = _read(path, _Table)
    for what, labels in (("rows", [r.label for r in said.rows]), ("columns", [c.label for c in said.columns])):
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise UserError(f"{_shown(path)}: two {what} are called {twice[0]}; give each a label of its own")
    for row in said.rows:
        if row.cells is not None and len(row.cells) != len(said.columns):
            raise UserError(f"{_shown(path)}: {row.label} has {len(row.cells)} cells for {len(said.columns)} columns")
        if Number(NEVER, None) in (row.cells or ()) and said.metric.higher_is_better is not False:
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
        cells=tuple(row.cells or (None,) * len(said.columns) for row in said.rows),
        notes=said.notes,
        unstated=said.unstated,
    )


def readable() -> tuple[tuple[Table, ...], list[str]]:
    """The tables that can be read, and what is wrong with each of the others."""
    found, wrong = [], []
    for name in names():
        try:
            found.append(table(name))
        except UserError as error:
            wrong.append(str(error))
    return tuple(found), wrong


def scaling(name: str) -> Scaling:
    """The scale in ``conf/scale/NAME.yaml``.

    Raises:
        UserError: if there is none, it says what a scale cannot, or it speaks of a word that no table says: after a
            slip there the paper's own word would be run.
    """
    path = SCALES / f"{known(name, scales(), 'scale')}.yaml"
    said = _read(path, _Scale)
    found = Scaling(
        name,
        said.title,
        said.changes,
        said.seeds,
        said.overrides,
        dict(said.instead),
        dict(said.unavailable),
        said.papers,
    )
    tables, wrong = readable()
    if not wrong and (idle := found.unmatched(tables)):
        raise UserError(f"{_shown(path)}: no table says {' or '.join(idle)}; mend the word, or remove its line")
    return found


def _read(path: Path, kind: type[Written]) -> Written:
    """A file as what it should be.

    Raises:
        UserError: if it is something else, naming the first place where.
    """
    try:
        written: Any = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        return TypeAdapter(kind).validate_python(written)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{_shown(path)} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{_shown(path)} is no YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise UserError(f"{_shown(path)}{_fault(kind, error)}") from None


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a key that is written twice, of which YAML's own would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.YAMLError(f"line {key.start_mark.line + 1} says {key.value} again")
                seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def _fault(kind: type[Any], error: ValidationError) -> str:
    """The first thing that is wrong, with its place, to follow a file's name."""
    slip = "unexpected_keyword_argument"
    first = min(error.errors(), key=lambda one: one["type"] != slip)  # which explains what is missing
    place = [str(part) for part in first["loc"]]
    if first["type"] == slip:
        for part in place[:-1]:
            kind = {"metric": _Metric, "columns": _Column, "rows": _Row}.get(part, kind)
        keys = [one.name for one in fields(kind)]
        return "".join(f": {part}" for part in (".".join(place[:-1]), _unknown(place[-1], keys, "key")) if part)
    plain = first["msg"].removeprefix("Value error, ").replace("Input should", "must")
    value = "null" if first["input"] is None else str(first["input"])
    said = FAULTS.get(first["type"], f": {value}: {plain}").replace("{value}", value)
    return f": {'.'.join(place)}{said}" if place else said


def _shown(path: Path) -> str:
    return path.relative_to(CONF.parent).as_posix()
