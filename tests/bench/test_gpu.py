"""The bench for a GPU: what can be tried out without one, and its arithmetic."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        gpu.main([])
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_it_can_be_tried_out_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a CPU can do, a way that fails among it, and a profile; the report is there after each way."""
    monkeypatch.setattr(gpu, "TINY", replace(gpu.TINY, samples=20))
    prepared, out, seen = gpu.Bench.prepared, tmp_path / "gpu.md", list[int]()

    def failing(bench: gpu.Bench, way: gpu.Way) -> object:
        seen.append(out.read_text().count("\n| ") if out.exists() else 0)
        if way.kind == "sequential" and way.precision == "bf16":
            raise RuntimeError("out of memory")
        return prepared(bench, way)

    monkeypatch.setattr(gpu.Bench, "prepared", failing)
    gpu.main(["--device", "cpu", "--tiny", "--seconds", "0.01", "--profile", "--out", str(out)])
    text = out.read_text()
    rows = _cells(text)
    assert [row[0] for row in rows] == [
        "hand, bf16, channels_last",
        "hand, fp32, contiguous",
        "sequential, bf16, channels_last",
        "sequential, fp32, channels_last",
        "stack of 2, bf16, channels_last",
        "stack of 2, fp32, channels_last",
        "stack of 3, fp32, channels_last",
        "stack of 4, fp32, channels_last",
        "stack of 5, fp32, channels_last",
    ]
    assert all(float(row[1].replace(",", "")) > 0 for row in rows if row[0] != "sequential, bf16, channels_last")
    assert rows[1][3] == "1.00"
    assert rows[2][1:] == ["-"] * 7
    assert "- sequential, bf16, channels_last: RuntimeError: out of memory" in text
    assert "us a client-step" in text
    assert seen == sorted(set(seen))  # before each way, and before the profile


def test_every_way_of_a_gpu_is_measured_in_the_layout_that_runs_take() -> None:
    ways = gpu.ways(10)
    for size in (5, 10, 20):
        for precision, layout in (("fp32", "contiguous"), ("bf16", "channels_last"), ("tf32", "channels_last")):
            assert f"branches of {size}, {precision}, {layout}" in ways
    for compiled in ("branches of 10", "branches of 20", "graphs of 1"):
        assert ways[f"{compiled}, bf16, channels_last, compiled"].compile
    assert next(iter(ways)) == "hand, fp32, contiguous"


def test_no_way_but_the_first_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.Bench, "measured", lambda bench, way: gpu.Measured(rates=(1.0,)))
    bench, told = gpu.Bench(gpu.TINY, torch.device("cpu"), 0.1), list[str]()
    chosen = dict([*gpu.ways(10, "cpu").items()][:3])
    first, *others = chosen
    assert [[*known] for known in gpu.measure(chosen, bench, told.append, until=0.0)] == [[first]]
    assert told[-1] == f"no time for {'; '.join(others)}: --minutes gives more"
    assert [*gpu.measure(chosen, bench, told.append)][-1].keys() == chosen.keys()


def test_a_whole_name_chooses_one_way_and_the_beginning_of_names_several() -> None:
    ways = gpu.ways(10)
    first, plain = "hand, fp32, contiguous", "branches of 10, bf16, channels_last"
    assert list(gpu.chosen(ways, plain)) == [first, plain]
    assert list(gpu.chosen(ways, "branches of 10, bf16, ch")) == [first, plain, f"{plain}, compiled"]
    assert gpu.chosen(ways, None) == ways


def test_ratios_are_to_the_first_way_and_to_the_goal() -> None:
    """By hand: 1,000 images a second, branches 13,900, half of the goal."""
    ways = gpu.ways(10)
    names = ["hand, fp32, contiguous", "branches of 10, bf16, channels_last", "graphs of 1, bf16, channels_last"]
    found = {
        names[0]: gpu.Measured(2.0, (900.0, 1000.0, 1300.0), 1, 0.5, float("nan")),
        names[1]: gpu.Measured(0.75, (13_900.0,), 5, 2.6, 1.5),
        names[2]: gpu.Measured(failure="RuntimeError: no"),
    }
    bench = gpu.Bench(gpu.FEDCORR, torch.device("cpu"), 7.0)
    rows = _cells(gpu.markdown(found, {name: ways[name] for name in names}, bench, ""))
    assert rows == [
        [names[0], "1,000", "900 to 1,300", "1.00", "0.04", "2 s", "0.5", "-"],
        [names[2], *["-"] * 7],
        [names[1], "13,900", "13,900 to 13,900", "13.90", "0.50", "750 ms", "2.6", "1.5000"],
    ]


@pytest.mark.parametrize("setting", gpu.SETTINGS)
def test_every_setting_can_be_trained(setting: str) -> None:
    """A step of two clients by hand and by our loop."""
    workload = replace(gpu.SETTINGS[setting], cohort=2, clients=2, samples=gpu.SETTINGS[setting].batch, epochs=1)
    bench = gpu.Bench(workload, torch.device("cpu"), 0.0)
    for way in (gpu.Way("hand", "fp32", "contiguous"), gpu.Way("sequential", "fp32", "contiguous")):
        round, same = bench.prepared(way)
        round(0, same)


def _cells(text: str) -> list[list[str]]:
    """The rows of the table of ways."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| way |")) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows
