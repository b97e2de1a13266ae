"""Figures show the numbers of the record, all of them and no others, and never cost a run."""

import io
import json
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from flnl.commands import figures
from flnl.core.errors import UserError
from flnl.figures import accuracy, confusion, drawing, lid, memorization, noise_levels
from flnl.figures import clients as of_clients
from flnl.figures.drawing import FIGURES
from flnl.figures.rows import passes
from flnl.numerics.ranks import auroc
from flnl.record.run import RunRecord
from tests.properties.runs import run
from tests.registry import BY_NAME

Row = Mapping[str, Any]

# ------------------------------------------------------------------------------------------------------- hand-made

OF_FEDCORR = [name for name in FIGURES if name not in ("filter", "quality", "noisy_clients", "selection")]
ASKED = ("memorization", "memorization_local", "stability")
OBSERVED = ("eval.memorization=true", "eval.cohort=true")
TRUE_BEFORE, TRUE_AFTER = [0.6, 0.0, 0.8, 0.4], [0.5, 0.1, 0.3, 0.4]
LEVEL, CUMULATIVE = [0.5, 0.0, 0.7, 0.0], [3.0, 1.0, 4.0, 2.0]
MIXTURE = [1.5, 3.5, 0.25, 0.5, 0.4, 0.6]


def clients(**more: Any) -> dict[str, Any]:
    """Of four clients that hold ten samples each; the third has no data and is not among them."""
    return {
        "client": [0, 1, 3, 4],
        "asked": [True, False, True, False],
        "noisy": [True, False, True, False],
        "lid": CUMULATIVE,
        "cumulative_lid": CUMULATIVE,
        "level": LEVEL,
        "true_noise_before": TRUE_BEFORE,
        "true_noise_after": TRUE_AFTER,
        "true_positives": [4, 0, 6, 0],
        "false_positives": [1, 0, 1, 0],
        "false_negatives": [2, 0, 2, 4],
        "true_negatives": [3, 10, 1, 6],
    } | more


def correction(round: int, stage: str = "preprocess", shift: float = 0.0, **more: Any) -> dict[str, Any]:
    return {
        "round": round,
        "stage": stage,
        "mixture": [MIXTURE[0] + shift, *MIXTURE[1:]],
        "clients": clients(),
        "confusion": {
            "before": [[3, 1], [2, 4]],
            "after": [[4, 0], [1 + round, 5]],
            "first_clients": [{"client": 0, "before": [[1, 1], [0, 2]], "after": [[2, 0], [0, 2]]}],
        },
    } | more


def rounds(*stages: tuple[str, int, int]) -> list[dict[str, Any]]:
    """Stages of so many rounds with so many participations each."""
    rows: list[dict[str, Any]] = []
    for name, length, cohort in stages:
        for _ in range(length):
            before = rows[-1]["participations"] if rows else 0
            done = len(rows) + 1
            rows.append(
                {"kind": "round", "round": done, "stage": name, "participations": before + cohort, "loss": 1 / done}
            )
    return rows


THREE = rounds(("preprocess", 4, 1), ("finetune", 2, 3), ("usual", 2, 5))


def evaluation(row: Row, accuracy: float | None, **more: float | None) -> dict[str, Any]:
    place = {k: row[k] for k in ("round", "stage", "participations")}
    return {"kind": "evaluation", **place, "accuracy": accuracy, **more}


EVALUATIONS = [evaluation(row, a) for row, a in zip(THREE[1::2], (0.2, 0.7, 0.9, 0.8), strict=True)]


