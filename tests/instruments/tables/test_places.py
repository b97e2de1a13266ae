"""Tables of one's own data: runs count wherever these lie, and never as runs on others."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from flnl.instruments.tables import run_record
from tests.instruments.tables.conftest import Tables

SCALE = """\
title: tiny
changes: [All is tiny.]
seeds: [1]
overrides: [model=mlp, "model.hidden=[4]", rounds=2, fraction=1.0, partition=iid_uniform, partition.num_clients=2, \
noise=none, train.batch_size=4, train.epochs=1, executor=sequential]
"""
TABLE = """\
title: Own data
metric: {{name: best test accuracy, unit: "%", higher_is_better: true, key: best}}
overrides: [dataset=arrays]
columns:
  - {{label: first, overrides: ["dataset.root={first}"]}}
  - {{label: second, overrides: ["dataset.root={second}"]}}
rows:
  - {{label: FedAvg, overrides: [method=fedavg]}}
"""


@pytest.fixture
def own(command: Tables, tmp_path: Path) -> Tables:
    """The command where two data sets, of 12 and of 10 training samples, were the columns of a table that has run."""
    (tmp_path / "scale" / "small.yaml").write_text(SCALE)
    for name, n in (("a", 12), ("b", 10)):
        (tmp_path / name).mkdir()
        x, y = np.random.default_rng(n).random((n, 1, 4, 4), np.float32), np.arange(n) % 2
        np.savez(tmp_path / name / "arrays.npz", x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    columns(tmp_path, "a", "b")
    assert command("run", "own", "--", "hydra/launcher=basic").code == 0
    return command


def columns(tmp_path: Path, first: str, second: str) -> None:
    """Write the table with data of these folders."""
    (tmp_path / "table" / "own.yaml").write_text(TABLE.format(first=tmp_path / first, second=tmp_path / second))


def test_columns_of_two_data_sets_have_runs_of_their_own(own: Tables) -> None:
    planned = own("plan", "own").out
    assert "2 different runs are behind them, of which 0 are missing" in planned


def test_runs_count_where_their_data_have_moved(own: Tables, tmp_path: Path) -> None:
    (tmp_path / "a").rename(tmp_path / "moved")
    columns(tmp_path, "moved", "b")
    assert "of which 0 are missing" in own("plan", "own").out
    columns(tmp_path, "b", "moved")
    assert "of which 0 are missing" in own("plan", "own").out
    (tmp_path / "b").rename(tmp_path / "kept")
    shutil.copytree(tmp_path / "moved", tmp_path / "copy")
    columns(tmp_path, "copy", "moved")
    assert "1 different runs are behind them, of which 0 are missing" in own("plan", "own").out
    with np.load(tmp_path / "copy" / "arrays.npz") as held:
        changed = dict(held, y_train=held["y_train"][::-1])
    np.savez(tmp_path / "copy" / "arrays.npz", **changed)
    assert "2 different runs are behind them, of which 1 are missing" in own("plan", "own").out


def test_records_count_where_the_data_lie_elsewhere_and_are_the_same(own: Tables, tmp_path: Path) -> None:
    assert own("render", "own").code == 0
    shutil.rmtree(tmp_path / "multirun")
    (tmp_path / "a").rename(tmp_path / "moved")
    columns(tmp_path, "moved", "b")
    records = "records=results/small/runs.jsonl"
    assert "2 runs restored" in own("plan", "own", records).err
    assert "of which 0 are missing" in own("plan", "own").out
    shutil.rmtree(tmp_path / "multirun")
    with np.load(tmp_path / "b" / "arrays.npz") as held:
        changed = dict(held, y_train=held["y_train"][::-1])
    (tmp_path / "other").mkdir()
    np.savez(tmp_path / "other" / "arrays.npz", **changed)
    columns(tmp_path, "moved", "other")
    assert "1 runs restored" in own("plan", "own", records).err


def test_records_with_places_in_their_keys_are_restored_and_rendered_as_they_are(own: Tables, tmp_path: Path) -> None:
    """As runs of earlier versions have left them: their folders are named by these keys."""
    assert own("render", "own").code == 0
    file = tmp_path / "results/small/runs.jsonl"
    held = [dict(run.record.raw) for run in run_record.load(file).values()]
    placed = [run_record.signed(one | {"key": f"{Path(one['folder']).name}{'0' * 48}"}) for one in held]
    file.write_text("".join(f"{line}\n" for line in sorted(placed)))
    before = file.read_bytes()
    shutil.rmtree(tmp_path / "multirun")
    assert "2 runs restored" in own("plan", "own", "records=results/small/runs.jsonl").err
    assert own("render", "own", "out=again").code == 0
    assert (tmp_path / "again/runs.jsonl").read_bytes() == before
