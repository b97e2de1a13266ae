"""The order of the methods: Spearman's coefficient from its definition, and which pairs are the other way round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flnl.instruments.tables.render.agreement import agreements, coefficient, competitors, spearman
from flnl.instruments.tables.table import NEVER, Metric, Number, Row
from tests.instruments.tables.render.made import ACCURACY, Given, table


def test_without_ties_it_is_the_sum_of_squared_differences_of_ranks() -> None:
    """``1 - 6 sum d² / (n (n² - 1))``: d = (-2, -2, 1, 3)."""
    assert spearman([10.0, 20.0, 30.0, 40.0], [3.0, 3.5, 2.0, 1.0]) == pytest.approx(1 - 6 * 18 / 60)
    assert spearman([1.0, 2.0, 3.0], [-5.0, 0.0, 900.0]) == pytest.approx(1)


def test_ties_have_their_mean_rank() -> None:
    """Ranks 1.5, 1.5, 3, 4 and 1, 2, 3.5, 3.5, correlated by hand."""
    a, b = np.array([1.5, 1.5, 3, 4]) - 2.5, np.array([1, 2, 3.5, 3.5]) - 2.5
    expected = a @ b / np.sqrt((a @ a) * (b @ b))
    assert spearman([7.0, 7.0, 8.0, 9.0], [0.1, 0.2, 0.3, 0.3]) == pytest.approx(expected)


def test_an_order_that_is_one_tie_has_no_coefficient() -> None:
    assert spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]) is None


@pytest.mark.parametrize(
    ("ours", "papers", "said"),
    [
        ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0], "all of ours tied"),
        ([1.0, 2.0, 3.0], [1.0, 1.0, 1.0], "all of the paper's tied"),
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], "all of ours and the paper's tied"),
        ([1.0, 1.0, 2.0], [1.0, 2.0, 2.0], "0.50"),
    ],
)
def test_whose_order_is_one_tie_is_said(ours: list[float], papers: list[float], said: str) -> None:
    filled = table(
        {name: [[value]] for name, value in zip("abc", ours, strict=True)},
        {name: [value] for name, value in zip("abc", papers, strict=True)},
        ["x"],
    )
    assert coefficient(agreements(filled)[0]) == said


def test_pairs_of_opposite_order_begin_with_the_papers_better_one() -> None:
    """Ours a > b > c; the paper's c > a = b: of a and b it says nothing."""
    filled = table({"a": [[9.0]], "b": [[8.0]], "c": [[7.0]]}, {"a": [1.0], "b": [1.0], "c": [2.0]}, ["x"])
    (found,) = agreements(filled)
    assert found.methods == ("a", "b", "c")
    assert found.reversed == (("c", "a"), ("c", "b"))
    assert found.pairs == 3
    lower = replace(filled, table=replace(filled.table, metric=replace(ACCURACY, higher_is_better=False)))
    assert agreements(lower)[0].reversed == (("a", "c"), ("b", "c"))
    unranked = replace(filled, table=replace(filled.table, metric=replace(ACCURACY, higher_is_better=None)))
    assert agreements(unranked) == []


def test_a_merged_column_is_compared_with_each_that_it_stands_for() -> None:
    papers = {"a": [1.0, 3.0], "b": [2.0, 2.0], "c": [3.0, 1.0]}
    filled = table({"a": [[1.0]], "b": [[2.0]], "c": [[3.0]]}, papers, ["u", "v"], [[0, 1]])
    first, second = agreements(filled)
    assert [(one.column, one.of) for one in (first, second)] == [("all", "u"), ("all", "v")]
    assert [first.coefficient, second.coefficient] == pytest.approx([1, -1])


def test_only_methods_with_both_numbers_count_and_three_are_needed() -> None:
    papers: dict[str, list[float | None]] = {"a": [1.0], "b": [2.0], "c": [3.0], "d": [None]}
    filled = table({"a": [[1.0]], "b": [[2.0]], "c": ["not here"], "d": [[5.0]]}, papers, ["x"])
    (found,) = agreements(filled)
    assert found.methods == ("a", "b")
    assert found.coefficient is None


def test_rows_that_are_no_methods_do_not_compete_and_variants_bear_their_labels() -> None:
    rows = [Row(label, method, (), None) for label, method in (("A", "A"), ("A alone", "A"), ("B", "B"), ("mean", ""))]
    assert competitors(rows) == {0: "A", 1: "A alone", 2: "B"}


def test_what_never_reaches_the_target_is_last_and_sometimes_before_never() -> None:
    """Ours a (20) > b (10 and never) > c, d (never); the paper's a > c = d (never) > none, with b between."""
    reach = Metric("participations", "participations_to_80", "", False)
    ours: Given = {"a": [[20.0, 20.0]], "b": [[10.0, NEVER]], "c": [[NEVER, NEVER]], "d": [[NEVER, NEVER]]}
    papers: dict[str, list[float | None]] = {"a": [300.0], "b": [200.0], "c": [NEVER], "d": [900.0]}
    (found,) = agreements(table(ours, papers, ["x"], metric=reach))
    assert found.methods == ("a", "b", "c", "d")
    assert found.reversed == (("b", "a"),)
    own, theirs = np.array([1, 2, 3.5, 3.5]) - 2.5, np.array([2, 1, 4, 3]) - 2.5
    assert found.coefficient == pytest.approx(own @ theirs / np.sqrt((own @ own) * (theirs @ theirs)))


def test_a_cell_that_lacks_a_seed_is_in_no_order() -> None:
    papers: dict[str, list[float | None]] = {"a": [1.0], "b": [2.0], "c": [3.0]}
    (found,) = agreements(table({"a": [[1.0, 1.0]], "b": [[2.0, None]], "c": [[3.0, 3.0]]}, papers, ["x"]))
    assert found.methods == ("a", "c")


def test_the_papers_numbers_stand_as_ours_do() -> None:
    assert sorted([Number(NEVER, None), Number(3.0, None), Number(2.0, 0.1)], key=lambda n: n.sort_key) == [
        Number(2.0, 0.1),
        Number(3.0, None),
        Number(NEVER, None),
    ]