def written(
    folder: Path, metrics: Sequence[Row] = (*THREE, *EVALUATIONS), corrections: Sequence[Row] = (), **result: Any
) -> RunRecord:
    config = {"method": {"name": "fedcorr"}, "dataset": {"name": "digits"}, "seed": 7}
    (folder / "result.json").write_text(json.dumps({"key": "k", "status": "finished", "config": config} | result))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    (folder / "corrections.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corrections))
    return RunRecord.open(folder)


def drawn(figure: Figure | None) -> Any:
    """The figure, which must be one that can be painted."""
    assert figure is not None
    figure.savefig(io.BytesIO(), dpi=50)
    return figure


def line(axes: Any, label: str) -> tuple[list[float], list[float]]:
    """What the one line with this label shows."""
    (found,) = (one for one in axes.lines if str(one.get_label()).startswith(label))
    return list(found.get_xdata()), list(found.get_ydata())


def borders(axes: Any) -> list[float]:
    return sorted(
        {float(one.get_xdata()[0]) for one in axes.lines if len(set(one.get_xdata())) == 1 < len(one.get_xdata())}
    )


# -------------------------------------------------------------------------------------------------------- accuracy


def test_accuracy_is_shown_over_rounds_and_over_participations(tmp_path: Path) -> None:
    figure = drawn(accuracy.draw(written(tmp_path)))
    over_rounds, over_participations, loss, loss_too = figure.axes
    assert line(over_rounds, "test") == ([2, 4, 6, 8], [0.2, 0.7, 0.9, 0.8])
    assert line(over_participations, "test") == ([2, 4, 10, 20], [0.2, 0.7, 0.9, 0.8])
    assert line(over_rounds, "best 90.00 %") == ([6], [0.9])
    assert line(over_participations, "best 90.00 %") == ([10], [0.9])
    assert line(over_rounds, "last 80.00 %") == ([8], [0.8])
    assert (borders(over_rounds), borders(over_participations)) == ([4, 6], [4, 10])
    assert [t.get_text() for t in over_rounds.texts] == ["preprocess", "finetune", "usual"]
    assert list(loss.lines[0].get_ydata()) == list(loss_too.lines[0].get_ydata()) == [row["loss"] for row in THREE]
    assert list(loss_too.lines[0].get_xdata()) == [1, 2, 3, 4, 7, 10, 15, 20]
    assert over_rounds.get_ylim() == over_participations.get_ylim()
    assert not any("validation" in str(one.get_label()) for one in over_rounds.lines)
    assert figure.get_suptitle() == "fedcorr on digits, seed 7"


def test_validation_accuracy_is_shown_where_there_is_one(tmp_path: Path) -> None:
    rows = [
        evaluation(row, a, validation_accuracy=v) for row, a, v in zip(THREE, (0.1, 0.2), (0.5, None), strict=False)
    ]
    figure = drawn(accuracy.draw(written(tmp_path, [*THREE, *rows])))
    x, y = line(figure.axes[0], "validation")
    assert (x, y[0]) == ([1, 2], 0.5)
    assert math.isnan(y[1])


def test_what_diverged_leaves_a_gap_and_is_never_the_best(tmp_path: Path) -> None:
    rows = [evaluation(row, a) for row, a in zip(THREE, (0.1, None, 0.05), strict=False)]
    lost = [{**row, "loss": None} for row in THREE]
    figure = drawn(accuracy.draw(written(tmp_path, [*lost, *rows])))
    assert line(figure.axes[0], "best 10.00 %") == ([1], [0.1])
    assert accuracy.draw(written(tmp_path, [*THREE, evaluation(THREE[0], None)])) is None


@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_no_accuracy_is_outside_of_0_to_100_percent(constant: float, tmp_path: Path) -> None:
    rows = [evaluation(row, constant) for row in THREE[:2]]
    low, high = drawn(accuracy.draw(written(tmp_path, [*THREE, *rows]))).axes[0].get_ylim()
    assert (low >= 0, high <= 1, low < high) == (True, True, True)


def test_a_run_stopped_before_its_first_evaluation_has_no_curve(tmp_path: Path) -> None:
    record = written(tmp_path, THREE[:1], status="stopped")
    assert all(draw(record) is None for draw in FIGURES.values())
    assert drawing.save(record) == []
    assert not (tmp_path / "figures").exists()


def test_a_half_written_line_is_left_out_and_the_status_said(tmp_path: Path) -> None:
    written(tmp_path, status="interrupted")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "evaluation", "rou')
    figure = drawn(accuracy.draw(RunRecord.open(tmp_path)))
    assert len(line(figure.axes[0], "test")[0]) == 4
    assert figure.get_suptitle().endswith("(interrupted)")


def test_names_of_stages_never_lie_on_each_other(tmp_path: Path) -> None:
    rows = rounds(("preprocess", 400, 1), ("finetune", 1, 1), ("usual", 1, 1))
    figure = drawn(accuracy.draw(written(tmp_path, [*rows, evaluation(rows[-1], 0.5)])))
    places = [text.get_position()[0] for text in figure.axes[0].texts]
    assert all(b - a >= 0.05 * 402 for a, b in pairwise(places))


# ------------------------------------------------------------------------------------------------------------- LID


def test_lid_is_shown_against_the_noise_that_was_given(tmp_path: Path) -> None:
    later = correction(8, shift=0.5, clients=clients(cumulative_lid=[6.0, 6.5, 8.0, 7.0], true_noise_before=TRUE_AFTER))
    figure = drawn(lid.draw(written(tmp_path, corrections=[correction(4), later])))
    first, last, below, below_last = figure.axes
    assert first.get_title() == "pass 1 (round 4)\nAUROC 1.00, R² 0.97"
    assert last.get_title().startswith("pass 2 (round 8)\nAUROC 0.67")
    clean, noisy = (dots.get_offsets().tolist() for dots in below.collections if len(dots.get_offsets()))
    assert clean == [[1.0, 0.0], [2.0, 0.4]]
    assert noisy == [[3.0, 0.6], [4.0, 0.8]]
    at = sorted(place for dots in below_last.collections for place in dots.get_offsets().tolist())
    assert at == [[6.0, 0.6], [6.5, 0.0], [7.0, 0.4], [8.0, 0.8]]
    x, y = line(below, "linear fit")
    slope, intercept = np.polyfit(CUMULATIVE, TRUE_BEFORE, 1)
    assert x == [1, 4]
    assert y == pytest.approx([intercept + slope, intercept + 4 * slope])


def test_the_mixture_lies_over_the_histogram_in_clients(tmp_path: Path) -> None:
    """Heights sum to the clients; the curve is what the mixture expects in a bar's width around x, by scipy's cdf."""
    from scipy.stats import norm

    figure = drawn(lid.draw(written(tmp_path, corrections=[correction(4)])))
    axes = figure.axes[0]
    assert sum(patch.get_height() for patch in axes.patches) == 4
    red = [p for p in axes.patches if p.get_facecolor()[0] > 0.7]
    assert sum(p.get_height() for p in red) == 3
    x, y = (np.array(v) for v in line(axes, "fitted mixture"))
    half = axes.patches[0].get_width() / 2
    within = [norm.cdf(x + half, m, d) - norm.cdf(x - half, m, d) for m, d in ((1.5, 0.5), (3.5, math.sqrt(0.5)))]
    np.testing.assert_allclose(y, 4 * (0.4 * within[0] + 0.6 * within[1]), rtol=1e-9, atol=1e-12)


def test_without_the_truth_only_the_histogram_is_left(tmp_path: Path) -> None:
    kept = {k: v for k, v in clients().items() if not k.startswith(("true", "false"))}
    rows = [{k: v for k, v in correction(4, clients=kept).items() if k != "confusion"}]
    record = written(tmp_path, corrections=rows)
    figure = drawn(lid.draw(record))
    assert len(figure.axes) == 1
    assert figure.axes[0].get_title() == "pass 1 (round 4)"
    assert sum(p.get_height() for p in figure.axes[0].patches) == 4
    assert [draw(record) for draw in (noise_levels.draw, confusion.draw, confusion.draw_clients)] == [None] * 3


def test_the_whole_peak_of_a_narrow_component_is_shown(tmp_path: Path) -> None:
    """A component with one client: its density would be four hundred times as high as the bars."""
    narrow = [1.5, 9.0, 0.25, 1e-6, 0.75, 0.25]
    axes = drawn(lid.draw(written(tmp_path, corrections=[correction(4, mixture=narrow)]))).axes[0]
    x, y = (np.array(v) for v in line(axes, "fitted mixture"))
    assert max(y[x > 8]) == pytest.approx(1.0)  # a quarter of four clients
    assert max(y) <= axes.get_ylim()[1] <= 10
    assert axes.get_xlim()[0] <= x[0]
    assert x[-1] > 9 + 3e-3


def test_figures_in_other_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, corrections=[correction(4)])
    figures.redraw([str(tmp_path), "--format", "svg,PNG", "--dpi", "40"])
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'figures'}: accuracy, lid")
    assert (tmp_path / "figures" / "lid.svg").read_text().startswith("<?xml")
    with Image.open(tmp_path / "figures" / "lid.png") as image:
        small = image.width
    figures.redraw([str(tmp_path), "--dpi", "80"])
    with Image.open(tmp_path / "figures" / "lid.png") as image:
        assert image.width == 2 * small
    for words, why in (
        (["--format", "jpg"], "'jpg' is not a format; there are png, svg, pdf"),
        (["--dpi", "5"], "5: "),
    ):
        with pytest.raises(UserError, match=why):
            figures.redraw([str(tmp_path), *words])


