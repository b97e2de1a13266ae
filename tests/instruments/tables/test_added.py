"""A row of one's own in a paper's table: ``add=`` and ``--config-dir``."""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flnl.core.errors import UserError
from flnl.instruments.tables import added, load
from flnl.instruments.tables.choices import Choices, Chosen
from flnl.instruments.tables.scaling import Scaling
from flnl.instruments.tables.table import Column
from tests.instruments.tables.conftest import Tables

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
        ("A: B {x}: method=mine", "A: B {x}", ("method=mine",)),
        ("method=mine 'wandb.name=a: b=c'", "mine", ("method=mine", "wandb.name=a: b=c")),
        ("Mine: method=mine +method.map={a: 1}", "Mine", None),  # the blank is the shell's
        ("Mine: method=mine '+method.map={a: 1}'", "Mine", ("method=mine", "+method.map={a: 1}")),
    ],
)
def test_a_row_has_a_label_and_overrides(text: str, label: str, overrides: tuple[str, ...] | None) -> None:
    if overrides is None:
        with pytest.raises(UserError, match="give overrides, as in"):
            added.row(text, [])
    else:
        row = added.row(text, [])
        assert (row.label, row.method, row.overrides) == (label, label, overrides)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "give overrides, as in add='method=mine'"),
        ("Mine: ", "give overrides"),
        (": method=mine", "give overrides"),
        ("mine", "give overrides"),
        ("method='mine", "give overrides"),
        ("method=fedavg seed=2", "seed=2: a cell has a run for each seed"),
        ("method=fedavg noise.rho=0.1", "noise.rho=0.1 is for the columns to say"),
        ("method=fedavg dataset=mnist", "dataset=mnist is for the columns to say"),
        ("method=mine hydra.searchpath=[mine]", "name the folder with --config-dir"),
    ],
)
def test_what_is_no_row_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        added.row(text, [])
    assert str(refused.value).startswith(f"add={text}: ")
    assert said in str(refused.value)


def test_rows_have_labels_of_their_own() -> None:
    table = load.table("fedcorr_9")
    rows = [added.row(text, []) for text in ("method=FedAvg", "A: method=fedavg", "B: method=fedavg")]
    with pytest.raises(UserError, match="fedcorr_9 has a row FedAvg already; give yours another label"):
        added.with_rows(table, rows, all_of_them=True)
    wider = added.with_rows(table, rows, all_of_them=False)
    assert [row.label for row in wider.rows] == [*(row.label for row in table.rows), "A", "B"]
    assert wider.cells[-1] == (None,) * len(table.columns)


def test_what_a_row_says_holds_whatever_a_scale_and_tuning_say() -> None:
    chosen = Choices((Chosen(frozenset({"method=a"}), ("train.lr=0.3", "method.mu=1")),), "")
    scaling = Scaling("s", "", (), (1,), ("model=mlp",), {"train.lr=7": (), "model=big": ("model=small",)}, {})
    column = Column("c", ("experiment=x",))
    row = added.row("Mine: method=a train.lr=7 model=big", [])
    assert scaling.tuned((chosen,)).resolve(row, column) == (
        "experiment=x",
        "model=big",
        "method=a",
        "train.lr=7",
        "method.mu=1",
    )
    papers = replace(row, own=False)
    assert scaling.resolve(papers, column) == ("experiment=x", "model=small", "method=a")


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
    own = ("fedcorr_9", "add=method=mine", "--config-dir", str(folder), "seeds=1")
    command("run", *own, "rows=mine", "rows=FedAvg", "--", "hydra/launcher=basic")
    assert command("render", *own).code == 0
    assert "1 have run" in command("plan", *own, "rows=mine").out
    (folder / "method" / "mine.yaml").write_text(FILE.format(mu=0.25))
    assert "0 have run" in command("plan", *own, "rows=mine").out
    assert "has results of other settings than these cells have now" in command("render", *own).err


def test_rendering_loses_no_row_that_was_added_before(command: Tables, folder: Path, tmp_path: Path) -> None:
    one, other = ("add=One: method=mine", "--config-dir", str(folder)), ("add=Other: method=fedavg rounds=2",)
    for row, name in ((one, "one"), (other, "other")):
        command("run", "fedcorr_9", *row, f"rows={name}", "rows=FedAvg", "--", "hydra/launcher=basic")
    assert command("render", "fedcorr_9", *one).code == 0
    out = tmp_path / "results" / "small_own"
    before = {file: file.read_bytes() for file in out.rglob("*.*")}
    for words in (other, ("out=results/small_own",)):
        said = command("render", "fedcorr_9", *words)
        assert "has results of rows that are not given, and would lose them: fedcorr_9 One" in said.err
        assert "take them along with their add=" in said.err
    assert {file: file.read_bytes() for file in out.rglob("*.*")} == before
    assert command("render", "fedcorr_9", *one, *other).code == 0


