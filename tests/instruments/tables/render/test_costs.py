"""What the rows of a table cost stands beside the table, if their runs have recorded it."""

from dataclasses import replace
from pathlib import Path

from flnl.instruments.tables.render import render
from flnl.instruments.tables.results import Filled
from tests.instruments.tables.render.made import Given, recorded, table


def in_folder(folder: Path) -> Filled:
    """Two rows of two seeds and one of none, whose runs are in ``folder``."""
    ours: Given = {
        "FedAvg": [[80.0, 82.0]],
        "Co-teaching_2": [[85.0, 86.0]],
        "Early": [[70.0, 71.0]],
        "Not yet": [[None, None]],
    }
    filled = table(ours, {name: [80.0] for name in ours}, ["all"])
    cells = tuple(
        tuple(replace(one, runs=tuple(replace(r, folder=folder / r.folder) for r in one.runs)) for one in row)
        for row in filled.cells
    )
    return replace(filled, cells=cells)


def record_all(filled: Filled) -> None:
    for label, row in zip(("FedAvg", "Co-teaching_2", "Early"), filled.cells, strict=False):
        for seed, run in enumerate(row[0].runs, 1):
            networks = 2 if label.startswith("Co") else 1
            costs = {"training_passes": 2000 * networks + seed, "cpu_time_s": 1.25 * networks, "peak_memory": 3 * 2**20}
            recorded(run.folder, [0.8], key="k", participations=560, **({} if label == "Early" else costs))


def test_costs_are_means_over_a_rows_runs(tmp_path: Path) -> None:
    filled = in_folder(tmp_path)
    record_all(filled)
    render([filled], tmp_path / "out")
    lines = (tmp_path / "out" / "p_1.md").read_text().splitlines()
    begin = lines.index("What a run costs, mean over the finished runs of a row:")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[begin + 2 : begin + 8]]
    assert cells[0] == ["", "participations", "training passes", "wall time, s", "CPU time, s", "peak memory, MiB"]
    assert cells[2:] == [
        ["FedAvg", "560", "2,002", "36", "1.2", "3"],
        [r"Co-teaching\_2", "560", "4,002", "36", "2.5", "3"],
        ["Early", "560", "–", "36", "–", "–"],
        ["Not yet", "–", "–", "–", "–", "–"],
    ]
    tex = (tmp_path / "out" / "p_1_cost.tex").read_text()
    assert r"Co-teaching\_2 & 560 & 4,002 & 36 & 2.5 & 3 \\" in tex
    assert "4,002" in (tmp_path / "out" / "report.html").read_text()


def test_early_runs_have_no_table_of_costs(tmp_path: Path) -> None:
    filled = in_folder(tmp_path)
    for run in filled.cells[2][0].runs:
        recorded(run.folder, [0.8], key="k", participations=560)
    render([filled], tmp_path / "out")
    assert not (tmp_path / "out" / "p_1_cost.tex").exists()
    assert "costs" not in (tmp_path / "out" / "p_1.md").read_text()