@pytest.mark.parametrize("draw", [noise_levels.draw, of_clients.draw_filter, of_clients.draw_quality])
def test_no_line_joins_clients(draw: Any, tmp_path: Path) -> None:
    columns = clients() | {"filter_accuracy": [0.9] * 4, "flagged": [0.2] * 4, "quality": [0.7] * 4}
    columns["true_quality"] = [0.9, 0.8, 0.7, 0.6]
    record = written(tmp_path, corrections=[correction(4), correction(8)], clients=columns)
    for axes in drawn(draw(record)).axes:
        joined = [one.get_label() for one in axes.lines if one.get_linestyle() != "None" and len(one.get_xdata()) > 2]
        assert not joined


def test_a_stage_that_fits_no_mixture_is_no_pass_and_first_and_last_are_always_shown(tmp_path: Path) -> None:
    rows = [correction(4 * i, shift=0.1 * i) for i in range(1, 9)]
    record = written(tmp_path, corrections=[*rows, correction(50, "finetune", shift=0.8)])
    assert [row["round"] for row in passes(record)] == list(range(4, 36, 4))
    titles = [axes.get_title() for axes in drawn(lid.draw(record)).axes[:4]]
    assert (titles[0][:6], titles[-1][:6]) == ("pass 1", "pass 8")
    assert len(set(titles)) == 4


