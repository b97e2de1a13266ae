"""Load the tables in ``conf/table`` and the scales in ``conf/scale``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from annotated_types import MinLen
from pydantic import PlainValidator, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from flnl.config.folders import CONF
from flnl.console.suggestions import instead
from flnl.core.errors import UserError
from flnl.core.numbers import is_number
from flnl.core.ranges import PositiveCount, Seed
from flnl.instruments.tables.scaling import Scaling, triggers
from flnl.instruments.tables.table import NEVER, STRICT, Column, Metric, Number, Row, Table
from flnl.sweep.keys import NOT_OF_A_LIST, refuse_keys

TABLES, SCALES = CONF / "table", CONF / "scale"
PAPERS = ("FedCorr", "FedDiv", "FLR", "FedPeer", "FedES", "FedNoisy", "FNBench")
"""The order of papers; user-defined tables follow."""

NAME = re.compile(r"(?!readme$)[\w-]+", re.IGNORECASE)
"""What tables are called: links to rendered ones need no quotes, and README is their index."""

FAULTS = {
    "missing": " is missing",
    "too_short": " must not be empty",
    "tuple_type": " must be a list",
    "dataclass_type": " must have its keys, a line each",
    "dict_type": " must have its keys, a line each",
    "string_type": ": {value}: must be a text; put quotes around it",
    "int_parsing": ": {value}: must be a whole number",
    "int_type": ": {value}: must be a whole number",
    "bool_parsing": ": {value}: must be true, false or null",
    "bool_type": ": {value}: must be true, false or null",
}
"""Messages that replace pydantic's, by its types of errors."""

NOT_OF_A_CELL = {
    "seed": "a cell has a run for each seed of its scale or its table; seeds=N takes another number of them",
    **NOT_OF_A_LIST,
}
"""Keys that no override of a table or a scale sets, with the reason."""


def _cell(written: Any) -> Number | None:
    """Parse a cell: a number, ``[mean, std]``, ``never``, or null for an empty cell."""
    if written is None:
        return None
    if written == "never":
        return Number(NEVER, None)
    mean, std = written if isinstance(written, list) and len(written) == 2 else (written, None)
    if not _finite(mean) or not (std is None or _finite(std)):
        raise ValueError("must be a number, [mean, std], never or null")
    return Number(float(mean), None if std is None else float(std))


def _finite(number: object) -> bool:
    return is_number(number) and math.isfinite(number)


def _seeds(written: object) -> tuple[int, ...]:
    """Parse a list of seeds."""
    seeds: list[int] = []
    with suppress(ValidationError):
        seeds = TypeAdapter(Annotated[list[Seed], MinLen(1)]).validate_python(written, strict=True)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError("must be distinct numbers, as in [1, 2]")
    return tuple(seeds)


def _seeds_or_trials(written: object) -> tuple[int, ...] | None:
    """Parse the seeds of a scale; ``trials`` gives None: as many as the paper has trials."""
    try:
        return None if written == "trials" else _seeds(written)
    except ValueError as error:
        raise ValueError(f"{error}, or trials") from None


Printed = Annotated[Number | None, PlainValidator(_cell)]
Overrides = tuple[str, ...]
Written = TypeVar("Written")


@dataclass(frozen=True, config=STRICT)
class _Row:
    label: str
    overrides: Overrides = ()
    method: str | None = None
    missing: str | None = None
    where: Mapping[str, Overrides] = field(default_factory=dict)
    cells: tuple[Printed, ...] | None = None


@dataclass(frozen=True, config=STRICT)
class _Table:
    title: str
    metric: Metric
    columns: Annotated[tuple[Column, ...], MinLen(1)]
    rows: Annotated[tuple[_Row, ...], MinLen(1)]
    paper: str = ""
    number: str = ""
    trials: PositiveCount | None = None
    overrides: Overrides = ()
    notes: tuple[str, ...] = ()
    unstated: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()
    ablation: bool = False
    no_effect: Mapping[str, str] = field(default_factory=dict)
    by_name: bool = False
    seeds: Annotated[tuple[int, ...] | None, PlainValidator(_seeds)] = None


@dataclass(frozen=True, config=STRICT)
class _Scale:
    title: str
    changes: tuple[str, ...]
    seeds: Annotated[tuple[int, ...] | None, PlainValidator(_seeds_or_trials)]
    overrides: Overrides = ()
    instead: Mapping[str, Overrides] = field(default_factory=dict)
    unavailable: Mapping[str, str] = field(default_factory=dict)
    papers: bool = False


def names() -> list[str]:
    """The names of all tables, by paper and number."""
    return sorted((path.stem for path in TABLES.glob("*.yaml")), key=_place)


def _place(name: str) -> tuple[int, int, str]:
    paper, _, number = name.rpartition("_")
    papers = [known.lower() for known in PAPERS]
    return (papers.index(paper) if paper in papers else len(papers), int(number) if number.isdigit() else 0, name)


def scales() -> list[str]:
    """The names of all scales, from the smallest."""
    first = ("small", "mnist", "lenet", "cifar", "paper")
    names = {path.stem for path in SCALES.glob("*.yaml")}
    return [*(name for name in first if name in names), *sorted(names - set(first))]


def known(name: str, valid: Sequence[str], what: str) -> str:
    """Return ``name`` if it is valid.

    Args:
        name: what the user wrote.
        valid: all valid names.
        what: what the name is of, for the message: "table".

    Raises:
        UserError: if it is not; the message names the closest match.
    """
    if name in valid:
        return name
    raise UserError(_unknown(name, valid, what))


