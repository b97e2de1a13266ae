"""What a file of ``flnl tune`` may have tables run, and that a file which contradicts itself is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flnl.config.choosable import refusal
from flnl.core.errors import UserError
from flnl.instruments.tables import choices
from flnl.instruments.tables.choices import Choices
from flnl.record.tuned import Study, Trial, Tuned, overrides_of
from tests.instruments.tables.conftest import Tables, copied

ROOT = Path(__file__).resolve().parents[3]
COMMITTED = sorted([*ROOT.glob("conf/scale/tuned/*/*.json"), *ROOT.glob("docs/comparison*.json")])

CODE = ("model=module", "model.path=os.system", "model._target_=os.system", "train.optimizer._target_=os.system")
PARTS = ("method.sampler={_target_:os.system}", "+method.local.x={_target_:os.system}", "method.local.x._args_=[touch]")
PLACES = ("output=/tmp/x", "cache=/tmp/x", "products=true", "hydra.searchpath=[file:///tmp/x]", "hydra.run.dir=/tmp/x")
NETWORK = (
    "executor.address=ray://evil:1",
    "wandb.mode=online",
    "dataset.mirror=http://evil/",
    "model.weights=http://x",
)
SYNTAX = ("train.lr=0.1,0.2", "train.lr=glob(*)", "train.lr=choice(1,2)", "train.lr=${oc.env:HOME}", "train.lr='a'")
SIGNS = ("~train.lr", "~train.lr=1", "+train.lr=1", "++train.lr=1", "++method.stages.x.train.lr=1", "train.lr@model=1")
GROUPS = (
    "model/x=y",
    "method/local@model=mixup",
    "method/local=../../model/module",
    "train/optimizer=[a,../b]",
    "train=a",
)
TEXTS = ("train.lr=1\nmodel=module", "train.lr=1\n", "train.lr=", "train.lr=a b", 'train.lr="a"', "train.lr=\\x", "=1")
ROWS = (
    "method=fedavg",
    "method.name=x",
    "method.like=x",
    "seed=3",
    "noise.rho=0",
    "centralized=true",
    "protocol=digits",
)
ATTACKS = (*CODE, *PARTS, *PLACES, *NETWORK, *SYNTAX, *SIGNS, *GROUPS, *TEXTS, *ROWS)

CHOICES = (
    *("train.lr=0.003", "train.lr=1e-05", "train.milestones=[10,20]", "train.milestones=[]", "train.clip=null"),
    *(
        "train/optimizer=adam",
        "method/batch=mixup",
        "method/local=[fedprox,truncated_gce]",
        "rounds=30",
        "fraction=0.2",
    ),
    *(
        "method.mu=0.01",
        "method.schedule=released",
        "method.local.fedprox.mu=-1",
        "+method.stages.warmup.train.epochs=5",
    ),
)


def tuned(*overrides: str) -> Tuned:
    values = dict(one.partition("=")[::2] for one in overrides)
    return Tuned([], "last", [101], [Study({"method": "fedavg"}, ["method=fedavg"], [Trial(values, {101: 0.5})])])


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_file_chooses_neither_code_nor_places_nor_hosts(attack: str, tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    tuned("train.lr=0.1", attack).save(file)
    with pytest.raises(UserError, match=r"(?s)tuned\.json: .* cannot come from a file: (the keys|its value is no)"):
        choices.read([file], "small")


@pytest.mark.parametrize("choice", CHOICES)
def test_a_file_chooses_what_trains(choice: str) -> None:
    assert Choices.of(tuned(choice)).chosen[0].overrides == (choice,)


def test_the_attack_runs_nothing(command: Tables, tmp_path: Path) -> None:
    """A network that is made by a shell command: ``model.path`` would be called with these arguments."""
    copied(tmp_path)
    touch = f"+model.args.command='touch {tmp_path / 'ran'}'"
    tuned("model=module", "model.path=os.system", touch).save(tmp_path / "a.json")
    said = command("run", "mine", "tuned=a.json", "--", "hydra/launcher=basic")
    assert (said.code, said.out) == (2, "")
    assert "tuned: a.json: model=module cannot come from a file" in said.err
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "multirun").exists()


def test_what_a_file_says_of_itself_is_shown_without_control_characters() -> None:
    one = Tuned(
        ["flnl\x1b[2J\n\n# x"],
        "last",
        [1],
        [Study({"method": "a\x07"}, ["method=a\x07"], [Trial({"rounds": "1"}, {1: 0})])],
    )
    said = r"But rounds was chosen for method=a\x07 by `'flnl\x1b[2J\n\n# x'`. The score was the test accuracy at "
    assert Choices.of(one).sentence.startswith(said)
    assert Choices.of(one).sentence.isprintable()


@pytest.mark.parametrize("file", COMMITTED, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_files_of_this_project_hold(file: Path) -> None:
    studies = Tuned.load(file).studies
    assert all(study.chosen is not None for study in studies)
    if file.parent.parent.name == "tuned":
        chosen = [one for study in studies if study.chosen for one in overrides_of(study.chosen.values)]
        assert {refusal(one) for one in chosen} == {None}


def score(study: dict[str, Any]) -> None:
    study["trials"][1]["scores"]["102"] = 0.99


def mean(study: dict[str, Any]) -> None:
    study["trials"][0]["mean"] = 0.99


def deviation(study: dict[str, Any]) -> None:
    study["trials"][0]["deviation"] = 0.99


def choice(study: dict[str, Any]) -> None:
    study["chosen"] = {"train.lr": "0.1"}


def value(study: dict[str, Any]) -> None:
    study["trials"][1]["values"]["train.lr"] = "0.02"


def seed(study: dict[str, Any]) -> None:
    study["trials"][0]["scores"] = {"101": 0.4, "103": 0.5}


def result(study: dict[str, Any]) -> None:
    study["reported"]["scores"]["last"]["1"] = 0.99


DAMAGE = (score, mean, deviation, choice, value, seed)


def damaged(damage: Callable[[dict[str, Any]], None], tmp_path: Path, *, checked: bool) -> Path:
    """A file with a checksum or, as in its first version, without, whose only study was changed."""
    trials = [Trial({"train.lr": "0.1"}, {101: 0.4, 102: 0.5}), Trial({"train.lr": "0.2"}, {101: 0.6, 102: 0.7})]
    file = tmp_path / "tuned.json"
    Tuned([], "last", [101, 102], [Study({}, ["method=fedavg"], trials)]).save(file)
    text = json.loads(file.read_text())
    text["studies"][0]["reported"] = {"scores": {"last": {"1": 0.65}}, "runs": {"1": "a"}}
    if checked:
        from flnl.record import tuned as room

        text["sha256"] = room._checksum(text)
    else:
        del text["sha256"]
    file.write_text(json.dumps(text, indent=3))
    assert len(Tuned.load(file).studies) == 1, "the layout does not count"
    damage(text["studies"][0])
    file.write_text(json.dumps(text))
    return file


@pytest.mark.parametrize("damage", DAMAGE)
def test_scores_means_and_choice_agree(damage: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tuned\.json is damaged: .*; restore it, or tune again"):
        Tuned.load(damaged(damage, tmp_path, checked=False))


@pytest.mark.parametrize("damage", [*DAMAGE, result])
def test_what_was_written_is_what_is_read(damage: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    """Results under other seeds have nothing beside them that they must agree with."""
    with pytest.raises(UserError, match=r"tuned\.json is damaged: "):
        Tuned.load(damaged(damage, tmp_path, checked=True))


def test_seeds_of_any_length_are_read_back(tmp_path: Path) -> None:
    """In a file they are texts, of which 10 comes before 9."""
    file = tmp_path / "tuned.json"
    trial = Trial({"train.lr": "0.1"}, {9: 0.5, 10: 0.75})
    written = Tuned(["flnl", "tune"], "last", [9, 10], [Study({}, ["method=fedavg"], [trial])])
    written.save(file)
    assert Tuned.load(file).studies[0].trials[0].scores == {9: 0.5, 10: 0.75}


@pytest.mark.parametrize(
    ("key", "wrong"),
    [
        ("seeds", ["a"]),
        ("command", "flnl"),
        ("studies", [{"each": {}, "fixed": [], "trials": [{"values": {"train.lr": 0.1}, "scores": {"1": 0.5}}]}]),
        ("studies", [{"each": [], "fixed": [], "trials": []}]),
        ("subject", {"paper": ["FedCorr"]}),
    ],
)
def test_a_file_of_other_types_is_refused(key: str, wrong: object, tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    tuned("train.lr=0.1").save(file)
    text = json.loads(file.read_text())
    del text["sha256"]
    file.write_text(json.dumps({**text, key: wrong}))
    with pytest.raises(UserError, match=f"is no file of flnl tune \\({key}"):
        Tuned.load(file)


def test_a_file_nested_without_end_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    file.write_text('{"format": 1, "studies": ' + "[" * 100_000 + "]" * 100_000 + "}")
    with pytest.raises(UserError, match="is no file of flnl tune"):
        Tuned.load(file)
