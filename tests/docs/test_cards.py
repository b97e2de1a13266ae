"""Measurements in methods' cards are those of the runs that are kept."""

import re
from pathlib import Path

import pytest

from bench.card_runs import FILE, Row, line
from bench.whole_runs import read_rows

CARDS = Path(__file__).resolve().parents[2] / "docs" / "methods"
TABLE = re.compile(r"`(\w+)` of\s+\[the\s+cards'\s+runs\][^|]*?\n\n((?:\|.*\n)+)")
"""The name of a setting, and the table below it."""


def tables(card: Path) -> list[tuple[str, list[str]]]:
    """The settings that a card names, and the lines of the tables below them."""
    return [(setting, table.splitlines()) for setting, table in TABLE.findall(card.read_text())]


@pytest.mark.parametrize("card", [card.stem for card in sorted(CARDS.glob("*.md")) if tables(card)])
def test_a_card_has_the_numbers_of_its_runs(card: str) -> None:
    rows = read_rows(FILE, Row)
    for setting, (head, _, *lines) in tables(CARDS / f"{card}.md"):
        heads = [cell.strip().strip("`") for cell in head.strip("|").split("|")][1:]
        for told in lines:
            run = told.split("`")[1]
            assert told == line([row for row in rows if (row.setting, row.run) == (setting, run)], heads)


def test_every_kept_run_is_in_a_card() -> None:
    """So that nothing is run and kept that nobody reads."""
    told = {
        (setting, of.split("`")[1])
        for card in CARDS.glob("*.md")
        for setting, table in tables(card)
        for of in table[2:]
    }
    assert {(row.setting, row.run) for row in read_rows(FILE, Row)} <= told
