"""Methods over settings: the tests from their definitions, and which numbers they are given."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
import scikit_posthocs
from scipy.stats import chi2

from flnl.instruments.compare import diagram
from flnl.instruments.compare.ranking import critical_difference
from flnl.instruments.compare.significance import LEVEL
from flnl.instruments.tables.render import drawings, index
from flnl.instruments.tables.render.evidence import Evidence
from flnl.instruments.tables.render.ranking import Ranking, left_out, papers_mean_ranks, ranking
from flnl.instruments.tables.render.report import Paper, Shown
from flnl.instruments.tables.render.sheet import Sheet
from flnl.instruments.tables.results import Filled
from tests.instruments.tables.render.made import ACCURACY, SMALL, Given, table

METHODS = ("a", "b", "c", "d")
NUMBERS = np.array(  # [settings, methods]; two ties
    [[91, 90, 85, 70], [88, 89, 80, 60], [95, 92, 92, 50], [70, 65, 60, 55], [81, 80, 79, 79], [66, 60, 61, 40]], float
)


def filled(numbers: np.ndarray = NUMBERS, methods: tuple[str, ...] = METHODS, number: str = "1") -> Filled:
    ours: Given = {m: [[x] for x in numbers[:, i]] for i, m in enumerate(methods)}
    papers = {m: numbers[:, i].tolist() for i, m in enumerate(methods)}
    return table(ours, papers, [f"s{i}" for i in range(len(numbers))], number=number)


def ranked(*tables: Filled) -> Ranking:
    found = ranking(tables)
    assert found is not None
    return found


def test_ranks_begin_with_the_best_and_ties_share_theirs() -> None:
    expected = [[1, 2, 3, 4], [2, 1, 3, 4], [1, 2.5, 2.5, 4], [1, 2, 3, 4], [1, 2, 3.5, 3.5], [1, 3, 2, 4]]
    found = ranked(filled())
    np.testing.assert_array_equal(found.ranks, expected)
    assert found.mean_ranks == pytest.approx({"a": 7 / 6, "b": 12.5 / 6, "c": 17 / 6, "d": 23.5 / 6})
    assert papers_mean_ranks(found) == pytest.approx(found.mean_ranks)


def test_the_papers_ranks_leave_out_methods_that_it_does_not_have() -> None:
    """Here d. Of a method that it has, no number may be missing."""
    ours: Given = {m: [[x] for x in NUMBERS[:, i]] for i, m in enumerate(METHODS)}
    papers: dict[str, list[float | None]] = {m: NUMBERS[:, i].tolist() for i, m in enumerate("abc")}
    papers["d"] = [None] * len(NUMBERS)
    settings = [f"s{i}" for i in range(len(NUMBERS))]
    one = table(ours, papers, settings)
    found = ranked(one)
    assert papers_mean_ranks(found) == pytest.approx({"a": 7 / 6, "b": 12.5 / 6, "c": 16.5 / 6})
    paper = Paper("P", [Shown(Sheet(one), [], Evidence(), {})], found)
    assert "| d | 3.92 | – |" in index.page([paper], {})
    papers["a"] = [None, *papers["a"][1:]]
    assert papers_mean_ranks(ranked(table(ours, papers, settings))) is None


def test_friedman_from_its_definition() -> None:
    """``(k - 1) sum_j (R_j - N (k + 1) / 2)² / (sum ranks² - N k (k + 1)² / 4)``, which has ties in it."""
    found = ranked(filled())
    n, k = found.ranks.shape
    spread = ((found.ranks.sum(0) - n * (k + 1) / 2) ** 2).sum()
    statistic = (k - 1) * spread / ((found.ranks**2).sum() - n * k * (k + 1) ** 2 / 4)
    assert found.friedman == pytest.approx((statistic, chi2.sf(statistic, k - 1)))
    assert found.significant


@pytest.mark.parametrize(("methods", "q"), [(3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)])
def test_critical_difference_with_the_printed_quantiles(methods: int, q: float) -> None:
    """Demšar 2006, Table 5(a)."""
    assert critical_difference(methods, 6) == pytest.approx(q * (methods * (methods + 1) / 36) ** 0.5, rel=3e-4)


def test_pairs_that_are_further_apart_than_the_critical_difference() -> None:
    """2.569 sqrt(20 / 36) = 1.915: a and d are 2.75 apart, b and d 1.833, a and c 1.667."""
    found = ranked(filled())
    assert found.apart == [("a", "d")]
    assert "1 of 6 pairs do" in found.verdict
    assert "6 settings and 4 methods" in found.verdict


@pytest.mark.parametrize("seed", range(5))
def test_pairs_are_apart_where_nemenyis_p_value_is_below_the_level(seed: int) -> None:
    """That of scikit-posthocs: the range of k mean ranks in units of their deviation, ``sqrt(k (k + 1) / (12 N))``."""
    numbers = np.random.default_rng(seed).normal(size=(12, 6)) + np.arange(6) * 0.6
    found = ranked(filled(numbers, tuple("abcdef")))
    p = scikit_posthocs.posthoc_nemenyi_friedman(found.ranks).to_numpy()
    below = {frozenset((found.methods[i], found.methods[j])) for i, j in np.argwhere(p < LEVEL)}
    assert found.significant
    assert 0 < len(below) < 15
    assert {frozenset(pair) for pair in found.apart} == below


def test_without_a_difference_no_pair_is_apart() -> None:
    """Each is first, second and third twice."""
    square = np.array([[3, 2, 1], [1, 3, 2], [2, 1, 3]] * 2, float)
    found = ranked(filled(square, ("a", "b", "c")))
    assert found.friedman == pytest.approx((0, 1))
    assert found.apart == []
    assert "No difference between methods is significant" in found.verdict
    tied = ranked(filled(np.ones((5, 3)), ("a", "b", "c")))
    assert tied.friedman == (0, 1)


def test_too_few_settings_or_methods_are_said_and_not_tested() -> None:
    assert ranked(filled(NUMBERS[:4])).too_few
    assert ranked(filled(NUMBERS[:, :2], ("a", "b"))).too_few
    assert "4 methods in 4 settings" in ranked(filled(NUMBERS[:4])).verdict
    assert ranked(filled(NUMBERS[:5, :3], ("a", "b", "c"))).too_few is None
    assert ranking([filled(NUMBERS[:, :1], ("a",))]) is None


def test_most_settings_go_before_most_methods() -> None:
    """Four methods have four settings in common, three have ten: ``z`` of another table is no rival of ``d``."""
    first = filled(NUMBERS[:4], METHODS, number="1")
    second = filled(NUMBERS, ("a", "b", "c", "z"), number="2")
    found = ranked(first, second)
    assert found.methods == ("a", "b", "c")
    assert len(found.settings) == 10
    assert found.without_methods == ("d", "z")
    assert left_out(found) == ["Methods that lack a number in one of these settings: d, z."]


def test_a_setting_without_one_of_the_methods_is_left_out_and_said() -> None:
    ours: Given = {m: [[x] for x in NUMBERS[:, i]] for i, m in enumerate(METHODS)} | {"d": ["not here"] * 6}
    ours = {**ours, "a": [None, *ours["a"][1:]]}
    papers = {m: [1.0] * 6 for m in METHODS}
    found = ranked(table(ours, papers, [f"s{i}" for i in range(6)]))
    assert set(found.methods) == {"a", "b", "c"}
    assert [setting.column for setting in found.settings] == ["s1", "s2", "s3", "s4", "s5"]
    assert left_out(found) == ["Settings in which one of these methods lacks a number: 1 column of Table 1."]


def test_columns_of_the_same_runs_count_once() -> None:
    """Two tables of other names whose cells rest on the same folders."""
    found = ranked(filled(), filled())
    assert len(found.settings) == 6
    assert found.repeated == 6
    assert left_out(found) == ["Not counted again: 6 columns with another's runs, of all or most methods."]


def test_columns_that_differ_in_the_runs_of_one_method_are_one_setting() -> None:
    """As those of two data sets that are one here, but for a constant; sharing half of the methods is not enough."""

    def shared(count: int) -> Filled:
        """A second table, whose first methods have the runs of the first one."""
        first, second = filled(), filled(NUMBERS + 1, number="2")
        cells = tuple(
            tuple(replace(new, runs=old.runs) if i < count else new for old, new in zip(*rows, strict=True))
            for i, rows in enumerate(zip(first.cells, second.cells, strict=True))
        )
        return replace(second, cells=cells)

    found = ranked(filled(), shared(3))
    assert (len(found.settings), found.repeated) == (6, 6)
    assert {setting.table for setting in found.settings} == {"Table 1"}
    assert len(ranked(filled(), shared(2)).settings) == 12


def test_only_accuracies_count() -> None:
    other = table({m: [[1.0]] for m in METHODS}, {m: [1.0] for m in METHODS}, ["x"], number="2")
    error = type(ACCURACY)("error", "error", "", False)
    share = type(ACCURACY)("share of samples", "share", "%", None)
    for metric in (error, share):
        changed = type(other)(**{**vars(other), "table": type(other.table)(**{**vars(other.table), "metric": metric})})
        assert len(ranked(filled(), changed).settings) == 6


def test_of_variants_of_a_method_the_plain_one_competes() -> None:
    ours: Given = {m: [[x] for x in NUMBERS[:, i]] for i, m in enumerate(METHODS)}
    papers = {m: [1.0] * 6 for m in METHODS}
    columns = [f"s{i}" for i in range(6)]
    assert ranked(table(ours, papers, columns, methods={"d": "a"})).methods == ("a", "b", "c")
    assert ranked(table(ours, papers, columns, methods={"a": "x", "d": "x"})).methods == ("b", "c")
    assert ranked(table(ours, papers, columns, methods={"d": ""})).methods == ("a", "b", "c")


def test_the_diagram_names_each_method_with_its_rank_and_joins_those_that_are_not_apart() -> None:
    text = drawings.svg(diagram.draw(ranked(filled()), SMALL.caption))
    texts = ["".join(node.itertext()).strip() for node in ET.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    for said in ("a  1.17", "b  2.08", "2.83  c", "3.92  d", "CD = 1.91"):
        assert said in texts
    assert any(said.endswith("settings at scale “small”: digits") for said in texts)
    for bar in re.findall(r'd="([^"]*)"[^>]*stroke-width: 2.5', text):
        xs = [float(point.split()[0]) for point in re.split(r"[ML]", bar)[1:]]
        assert xs == sorted(xs), "the same in every process"
    assert text.count("stroke-width: 2.5") == 2, "a bar over a, b, c and one over b, c, d"
    assert text == drawings.svg(diagram.draw(ranked(filled()), SMALL.caption))
