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


def test_it_can_be_tried_out_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bench/results").mkdir(parents=True)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "TINY", replace(gpu.TINY, samples=10, model="mlp"))
    ways = "sequential, fp32, channels_last;stack of 2, fp32;graphs of 2"
    gpu.main(["--device", "cpu", "--tiny", "--repeats", "1", "--ways", ways])
    lines = (tmp_path / "bench/results/part.md").read_text().splitlines()
    shown = [line.split("|")[1].strip() for line in lines[lines.index("| way |" + _rest(lines)) + 2 :]]
    assert shown == [
        "hand, fp32, contiguous",
        "sequential, fp32, channels_last",
        "stack of 2, fp32, contiguous",
    ]


def _rest(lines: list[str]) -> str:
    return next(line for line in lines if line.startswith("| way |")).removeprefix("| way |")


def test_hours_count_single_trainings_at_their_own_rate() -> None:
    """500 trainings of one client and 950 rounds of ten, by hand: graphs of 10 take 2 s a round, of 1 take 6 s."""
    ways = gpu.ways(10)
    names = ["hand, fp32, contiguous", "graphs of 1, fp32, contiguous", "graphs of 10, fp32, contiguous"]
    chosen = {name: ways[name] for name in names}
    times = [(20.0, 30.0, 22.0), (6.0, 6.0, 6.0), (2.0, 2.0, 2.0)]
    found = {name: gpu.Measured(40.0, seconds, 1.5) for name, seconds in zip(names, times, strict=True)}
    rows = _cells(gpu.markdown(found, chosen, gpu.FEDCORR, ""))
    assert [row[4] for row in rows] == ["1.00", "3.67", "11.00"]
    assert [row[5] for row in rows] == ["6.11", "1.67", f"{(50 * 6 + 950 * 2) / 3600:.2f}"]


def test_what_was_not_measured_is_a_dash() -> None:
    """After the first rounds alone; and the hours of stacks where no single client was timed."""
    ways, names = gpu.ways(10), ["hand, fp32, contiguous", "graphs of 10, fp32, contiguous"]
    chosen = {name: ways[name] for name in names}
    assert _cells(gpu.markdown({name: gpu.Measured(40.0) for name in names}, chosen, gpu.FEDCORR, "")) == [
        [name, "40 s", "-", "-", "-", "-", "-"] for name in names
    ]
    found = {name: gpu.Measured(40.0, (2.0,), 1.5) for name in names}
    assert _cells(gpu.markdown(found, chosen, gpu.FEDCORR, ""))[1][5] == "-"


def _cells(text: str) -> list[list[str]]:
    lines = text.rstrip().splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("| ---"))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in lines[last + 1 :]]