SPREADLESS = [2, 2, 0, 0, 0.5, 0.5]
INCOMPLETE = [2, 3, 1, 1, 0.5, None]


@pytest.mark.parametrize(
    ("odd", "mixture"),
    [
        ({"cumulative_lid": [2.0] * 4}, SPREADLESS),
        ({"true_noise_before": [0.0] * 4}, INCOMPLETE),
        ({"true_noise_before": [0.5] * 4}, SPREADLESS),
        ({"cumulative_lid": [3.0, None, 4.0, 2.0], "level": [None, 0.0, 0.7, 0.0]}, INCOMPLETE),
        ({"noisy": [False] * 4}, SPREADLESS),
    ],
)
def test_what_cannot_be_fitted_is_left_out(odd: dict[str, Any], mixture: list[float | None], tmp_path: Path) -> None:
    record = written(tmp_path, corrections=[correction(4, clients=clients(**odd), mixture=mixture)])
    figure = drawn(lid.draw(record))
    assert not any(one.get_label() == "fitted mixture" for one in figure.axes[0].lines)
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_yticks())  # they count clients
    assert "nan" not in figure.axes[0].get_title()
    drawn(noise_levels.draw(record))


def test_ties_count_half_and_numbers_agree_with_scikit_learn() -> None:
    from scipy.stats import linregress
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    x, positive = rng.integers(0, 9, 60).astype(float), rng.random(60) < 0.4
    assert auroc(x, positive) == pytest.approx(roc_auc_score(positive, x))
    y = rng.random(60) + x
    expected = linregress(x, y)
    assert lid.linear_fit(x, y) == pytest.approx((expected.slope, expected.intercept, expected.rvalue**2))


# --------------------------------------------------------------------------------------------------- noise levels


