"""The table of costs has what the runs have counted, and goes on where it stopped."""

from pathlib import Path

import pytest

from bench import method_costs
from bench.whole_runs import read_rows


@pytest.mark.slow
def test_lines_are_what_runs_have_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two networks pass twice; a line that is there stays; an unknown method ends with 2."""
    file = tmp_path / "costs.csv"
    monkeypatch.setattr(method_costs, "FILE", file)
    for method in ("co_teaching", "fedavg"):
        method_costs.main([str(tmp_path / "runs"), "--methods", method, "--rounds", "1"])
    two, one = read_rows(file, method_costs.Row)
    assert (two.method, one.method) == ("co_teaching", "fedavg")
    assert one.participations == two.participations > 1
    assert two.training_passes == 2 * one.training_passes > 0
    assert (two.bytes_down, two.bytes_up) == (2 * one.bytes_down, 2 * one.bytes_up)
    assert min(one.cpu_time_s, one.peak_memory) > 0
    assert "fedavg: finished" in capsys.readouterr().out
    method_costs.main([str(tmp_path / "runs"), "--methods", "fedavg", "--rounds", "1"])
    assert read_rows(file, method_costs.Row)[1] == one
    with pytest.raises(SystemExit, match="2"):
        method_costs.main([str(tmp_path / "runs"), "--methods", "fedavgg"])
