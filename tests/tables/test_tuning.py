"""``flnl tables tune``: values for each method of a table in one of its columns, for all tables of its paper."""

import json
from pathlib import Path

import pytest

from flnl.core.errors import UserError
from flnl.storage.tuned import Study, Trial, Tuned
from flnl.tables.scaling import Scaling
from flnl.tables.table import Column, Metric, Row, Table
from flnl.tables.tuning import Tuning
from tests.tables.conftest import Tables, copied

SCALING = Scaling("s", "", (), (1,), ("dataset=digits",), {"train.lr=7": ()}, {"model=vgg11": "too large"})
GRID = ("train.lr=0.1,0.01",)


def table(*rows: Row) -> Table:
    columns = (Column("c", ("experiment=e", "noise.rho=0.6")),)
    return Table("t", "FedCorr", "2", "", Metric("", "", None, "best"), None, rows, columns, (), ())


def row(label: str, *overrides: str, method: str | None = None, missing: str | None = None) -> Row:
    return Row(label, label if method is None else method, overrides, missing)


def tuning(*rows: Row, **options: str) -> Tuning:
    given = {"grid": GRID, **{name: (value,) for name, value in options.items()}}
    return Tuning.of(table(*rows), SCALING, given)


def test_each_method_of_the_column_has_a_space_of_its_own() -> None:
    """A reference that is no method has none, nor has what cannot run; the keys of the grid replace the table's."""
    found = tuning(
        row("A", "method=a", "train.lr=0.5", "method.mu=1"),
        row("A mixed", "method=a", "method/batch=mixup"),
        row("A (centralized)", "method=a", "centralized=true", method=""),
        row("B", "method=b", "model=vgg11"),
        row("C", "method=c", missing="C"),
    ).spaces
    assert [dict(each) for each, _ in found] == [{"method": "a"}, {"method": "a", "method/batch": "mixup"}]
    first = found[0][1]
    assert first.fixed == ("experiment=e", "dataset=digits", "noise.rho=0.6", "method=a", "method.mu=1")
    assert list(first.grid()) == [{"train.lr": "0.1"}, {"train.lr": "0.01"}]


def test_rows_that_would_share_a_choice_are_refused() -> None:
    with pytest.raises(UserError, match="share one choice; select one of them by rows="):
        _ = tuning(row("A", "method=a"), row("A without mu", "method=a", "method.mu=0")).spaces
    with pytest.raises(UserError, match="no row of a method can run in c"):
        _ = tuning(row("B", "method=b", "model=vgg11")).spaces


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"measure": "bestt"}, "did you mean best"),
        ({"margin": "5"}, "margin=5: give a difference of accuracies between 0 and 1, such as 0.05, or none"),
        ({"margin": "wide"}, "margin=wide"),
        ({"grid": "train.lr=0.1"}, "nothing to choose from"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(options: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        _ = tuning(row("A", "method=a"), **options).spaces


def test_seeds_of_a_choice_are_none_of_the_tables() -> None:
    assert [*tuning(row("A", "method=a")).seeds] == [101, 102]
    assert [*tuning(row("A", "method=a"), seeds="3").seeds] == [101, 102, 103]


def test_what_was_chosen_makes_the_tables_of_the_paper(command: Tables, tmp_path: Path) -> None:
    """From the choice to the rendered table: rates are in its runs, and its scores beside the scale."""
    words = ("tune", "fedcorr_4", "columns=p=0.7 α=10", "rows=FedAvg", "grid=train.lr=0.5,1e-05", "measure=best")
    said = command(*words, "seeds=1", "--", "hydra/launcher=basic")
    assert said.code == 0, said.err
    file = tmp_path / "scale" / "tuned" / "small" / "fedcorr.json"
    assert "chosen" in said.out
    assert str(file) in said.out
    tuned = Tuned.load(file)
    assert (tuned.measure, [*tuned.seeds], len(tuned.studies)) == ("best", [101], 1)
    (study,) = tuned.studies
    assert study.chosen is not None
    rate = study.chosen.values["train.lr"]
    assert {trial.values["train.lr"] for trial in study.trials} == {"0.5", "1e-05"}
    assert max(trial.mean or 0 for trial in study.trials) == study.chosen.mean

    later = command(*("rows=FedProx" if word.startswith("rows") else word for word in words), "seeds=1")
    assert later.code == 0, later.err
    assert [study.each["method"] for study in Tuned.load(file).studies] == ["fedavg", "fedprox"], "both are kept"

    mine = copied(tmp_path)
    mine.with_stem("fedcorr_99").write_text(f"paper: FedCorr\n{mine.read_text()}")
    for name, told in (("fedcorr_99", True), ("mine", False)):
        planned = command("run", name, f"tuned={file.parent}", "rows=FedAvg", "--", "hydra/launcher=basic")
        assert planned.code == 0, planned.err
        command("render", name, f"tuned={file.parent}")
        page = (tmp_path / "results" / "small_tuned" / f"{name}.md").read_text()
        assert ("train.lr: chosen for method=fedavg" in page) == told, "a table of one's own is of no paper"
    records = [json.loads(f.read_text()) for f in (tmp_path / "multirun" / "tables").glob("*/*/result.json")]
    assert sorted(f"train.lr={rate}" in record["overrides"] for record in records) == [False, True]


def test_choices_of_another_kind_are_not_mixed(command: Tables, tmp_path: Path) -> None:
    words = ("tune", "fedcorr_4", "columns=p=0.7 α=10", "rows=FedAvg", "grid=train.lr=0.5,1e-05", "seeds=1")
    assert command(*words, "out=a.json", "--", "hydra/launcher=basic").code == 0
    for more, what in (("measure=best", "measure"), ("seeds=2", "seeds"), ("grid=train.momentum=0,0.5", "keys")):
        key = more.partition("=")[0]
        said = command(*(word for word in words if not word.startswith(key)), more, "out=a.json")
        assert said.code == 2
        assert f"a.json has other {what}" in said.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tune", "fedcorr_4", "grid=train.lr=1,2"), "select one column by columns=LABEL"),
        (("tune", "grid=train.lr=1,2"), "tune takes one table"),
        (("tune", "fedcorr_4", "columns=p=0.7 α=10"), "nothing to choose from"),
        (("run", "fedcorr_4", "grid=train.lr=1,2"), "grid is an option of flnl tables tune"),
        (("tune", "fedcorr_4", "columns=p=0.7 α=10", "grid=train.lr=1,2", "records=x"), "neither tuned nor records"),
        (("plan", "fedcorr_4", "tuned=empty"), "the folder has no file"),
        (("plan", "fedcorr_4", "tuned=odd"), "fedcor is not a paper or table; did you mean fedcorr"),
    ],
)
def test_a_wrong_command_says_what_would_be_right(
    command: Tables, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    for folder in ("empty", "odd"):
        (tmp_path / folder).mkdir()
    study = Study({}, ["method=fedavg"], [Trial({"train.lr": "0.1"}, {1: 0.5})])
    Tuned([], "last", [1], [study]).save(tmp_path / "odd" / "fedcor.json")
    answer = command(*words)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
