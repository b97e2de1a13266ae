"""Rows and columns of tables, selected by their labels."""

from dataclasses import replace

import pytest

from flnl.core.errors import UserError
from flnl.instruments.tables import load
from flnl.instruments.tables.selection import Selection


def test_a_pattern_selects_rows_with_their_cells() -> None:
    table = load.table("fedcorr_10")
    [narrow] = Selection(rows=("*lenet-5",), columns=("ρ=0.6*", "ρ=0.0 τ=0.0")).of([table])
    assert [row.label for row in narrow.rows] == ["FedCorr with LeNet-5"]
    assert [column.label for column in narrow.columns] == ["ρ=0.0 τ=0.0", "ρ=0.6 τ=0.0", "ρ=0.6 τ=0.5"]
    assert [[number and number.mean for number in row] for row in narrow.cells] == [[72.03, 69.09, 67.48]]


def test_a_table_without_a_selected_row_is_left_out() -> None:
    tables = [load.table("fedcorr_2"), load.table("fedcorr_10")]
    assert [one.name for one in Selection(rows=("FedCorr with *",)).of(tables)] == ["fedcorr_10"]
    assert Selection().of(tables) == tuple(tables)


@pytest.mark.parametrize("pattern", ["fedcorr [b]", "*[b]", "FedCorr ?b?"])
def test_a_bracket_stands_for_itself(pattern: str) -> None:
    table = load.table("fedcorr_10")
    labels = ("FedCorr a", "FedCorr [b]", "FedCorr b")
    rows = tuple(replace(row, label=label) for row, label in zip(table.rows, labels, strict=True))
    (narrow,) = Selection((pattern,)).of([replace(table, rows=rows)])
    assert [row.label for row in narrow.rows] == ["FedCorr [b]"]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(rows=("FedCor",)), "rows=FedCor: no row of these tables has this label; did you mean FedCorr?"),
        (Selection(columns=("zzz",)), "there are ρ=0.0 τ=0.0, "),
        (Selection(("FedCorr with VGG-11",), ("p=0.7*",)), "no table has both"),
    ],
)
def test_what_matches_nothing_is_refused(selection: Selection, message: str) -> None:
    with pytest.raises(UserError) as refused:
        selection.of([load.table(name) for name in ("fedcorr_2", "fedcorr_9", "fedcorr_10")])
    assert message in str(refused.value)