def test_levels_are_sorted_by_the_noise_that_was_given(tmp_path: Path) -> None:
    later = correction(8, shift=0.5, clients=clients(true_noise_before=TRUE_AFTER, true_noise_after=[0.0] * 4))
    figure = drawn(noise_levels.draw(written(tmp_path, corrections=[correction(4), correction(6, shift=0.2), later])))
    first, last, bars, _ = figure.axes
    assert line(first, "true, before correction") == ([0, 1, 2, 3], [0.0, 0.4, 0.6, 0.8])
    assert line(first, "true, after correction")[1] == [0.1, 0.4, 0.5, 0.3]
    assert line(first, "estimated")[1] == [0.0, 0.0, 0.5, 0.7]
    assert line(last, "true, as given")[1] == [0.0, 0.4, 0.6, 0.8]
    assert line(last, "true, before correction")[1] == [0.1, 0.4, 0.5, 0.3]
    assert last.get_title() == "pass 3 (round 8)"
    assert [t.get_text() for t in bars.get_xticklabels()] == ["1", "4", "0", "3"]
    heights = {c.get_label()[:2]: [p.get_height() for p in c.patches] for c in bars.containers}
    assert heights == {"TP": [0, 0, 4, 6], "FN": [0, 0, 2, 2], "FP": [0, 0, 1, 1], "TN": [0, 0, 3, 1]}
    assert [p.get_y() for p in bars.containers[3].patches][2:] == [7, 9]


def test_hundreds_of_clients_are_drawn_as_one_shape(tmp_path: Path) -> None:
    n, rng = 500, np.random.default_rng(1)
    noise = rng.random(n)
    many: dict[str, Any] = {
        "client": list(range(n)),
        "asked": [True] * n,
        "noisy": (noise > 0.5).tolist(),
        "level": noise.tolist(),
        "cumulative_lid": (noise + 1).tolist(),
        "true_noise_before": noise.tolist(),
        "true_noise_after": (noise / 2).tolist(),
        **{key: [5] * n for key in noise_levels.OUTCOMES},
    }
    written(tmp_path, corrections=[correction(4, clients=many)])
    files = drawing.save(RunRecord.open(tmp_path))
    assert [file.name for file in files] == [f"{name}.png" for name in OF_FEDCORR if name not in ASKED]
    levels, bars = drawn(noise_levels.draw(RunRecord.open(tmp_path))).axes
    assert line(levels, "true, before")[1] == sorted(noise.tolist())
    assert len(bars.patches) == 4
    tops = bars.patches[-1].get_data()
    assert tops.values.tolist() == [20.0 if share > 0.5 else 0.0 for share in sorted(noise)]


# ------------------------------------------------------------------------------------------------------ confusion


def test_confusion_is_shown_as_given_and_after_each_stage(tmp_path: Path) -> None:
    rows = [correction(1), correction(3), correction(5, "finetune")]
    record = written(tmp_path, corrections=rows, classes=["cat", "dog"])
    figure = drawn(confusion.draw(record))
    panels = figure.axes
    assert [axes.get_title() for axes in panels] == [
        "as given: 30.0 % wrong",
        f"after preprocess: {100 * 4 / 13:.1f} % wrong",
        "after finetune: 40.0 % wrong",
    ]
    shown = [np.asarray(axes.images[0].get_array()).tolist() for axes in panels]
    assert shown[0] == pytest.approx(np.array([[0.75, 0.25], [2 / 6, 4 / 6]]))
    assert shown[2][1] == pytest.approx([6 / 11, 5 / 11])
    cells = {(round(t.get_position()[0]), round(t.get_position()[1])): t.get_text() for t in panels[0].texts}
    assert cells == {(0, 0): "75", (1, 0): "25", (0, 1): "33", (1, 1): "67"}
    assert [t.get_text() for t in panels[0].get_yticklabels()] == ["cat", "dog"]
    assert (panels[0].get_xlabel(), panels[0].get_ylabel()) == ("label", "true class")


def test_each_of_the_first_clients_has_a_column(tmp_path: Path) -> None:
    figure = drawn(confusion.draw_clients(written(tmp_path, corrections=[correction(1)])))
    given, after = figure.axes
    assert given.get_title() == "client 0\n25.0 % wrong"
    assert np.asarray(given.images[0].get_array()).tolist() == [[1, 1], [0, 2]]
    assert np.asarray(after.images[0].get_array()).tolist() == [[2, 0], [0, 2]]
    assert (given.get_ylabel(), after.get_ylabel()) == ("as given\ntrue class", "after preprocess\ntrue class")


