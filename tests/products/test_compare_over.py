"""``flnl compare --over KEY``: which rows are one line, and the numbers on it."""

import json
import statistics
from pathlib import Path

import pytest

from flnl.core.errors import UserError
from flnl.instruments.compare import over
from flnl.instruments.compare.over import Point, Swept, swept
from flnl.instruments.compare.runs import find, grouped
from flnl.instruments.compare.table import measured
from tests.products.conftest import Commands
from tests.products.test_compare import compared, made

__all__ = ["compared"]

LAST = {("fedpeer", 1.0, 1): 0.3, ("fedpeer", 1.0, 2): 0.5, ("fedpeer", 8.0, 1): 0.9}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """FedPeer with two privacies, one of them with two seeds, with either peer; and FedAvg, which has none."""
    for (method, epsilon, seed), last in LAST.items():
        for peer in ("sample", "cores"):
            words = f"method={method} method.epsilon={epsilon} method.peer={peer} seed={seed}"
            metrics = {"last": last if peer == "sample" else last / 2, "label_distribution_error": 1 / epsilon}
            made(tmp_path / f"{peer}_{epsilon}_{seed}", words, metrics=metrics)
    made(tmp_path / "fedavg", "method=fedavg seed=1", metrics={"last": 0.2, "label_distribution_error": 2.0})
    return tmp_path


def lines(folder: Path, key: str = "method.epsilon", metric: str = "last") -> dict[str, Swept]:
    rows = grouped(find([str(folder)]))
    return {line.name: line for line in swept(rows, key, measured(metric, rows))}


def test_rows_that_differ_in_the_key_alone_are_one_line(runs: Path) -> None:
    """Though the exchange repeats the key."""
    found = lines(runs)
    assert len(found) == 3
    (sample,) = (line for name, line in found.items() if "method.peer=sample" in name)
    (cores,) = (line for name, line in found.items() if "method.peer=cores" in name)
    (fedavg,) = (line for name, line in found.items() if "fedavg" in name)
    first = Point(1.0, pytest.approx(40.0), pytest.approx(100 * statistics.stdev([0.3, 0.5])))  # type: ignore[arg-type]
    assert sorted(sample.points, key=lambda p: p.at or 0) == [first, Point(8.0, pytest.approx(90.0), None)]  # type: ignore[arg-type]
    assert sorted(p.mean for p in cores.points) == pytest.approx([20.0, 45.0])
    assert fedavg.points == [Point(None, pytest.approx(20.0), None)]  # type: ignore[arg-type]
    assert not any("epsilon" in name for name in found)


def test_a_key_that_an_earlier_record_lacks_at_its_neutral_value_does_not_part_a_line(tmp_path: Path) -> None:
    for rho in (0.2, 0.4, 0.6):
        made(tmp_path / f"{rho}", f"method=fedavg noise.rho={rho}", metrics={"last": rho})
    path = tmp_path / "0.4" / "result.json"
    record = json.loads(path.read_text())
    del record["config"]["train"]["clip"]
    path.write_text(json.dumps(record))
    (line,) = lines(tmp_path, "noise.rho").values()
    assert [p.at for p in line.points] == [0.2, 0.4, 0.6]


def test_any_number_of_the_record_can_be_drawn(runs: Path) -> None:
    found = lines(runs, metric="label_distribution_error")
    (sample,) = (line for name, line in found.items() if "method.peer=sample" in name)
    assert {p.at: p.mean for p in sample.points} == {1.0: 1.0, 8.0: 0.125}
    with pytest.raises(UserError, match=r"--measure first: no run has such a number; .*there are best, .*last"):
        lines(runs, metric="first")
    for key in ("method.epsilom", "method.peer"):
        with pytest.raises(UserError, match=f"--over {key}: no run has such a key with a number"):
            lines(runs, key)


def test_points_are_joined_in_order_and_baselines_lie_level() -> None:
    level = Swept("level", [Point(None, 3.0, 0.5)])
    figure = over.draw([Swept("one", [Point(4.0, 2.0, None), Point(1.0, 1.0, 0.25)]), level], "a.key", "accuracy")
    (axes,) = figure.axes
    joined = next(line for line in axes.lines if len(line.get_xdata()) == 2 and line.get_marker() == "o")  # type: ignore[arg-type]
    assert (list(joined.get_xdata()), list(joined.get_ydata())) == ([1.0, 4.0], [1.0, 2.0])  # type: ignore[arg-type]
    assert any(list(line.get_ydata()) == [3.0, 3.0] for line in axes.lines)  # type: ignore[arg-type]
    assert axes.get_xscale() == "linear"
    wide = over.draw([Swept("one", [Point(0.1, 2.0, None), Point(100.0, 1.0, None)])], "a.key", "accuracy").axes[0]
    assert wide.get_xscale() == "log"
    assert [text.get_text() for text in wide.get_xticklabels()] == ["0.1", "100"]


def test_without_a_figure_there_is_nothing_to_draw_it_in(compared: Commands) -> None:
    answer = compared(".", "--over", "seed", "--figure", "none")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: --over seed is for the figure: ")


def test_the_command_draws_it(runs: Path, compared: Commands) -> None:
    answer = compared(".", "--over", "method.epsilon", "--figure", "sweep.png")
    assert answer.err.endswith("figure: sweep.png\n")
    assert (runs / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert compared(".", "--over", "nothing", "--figure", "other.png").code == 2


def test_over_the_seed_each_row_is_a_line_of_its_runs(runs: Path) -> None:
    found = lines(runs, "seed")
    assert len(found) == 5
    (one,) = (line for name, line in found.items() if "sample" in name and "epsilon=1" in name)
    assert one.points == [Point(1, pytest.approx(30.0), None), Point(2, pytest.approx(50.0), None)]  # type: ignore[arg-type]
    assert sorted(len(line.points) for line in found.values()) == [1, 1, 1, 2, 2]
