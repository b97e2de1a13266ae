"""A row of one's own in a paper's table: ``add=`` and ``--config-dir``."""

import csv
import json
from pathlib import Path

import pytest

from flnl.core.errors import UserError
from flnl.tables import added, load
from tests.tables.conftest import Tables

FILE = """\
defaults:
  - parts/default@_here_
  - override local: [cross_entropy, fedprox]
  - _self_
name: mine
local:
  fedprox:
    mu: {mu}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a method of one's own."""
    (tmp_path / "own folder" / "method").mkdir(parents=True)
    (tmp_path / "own folder" / "method" / "mine.yaml").write_text(FILE.format(mu=0.5))
    return tmp_path / "own folder"


@pytest.mark.parametrize(
    ("text", "label", "overrides"),
    [
        ("method=mine", "mine", ("method=mine",)),
        ("method=fedavg model=cnn train.lr=0.1", "fedavg", ("method=fedavg", "model=cnn", "train.lr=0.1")),
        ("train.lr=0.1", "train.lr=0.1", ("train.lr=0.1",)),
        ("Mine, λ=2: method=mine method.lam=2", "Mine, λ=2", ("method=mine", "method.lam=2")),
        ("method=mine 'noise.name=a b'", "mine", ("method=mine", "noise.name=a b")),
        ("noise={name: a}", "noise={name: a}", None),
    ],
)
def test_a_row_has_a_label_and_overrides(text: str, label: str, overrides: tuple[str, ...] | None) -> None:
    if overrides is None:  # the blank is the shell's
        with pytest.raises(UserError, match="a} is no override"):
            added.row(text, [])
    else:
        row = added.row(text, [])
        assert (row.label, row.method, row.overrides) == (label, label, overrides)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no override; as in add='method=mine'"),
        ("Mine: ", "no override"),
        ("mine", "mine is no override"),
        ("method='mine", "No closing quotation"),
        ("method=fedavg seed=2", "seed=2: a cell has a run for each seed"),
    ],
)
def test_what_is_no_row_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        added.row(text, [])
    assert str(refused.value).startswith(f"add={text}: ")
    assert said in str(refused.value)


def test_rows_have_labels_of_their_own() -> None:
    table = load.table("fedcorr_9")
    with pytest.raises(UserError, match="two rows that are called fedavg; give yours another label"):
        added.with_rows(table, [added.row("method=fedavg", [])])
    wider = added.with_rows(table, [added.row(f"{name}: method=fedavg", []) for name in ("A", "B")])
    assert [row.label for row in wider.rows] == [*(row.label for row in table.rows), "A", "B"]
    assert wider.cells[-1] == (None,) * len(table.columns)


def test_a_method_of_ones_own_stands_in_a_papers_table(command: Tables, folder: Path, tmp_path: Path) -> None:
    own = ("fedcorr_9", "add=Mine (μ=0.5): method=mine", "--config-dir", str(folder), "seeds=1")
    said = command("run", *own, "rows=mine*", "--", "hydra/launcher=basic")
    assert (said.code, said.out.splitlines()[-1]) == (0, "1 of 1 cells can run, 1 have run, 0 failed"), said.err
    (file,) = (tmp_path / "multirun" / "tables" / "small").glob("*/result.json")
    assert json.loads(file.read_text())["config"]["method"]["local"]["fedprox"]["mu"] == 0.5
    assert command("render", *own).code == 0
    out = tmp_path / "results" / "small_own"
    lines = (out / "fedcorr_9.md").read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("| Mine (μ=0.5) | ours | "))
    assert not lines[place + 1].startswith("|  | paper")  # there is none
    assert sum(line.startswith("|  | paper") for line in lines) == len(load.table("fedcorr_9").rows)
    with (out / "fedcorr_9.csv").open(encoding="utf-8") as text:
        (row,) = [row for row in csv.DictReader(text) if "Mine (μ=0.5)" in row.values()]
    assert f"hydra.searchpath=['file://{folder}']" in " ".join(row.values())
    assert not (tmp_path / "results" / "small").exists()


def test_a_changed_file_of_ones_own_makes_another_run(command: Tables, folder: Path) -> None:
    """What is known of runs is kept beside them until conf/ changes; one's own files are not part of it."""
    own = ("fedcorr_9", "add=method=mine", "--config-dir", str(folder), "seeds=1", "rows=mine")
    command("run", *own, "--", "hydra/launcher=basic")
    assert "1 have run" in command("plan", *own).out
    (folder / "method" / "mine.yaml").write_text(FILE.format(mu=0.25))
    assert "0 have run" in command("plan", *own).out


def test_ones_own_method_is_tuned_and_its_choice_taken(command: Tables, folder: Path, tmp_path: Path) -> None:
    own = ("add=Mine, once: method=mine", "--config-dir", folder.name)
    column = load.table("fedcorr_9").columns[0].label
    tuned = ("rows=mine*", f"columns={column}", "grid=method.local.fedprox.mu=0.125,9", "seeds=1")
    said = command("tune", "fedcorr_9", *own, *tuned, "--", "hydra/launcher=basic")
    assert said.code == 0, said.err
    assert said.out.splitlines()[-1] == (
        "next: flnl tables run fedcorr_9 scale=small 'add=Mine, once: method=mine' --config-dir 'own folder' "
        "tuned=tuned/small/own.json"
    )
    ran = command("run", "fedcorr_9", *own, "rows=mine*", "tuned=tuned/small/own.json", "--", "hydra/launcher=basic")
    assert ran.code == 0, ran.err
    (file,) = (tmp_path / "multirun" / "tables" / "small").glob("*/result.json")
    (study,) = json.loads((tmp_path / "tuned" / "small" / "own.json").read_text())["studies"]
    chosen = float(study["chosen"]["method.local.fedprox.mu"])
    assert json.loads(file.read_text())["config"]["method"]["local"]["fedprox"]["mu"] == chosen != 0.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add=method=mime", "--config-dir", "own folder"), "method=mime does not exist; did you mean mine?"),
        (("--config-dir", "elsewhere", "add=method=mine"), "--config-dir elsewhere: give a folder"),
        (("add=method=mine", "--config-dir"), "--config-dir : give a folder"),
        (("--config-dir", "."), "--config-dir is for rows of your own: add='method=mine'"),
        (("add=method=mine",), "--config-dir FOLDER adds files of your own"),
    ],
)
def test_a_folder_or_method_that_is_not_there_is_said(
    words: tuple[str, ...], said: str, command: Tables, folder: Path
) -> None:
    found = command("plan", "fedcorr_9", "rows=*", *words)
    assert found.code == 2
    assert said in found.err