def test_the_title_of_a_narrow_figure_is_not_cut(tmp_path: Path) -> None:
    figure = drawn(confusion.draw_clients(written(tmp_path, corrections=[correction(1)])))  # of one client
    text = " ".join(figure.get_suptitle().split())
    assert text == "fedcorr on digits, seed 7: labels of the first clients, samples"
    figure.draw_without_rendering()  # at its own resolution
    box = figure._suptitle.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_many_classes_are_shown_by_colour_alone(tmp_path: Path) -> None:
    counts = np.eye(100, dtype=int).tolist()
    record = written(tmp_path, corrections=[correction(1, confusion={"before": counts, "after": counts})])
    figure = drawn(confusion.draw(record))
    assert not figure.axes[0].texts
    assert confusion.draw_clients(record) is None


# --------------------------------------------------------------------------------------------------- memorization


SHARES = {
    "clean_correct": (0.2, 0.9),
    "clean_wrong": (0.8, 0.1),
    "noisy_correct": (0.1, 0.5),
    "noisy_memorized": (0.2, 0.4),
    "noisy_wrong": (0.7, 0.1),
}


def test_memorization_has_a_panel_for_right_labels_and_one_for_wrong_ones(tmp_path: Path) -> None:
    rows = [
        evaluation(row, 0.5, **{f"memorization_{name}": values[i] for name, values in SHARES.items()})
        for i, row in enumerate(THREE[:2])
    ]
    right, wrong = drawn(memorization.draw(written(tmp_path, [*THREE, *rows]))).axes
    assert line(right, "correct") == ([1, 2], [0.2, 0.9])
    assert line(right, "another class") == ([1, 2], [0.8, 0.1])
    assert line(wrong, "correct") == ([1, 2], [0.1, 0.5])
    assert line(wrong, "memorized") == ([1, 2], [0.2, 0.4])
    assert line(wrong, "another class") == ([1, 2], [0.7, 0.1])
    assert borders(right) == borders(wrong) == [4, 6]
    assert right.get_legend() is wrong.get_legend() is None  # curves may fill the panels
    assert [text.get_text() for text in right.figure.legends[0].texts] == [
        "correct",
        "memorized: the given class",
        "another class",
    ]


def test_that_of_clients_is_of_every_round_with_a_noisy_client(tmp_path: Path) -> None:
    own = [{f"local_memorization_{name}": values[i] for name, values in SHARES.items()} for i in (0, 1)]
    clean: Row = {f"local_memorization_{name}": None for name in SHARES}
    found: Sequence[Row] = (own[0], clean, own[1])
    rows = [{**row, **more} for row, more in zip(THREE[:3], found, strict=True)]
    record = written(tmp_path, [*rows, *EVALUATIONS])
    assert memorization.draw(record) is None
    right, wrong = drawn(memorization.draw_local(record)).axes
    assert line(right, "correct") == ([1, 3], [0.2, 0.9])
    assert line(wrong, "memorized") == ([1, 3], [0.2, 0.4])


def test_stability_lies_over_the_accuracy(tmp_path: Path) -> None:
    rows = [{**row, "training_stability": 10.0 ** -row["round"]} for row in THREE]
    above, below = drawn(accuracy.draw_stability(written(tmp_path, [*rows, *EVALUATIONS]))).axes
    (moved,), (accuracies,) = ([one for one in axes.lines if len(set(one.get_xdata())) > 1] for axes in (above, below))
    assert list(moved.get_xdata()) == list(range(1, 9))
    assert list(moved.get_ydata()) == [10.0**-k for k in range(1, 9)]
    assert above.get_yscale() == "log"
    assert list(accuracies.get_xdata()) == [2, 4, 6, 8]
    assert list(accuracies.get_ydata()) == [0.2, 0.7, 0.9, 0.8]
    assert accuracy.draw_stability(written(tmp_path)) is None


