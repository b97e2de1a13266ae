"""Which module may import which, and the figures of the layout: ``python -m tests.test_layers [PACKAGE_FOLDER]``.

Every import counts, also one inside a function or for annotations alone. A room is what lies at the top of the package;
a module called ``__main__`` is a door of its own, which may open onto anything below the doors.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "flnl"

DOOR = "__main__"
LAYERS: tuple[tuple[str, ...], ...] = (
    ("core", "console"),
    ("config", "models", "numerics", "storage"),
    ("record",),
    ("data", "parts"),
    ("engine",),
    ("evaluation", "figures", "methods"),
    ("run",),
    ("sweep",),
    ("api", "audit"),
    ("sites",),
    ("instruments",),
    ("commands",),
    (DOOR,),
)
"""Rooms from the lowest layer up. A room imports from lower layers alone: rooms of one layer do not know each other."""


@dataclass(frozen=True)
class Imports:
    """The modules of a package by dotted name, and which of them each imports."""

    package: str
    edges: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, folder: Path) -> Imports:
        """Those of the package in ``folder``."""
        files = {_name(folder, file): file for file in folder.rglob("*.py")}
        edges = {name: frozenset(_imported(name, file, files)) - {name} for name, file in files.items()}
        return cls(folder.name, edges)

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """Who imports whom."""
        return [(one, other) for one in sorted(self.edges) for other in sorted(self.edges[one])]

    def room(self, module: str) -> str:
        """The room that a module is in; of the package's own ``__init__`` the package's name."""
        parts = module.split(".")
        if parts[-1] == DOOR:
            return DOOR
        return parts[1] if len(parts) > 1 else self.package

    @property
    def rooms(self) -> dict[str, frozenset[str]]:
        """The rooms, and which others each imports."""
        found: dict[str, set[str]] = {self.room(module): set() for module in self.edges}
        for one, other in self.pairs:
            if self.room(one) != self.room(other):
                found[self.room(one)].add(self.room(other))
        return {room: frozenset(others) for room, others in found.items()}

    @property
    def upward(self) -> list[str]:
        """Imports between rooms that do not go to a lower layer."""
        level = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
        top = len(LAYERS)
        return [
            f"{one} -> {other}"
            for one, other in self.pairs
            if self.room(one) != self.room(other)
            and self.room(other) != self.package  # its docstring and version
            and level.get(self.room(other), top) >= level.get(self.room(one), top)
        ]

    def below(self, folder: str) -> list[str]:
        """The modules below a folder of the package."""
        return [module for module in self.edges if f"{module}.".startswith(f"{self.package}.{folder}.")]


def _name(folder: Path, file: Path) -> str:
    parts = (folder.name, *file.relative_to(folder).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(module: str, file: Path, known: Collection[str]) -> Iterable[str]:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                if submodule in known or source in known:
                    yield submodule if submodule in known else source


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The groups of two or more that reach each other."""
    reached = {one: _reached(one, edges) for one in edges}
    found = {frozenset({one, *(other for other in reached[one] if one in reached[other])}) for one in edges}
    return sorted(sorted(group) for group in found if len(group) > 1)


def _reached(start: str, edges: Mapping[str, Iterable[str]]) -> set[str]:
    seen: set[str] = set()
    left = list(edges[start])
    while left:
        here = left.pop()
        if here not in seen:
            seen.add(here)
            left += edges[here]
    return seen


def depth(edges: Mapping[str, Iterable[str]]) -> int:
    """How many rooms the longest way down passes, a circle counted as one."""
    group = {one: frozenset([one]) for one in edges}
    for circle in circles(edges):
        group |= dict.fromkeys(circle, frozenset(circle))
    known: dict[frozenset[str], int] = {}

    def of(here: frozenset[str]) -> int:
        if here not in known:
            below = {group[other] for one in here for other in edges[one]} - {here}
            known[here] = 1 + max(map(of, below), default=0)
        return known[here]

    return max(map(of, group.values()))


@pytest.fixture(scope="module")
def imports() -> Imports:
    return Imports.of(PACKAGE)


def test_imports_go_down(imports: Imports) -> None:
    assert imports.upward == []


def test_every_room_has_a_layer(imports: Imports) -> None:
    assert {*imports.rooms} - {imports.package} == {room for rooms in LAYERS for room in rooms}


def test_no_modules_import_each_other(imports: Imports) -> None:
    assert circles(imports.edges) == []


