"""``flnl compare --columns``: a measure of rows in settings, what is bold, what is tested, and what is said of it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from scipy.stats import t as student

from flnl.instruments.compare.crossed import Crossed, crossed
from flnl.instruments.compare.printed import Printed
from flnl.instruments.compare.runs import find, grouped
from flnl.instruments.compare.significance import Paired, fewest, holm, least
from flnl.instruments.compare.table import measured
from tests.products.conftest import Commands
from tests.products.test_compare import compared, made

__all__ = ["compared"]

Given = dict[tuple[str, str], Sequence[float]]
"""Accuracies of seeds 1, 2, ... by method and further overrides."""
BASE: Given = {
    ("fedavg", "noise.rho=0.2"): [0.90, 0.80, 0.85],
    ("fedprox", "noise.rho=0.2"): [0.93, 0.84, 0.88],
    ("fedavg", "noise.rho=0.6"): [0.70, 0.60, 0.65],
    ("fedprox", "noise.rho=0.6"): [0.60, 0.61, 0.62],
}


def filled(folder: Path, numbers: Given) -> Path:
    for (method, words), of_seeds in numbers.items():
        for seed, last in enumerate(of_seeds, 1):
            run = f"method={method} seed={seed} {words}".strip()
            made(folder / re.sub(r"\W", "_", run), run, metrics={"last": last})
    return folder


def table(folder: Path, measure: str = "last", **options: object) -> Crossed:
    rows = grouped(find([str(folder)]))
    return crossed(rows, measured(measure, rows), **options)  # type: ignore[arg-type]


def text(made: Crossed, width: int = 100) -> list[str]:
    return ["".join(piece for piece, _ in line) for line in Printed(made).text(width, bold=False)]


# ------------------------------------------------------------------------------------------------------------- tests


def test_the_paired_t_test_is_of_the_differences() -> None:
    """Differences 1, 2, 3: mean 2, deviation 1, so t = 2 / (1 / sqrt(3)) with two degrees of freedom."""
    paired = Paired.of({1: 11.0, 2: 22.0, 3: 33.0, 4: 9.0}, {1: 10.0, 2: 20.0, 3: 30.0, 5: 0.0})
    assert paired.differences == (1.0, 2.0, 3.0), "seeds of both alone"
    assert (paired.mean, paired.deviation) == (2.0, 1.0)
    assert paired.t == pytest.approx(2 * student.sf(2 * 3**0.5, 2))


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ((1.0, 2.0, 3.0), 2 / 8),  # all of one sign: one arrangement of 8 on either side
        ((-1.0, 2.0, 3.0), 4 / 8),  # the ranks below are 1: sums 0 and 1, twice
        ((1.0, 1.0, 1.0), 2 / 8),  # ties
        ((-1.0, 1.0, 2.0), 6 / 8),  # ranks 1.5, 1.5, 3; sums up to 1.5: of none, of either tied one; twice
        ((0.0, 1.0, 2.0, 3.0), 2 / 8),  # an equal pair says nothing
        ((1.0,) * 6, 2 / 64),
        ((0.0, 0.0, 0.0), 1.0),
        ((0.0, 0.0, 2.0), 1.0),
        ((1.0,), None),
        ((), None),
    ],
)
def test_the_signed_rank_test_counts_arrangements(differences: tuple[float, ...], p: float | None) -> None:
    assert Paired(differences).wilcoxon == pytest.approx(p)


def test_equal_differences_have_no_t_test_and_no_difference_is_no_evidence() -> None:
    assert Paired((0.5, 0.5, 0.5)).t is None, "their deviation is 0: t would be infinite"
    assert Paired((0.0, 0.0, 0.0)).t == 1.0
    one, other = ({k: 100 * ((k - less) / 360) for k in (331, 345, 352)} for less in (0, 9))
    assert len({one[k] - other[k] for k in one}) > 1
    assert Paired.of(one, other).differences == (2.5, 2.5, 2.5), "whatever their last bits"


def test_no_fewer_seeds_than_six_can_be_told_apart_by_ranks() -> None:
    assert [least(pairs) for pairs in (3, 5, 6)] == [0.25, 0.0625, 0.03125]
    assert least(5) == Paired((1.0, 2.0, 3.0, 4.0, 5.0)).wilcoxon
    assert [fewest(comparisons) for comparisons in (1, 2, 3, 4)] == [6, 7, 7, 8]


def test_holms_correction_never_puts_a_larger_value_first() -> None:
    """0.01 x 4, 0.02 x 3, 0.025 x 2 is less than what is before it, 0.6."""
    assert holm([0.6, 0.02, None, 0.01, 0.025]) == pytest.approx([0.6, 0.06, None, 0.04, 0.06])
    assert holm([0.7, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


# ------------------------------------------------------------------------------------------------------------ crossed


def test_rows_and_columns_are_what_differs(tmp_path: Path) -> None:
    found = table(filled(tmp_path, BASE))
    assert found.names == ["fedavg", "fedprox"]
    assert [found.heading(j) for j in range(2)] == ["noise.rho=0.2", "noise.rho=0.6"]
    assert found.rows[0].keys == ("method",)
    turned = table(tmp_path, row_keys=["noise.rho"])
    assert turned.names == ["0.2", "0.6"]
    assert [turned.heading(j) for j in range(2)] == ["method=fedavg", "method=fedprox"]


def test_cells_are_means_and_sample_deviations_and_the_best_of_a_column_is_bold(tmp_path: Path) -> None:
    found = Printed(table(filled(tmp_path, BASE), by_name=True))
    lines = found.markdown().splitlines()
    assert lines[:4] == [
        "| method | noise.rho=0.2 | noise.rho=0.6 |",
        "| --- | ---: | ---: |",
        "| fedavg | 85.00 ± 5.00<sup>t</sup> | **65.00 ± 5.00** |",
        "| fedprox | **88.33 ± 4.51** | 61.00 ± 1.00 |",
    ]
    assert "- last, %: mean ± sample standard deviation (n − 1) over seeds 1, 2, 3." in lines


def test_the_order_is_that_of_the_mean_over_columns(tmp_path: Path) -> None:
    found = table(filled(tmp_path, BASE | {("fedcorr", "noise.rho=0.2"): [0.99] * 3}))
    assert found.names == ["fedavg", "fedprox", "fedcorr"], "75.0, 74.7, and one that lacks a column"
    costs = table(tmp_path, "time")
    assert costs.measure.higher is False


def test_columns_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    keys = ("1.0", "0.2", "0.6")
    found = table(filled(tmp_path, {(m, f"noise.rho={rho}"): [0.5] for m in ("fedavg", "fedprox") for rho in keys}))
    assert [found.heading(j) for j in range(3)] == ["noise.rho=0.2", "noise.rho=0.6", "noise.rho=1"]
    lacking = table(
        filled(tmp_path / "none", {("fedavg", "noise=none"): [0.9], ("fedavg", ""): [0.5]}), column_keys=["noise.rho"]
    )
    assert [lacking.heading(j) for j in range(2)] == ["no noise.rho", "noise.rho=0.6"]


def test_unequal_seeds_are_said_and_none_is_bold(tmp_path: Path) -> None:
    found = table(filled(tmp_path, BASE | {("fedprox", "noise.rho=0.6"): [0.9, 0.9]}), by_name=True)
    assert [found.best(j) for j in range(2)] == [[1], []]
    assert "noise.rho=0.6: unequal seeds (fedavg seeds 1, 2, 3; fedprox seeds 1, 2), so none is bold." in found.notes
    assert "| 90.00 ± 0.00 (n=2) |" in Printed(found).markdown()
    assert [one.column for one in found.comparisons] == [0], "without a best there is nothing to test against"
    baseline = table(tmp_path, against=["method=fedavg"])
    assert [len(one.paired.differences) for one in baseline.comparisons] == [3, 2]


def test_seeds_of_other_data_are_no_pairs(tmp_path: Path) -> None:
    for method in ("fedavg", "fedprox"):
        for seed in (1, 2):
            made(
                tmp_path / f"{method}{seed}", f"method={method} seed={seed} data_seed={7 if method == 'fedavg' else 8}"
            )
    found = table(tmp_path, row_keys=["method"], column_keys=["train.lr"])
    assert found.comparisons == []
    assert found.best(0) == []
    assert any("rows of other data, partitions or noise do not compare" in note for note in found.notes)


def test_one_seed_has_no_deviation_and_no_test(tmp_path: Path) -> None:
    found = table(filled(tmp_path, {key: of[:1] for key, of in BASE.items()}), by_name=True)
    assert "| fedavg | 90.00 | **70.00** |" in Printed(found).markdown()
    assert found.notes[0] == "last, %: of seed 1."
    assert "No test: it takes two seeds that both rows have." in found.notes


def test_every_comparison_counts_in_holms_correction(tmp_path: Path) -> None:
    numbers = BASE | {("fedcorr", f"noise.rho={rho}"): [0.1, 0.3, 0.2] for rho in (0.2, 0.6)}
    found = table(filled(tmp_path, numbers), against=["fedavg"], by_name=True)
    versus = [(one.column, found.names[one.row], found.names[one.reference]) for one in found.comparisons]
    assert versus == [
        (0, "fedcorr", "fedavg"),
        (0, "fedprox", "fedavg"),
        (1, "fedcorr", "fedavg"),
        (1, "fedprox", "fedavg"),
    ]
    assert [one.t for one in found.comparisons] == holm([one.paired.t for one in found.comparisons])
    assert {one.wilcoxon for one in found.comparisons} == {1.0}, "four times 0.25"
    both = table(tmp_path, against=["fedavg", "best"])
    pairs = [frozenset((one.row, one.reference)) for one in both.comparisons if one.column == 0]
    assert len(pairs) == len(set(pairs)) == 3, "the best beside the baseline is one comparison"


def test_what_a_test_tells_apart_is_marked_and_what_it_cannot_is_said(tmp_path: Path) -> None:
    """Three seeds: differences of 30 and a bit are clear to t, and can be nothing to ranks."""
    numbers: Given = {("fedavg", ""): [0.5, 0.51, 0.52], ("fedprox", ""): [0.8, 0.812, 0.821]}
    found = table(filled(tmp_path, numbers))
    (one,) = found.comparisons
    assert one.t is not None
    assert one.t < 0.001
    assert found.marks(1, 0) == "t"
    said = " ".join(found.notes)
    assert "t: differs by a paired t test from the best of its column (p < 0.05; runs are paired by seed)." in said
    assert "No row differs significantly by Wilcoxon's signed-rank test" in said
    assert "With 3 pairs the p-value of Wilcoxon's test is 0.25 at least" in said
    assert "below 6 seeds" in said
    assert "optimistic" in said
    assert "optimistic" not in " ".join(table(tmp_path, against=["fedavg"]).notes)


def test_six_seeds_can_be_told_apart_by_both(tmp_path: Path) -> None:
    seeds = [0.5, 0.52, 0.49, 0.55, 0.51, 0.53]
    numbers: Given = {("fedavg", ""): seeds, ("fedprox", ""): [x + 0.1 + k / 100 for k, x in enumerate(seeds)]}
    found = table(filled(tmp_path, numbers), against=["method=fedavg"])
    assert found.comparisons[0].wilcoxon == pytest.approx(1 / 32)
    assert found.marks(0, 0) == "tw"
    assert not any("at least" in note for note in found.notes)


def test_ranks_over_columns_are_those_of_the_papers_tables(tmp_path: Path) -> None:
    """Five settings, the same order in each: Friedman's statistic is N (k - 1)."""
    numbers: Given = {
        (method, f"noise.rho={rho}"): [0.9 - place / 10 - rho / 10]
        for place, method in enumerate(("fedprox", "fedavg", "fedcorr"))
        for rho in (0.2, 0.4, 0.6, 0.8, 1.0)
    }
    found = table(filled(tmp_path, numbers))
    assert found.ranking is not None
    assert found.ranking.mean_ranks == {"fedprox": 1, "fedavg": 2, "fedcorr": 3}
    assert found.ranking.friedman[0] == pytest.approx(10)
    said = " ".join(found.notes)
    assert "Mean ranks over 5 columns: fedprox 1.00, fedavg 2.00, fedcorr 3.00." in said
    assert "Friedman's test over 5 settings and 3 methods: χ² = 10.00, p = 0.007." in said
    few = table(filled(tmp_path / "few", {key: of for key, of in numbers.items() if key[1] < "noise.rho=0.7"}))
    assert any(note.startswith("No test and no diagram: ") for note in few.notes)


