"""Curves of rows: the mean over seeds, from and to where all of them have a value."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from flnl.figures import curves
from flnl.figures.curves import Curve, Row

LONG = "method=fedcorr partition=dirichlet noise.rho=0.4"


def curve(rounds: Sequence[int], accuracy: Sequence[float], cohort: int = 10) -> Curve:
    x = np.array(rounds, np.float64)
    return Curve({"round": x, "participations": cohort * x}, np.array(accuracy))


def drawn(rows: Sequence[Row]) -> Figure:
    figure = curves.draw(rows, "digits")
    assert figure is not None
    figure.draw_without_rendering()
    return figure


def test_mean_and_deviation_where_the_points_are_the_same() -> None:
    found = curves.band([curve([1, 2], [0.25, 0.5]), curve([1, 2], [0.75, 0.5])], "round")
    assert found.x.tolist() == [1, 2]
    assert found.mean.tolist() == [0.5, 0.5]
    assert found.deviation is not None
    np.testing.assert_allclose(found.deviation, [0.5 / 2**0.5, 0])  # (0.25² + 0.25²) / (2 - 1)


def test_a_value_holds_until_the_next_and_nothing_is_extrapolated() -> None:
    """Before round 2 the second has no value; after round 6 the first has none."""
    one, other = curve([1, 4, 6], [0.0, 0.25, 0.5]), curve([2, 5, 9], [1.0, 0.75, 0.5])
    found = curves.band([one, other], "round")
    assert found.x.tolist() == [2, 4, 5, 6]
    assert found.mean.tolist() == [(0.0 + 1.0) / 2, (0.25 + 1.0) / 2, (0.25 + 0.75) / 2, (0.5 + 0.75) / 2]
    assert curves.band([one, other], "participations").x.tolist() == [20, 40, 50, 60]


def test_seeds_that_have_no_round_in_common_have_no_mean() -> None:
    found = curves.band([curve([1, 2], [0.1, 0.2]), curve([5, 6], [0.3, 0.4])], "round")
    assert found.x.tolist() == []
    drawn([Row("apart", [curve([1, 2], [0.1, 0.2]), curve([5, 6], [0.3, 0.4])])])


def test_one_run_is_a_line_without_a_band() -> None:
    rows = [Row("a", [curve([1, 2, 3], [0.1, 0.2, 0.4])]), Row("b", [curve([1, 3], [0.5, 0.5])] * 2)]
    figure = drawn(rows)
    rounds, participations = figure.axes
    for axes, scale in ((rounds, 1), (participations, 10)):
        line = next(line for line in axes.lines if line.get_label() == "a")
        assert list(np.asarray(line.get_xdata())) == [scale, 2 * scale, 3 * scale]
        assert list(np.asarray(line.get_ydata())) == [0.1, 0.2, 0.4]
        assert len(axes.collections) == 1, "the band of b alone"
    assert "standard deviation" in figure.get_suptitle()
    assert "standard deviation" not in drawn(rows[:1]).get_suptitle()


def test_seeds_of_one_evaluation_have_their_deviation() -> None:
    """A band of no width would not be seen."""
    (bar,) = drawn([Row("a", [curve([3], [0.25]), curve([3], [0.75])])]).axes[0].collections
    ((low, high),) = bar.get_segments()  # type: ignore[attr-defined]
    np.testing.assert_allclose([low, high], [[3, 0.5 - 0.125**0.5], [3, 0.5 + 0.125**0.5]])


@pytest.mark.parametrize(
    ("count", "name"),
    [(1, "m"), (20, "m"), (32, "m"), (2, "cost=$x^$ a_b"), (6, LONG), (20, LONG), (20, "x" * 200)],
)
def test_every_row_can_be_told_and_read(count: int, name: str) -> None:
    rows = [Row(f"{i} {name}", [curve([1, 2], [0.01 * i, 0.5])]) for i in range(count)]
    figure = drawn(rows)
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    assert len(styles) == count
    (legend,) = figure.legends
    texts = [text.get_text().replace("\n", "").replace(r"\$", "$") for text in legend.get_texts()]
    assert texts == [row.name for row in rows]
    whole, box = figure.bbox, legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= whole.x1
    assert box.y0 >= 0
    for axes in figure.axes:
        seen = axes.get_tightbbox()
        assert seen is not None
        assert seen.y0 >= box.y1 - 1, "the legend is below the panels"
        assert axes.bbox.height > 0.3 * 4.2 * figure.dpi, "the legend leaves the panels their room"


def test_broken_records_cost_their_own_curve_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = {
        "whole": "\n".join(
            json.dumps({"kind": "evaluation", "round": i, "participations": i, "accuracy": a})
            for i, a in ((1, 0.5), (2, None), (3, 0.75))
        ),
        "keyless": '{"round": 1}\n',
        "none": "",
    }
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text('{"key": "k", "config": {}}')
        (tmp_path / name / "metrics.jsonl").write_text(text)
    with caplog.at_level(logging.WARNING):
        row, nothing = curves.read([("a", [tmp_path / name for name in texts]), ("b", [tmp_path / "gone"])])
    (found,) = row.curves
    assert found.x["round"].tolist() == [1, 3], "what is not finite is no point"
    assert found.accuracy.tolist() == [0.5, 0.75]
    assert nothing.curves == []
    assert [record.args[0] for record in caplog.records if isinstance(record.args, tuple)] == [
        tmp_path / name for name in ("keyless", "none", "gone")
    ]
    assert curves.draw([nothing], "digits") is None
    assert "no curve" in str(drawn([row, nothing]).legends[0].get_texts()[1].get_text())


def test_a_row_looks_the_same_in_every_panel() -> None:
    """Four settings in two lines; one lacks the first row, whose colour no other takes."""
    a, b = Row("a", [curve([1, 2], [0.1, 0.5])]), Row("b", [curve([1, 3], [0.2, 0.6])])
    figure = curves.draw_panels([("x=1", [a, b]), ("x=2", [b]), ("x=3", [a, b]), ("x=$4", [a])], "digits")
    assert figure is not None
    figure.draw_without_rendering()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["x=1", "x=2", "x=3", r"x=\$4"]
    colours = [{line.get_label(): line.get_color() for line in axes.lines} for axes in figure.axes]
    assert [set(each) for each in colours] == [{"a", "b"}, {"b"}, {"a", "b"}, {"a"}]
    assert len({str(each["b"]) for each in colours[:3]}) == 1
    assert colours[0]["a"] != colours[0]["b"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    assert figure.axes[1].get_xlim()[1] == 30
    assert curves.draw_panels([("x=1", [Row("a", [])])], "digits") is None