def test_configuration_alone_names_methods(imports: Imports) -> None:
    methods = {*imports.below("methods")}
    assert [f"{a} -> {b}" for a, b in imports.pairs if a not in methods and b in methods] == []


def test_no_method_imports_another(imports: Imports) -> None:
    methods = [module.split(".")[2:3] for module in imports.below("methods")]
    assert len(methods) > 5
    crossing = [
        f"{a} -> {b}"
        for a, b in imports.pairs
        if imports.room(a) == imports.room(b) == "methods" and a.split(".")[2:3] != b.split(".")[2:3]
    ]
    assert crossing == []


def test_no_part_reads_the_labels_that_a_client_was_given() -> None:
    """They may have been corrected since: ``ClientTask.labels`` are those that the client holds."""
    files = sorted(file for room in ("methods", "parts") for file in (PACKAGE / room).rglob("*.py"))
    assert len(files) > 50
    assert [f"{file.relative_to(PACKAGE)}:{line}" for file in files for line in reads_given(file.read_text())] == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("labels = task.samples.given", [1]),
        ("own = samples.at(chosen)\ncounts(own.given[chosen])", [2]),
        ("getattr(samples, 'given')", [1]),
        ("given = task.labels\nstep.given_labels", []),
    ],
)
def test_every_reading_of_given_labels_is_seen(source: str, lines: list[int]) -> None:
    assert reads_given(source) == lines


def reads_given(source: str) -> list[int]:
    """The lines of a module that read an attribute called ``given``."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if (isinstance(node, ast.Attribute) and node.attr == "given")
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and _names_given(node))
    ]


def _names_given(call: ast.Call) -> bool:
    return any(isinstance(word, ast.Constant) and word.value == "given" for word in call.args)


def test_init_files_that_hand_names_on_stay_short() -> None:
    long = [
        file for file in PACKAGE.rglob("__init__.py") if _hands_on(file) and len(file.read_text().splitlines()) >= 40
    ]
    assert long == []


def _hands_on(file: Path) -> bool:
    """Whether a file defines nothing of its own."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return not any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in body)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from toy.low import a", {"toy.low"}),
        ("from toy import low", {"toy.low"}),
        ("import toy.low.deep", {"toy.low.deep"}),
        ("def f():\n    from toy.low.deep import a", {"toy.low.deep"}),
        ("if TYPE_CHECKING:\n    from toy.low import A", {"toy.low"}),
        ("from ..low import deep", {"toy.low.deep"}),
        ("from . import other", {"toy.high.other"}),
        ("from elsewhere import low", set()),
    ],
)
def test_every_way_to_import_is_seen(source: str, found: set[str], tmp_path: Path) -> None:
    for name in ("__init__", "low/__init__", "low/deep", "high/__init__", "high/other"):
        file = tmp_path / "toy" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (tmp_path / "toy" / "high" / "here.py").write_text(source)
    assert Imports.of(tmp_path / "toy").edges["toy.high.here"] == found


def test_circles_and_layers_are_counted() -> None:
    edges = {"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": []}
    assert circles(edges) == [["b", "c"]]
    assert depth(edges) == 3


def test_a_room_that_imports_one_of_its_layer_is_named() -> None:
    edges = {
        "flnl.core.a": frozenset({"flnl.data.b"}),
        "flnl.data.b": frozenset({"flnl.commands.c"}),
        "flnl.commands.c": frozenset[str](),
    }
    assert Imports("flnl", edges).upward == ["flnl.core.a -> flnl.data.b", "flnl.data.b -> flnl.commands.c"]


def figures(folder: Path) -> str:
    """The figures of a package, a line each; which imports go up is told where all its rooms have a layer."""
    imports = Imports.of(folder)
    rooms, rings = imports.rooms, circles(imports.edges)
    known = {*rooms} - {imports.package} <= {room for layer in LAYERS for room in layer}
    lines = [
        f"rooms at the top: {len({*rooms} - {imports.package, DOOR})}",
        f"layers: {depth(rooms)}",
        f"imports between rooms: {sum(map(len, rooms.values()))}",
        f"imports from a lower layer up: {len(imports.upward) if known else 'its rooms have no layers'}",
        f"circles: {len(rings)}",
        *(f"  up: {one}" for one in (imports.upward if known else ())),
        *(f"  circle: {' '.join(one)}" for one in rings),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(figures(Path(sys.argv[1]).resolve() if sys.argv[1:] else PACKAGE))