def _unknown(name: str, valid: Sequence[str], what: str) -> str:
    article = "an" if what[0] in "aeiou" else "a"
    return f"{name} is not {article} {what}; {instead(name, valid)}"


@cache
def table(name: str) -> Table:
    """Load the table in ``conf/table/NAME.yaml``.

    Raises:
        UserError: if there is no such file, or its name or content is invalid.
    """
    path = TABLES / f"{known(name, names(), 'table')}.yaml"
    if not NAME.fullmatch(name):
        raise UserError(f"{_shown(path)}: rename it, with letters, digits, _ and - alone, and not to README")
    written = _read(path, _Table)
    if unknown := next((one for one in written.scales if one not in scales()), None):
        raise UserError(f"{_shown(path)}: scales: {_unknown(unknown, scales(), 'scale')}")
    rows = ((*row.overrides, *chain(*row.where.values())) for row in written.rows)
    check_keys(chain(written.overrides, *(c.overrides for c in written.columns), *rows), f"{_shown(path)}: ")
    columns = tuple(replace(c, overrides=(*written.overrides, *c.overrides)) for c in written.columns)
    if fault := next(_contradictions(written, columns), None):
        raise UserError(f"{_shown(path)}: {fault}")
    own = [
        Row(r.label, r.label if r.method is None else r.method, r.overrides, r.missing, tuple(r.where.items()))
        for r in written.rows
    ]
    cells = tuple(row.cells or (None,) * len(columns) for row in written.rows)
    held = {key: value for key, value in vars(written).items() if key not in ("overrides", "rows", "columns")}
    return Table(name=name, rows=tuple(own), columns=columns, cells=cells, **held)


def _contradictions(written: _Table, columns: Sequence[Column]) -> Iterator[str]:
    """What does not go together in a table, whose ``columns`` have the overrides of all."""
    for what, labels in (("rows", [r.label for r in written.rows]), ("columns", [c.label for c in columns])):
        if twice := [label for label in labels if labels.count(label) > 1]:
            yield f"two {what} are called {twice[0]}; give each a label of its own"
    other = ", which only a metric where lower is better can have"
    lower = written.metric.higher_is_better is False
    if written.metric.over == "lowest" and not lower:
        yield f"metric.over is lowest{other}"
    for row in written.rows:
        if row.cells is not None and len(row.cells) != len(columns):
            yield f"{row.label} has {len(row.cells)} cells for {len(columns)} columns"
        if Number(NEVER, None) in (row.cells or ()) and not lower:
            yield f"{row.label} has a cell “never”{other}"
        for line in row.where:
            if not any(triggers(line) <= {*column.overrides} for column in columns):
                yield f"{row.label}: where names {line}, which no column has"


def readable() -> tuple[tuple[Table, ...], list[str]]:
    """The tables that can be read, and an error message for each of the others."""
    tables, wrong = [], []
    for name in names():
        try:
            tables.append(table(name))
        except UserError as error:
            wrong.append(str(error))
    return tuple(tables), wrong


def scaling(name: str) -> Scaling:
    """Load the scale in ``conf/scale/NAME.yaml``.

    Raises:
        UserError: if there is no such file, its content is invalid, or it replaces an override that no table has: after
            a typo there, the paper's own override would be run.
    """
    path = SCALES / f"{known(name, scales(), 'scale')}.yaml"
    written = _read(path, _Scale)
    check_keys(chain(written.overrides, *written.instead.values()), f"{_shown(path)}: ")
    scale = Scaling(name, **vars(written))
    tables, wrong = readable()
    if not wrong and (idle := scale.unmatched(one for one in tables if not one.scales)):
        raise UserError(f"{_shown(path)}: no table says {' or '.join(idle)}; correct the override, or remove its line")
    return scale


def check_keys(overrides: Iterable[str], where: str = "") -> None:
    """Refuse overrides of keys that no cell sets; ``where`` is the beginning of the message.

    Raises:
        UserError: naming the first such override.
    """
    refuse_keys(overrides, where, NOT_OF_A_CELL)


def _read(path: Path, kind: type[Written]) -> Written:
    """Read a YAML file and validate it as ``kind``.

    Raises:
        UserError: if it is invalid, naming the first fault.
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
    """Refuses duplicate keys; PyYAML's loader would silently take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The mapping of a node."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.YAMLError(f"line {key.start_mark.line + 1} says {key.value} again")
                seen.add(key.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _fault(kind: type[Any], error: ValidationError) -> str:
    """The first fault and its place, to append to a file's name."""
    slip = "unexpected_keyword_argument"
    first = min(error.errors(), key=lambda one: one["type"] != slip)  # an unknown key first: it explains a missing one
    place = [str(part) for part in first["loc"]]
    if first["type"] == slip:
        for part in place[:-1]:
            kind = {"metric": Metric, "columns": Column, "rows": _Row}.get(part, kind)
        keys = [one.name for one in fields(kind)]
        return "".join(f": {part}" for part in (".".join(place[:-1]), _unknown(place[-1], keys, "key")) if part)
    plain = first["msg"].removeprefix("Value error, ").replace("Input should", "must")
    value = "null" if first["input"] is None else str(first["input"])
    message = FAULTS.get(first["type"], f": {value}: {plain}").replace("{value}", value)
    return f": {'.'.join(place)}{message}" if place else message


def _shown(path: Path) -> str:
    return path.relative_to(CONF.parent).as_posix()