def test_of_a_measure_without_a_known_direction_none_is_bold(tmp_path: Path) -> None:
    for method in ("fedavg", "fedprox"):
        made(tmp_path / method, f"method={method}", metrics={"theta": 0.1234})
    found = table(tmp_path, "theta")
    assert found.best(0) == []
    assert found.notes[1] == "Whether more is better of theta is not known here, so none is bold."
    assert "| 0.123 |" in Printed(found).markdown()


def test_of_costs_the_lowest_is_the_best(tmp_path: Path) -> None:
    for k in range(5):
        for place, method in enumerate(("fedavg", "fedprox", "fedcorr")):
            words = f"method={method} noise.rho=0.{k + 1}"
            made(tmp_path / f"{method}{k}", words, wall_time_s=[3.0, 1.0, 2.0][place])
    found = table(tmp_path, "wall_time_s")
    assert found.names == ["fedprox", "fedcorr", "fedavg"]
    assert [found.best(j) for j in range(5)] == [[0]] * 5
    assert found.ranking is not None
    assert list(found.ranking.mean_ranks) == ["fedprox", "fedcorr", "fedavg"]


# ------------------------------------------------------------------------------------------------------------- files


def test_latex_has_booktabs_rules_shared_headings_and_the_note_below(tmp_path: Path) -> None:
    numbers = {(m, f"{words} partition.num_clients={n}"): of for (m, words), of in BASE.items() for n in (7, 8)}
    found = Printed(table(filled(tmp_path, numbers), column_keys=["noise.rho", "partition.num_clients"], by_name=True))
    lines = found.latex().splitlines()
    assert lines[0].startswith(r"% needs \usepackage{booktabs}")
    order = [r"\begin{table}", r"\begin{tabular}{lrrrr}", r"\toprule", r"\midrule", r"\bottomrule", r"\end{tabular}"]
    assert [lines.index(line) for line in order] == sorted(lines.index(line) for line in order)
    assert r" & \multicolumn{2}{c}{noise.rho=0.2} & \multicolumn{2}{c}{noise.rho=0.6} \\" in lines
    assert r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}" in lines
    assert r"method & partition.num\_clients=7 & partition.num\_clients=8 & partition" in found.latex()
    assert r"fedprox & \textbf{88.33 $\pm$ 4.51} & " in found.latex()
    notes = "\n".join(lines[lines.index(r"\end{tabular}") :])
    assert r"mean $\pm$ sample standard deviation (n $-$ 1) over seeds 1, 2, 3.\par" in notes
    assert {line.count("&") for line in lines if line.startswith(("fed", "method &"))} == {4}
    assert found.latex().count("{") == found.latex().count("}")