# -------------------------------------------------------------------------------------------- runs and commands


def test_what_a_method_makes_of_clients_is_shown_in_order_of_their_noise(tmp_path: Path) -> None:
    rows = {
        "client": [0, 1, 3],
        "true_quality": [0.5, 1.0, 0.2],
        "flagged": [0.4, 0.1, None],
        "filter_accuracy": [0.9, 0.8, None],
        "quality": [0.3, 1.0, 0.0],
    }
    record = written(tmp_path, clients=rows, corrections=[])
    (axes,) = drawn(of_clients.draw_filter(record)).axes
    assert line(axes, "wrong labels")[1] == [0.0, 0.5, 0.8]
    assert [bar.get_height() for bar in axes.patches][:2] == [0.8, 0.9]
    assert line(axes, "taken for wrong")[1][:2] == [0.1, 0.4]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "0", "3"]
    left, right = drawn(of_clients.draw_quality(record)).axes
    assert line(left, "true")[1] == [1.0, 0.5, 0.2]
    assert line(left, "estimated")[1] == [1.0, 0.3, 0.0]
    assert list(right.lines[1].get_ydata()) == [0.3, 1.0, 0.0]
    assert of_clients.draw_filter(written(tmp_path)) is None


def test_noisy_clients_are_shown_by_their_true_noise(tmp_path: Path) -> None:
    rows: dict[str, Any] = {
        "client": [0, 1, 3],
        "true_quality": [0.5, 1.0, 0.2],
        "noisy": [False, False, True],
        "level": [0.1, None, 0.7],
    }
    figure = drawn(of_clients.draw_noisy(written(tmp_path, clients=rows, corrections=[])))
    (axes,) = figure.axes
    assert line(axes, "called clean") == ([0, 1], [0.0, 0.5])
    assert line(axes, "called noisy") == ([2], [0.8])
    x, levels = line(axes, "estimated noise level")
    assert (x, levels[1:]) == ([0, 1, 2], [0.1, 0.7])
    assert math.isnan(levels[0])
    assert [t.get_text() for t in axes.get_xticklabels()] == ["1", "0", "3"]
    assert "66.7 % of clients" in figure.get_suptitle()
    del rows["level"]
    (axes,) = drawn(of_clients.draw_noisy(written(tmp_path, clients=rows))).axes
    assert not any("estimated" in str(one.get_label()) for one in axes.lines)
    assert of_clients.draw_noisy(written(tmp_path)) is None


def test_a_split_by_other_scores_has_no_figure_of_lid(tmp_path: Path) -> None:
    row = correction(4)
    del row["clients"]["cumulative_lid"]
    record = written(tmp_path, corrections=[row])
    assert passes(record)
    assert lid.draw(record) is None


def test_a_run_draws_its_figures_from_what_it_recorded(tmp_path: Path) -> None:
    ran = run(BY_NAME["fedcorr"].words, tmp_path / "run", "figures=true", "eval.validation=0.1", *OBSERVED)
    assert sorted(p.stem for p in (ran.folder / "figures").iterdir()) == sorted(OF_FEDCORR)
    record = RunRecord.open(ran.folder)
    over_rounds = drawn(accuracy.draw(record)).axes[0]
    assert line(over_rounds, "test")[1] == [row["accuracy"] for row in ran.lines if row["kind"] == "evaluation"]
    assert [name for name, _, _ in accuracy.stages(record, "round")] == ["preprocess", "finetune", "usual"]
    assert not any("confusion" in row.get("correction", {}) for row in ran.lines)
    for row in ran.corrections:
        found, sizes = row["confusion"], sum(map(sum, row["confusion"]["before"]))
        wrong = 1 - np.trace(found["after"]) / sizes
        assert wrong == pytest.approx(row["noise_final"])
        assert [one["client"] for one in found["first_clients"]] == row["clients"]["client"][:5]
        for k, one in enumerate(found["first_clients"]):
            share = 1 - np.trace(one["before"]) / np.sum(one["before"])
            assert share == pytest.approx(row["clients"]["true_noise_before"][k])
    given = np.array(ran.corrections[0]["confusion"]["before"])
    assert 1 - np.trace(given) / given.sum() == pytest.approx(ran.record["metrics"]["noise_given"])
    assert ran.record["classes"] == [str(c) for c in range(10)]


