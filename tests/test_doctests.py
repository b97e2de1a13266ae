"""The examples in docstrings give what they say.

Modules are imported under their own names: collected as files, they would be imported a second time as ``src.flnl...``.
"""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "flnl"
FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if ">>>" in file.read_text(encoding="utf-8")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(PACKAGE).as_posix())
def test_examples_give_what_they_say(file: Path) -> None:
    name = ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    found = doctest.testmod(import_module(name))
    assert found.attempted
    assert not found.failed


def test_there_are_examples() -> None:
    assert len(FILES) >= 25