def test_csv_has_a_line_for_each_comparison(tmp_path: Path) -> None:
    found = Printed(table(filled(tmp_path, BASE), against=["fedavg"], by_name=True))
    lines = list(csv.DictReader(io.StringIO(found.csv())))
    assert [(line["row"], line["column"], line["against"]) for line in lines] == [
        ("fedavg", "noise.rho=0.2", ""),
        ("fedavg", "noise.rho=0.6", ""),
        ("fedprox", "noise.rho=0.2", "fedavg"),
        ("fedprox", "noise.rho=0.6", "fedavg"),
    ]
    prox = lines[2]
    assert (prox["n"], prox["seeds"], prox["best"], prox["pairs"]) == ("3", "1 2 3", "1", "3")
    assert float(prox["mean"]) == pytest.approx(265 / 3)
    assert float(prox["difference"]) == pytest.approx(10 / 3)
    assert (float(prox["p_wilcoxon"]), float(prox["p_wilcoxon_holm"])) == (0.25, 0.5)


@pytest.mark.parametrize("width", [60, 100])
def test_a_terminal_shows_columns_that_do_not_fit_below(tmp_path: Path, width: int) -> None:
    numbers: Given = {(m, f"noise.rho=0.{k}"): [0.5 + k / 100, 0.6] for m in ("fedavg", "fedcorr") for k in range(1, 9)}
    lines = text(table(filled(tmp_path, numbers)), width)
    grid = lines[: next(k for k, line in enumerate(lines) if line.startswith("last, %"))]
    assert max(map(len, grid)) <= width
    assert sum(line.count("noise.rho=") for line in grid) == 8
    assert sum(line.count("±") for line in grid) == 16