def test_a_stopped_run_has_the_figures_of_what_it_did(tmp_path: Path) -> None:
    ran = run(BY_NAME["fedcorr"].words, tmp_path / "run", "figures=true", "max_rounds=9", *OBSERVED)
    assert sorted(p.stem for p in (ran.folder / "figures").iterdir()) == sorted(OF_FEDCORR)
    assert RunRecord.open(ran.folder).title.endswith("(stopped)")
    assert len(drawn(noise_levels.draw(RunRecord.open(ran.folder))).axes) == 2


def test_fedavg_has_its_accuracy_and_off_is_off(tmp_path: Path) -> None:
    ran = run(BY_NAME["fedavg"].words, tmp_path / "on", "figures=true")
    assert [p.stem for p in (ran.folder / "figures").iterdir()] == ["accuracy"]
    assert not (run(BY_NAME["fedavg"].words, tmp_path / "off", "figures=false").folder / "figures").exists()


def test_a_figure_that_fails_costs_one_line_and_no_other_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(record: RunRecord) -> Figure:
        raise ValueError("no paint")

    monkeypatch.setattr(drawing, "FIGURES", {"before": broken, "accuracy": accuracy.draw})
    with caplog.at_level(logging.WARNING, "flnl.figures.drawing"):
        ran = run(BY_NAME["fedavg"].words, tmp_path / "run", "figures=true")
    assert ran.record["status"] == "finished"
    assert [p.stem for p in (ran.folder / "figures").iterdir()] == ["accuracy"]
    (said,) = (r.getMessage() for r in caplog.records if r.name == "flnl.figures.drawing")
    assert "figures/before could not be drawn" in said
    assert "no paint" in said


def test_figures_that_cannot_be_read_or_written_leave_the_run_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run(BY_NAME["fedavg"].words, tmp_path / "run", "figures=true", "max_rounds=1")
    shutil.rmtree(tmp_path / "run" / "figures")
    (tmp_path / "run" / "figures").write_text("a file in the way")
    caplog.clear()
    assert run(BY_NAME["fedavg"].words, tmp_path / "run", "figures=true", "resume=true").record["status"] == "finished"
    monkeypatch.setattr(RunRecord, "with_lines", lambda _: 1 / 0)
    assert run(BY_NAME["fedavg"].words, tmp_path / "other", "figures=true").record["status"] == "finished"
    assert len([r for r in caplog.records if "could not be drawn" in r.getMessage()]) == 2


def test_the_command_redraws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / "a=1,b", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        written(folder, corrections=[correction(4)])
    monkeypatch.setattr("sys.argv", ["figures", *map(str, folders)])
    figures.main()
    assert all(len(list((folder / "figures").iterdir())) == 5 for folder in folders)
    assert capsys.readouterr().out.count("accuracy, lid, noise_levels, confusion, confusion_clients") == 2


@pytest.mark.parametrize("words", [["missing"], [], ["empty"]])
def test_a_folder_without_a_record_is_refused_in_a_line(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["figures", *words])
    with pytest.raises(SystemExit) as left:
        figures.main()
    assert left.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(
        f"error: {words[0]}: no run is recorded" if words else "error: the following arguments are required: RUN_DIR"
    )


def test_one_pass_gives_the_picture_that_savefig_would(tmp_path: Path) -> None:
    def drawn() -> Figure:
        figure = Figure(figsize=(4, 3), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        axes[0].plot([0, 1], [10_000, 20_000], label="a line")
        axes[0].set_ylabel("a label")
        figure.legend(loc="outside lower center")
        return figure

    drawing._write(drawn(), tmp_path / "ours.png", drawing.DPI)
    drawn().savefig(tmp_path / "theirs.png", dpi=drawing.DPI)
    ours, theirs = (np.asarray(Image.open(tmp_path / f"{name}.png").convert("RGB")) for name in ("ours", "theirs"))
    assert np.array_equal(ours, theirs)
