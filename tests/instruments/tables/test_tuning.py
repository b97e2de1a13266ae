"""``flnl tables tune``: values for each method of a table in one of its columns, for all tables of its paper."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from flnl.core.errors import UserError
from flnl.instruments.tables import choices
from flnl.instruments.tables.scaling import Scaling
from flnl.instruments.tables.table import Column, Metric, Row, Table
from flnl.instruments.tables.tuning import Tuning
from flnl.record.tuned import Study, Trial, Tuned
from tests.instruments.tables.conftest import Tables, copied

SCALING = Scaling("s", "", (), (1,), ("dataset=digits",), {"train.lr=7": ()}, {"model=vgg11": "too large"})
GRID = ("train.lr=0.1,0.01",)


def table(*rows: Row) -> Table:
    columns = (Column("c", ("experiment=e", "noise.rho=0.6")),)
    return Table("t", "FedCorr", "2", "", Metric("", "best", "", None), None, rows, columns, (), ())


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
    own = ("experiment=e", "dataset=digits", "noise.rho=0.6", "method=a", "method.mu=1")
    assert first.fixed == (*own, "eval.validation=0.1")  # held out for the choice
    assert list(first.grid()) == [{"train.lr": "0.1"}, {"train.lr": "0.01"}]


def test_a_choice_on_test_images_holds_nothing_out() -> None:
    ((_, space),) = tuning(row("A", "method=a"), measure="mean_last_10").spaces
    assert not any("eval.validation" in one for one in space.fixed)
    ((_, space),) = tuning(row("A", "method=a", "eval.validation=0.5"), share="0.25").spaces
    assert [one for one in space.fixed if "eval.validation" in one] == ["eval.validation=0.25"]


def test_rows_that_would_share_a_choice_are_refused() -> None:
    with pytest.raises(
        UserError, match="two rows are method=a and would share one choice; select one of them by rows="
    ):
        _ = tuning(row("A", "method=a"), row("A without mu", "method=a", "method.mu=0")).spaces
    with pytest.raises(UserError, match="no row of a method can run in c"):
        _ = tuning(row("B", "method=b", "model=vgg11")).spaces


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"measure": "bestt"}, "did you mean best"),
        ({"measure": "best", "share": "0.2"}, "share=0.2: only measure=validation holds samples out"),
        ({"share": "1"}, "share=1 is no share between 0 and 1"),
        ({"grid": "seed=1,2"}, "grid=seed=: this key is no hyperparameter"),
        ({"grid": "method=a,b"}, "grid=method=: this key is no hyperparameter"),
        ({"grid": "method/batch=mixup,plain"}, "this key is no hyperparameter"),
        ({"grid": "dataset=mnist,cifar10"}, "this key is no hyperparameter"),
        ({"grid": "executor=stacked,sequential"}, "this key is no hyperparameter .* those begin with train"),
        ({"grid": "train.lr=interval(0.01,0.1)"}, "give values, .* and no interval"),
        ({"margin": "5"}, "margin=5 is no difference of accuracies between 0 and 1, such as 0.05, or none"),
        ({"margin": "wide"}, "margin=wide"),
        ({"grid": "train.lr=0.1"}, "nothing to choose from"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(options: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        _ = tuning(row("A", "method=a"), **options).spaces


def test_a_column_that_cannot_be_run_has_nothing_to_tune() -> None:
    one = table(row("A", "method=a"))
    quoted = replace(one, columns=(replace(one.columns[0], missing="quoted from another paper"),))
    with pytest.raises(UserError, match="c cannot be run: quoted from another paper"):
        Tuning.of(quoted, SCALING, {"grid": GRID})


def test_another_column_or_scale_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Two choices for a method would be mixed up, and a stale one could win."""
    file, here = tmp_path / "a.json", tuning(row("A", "method=a"))
    fixed = ["method=a", "eval.validation=0.1"]
    studies = [Study({"method": "a"}, fixed, [Trial({"train.lr": "0.1"}, {101: 0.5, 102: 0.5})])]
    Tuned([], here.measure, here.seeds, studies, subject=here.subject).save(file)
    assert here.kept(file) is not None
    with pytest.raises(
        UserError, match=r"other shares that are held out: eval\.validation=0\.1, not eval\.valid.*=0\.2"
    ):
        replace(here, share=0.2).kept(file)
    with pytest.raises(UserError, match="other measure: validation, not mean_last_10"):
        replace(here, measure="mean_last_10").kept(file)
    other = replace(here, column=replace(here.column, label="d"))
    lenet = replace(here, scaling=replace(SCALING, name="lenet"))
    copies = replace(here, scaling=SCALING.unverified())
    for tuning_of_other, what in ((other, "column: c, not d"), (lenet, "scale: s"), (copies, "data files: published")):
        with pytest.raises(UserError, match=f"a.json has other {what}"):
            tuning_of_other.kept(file)
    with pytest.raises(UserError, match="was tuned at scale=s, not lenet"):
        choices.read([file], "lenet")
    (own,) = choices.read([file], "s")
    assert own.only == "FedCorr", "whatever the file is called"
    (tmp_path / "b.json").write_text(file.read_text())
    with pytest.raises(UserError, match=r"a.json and .*b.json both choose for method=a in the tables of FedCorr"):
        choices.read([tmp_path], "s")


def test_a_later_choice_replaces_an_earlier_one_of_the_same_row() -> None:
    def tuned(rate: str, fixed: str) -> Tuned:
        studies = [Study({"method": "a"}, ["method=a", fixed], [Trial({"train.lr": rate}, {101: 0.5})])]
        return Tuned([rate], "last", [101], studies)

    (study,) = tuned("0.1", "old=1").with_added(tuned("0.2", "new=1")).studies
    assert study.chosen is not None
    assert study.chosen.values == {"train.lr": "0.2"}