# ----------------------------------------------------------------------------------------------------------- program


def test_the_command_prints_a_table_that_fits(compared: Commands, tmp_path: Path) -> None:
    filled(tmp_path, BASE)
    answer = compared(".", "--columns", "noise.rho", "--against", "method=fedavg", "--sort", "name")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].split() == ["method", "noise.rho=0.2", "noise.rho=0.6"]
    assert lines[2].split() == ["fedprox", "88.33", "±", "4.51", "*t", "61.00", "±", "1.00"]
    assert "*: the highest mean of a column." in lines
    assert not any(line.endswith(" ") for line in lines)
    assert any(line.split() == ["fedprox", "−", "fedavg", "+3.33", "0.58", "3", "0.020", "0.500"] for line in lines)


def test_where_takes_some_runs_alone(compared: Commands, tmp_path: Path) -> None:
    filled(tmp_path, BASE)
    answer = compared(".", "--where", "noise.rho=0.60", "--where", "seed=1,2", "--sort", "name")
    assert [line.split()[:3] for line in answer.out.splitlines()[1:]] == [
        ["method=fedavg", "2", "65.00"],
        ["method=fedprox", "2", "60.50"],
    ]


def test_a_list_is_one_value(compared: Commands, tmp_path: Path) -> None:
    for k, widths in enumerate(("[4,8]", "[4,9]", "[5,9]")):
        made(tmp_path / str(k), f"method=fedavg model=cnn model.widths={widths}")
    answer = compared(".", "--where", "model.widths=[4,8],[5,9]")
    assert [line.split()[0] for line in answer.out.splitlines()[1:]] == ["model.widths=[4,8]", "model.widths=[5,9]"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--columns", "noise.rhoo"], "--columns noise.rhoo is no key of these runs; did you mean noise.rho?"),
        (["--rows", "metod"], "--rows metod is no key of these runs; did you mean method?"),
        (["--where", "noise.rhoo=1"], "--where noise.rhoo is no key of these runs; did you mean noise.rho?"),
        (["--where", "noise.rho=0.5"], "--where noise.rho=0.5: no run has it; there is noise.rho=0.2,0.6"),
        (["--where", "noise.rho"], "--where noise.rho: write KEY=VALUE"),
        (["--measure", "lost"], "--measure lost: no run has such a number; did you mean last?"),
        (["--against", "fedavgg"], "--against fedavgg is no row of the table; did you mean fedavg?"),
        (
            ["--rows", "method", "--columns", "train.lr"],
            "method=fedavg train.lr=0.05 has runs that differ in noise.rho, too",
        ),
        (["--columns", "noise.rho", "--sort", "best"], "--sort best is for the table of all metrics"),
        (["--ranks", "r.png"], "--ranks r.png: the largest complete part of these tables has 2 methods in 2 settings"),
    ],
)
def test_refusals_name_what_would_be_right(
    compared: Commands, tmp_path: Path, words: list[str], complaint: str
) -> None:
    filled(tmp_path, BASE)
    answer = compared(".", *words)
    assert answer.code == 2
    assert f"error: {complaint}" in answer.err
    assert answer.err.count("\n") == 1