def test_a_setting_in_which_a_row_cannot_run_is_left_out_if_there_are_others(command: Tables) -> None:
    """FedPeer's Table 3 sets a key of FedPeer in each column but one."""
    said = command("plan", "fedpeer_3", "fedcorr_9", "add=Mine: method=fedavg", "rows=mine")
    assert said.code == 0, said.err
    assert "note: fedpeer_3 Mine" in said.err
    assert "method.epsilon" in said.err
    alone = command("plan", "fedcorr_9", "add=Mine: method=fedavg method.epsilon=1", "rows=mine")
    assert alone.code == 2
    assert "method.epsilon" in alone.err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("method.local.fedprox.mu=-1", "mu=-1: must be greater than or equal to 0"),
        ("method.local.fedprox.nu=1", "did you mean method.local.fedprox.mu?"),
        ("method/aggregator=absent", "method.aggregator._target_=nowhere.Absent: there is no such class"),
    ],
)
def test_what_the_runs_would_refuse_is_refused_before_they_are_planned(
    wrong: str, said: str, command: Tables, folder: Path
) -> None:
    (folder / "method" / "aggregator").mkdir()
    (folder / "method" / "aggregator" / "absent.yaml").write_text("_target_: nowhere.Absent")
    own = ("fedcorr_9", f"add=Mine: method=mine {wrong}", "--config-dir", str(folder), "rows=mine")
    for verb in ("plan", "run"):
        found = command(verb, *own)
        assert (found.code, found.out) == (2, "")
        assert said in found.err


CLASS = """\
from dataclasses import dataclass
from flnl.parts.servers import Replace

@dataclass(frozen=True)
class Server(Replace):
    pass
"""


def test_finished_runs_are_rendered_where_their_classes_are_not(
    command: Tables, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "method" / "server").mkdir()
    (folder / "method" / "server" / "ones_own.yaml").write_text("_target_: ones_own_server.Server")
    own = ("fedcorr_9", "add=Mine: method=mine method/server=ones_own", "--config-dir", str(folder), "seeds=1")
    (tmp_path / "ones_own_server.py").write_text(CLASS)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert command("run", *own, "rows=mine", "rows=FedAvg", "--", "hydra/launcher=basic").code == 0
    (tmp_path / "ones_own_server.py").unlink()
    del sys.modules["ones_own_server"]
    rest = (*own[:-1], "seeds=2")  # of which the second has not run
    for words in (own, rest):
        said = command("render", *words)
        assert said.code == 0, said.err
    refused = command("plan", *rest, "rows=mine")
    assert refused.code == 2
    assert "ones_own_server.Server: there is no such class" in refused.err
    assert "| Mine | ours |" in (tmp_path / "results" / "small_own" / "fedcorr_9.md").read_text()


def test_a_damaged_record_of_ones_own_row_is_an_error(command: Tables, tmp_path: Path) -> None:
    """And no reason to leave the row out."""
    own = ("fedcorr_9", "add=Mine: method=fedavg rounds=2", "rows=mine", "seeds=1")
    assert command("run", *own, "--", "hydra/launcher=basic").code == 0
    (file,) = (tmp_path / "multirun" / "tables" / "small").glob("*/result.json")
    file.write_text('{"broken')
    said = command("plan", *own)
    assert said.code == 2
    assert "result.json" in said.err


def test_a_file_with_the_name_of_one_of_flnls_is_refused(command: Tables, folder: Path) -> None:
    """It would never be read."""
    (folder / "method" / "fedprox.yaml").write_text(FILE.format(mu=7))
    said = command("plan", "fedcorr_9", "add=Mine: method=fedprox", "--config-dir", str(folder))
    assert "fedprox.yaml has the name of a file of flnl, which would be taken; rename yours" in said.err


def test_ones_own_method_is_tuned_and_its_choice_taken(command: Tables, folder: Path, tmp_path: Path) -> None:
    own = ("add=Mine, once: method=mine", "--config-dir", folder.name)
    column = load.table("fedcorr_9").columns[0].label
    tuned = ("rows=mine*", f"columns={column}", "grid=method.local.fedprox.mu=0.125,9", "seeds=1")
    said = command("tune", "fedcorr_9", *own, *tuned, "--", "hydra/launcher=basic")
    assert said.code == 0, said.err
    assert said.out.splitlines()[-1] == (
        "next: flnl tables run fedcorr_9 scale=small 'add=Mine, once: method=mine' --config-dir 'own folder' "
        "tuned=tuned/small/own_fedcorr.json"
    )
    ran = command(
        "run", "fedcorr_9", *own, "rows=mine*", "tuned=tuned/small/own_fedcorr.json", "--", "hydra/launcher=basic"
    )
    assert ran.code == 0, ran.err
    (file,) = (tmp_path / "multirun" / "tables" / "small").glob("*/result.json")
    (study,) = json.loads((tmp_path / "tuned" / "small" / "own_fedcorr.json").read_text())["studies"]
    chosen = float(study["chosen"]["method.local.fedprox.mu"])
    assert json.loads(file.read_text())["config"]["method"]["local"]["fedprox"]["mu"] == chosen != 0.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add=method=mime", "--config-dir", "own folder"), "method=mime does not exist; did you mean mine?"),
        (("--config-dir", "elsewhere", "add=method=mine"), "--config-dir elsewhere: give a folder"),
        (("add=method=mine", "--config-dir"), "--config-dir without a folder: give one"),
        (("add=A: method=fedavg", "add=a: method=fedprox"), "add: two rows are called A; give each a label"),
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
