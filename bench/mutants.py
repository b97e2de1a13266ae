"""A room's code, changed at one place at a time: which of a sample of small mistakes do the tests notice?

    python -m bench.mutants evaluation --count 20 --seed 1

The tests run in a copy of the checkout. A mistake is *caught* if they fail, or take several times as long as without
it. What is not caught is printed with its place: a test is missing, or the change makes no difference, which only a
reader can tell.

Changes are textual: the rest of a file stays as it is. Messages, annotations and decorators are left alone.
"""

from __future__ import annotations

import argparse
import ast
import copy
import datetime
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, chain, takewhile, zip_longest
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src/flnl")
DOCTESTS = "tests/test_doctests.py::test_examples_give_what_they_say"
FILES = 8
"""At most so many files of tests run for a change: the nearest."""

_SWAPPED_OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_PAIRS = "min max, amin amax, argmin argmax, minimum maximum, floor ceil, any all, sum mean, zeros ones, append extend"
_SWAPPED_NAMES = {a: b for pair in _PAIRS.split(", ") for a, b in (pair.split(), pair.split()[::-1])}
_BOUNDS = {"abs", "clip", "clamp", "clamp_", "round", "sorted", "unique", "nan_to_num"}
_LIBRARIES = {"np", "torch", "math", "F"}
_TELLING = {"print", "note", "warn", "cast", "TypeVar", "debug", "info", "warning", "fail"}
_WITHOUT_EFFECT = {"strict", "encoding", "stacklevel", "file", "flush"}
"""Keywords that guard against what does not happen, or only concern what is printed."""
_LEFT_ALONE = (ast.JoinedStr, ast.Raise, ast.Assert, ast.pattern)
_FIELDS_LEFT_ALONE = {"annotation", "returns", "decorator_list", "bases", "type_params"}


_Node = TypeVar("_Node", bound=ast.AST)