def test_runs_of_tuning_are_left_out_unless_they_are_named(
    compared: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "multirun/one/0", "method=fedavg seed=1")
    made(tmp_path / "multirun/tune/abc", "method=fedavg seed=101")
    answer = compared("multirun")
    assert answer.out.splitlines()[1].split()[1] == "1"
    assert answer.err == "multirun/tune is left out: its runs are those of flnl tune; name it to take them\n"
    for words in (
        ["multirun", "multirun/tune"],
        ["multirun/one", "multirun/tune/abc"],
        ["multirun/one", "multirun/tune/*"],
    ):
        assert compared(*words).out.splitlines()[1].split()[1] == "2"
    for pattern in ("multirun/**", "multirun/*", "*/*/*"):
        assert compared(pattern).out.splitlines()[1].split()[1] == "1"
    monkeypatch.chdir("multirun/tune")
    assert compared(".").code == 0


def test_the_diagram_is_drawn_where_there_are_enough_columns(compared: Commands, tmp_path: Path) -> None:
    numbers: Given = {
        (method, f"noise.rho={rho}"): [0.9 - place / 10]
        for place, method in enumerate(("fedprox", "fedavg", "fedcorr"))
        for rho in (0.2, 0.4, 0.6, 0.8, 1.0)
    }
    filled(tmp_path, numbers)
    answer = compared(".", "--ranks", "ranks.svg")
    assert answer.err == "ranks: ranks.svg\n"
    assert "CD = 1.48" in (tmp_path / "ranks.svg").read_text()


def test_a_setting_has_a_panel_of_a_dozen_lines(
    compared: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr("flnl.figures.curves.draw_panels", lambda panels, _: drawn.append(panels))
    for k in range(13):
        made(tmp_path / f"a{k}", f"method=fedavg rounds={k + 1} noise.rho=0.2", metrics={"mean_last_10": k / 100})
    made(tmp_path / "b", "method=fedavg rounds=1 noise.rho=0.6")
    for words in ([], ["--columns", "noise.rho"]):
        answer = compared(".", "--figure", "c.png", *words)
        assert "noise.rho=0.2: the first 12 of 13 rows are drawn; --where chooses others\n" in answer.err
        assert {title: len(rows) for title, rows in drawn[-1]} == {"noise.rho=0.2": 12, "noise.rho=0.6": 1}
    assert drawn[0][0][1][0].name == "rounds=13", "the best of the table first"
    assert all(not row.name.startswith("noise") for _, rows in drawn[0] for row in rows)