def test_seeds_of_a_choice_are_none_of_the_tables() -> None:
    with pytest.raises(UserError, match="seed 101 is one of t's"):
        Tuning.of(table(row("A", "method=a")), replace(SCALING, seeds=(1, 101)), {"grid": GRID})
    assert [*tuning(row("A", "method=a")).seeds] == [101, 102]
    assert [*tuning(row("A", "method=a"), seeds="3").seeds] == [101, 102, 103]


def test_what_was_chosen_makes_the_tables_of_the_paper(command: Tables, tmp_path: Path) -> None:
    """From the choice to the rendered table: rates are in its runs, and its scores beside the scale."""
    words = ("tune", "fedcorr_4", "columns=p=0.7 α=10", "rows=FedAvg", "grid=train.lr=0.5,1e-05", "measure=best")
    said = command(*words, "seeds=1", "--", "hydra/launcher=basic")
    assert said.code == 0, said.err
    file = tmp_path / "scale" / "tuned" / "small" / "fedcorr.json"
    assert "chosen" in said.out
    assert f"next: flnl tables run fedcorr_4 scale=small tuned={file}" in said.out
    tuned = Tuned.load(file)
    assert (tuned.measure, [*tuned.seeds], len(tuned.studies)) == ("best", [101], 1)
    (study,) = tuned.studies
    assert study.chosen is not None
    rate = study.chosen.values["train.lr"]
    assert {trial.values["train.lr"] for trial in study.trials} == {"0.5", "1e-05"}
    assert max(trial.mean or 0 for trial in study.trials) == study.chosen.mean

    mine = copied(tmp_path)
    mine.with_stem("fedcorr_99").write_text(f"paper: FedCorr\n{mine.read_text()}")
    for name, told in (("fedcorr_99", True), ("mine", False)):
        planned = command("run", name, f"tuned={file.parent}", "rows=FedAvg", "--", "hydra/launcher=basic")
        assert planned.code == 0, planned.err
        command("render", name, f"tuned={file.parent}")
        page = (tmp_path / "results" / "small_tuned" / f"{name}.md").read_text()
        assert (f"in {name}, nothing was tuned for FedAvg" in planned.err) != told
        found = "But train.lr in the tables of FedCorr was chosen for method=fedavg" in page
        assert ("The score was the best test accuracy of all evaluations" in page) == found
        assert found == told, "a table of one's own is of no paper"
    records = [json.loads(f.read_text()) for f in (tmp_path / "multirun" / "tables").glob("*/*/result.json")]
    assert sorted(f"train.lr={rate}" in record["overrides"] for record in records) == [False, True]


@pytest.mark.parametrize(("verify", "word"), [("true", ""), ("false", "verify=false ")])
def test_the_next_command_takes_the_data_files_of_the_choice(
    command: Tables, monkeypatch: pytest.MonkeyPatch, verify: str, word: str
) -> None:
    def run(self: Tuning, launching: Sequence[str], command: Sequence[str]) -> Tuned:
        trials = [Trial({"train.lr": "0.5"}, {101: 0.5})]
        studies = [Study(each, space.fixed, trials) for each, space in self.spaces]
        return Tuned(command, self.measure, self.seeds, studies, subject=self.subject)

    monkeypatch.setattr(Tuning, "run", run)
    words = ("fedcorr_4", "columns=p=0.7 α=10", "rows=FedAvg", "grid=train.lr=0.5,0.1", "out=a.json")
    said = command("tune", *words, f"verify={verify}")
    assert said.out.splitlines()[-1] == f"next: flnl tables run fedcorr_4 scale=small {word}tuned=a.json", said.err


def test_rows_that_are_tuned_later_are_added(command: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder without the scales, where nothing is written beside them: a package's files are not the user's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    words = ("tune", "fedcorr_4", "columns=p=0.7 α=10", "grid=train.lr=0.5,1e-05", "seeds=1")
    for method in ("FedAvg", "FedProx"):
        said = command(*words, f"rows={method}", "--", "hydra/launcher=basic")
        assert said.code == 0, said.err
    studies = Tuned.load(elsewhere / "tuned" / "small" / "fedcorr.json").studies
    assert [study.each["method"] for study in studies] == ["fedavg", "fedprox"]
    assert not (tmp_path / "scale" / "tuned").exists()


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
        (("tune", "fedcorr_4", "columns=p=0.7 α=10"), "nothing to choose from: add grid=train.lr=0.01,0.03"),
        (("tune", "fedcorr_4", "columns=p=0.7 α=10", "grid=train.lr=1,2", "out=odd"), "out=odd is a folder"),
        (("tune", "fedcorr_4", "columns=p=0.7 α=10", "grid=train.lr=1,2", "out=gone/x"), "there is no folder gone"),
        (("tune", "fedcorr_4", "columns=p=0.7 α=10", "train.lr=1,2"), "are given as grid=train.lr=1,2"),
        (("run", "fedcorr_4", "grid=train.lr=1,2"), "grid is an option of flnl tables tune"),
        (("tune", "fedcorr_4", "columns=p=0.7 α=10", "grid=train.lr=1,2", "records=x"), "neither tuned nor records"),
        (("plan", "fedcorr_4", "tuned=empty"), "the folder has no .json file"),
        (("plan", "fedcorr_4", "tuned=odd"), "odd/any.json: it names no method"),
    ],
)
def test_a_wrong_command_says_what_would_be_right(
    command: Tables, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    for folder in ("empty", "odd"):
        (tmp_path / folder).mkdir()
    study = Study({}, ["noise=none"], [Trial({"train.lr": "0.1"}, {1: 0.5})])
    Tuned([], "last", [1], [study]).save(tmp_path / "odd" / "any.json")
    answer = command(*words)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