@dataclass(frozen=True)
class Mutant:
    """One change: the bytes ``start`` to ``end`` of ``file`` (relative to the root) become ``text``."""

    kind: str
    file: Path
    line: int
    start: int
    end: int
    text: str
    shown: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.shown}"

    def of(self, source: bytes) -> bytes:
        """The changed source."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants(source: str, file: Path) -> Iterator[Mutant]:
    """All changes of a file, in the order of their places."""
    text = source.encode()
    lines = text.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    for node in _places(ast.parse(source)):
        start = starts[node.lineno - 1] + node.col_offset
        last = (node.end_lineno or node.lineno) - 1
        end = starts[last] + (node.end_col_offset or 0)
        before, after = (text[a:b].decode() for a, b in ((starts[node.lineno - 1], start), (end, starts[last + 1])))
        for kind, new in _changes(node):
            changed = ast.unparse(new)
            if isinstance(new, ast.expr) and not isinstance(new, ast.Name | ast.Call | ast.Attribute | ast.Subscript):
                changed = f"({changed})"
            shown = _difference(before + ast.unparse(node) + after, before + changed + after)
            yield Mutant(kind, file, node.lineno, start, end, changed, shown)


def _places(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The expressions and statements that may change."""
    if isinstance(node, _LEFT_ALONE) or (isinstance(node, ast.Call) and _tells(node)):
        return
    if isinstance(node, ast.FunctionDef) and node.name in ("__repr__", "__str__"):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.keyword) and node.arg in _WITHOUT_EFFECT:
        return
    if isinstance(node, ast.expr | ast.stmt):
        yield node
    for name, value in ast.iter_fields(node):
        if name not in _FIELDS_LEFT_ALONE:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _places(child)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """What may stand instead of a node, each with its kind."""
    match node:
        case ast.Compare(ops=ops):
            for i, op in enumerate(ops):
                kind = "border" if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) else "negation"
                yield kind, _with(node, ops=[*ops[:i], _SWAPPED_OPERATORS[type(op)](), *ops[i + 1 :]])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _SWAPPED_OPERATORS and not _joins(node):
            yield "arithmetic", _with(node, op=_SWAPPED_OPERATORS[type(op)]())
        case ast.BoolOp(op=op):
            yield "logic", _with(node, op=_SWAPPED_OPERATORS[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "sign" if isinstance(node.op, ast.USub) else "negation", operand
        case ast.Constant(value=bool(value)):
            yield "flag", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            for other in dict.fromkeys([value + 1, value * 2, 0]):
                if other != value:
                    yield "constant", ast.Constant(other)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "result", ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() as call) if not _tells(call):
            yield "step", ast.Pass()
        case ast.Call():
            yield from _changed_calls(node)


def _changed_calls(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    name, called, first = _name(node), node.func, [*node.args, None][0]
    method = isinstance(called, ast.Attribute) and ast.unparse(called.value) not in _LIBRARIES
    subject = called.value if method and isinstance(called, ast.Attribute) else first
    for i, keyword in enumerate(node.keywords):
        if keyword.arg and keyword.arg not in _WITHOUT_EFFECT:
            yield "keyword", _with(node, keywords=[*node.keywords[:i], *node.keywords[i + 1 :]])
    if len(node.args) > 1 and not any(isinstance(value, ast.Starred) for value in node.args[:2]):
        a, b, *others = node.args
        if ast.dump(a) != ast.dump(b):
            yield "order", _with(node, args=[b, a, *others])
    if name in _SWAPPED_NAMES:
        other = _SWAPPED_NAMES[name]
        swapped = ast.Name(other) if isinstance(called, ast.Name) else _with(called, attr=other)
        yield "extreme", _with(node, func=swapped)
    if name in _BOUNDS and subject is not None:
        yield "bound", subject
    if name == "argsort" and subject is not None:
        twice = ast.Attribute(node, "argsort") if method else called
        yield "rank", _with(node, func=twice, args=node.args if method else [node, *node.args[1:]])


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _tells(call: ast.Call) -> bool:
    """Whether a call only concerns messages or types."""
    return (name := _name(call)) in _TELLING or name.endswith(("Error", "Warning"))


def _joins(node: ast.BinOp | ast.AugAssign) -> bool:
    """Whether ``+`` joins texts or sequences, where ``-`` would be no mistake that anybody makes."""
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value]
    joined = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    return any(isinstance(s, joined) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides)


def _with(node: _Node, **fields: object) -> _Node:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _difference(old: str, new: str, around: int = 30) -> str:
    """Both texts in one line, without most of what they share."""
    old, new = (" ".join(text.split()) for text in (old, new))
    before = _shared(old, new)
    after = _shared(old[before:][::-1], new[before:][::-1])
    begin, rest = max(before - around, 0), max(after - around, 0)
    return " -> ".join(
        ("..." if begin else "") + text[begin : len(text) - rest] + ("..." if rest else "") for text in (old, new)
    )


def _shared(a: str, b: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def sample(found: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """``count`` changes in the order of their places, of each kind as many as of any other while there are some."""
    of_kind: dict[str, list[Mutant]] = {}
    for mutant in found:
        of_kind.setdefault(mutant.kind, []).append(mutant)
    draws = random.Random(seed)
    kinds = draws.sample(sorted(of_kind), len(of_kind))
    turns = zip_longest(*(draws.sample(of_kind[kind], len(of_kind[kind])) for kind in kinds))
    chosen = [mutant for mutant in chain.from_iterable(turns) if mutant][:count]
    return sorted(chosen, key=lambda mutant: (mutant.file, mutant.start, mutant.text))


def modules_by_test(root: Path) -> dict[Path, set[str]]:
    """The modules and packages that each file of tests names; those for a GPU need processes of their own."""
    tests = [test for test in (root / "tests").rglob("test_*.py") if test.parent.name != "cuda"]
    return {test: set(_named(test.read_text())) for test in tests}


def _named(text: str) -> Iterator[str]:
    for dotted in re.findall(r"\bflnl(?:\.\w+)*", text):
        yield from accumulate(dotted.split("."), "{}.{}".format)
    for package, names in re.findall(r"\bfrom (flnl(?:\.\w+)*) import ([^\n]*)", text):
        yield from (f"{package}.{name}" for name in re.findall(r"\w+", names))


def nearest_tests(file: Path, root: Path, tests: Mapping[Path, Collection[str]]) -> list[str]:
    """The files of ``tests`` for a module, nearest first: named after it or importing it, then those of its folder.

    Args:
        file: the module, from ``root``.
        root: the repository.
        tests: its ``modules_by_test``.
    """
    inside = file.relative_to("src").with_suffix("")
    package, _, name = ".".join(inside.parts).rpartition(".")
    found = sorted(tests, key=lambda test: (test.stem != f"test_{name}", test))
    folder = next(f for f in (root / "tests" / p for p in inside.relative_to("flnl").parents) if f.is_dir())
    mirror = [test for test in found if test.parent == folder != root / "tests"]
    users = [test for test in found if f"{package}.{name}" in tests[test] or test.stem == f"test_{name}"]
    if not (mirror or users):
        users = [test for test in found if package in tests[test]]
    near = dict.fromkeys(
        [*(t for t in mirror if t in users), *(t for t in users if t.parent != root / "tests"), *mirror]
    )
    example = f"{DOCTESTS}[{file.relative_to(PACKAGE).as_posix()}]"
    examples = [example] if ">>>" in (root / file).read_text() else []
    return examples + [test.relative_to(root).as_posix() for test in near][:FILES]


def copied(root: Path, to: Path) -> None:
    """Copy what git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, capture_output=True, check=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)


def passes(folder: Path, tests: Iterable[str], limit: float | None = None) -> bool:
    """Whether the tests pass in time; their output is in ``output`` beside the folder."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    base = folder.parent / "tmp"
    with (folder.parent / "output").open("w") as output:
        process = subprocess.Popen(
            [*command, "--basetemp", str(base), *tests],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what tests have left, too
            process.wait()
            shutil.rmtree(base, ignore_errors=True)


def survivors(chosen: list[Mutant], root: Path) -> Iterator[Mutant]:
    """Those that no test notices; ``SystemExit`` if the tests fail without any change."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name) / "copy"
        copied(root, folder)
        there = modules_by_test(folder)
        tests = {mutant.file: nearest_tests(mutant.file, folder, there) for mutant in chosen}
        began = time.monotonic()
        if not passes(folder, dict.fromkeys(chain.from_iterable(tests.values()))):
            sys.exit(f"without any change, the tests fail:\n{(Path(name) / 'output').read_text()[-3000:]}")
        limit = 20 + 4 * (time.monotonic() - began)
        for number, mutant in enumerate(chosen, 1):
            file = folder / mutant.file
            source, stat = file.read_bytes(), file.stat()
            file.write_bytes(mutant.of(source))
            os.utime(file, (number, number))  # so that bytecode of another text is not taken for it
            if passes(folder, tests[mutant.file], limit):
                yield mutant
            file.write_bytes(source)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def rooms(root: Path) -> list[str]:
    """The folders of the package."""
    return sorted(path.parent.name for path in (root / PACKAGE).glob("*/__init__.py"))


def files_of(room: str, root: Path) -> list[Path]:
    """The modules of a folder of the package, or one module, relative to the root."""
    place = root / PACKAGE / room
    found = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    return [file.relative_to(root) for file in found]


def main(arguments: list[str] | None = None) -> None:
    """Print the survivors of a room, and how many were caught."""
    today = (found := rooms(ROOT))[datetime.date.today().toordinal() % len(found)]
    parser = argparse.ArgumentParser(prog="python -m bench.mutants", description=__doc__.split("\n")[0])
    parser.add_argument(
        "room", nargs="?", default=today, help="a folder or module of src/flnl; by default another every day"
    )
    parser.add_argument("--count", type=int, default=20, help="how many changes to try (20)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (1)")
    options = parser.parse_args(arguments)
    files = files_of(options.room, ROOT)
    if not all((ROOT / file).is_file() for file in files):
        parser.error(f"no room {options.room!r} in {PACKAGE}: {', '.join(found)}, or a folder or module in them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the tests that are running end with this process
    chosen = sample(
        (m for file in files for m in mutants((ROOT / file).read_text(), file)), options.count, options.seed
    )
    if not chosen:
        parser.error(f"there is nothing to change in {options.room!r}, or --count is not positive")
    left = 0
    for mutant in survivors(chosen, ROOT):
        left += 1
        print(mutant, flush=True)
    print(f"{options.room}, seed {options.seed}: caught {len(chosen) - left} of {len(chosen)}")


if __name__ == "__main__":
    main()
