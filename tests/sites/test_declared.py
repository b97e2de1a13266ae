"""What clients may send is declared by every part of the package, so that no site stops a run at its first message."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

from flnl import methods, parts
from flnl.core.parts import Exchange, LabelCorrector
from flnl.core.stored import name_of


def _all(kind: type[Any]) -> Iterator[type[Any]]:
    for one in kind.__subclasses__():
        yield one
        yield from _all(one)


for package in (methods, parts):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
OURS = sorted(
    {one for kind in (Exchange, LabelCorrector) for one in _all(kind) if one.__module__.startswith("flnl.")},
    key=lambda one: (one.__module__, one.__name__),
)


@pytest.mark.parametrize("part", OURS, ids=lambda part: part.__name__)
def test_what_a_part_reports_has_a_stored_name(part: type[Any]) -> None:
    for kind in part.reports:
        assert name_of(kind)


def test_who_reports_after_training_says_what() -> None:
    """But for what only stays on the client."""
    reporting = [one for one in OURS if issubclass(one, Exchange) and one.report is not Exchange.report]
    assert [one.__name__ for one in reporting if not one.reports] == ["SmallLoss"]
