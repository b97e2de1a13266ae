"""``flnl tune``: what is tried, how it is chosen, that finished runs are not run again."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

from flnl.commands import tune as tune
from flnl.core.errors import UserError
from flnl.instruments.tune import runs as runs_of_tuning
from flnl.instruments.tune.runs import Runs
from flnl.instruments.tune.scores import score
from flnl.instruments.tune.shown import markdown, show
from flnl.instruments.tune.space import Choices, Interval, Space, optuna_search
from flnl.record.run import RunRecord
from flnl.record.trace import Drawn, Origin, Trace
from flnl.record.tuned import Question, Reported, Study, Trial, Tuned, Values
from flnl.sweep import listed

TINY = (
    *("method=fedavg", "dataset=digits", "dataset.train_size=120", "dataset.test_size=40", "partition.num_clients=4"),
    *("model=mlp", "model.hidden=[8]", "rounds=2", "train.epochs=1"),
)


def test_axes_are_words_with_several_values() -> None:
    space = Space.of(["method=fedavg", "train.lr=0.1,0.01,0.1", "model.hidden=[8,8]", "train.batch_size=choice(5,10)"])
    assert space.fixed == ("method=fedavg", "model.hidden=[8,8]")
    assert space.axes == (Choices("train.lr", ("0.1", "0.01")), Choices("train.batch_size", ("5", "10")))
    assert [tuple(values.values()) for values in space.grid()] == [
        ("0.1", "5"),
        ("0.1", "10"),
        ("0.01", "5"),
        ("0.01", "10"),
    ]


def test_an_interval_needs_a_search() -> None:
    space = Space.of(["train.lr=tag(log,interval(0.001,0.1))"])
    assert space.axes == (Interval("train.lr", 0.001, 0.1, True),)
    with pytest.raises(UserError, match="--trials N"):
        list(space.grid())


@pytest.mark.parametrize(
    ("low", "high", "value", "text"),
    [
        (0.001, 0.1, 0.0123456, "0.01235"),
        (1000.1, 1000.4, 1000.23456, "1000.2346"),
        (0.9, 0.9999, 0.99989999, "0.9999"),
        (0.00012345, 1.0, 0.00012345, "0.00012345"),
    ],
)
def test_values_of_an_interval_are_in_it_and_differ(low: float, high: float, value: float, text: str) -> None:
    """Four digits would make one value of all between 1000.1 and 1000.4, and one below the interval."""
    assert Interval("x", low, high, log=False).written(value) == text
    assert low <= float(text) <= high


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["method=fedavg"], "several values"),
        (["train.lr=0.1,0.2", "train.lr=0.3,0.4"], "more than once"),
        (["train.lr=0.1,0.2", "+train.lr=0.3,0.4"], "more than once"),
        (
            ["train.lr=0.1", "train.lr=0.2,0.3"],
            r"train\.lr=0\.1 and train\.lr=0\.2,0\.3: give train\.lr one value, or several",
        ),
        (
            ["++train.lr=interval(0.2,0.3)", "~train.lr"],
            r"^~train\.lr and \+\+train\.lr=interval\(0\.2,0\.3\): give train\.lr",
        ),
        (["train.lr=interval(0.1,0.1)"], "empty"),
        (["train.lr=tag(log,interval(0,1))"], "above zero"),
        (["method=glob(fed*)"], r"^method=glob\(fed\*\): .* write them as method=A,B"),
        (["train.lr=glob(*)"], r"^train\.lr=glob\(\*\): .*=range\(1,4\) .* train\.lr=interval\(0\.1,1\)$"),
        (["train.lr=[0.1"], r"train\.lr=\[0\.1"),
    ],
)
def test_words_that_span_nothing_are_refused(words: Sequence[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Space.of(words)


def test_each_value_of_a_key_has_a_study_of_its_own() -> None:
    space = Space.of(["noise.rho=0.4", "method=fedavg,fedprox", "train.lr=0.1,0.2"])
    (first, one), (second, other) = space.split(["method"])
    assert (first, second) == ({"method": "fedavg"}, {"method": "fedprox"})
    assert (one.fixed, other.fixed) == (("noise.rho=0.4", "method=fedavg"), ("noise.rho=0.4", "method=fedprox"))
    assert one.axes == other.axes == (Choices("train.lr", ("0.1", "0.2")),)
    with pytest.raises(UserError, match="--each noise"):
        space.split(["noise"])
    with pytest.raises(UserError, match="nothing to choose from"):
        space.split(["method", "train.lr"])
    ((of_one, one),) = Space.of(["method=fedavg", "noise.rho=0.4", "train.lr=0.1,0.2"]).split(["method"])
    assert of_one == first
    assert one.fixed == ("noise.rho=0.4", "method=fedavg")  # as with several methods
    ((added, _),) = Space.of(["method=fedavg", "+noise.rho=0.4", "train.lr=0.1,0.2"]).split(["noise.rho"])
    assert added == {"+noise.rho": "0.4"}  # as written: a key that is not there needs the +
    ((added, one),) = Space.of(["+a.b=1,2", "c=3,4"]).split(["a.b"])[:1]
    assert (added, one.fixed) == ({"+a.b": "1"}, ("+a.b=1",))


def test_choices_of_several_commands_stand_in_one_file() -> None:
    def study(method: str, score: float) -> Study:
        return Study({"method": method}, [f"method={method}"], [Trial({"lr": "1"}, {7: score})])

    first = Tuned(["tune", "x,y"], "last", [7], [study("x", 0.1), study("y", 0.2)])
    joined = first.with_added(Tuned(["tune", "z,x"], "last", [7], [study("z", 0.3), study("x", 0.4)]))
    assert joined.studies == [study("x", 0.4), study("y", 0.2), study("z", 0.3)]
    assert (joined.command, joined.earlier) == (["tune", "z,x"], [["tune", "x,y"]])
    pair = {"train.lr": "1", "train.momentum": "0"}
    turned = dict(reversed(pair.items()))
    assert list(turned) != list(pair)
    asked = [Question.of("last", [7], ["a=b"], {}, keys) for keys in (pair, turned)]
    assert asked[0] == asked[1], "the order of keys is no other question"
    assert joined.with_added(joined).earlier == joined.earlier  # a command that is repeated is none of the earlier ones


def test_what_a_later_command_lacks_is_kept() -> None:
    """Results of a choice that is made again without them; a choice, where the later command has only failed runs."""
    reported = Reported({"last": {1: 0.5}})

    def study(scores: Sequence[float | None], reported: Reported | None = None) -> Study:
        trials = [Trial({"lr": str(number)}, {7: score}) for number, score in enumerate(scores)]
        return Study({"method": "x"}, ["a=b", "method=x"], trials, reported)

    def joined(before: Study, after: Study) -> Study:
        (study,) = Tuned(["1"], "last", [7], [before]).with_added(Tuned(["2"], "last", [7], [after])).studies
        return study

    assert joined(study([0.1, 0.2], reported), study([0.1, 0.3])).reported == reported
    assert joined(study([0.1, 0.2], reported), study([0.4, 0.3])).reported is None  # of another choice
    assert joined(study([0.1, 0.2], reported), study([None, None])) == study([0.1, 0.2], reported)
    turned = replace(study([0.4, 0.3]), fixed=["method=x", "a=b"])
    assert joined(study([0.1, 0.2]), turned) == turned


@pytest.mark.parametrize("damage", [{"studies": []}, {"seeds": 5}, {"seeds": ["a"]}])
def test_a_damaged_file_is_named(damage: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    Tuned([], "last", [7], [Study({}, [], [Trial({"lr": "1"}, {7: 0.5})])]).save(file)
    assert Tuned.load(file).question.seeds == (7,)
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    with pytest.raises(UserError, match="no file of flnl tune"):
        Tuned.load(file)


def test_a_file_is_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*TINY[1:], "train.lr=0.1,0.2", "--each", "method", "--seeds", "7", "--add", "--markdown", "tables.md"]
    for method in ("fedavg", "fedprox"):
        tune.tune([f"method={method}", *words, "--", "hydra/launcher=basic"])
    tuned = Tuned.load(Path("tuned.json"))
    assert [study.each for study in tuned.studies] == [{"method": "fedavg"}, {"method": "fedprox"}]
    assert "method=fedavg" in tuned.earlier[0]
    assert all(f"\n| {method} |" in Path("tables.md").read_text() for method in ("fedavg", "fedprox"))
    before = Path("tuned.json").read_bytes()
    others = (
        "--seeds 7,8",
        "--measure best",
        "--each noise.rho noise.rho=0.4",
        "train.momentum=0,0.9",
        "noise.rho=0.4",
    )
    for changed in others:
        with pytest.raises(UserError, match=r"tuned\.json has other .*; give another --out"):
            tune.tune(["method=fedavg", *words, *changed.split()])
    assert Path("tuned.json").read_bytes() == before


def test_what_a_file_has_is_left_out_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A choice that the file has is not made again where its runs are gone; with ``traced``, one without traces is."""
    monkeypatch.chdir(tmp_path)
    words = [*TINY[1:], "train.lr=0.1,0.2", "--each", "method", "--seeds", "7", "--add", "--report", "1", "--skip"]
    end = ["--markdown", "tables.md", "--", "hydra/launcher=basic"]
    tune.tune(["method=fedavg", *words, "chosen", *end])
    (first,) = Tuned.load(file := tmp_path / "tuned.json").studies
    shutil.rmtree("multirun")

    def untraced(study: Study) -> Study:
        assert study.reported is not None
        trials = [replace(trial, traces={}) for trial in study.trials]
        return replace(study, trials=trials, reported=replace(study.reported, traces={}))

    replace(Tuned.load(file), studies=[untraced(first)]).save(file)
    Path("tables.md").unlink()
    capsys.readouterr()
    tune.tune(["method=fedavg", *words, "chosen", *end])
    assert "tuned.json has all of it" in capsys.readouterr().out
    assert "3 of 3 runs have no trace" in Path("tables.md").read_text()
    assert not Path("multirun").exists()
    tune.tune(["method=fedavg,fedprox", *words, "chosen", *end])
    assert "1 of 2 choices are in tuned.json and left out" in capsys.readouterr().err
    assert [study.each["method"] for study in Tuned.load(file).studies] == ["fedavg", "fedprox"]
    assert "3 of 6 runs have no trace" in Path("tables.md").read_text()
    tune.tune(["method=fedavg,fedprox", *words, "traced", *end])
    assert Tuned.load(file).studies[0] == first
    assert Tuned.load(file).untraced == 0

    known = Tuned.load(file)
    rates = [{"train.lr": rate} for rate in ("0.2", "0.1")]
    assert known.has({"method": "fedavg"}, rates, [1], traced=True)
    assert not known.has({"method": "fedavg"}, [*rates, {"train.lr": "0.3"}], [1], traced=False)
    assert not known.has({"method": "fedavg"}, rates, [1, 2], traced=False), "with fewer results"
    assert not known.has({"method": "fedcorr"}, rates, [], traced=False)


def test_a_grid_may_grow_without_the_runs_that_a_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of trials and of the choice, wherever their folders are."""
    monkeypatch.chdir(tmp_path)
    words = ["method=fedavg", *TINY[1:], "--each", "method", "--seeds", "7,8", "--report", "1", "--measure", "last"]
    end = ["--add", "--skip", "chosen", "--", "hydra/launcher=basic"]
    tune.tune([*words, "train.lr=0.1,0.2", *end])
    (first,) = Tuned.load(file := tmp_path / "tuned.json").studies
    shutil.rmtree("multirun")
    tune.tune([*words, "train.lr=0.2,1e-9,0.1", *end])
    (grown,) = Tuned.load(file).studies
    by_rate = {trial.values["train.lr"]: trial for trial in grown.trials}
    assert [by_rate[trial.values["train.lr"]] for trial in first.trials] == [*first.trials]
    assert grown.chosen == first.chosen
    assert grown.reported == first.reported
    made = [json.loads(path.read_text())["config"]["train"]["lr"] for path in Path("multirun").rglob("result.json")]
    assert made == [1e-9, 1e-9]


@pytest.mark.parametrize(
    "how",
    [
        ["method=mine", "train.lr=0.1,1e-9", "--each", "method", "--add", "--skip", "chosen"],
        ["method=mine", "train.lr=0.1,1e-9", "--each", "method", "--add"],
        ["method=mine", "train.lr=0.1,1e-9"],
        ["method=fedavg,mine", "train.lr=1e-9", "--add", "--skip", "chosen"],
    ],
    ids=" ".join,
)
def test_a_choice_of_another_configuration_is_not_kept(
    how: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A method's file was edited: its scores, results and runs of before are of another method of the same name."""
    monkeypatch.chdir(tmp_path)
    (file := tmp_path / "own" / "method" / "mine.yaml").parent.mkdir(parents=True)
    text = "# Mine.\ndefaults: [parts/default@_here_, override local: [cross_entropy, fedprox], _self_]\nname: mine\n"
    file.write_text(f"{text}local: {{fedprox: {{mu: 0.1}}}}\n")
    words = ["--config-dir", "own", *TINY[1:], "--seeds", "7", "--measure", "last", *how]
    tune.tune([*words, "--report", "1", "--", "hydra/launcher=basic"])
    (first,) = Tuned.load(tmp_path / "tuned.json").studies
    assert first.reported is not None
    capsys.readouterr()
    file.write_text(f"{text}local: {{fedprox: {{mu: 0.2}}}}\n")
    runs_of_tuning._keys.cache_clear()  # as in another process
    again = [] if "--add" in how else ["--report", "1"]
    tune.tune([*words, *again, "--", "hydra/launcher=basic"])
    said = (
        f"tuned.json has {'method=mine' if '--each' in how else 'a choice'} of another configuration, or of other data"
    )
    assert said in capsys.readouterr().err
    (second,) = Tuned.load(tmp_path / "tuned.json").studies
    runs = [folder for trial in second.trials for folder in trial.runs.values()]
    runs += [] if second.reported is None else second.reported.runs.values()
    made = [json.loads((tmp_path / run / "result.json").read_text())["config"]["method"]["local"] for run in runs]
    assert len(made) == (3 if again else 2)
    assert {local["fedprox"]["mu"] for local in made if "fedprox" in local} == {0.2}


def test_a_choice_on_other_data_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are gone cannot be compared with the files of today; their traces can. Data may lie elsewhere."""
    monkeypatch.chdir(tmp_path)
    numbers = np.random.default_rng(0)
    held: dict[str, np.ndarray] = {
        f"x_{split}": numbers.normal(size=(60, 3)).astype(np.float32) for split in ("train", "test")
    }
    held |= {f"y_{split}": numbers.integers(2, size=60) for split in ("train", "test")}

    def written(folder: str, **others: np.ndarray) -> None:
        (place := tmp_path / folder / "own").mkdir(parents=True)
        np.savez(str(place / "own.npz"), allow_pickle=False, **(held | others))
        monkeypatch.setenv("FLNL_DATA", str(tmp_path / folder))
        runs_of_tuning._keys.cache_clear()

    words = ["dataset=features", "dataset.file=own.npz", "noise=none", "partition.num_clients=3"]
    words += ["model=mlp", "model.hidden=[4]", "rounds=1", "method=fedavg", "train.lr=0.1,1e-9"]
    words += ["--seeds", "7", "--measure", "last", "--add", "--skip", "chosen", "--", "hydra/launcher=basic"]
    written("first")
    tune.tune(words)
    first = Tuned.load(file := tmp_path / "tuned.json")
    shutil.rmtree("multirun")
    for folder in ("first", "moved"):
        if folder == "moved":
            written("moved")
        tune.tune(words)
        assert not Path("multirun").exists(), "the file has all of it"
    written("others", y_train=1 - held["y_train"])
    tune.tune(words)
    assert Tuned.load(file).studies[0].trials[0].traces[7].drawn != first.studies[0].trials[0].traces[7].drawn


def test_skipping_needs_a_file_to_add_to_and_a_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="add --add"):
        tune.tune([*TINY, "train.lr=0.1,0.2", "--skip", "chosen"])
    with pytest.raises(UserError, match="--skip traced goes with a grid"):
        tune.tune([*TINY, "train.lr=0.1,0.2", "--add", "--skip", "traced", "--trials", "2"])


def test_what_is_replaced_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*TINY[1:], "train.lr=0.1,0.2", "--seeds", "7"]
    for method, told in (("fedavg", False), ("fedavg", False), ("fedprox", True)):
        tune.tune([f"method={method}", *words, "--", "hydra/launcher=basic"])
        line = capsys.readouterr().err
        assert ("tuned.json had what `flnl tune method=fedavg " in line) == told


def test_the_highest_mean_is_chosen_the_first_of_equals_and_no_failed_run() -> None:
    trials = [
        Trial({"lr": "1"}, {1: 0.2, 2: 0.4}),
        Trial({"lr": "2"}, {1: 0.3, 2: 0.5}),
        Trial({"lr": "3"}, {1: 0.5, 2: 0.3}),
        Trial({"lr": "4"}, {1: 0.99, 2: None}),
        Trial({"lr": "5"}, {1: float("nan"), 2: 0.9}),
    ]
    study = Study({}, ["method=fedavg"], trials)
    assert study.chosen is trials[1]
    assert study.overrides == ["method=fedavg", "lr=2"]
    assert trials[1].mean == pytest.approx(0.4)
    assert trials[1].deviation == pytest.approx(0.02**0.5)  # (0.1² + 0.1²) / (2 - 1)
    with pytest.raises(UserError, match="nothing could be chosen"):
        _ = Study({}, [], trials[3:]).overrides
    close = [Trial({"lr": "1"}, {1: 0.82, 2: 0.84}), Trial({"lr": "2"}, {1: 0.81, 2: 0.85})]  # 0.83 but for rounding
    assert Study({}, [], close).chosen is close[0]


def test_the_file_holds_everything(tmp_path: Path) -> None:
    trials = [Trial({"lr": "1"}, {1: 0.2, 2: None}, {1: "a", 2: "b"}), Trial({"lr": "2"}, {1: 0.2, 2: 0.3})]
    reported = Reported({"last": {3: 0.25, 4: None}}, {3: "c", 4: "d"})
    studies = [Study({"method": "x"}, ["method=x"], trials), Study({"method": "y"}, ["method=y"], trials, reported)]
    tuned = Tuned(["flnl", "tune"], "last", [1, 2], studies)
    tuned.save(tmp_path / "t.json")
    assert Tuned.load(tmp_path / "t.json") == tuned
    assert json.loads((tmp_path / "t.json").read_text())["studies"][0]["chosen"] == {"lr": "2"}
    (tmp_path / "t.json").write_text("[]")
    with pytest.raises(UserError, match="no file of flnl tune"):
        Tuned.load(tmp_path / "t.json")


def traced(commit: str, federation: str, last: float, **more: Any) -> Trace:
    origin = Origin(commit, "a machine", "cpu", {"name": "stacked", "stack": 20}, "2.13.0")
    return Trace([origin], Drawn("d" * 64, federation * 64), {"last": last, **more})


def test_what_runs_share_is_written_once(tmp_path: Path) -> None:
    """A whole trace comes back, and the file names each commit, machine and federation once."""
    rows = [
        {seed: traced("c1", str(seed), 0.5, best=0.75) for seed in (1, 2)},
        {1: traced("c1", "1", 0.25), 2: traced("c2", "2", 0.5)},
    ]
    trials = [
        Trial({"lr": str(n)}, {seed: one.metrics["last"] for seed, one in traces.items()}, traces=traces)
        for n, traces in enumerate(rows)
    ]
    reported = Reported({"last": {3: 0.5, 4: None}, "best": {3: 0.5, 4: None}}, traces={3: traced("c2", "3", 0.5)})
    old = Study({"m": "y"}, ["m=y"], [Trial({"lr": "0"}, {1: 0.5, 2: None}), Trial({"lr": "1"}, {1: 0.5, 2: 0.5})])
    tuned = Tuned([], "last", [1, 2], [Study({"m": "x"}, ["m=x"], trials, reported), old])
    tuned.save(file := tmp_path / "t.json")
    assert Tuned.load(file) == tuned
    text = json.loads(file.read_text())
    assert [origin["commit"] for origin in text["origins"]] == ["c1", "c2"]
    assert [one["federation"][0] for one in text["federations"]] == ["1", "2", "3"]
    written = text["studies"][0]["trials"][0]["traces"]["2"]
    assert written == {"origins": [0], "federation": 1, "metrics": {"last": 0.5, "best": 0.75}}
    assert "traces" not in text["studies"][1]["trials"][0], "the form of earlier versions"
    assert (tuned.untraced, tuned.scored) == (3, 8)


@pytest.mark.parametrize("damage", [{"origins": []}, {"federations": 5}, {"federations": [{}, {}]}])
def test_a_trace_that_refers_to_nothing_is_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    trial = Trial({"lr": "1"}, {1: 0.5}, traces={1: traced("c", "1", 0.5)})
    Tuned([], "last", [1], [Study({}, [], [trial])]).save(file := tmp_path / "t.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    with pytest.raises(UserError, match=r"t\.json is no file of flnl tune"):
        Tuned.load(file)


def test_a_score_that_is_not_that_of_its_trace_is_refused(tmp_path: Path) -> None:
    trial = Trial({"lr": "1"}, {1: 0.5}, traces={1: traced("c", "1", 0.25)})
    Tuned([], "last", [1], [Study({}, [], [trial])]).save(file := tmp_path / "t.json")
    with pytest.raises(UserError, match=r"damaged: last under seed 1 is 0\.5, and the run's metrics say 0\.25"):
        Tuned.load(file)
    Tuned([], "validation", [1], [Study({}, [], [trial])]).save(file)
    assert Tuned.load(file).untraced == 0
    reported = Reported({"last": {3: 0.5}}, traces={3: traced("c", "1", 0.25)})
    Tuned([], "validation", [1], [Study({}, [], [trial], reported)]).save(file)
    with pytest.raises(UserError, match="damaged: last under seed 3"):
        Tuned.load(file)


def test_every_process_of_a_resumed_run_and_its_numbers_alone_are_in_its_trace() -> None:
    process = {"commit": "a", "machine": "m", "device": "cpu", "executor": "sequential", "versions": {"torch": "2"}}
    last = process | {"commit": "b", "executor": {"name": "stacked"}}
    metrics = {"last": 1, "x": None, "simulated": True}  # such as FedPeer's label_privacy_simulated
    record = {**last, "earlier": [process, process], "data": "d", "federation": "f", "metrics": metrics}
    trace = Trace.of(RunRecord.of(record))
    assert [(one.commit, one.executor) for one in trace.origins] == [("a", "sequential"), ("b", {"name": "stacked"})]
    assert (trace.metrics, trace.drawn, trace.origins[0].torch) == ({"last": 1}, Drawn("d", "f"), "2")
    assert Trace.of(RunRecord.of({"data": "d", "federation": "f", "metrics": {}})).origins == [
        Origin(None, None, None, None, None)
    ]


def test_a_search_tells_scores_and_asks_again_in_the_same_order() -> None:
    pytest.importorskip("optuna")
    space = Space.of(["lr=tag(log,interval(0.0001,1))", "batch=int(interval(1,8))", "kind=a,b"])
    asked: list[Values] = []

    def evaluate(combinations: Sequence[Values]) -> list[Trial]:
        asked.extend(combinations)
        return [Trial(values, {1: -abs(float(values["lr"]) - 0.01)}) for values in combinations]

    trials = optuna_search(space, evaluate, 12)
    assert [trial.values for trial in trials] == asked
    assert all(1e-4 <= float(values["lr"]) <= 1 and values["kind"] in "ab" for values in asked)
    assert {values["batch"] for values in asked} <= set("12345678")
    again, asked = asked, []
    optuna_search(space, evaluate, 12)
    assert asked == again


def test_finished_runs_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "train.lr=0.001,0.2", "--seeds", "7,8", "--measure", "last", "--", "hydra/launcher=basic"]
    tune.tune(words)
    shown = capsys.readouterr().out
    assert "chosen" in shown
    (study,) = Tuned.load(tmp_path / "tuned.json").studies
    for trial in study.trials:
        assert set(trial.runs) == {7, 8}
        for seed, folder in trial.runs.items():
            record = json.loads((tmp_path / folder / "result.json").read_text())
            assert (record["config"]["seed"], record["config"]["train"]["lr"]) == (
                seed,
                float(trial.values["train.lr"]),
            )
            assert record["metrics"]["last"] == trial.scores[seed] == score(tmp_path / folder, "last")
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("result.json")}
    assert len(before) == 4
    tune.tune(words)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("result.json")} == before
    with pytest.raises(UserError, match="would make other runs"):
        tune.tune([*words, "train.epochs=3"])
    with pytest.raises(UserError, match="--seeds"):
        tune.tune([*TINY, "seed=1,2"])


def scored(scores: Mapping[tuple[str, int], float | None], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Runs need no time and have these scores, by rate and seed; gives the runs that are launched."""
    launched: list[tuple[str, int]] = []

    def place(overrides: Sequence[str]) -> tuple[str, int]:
        values = dict(one.split("=", 1) for one in overrides)
        return values["train.lr"], int(values["seed"])

    def launch(runs: Sequence[Any], *_: Any) -> bool:
        launched.extend(place(run.overrides) for run in runs)
        return True

    def keys(overrides: tuple[str, ...]) -> tuple[str, str, bool]:
        name = "{} {}".format(*place(overrides))
        return name, name, False

    def of_folder(folder: Path, measure: str) -> float | None:
        rate, seed = folder.name.split()
        return scores[rate, int(seed)] if (rate, int(seed)) in launched else None

    monkeypatch.setattr(listed, "launch", launch)
    monkeypatch.setattr("flnl.instruments.tune.runs._keys", keys)
    monkeypatch.setattr("flnl.instruments.tune.runs.score", of_folder)
    return launched


def test_combinations_far_behind_are_dropped_seed_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the mean so far, not by the last seed; what is dropped first has the best mean of its own, on an easy seed."""
    scores = {
        **{("1", 7): 0.90, ("1", 8): 0.50, ("1", 9): 0.50},
        **{("2", 7): 0.86, ("2", 8): 0.56, ("2", 9): 0.40},
        **{("3", 7): 0.84},
        **{("4", 7): 0.89, ("4", 8): 0.40},
    }
    launched = scored(scores, monkeypatch)
    space = Space.of(["method=x", "train.lr=1,2,3,4"])
    (trials,) = Runs((7, 8, 9), "last", [], []).grids([space], 0.055)
    assert launched == [("1", 7), ("2", 7), ("3", 7), ("4", 7), *[("1", 8), ("2", 8), ("4", 8)], ("1", 9), ("2", 9)]
    assert [len(trial.scores) for trial in trials] == [3, 3, 1, 2]
    study = Study({"method": "x"}, [], trials)
    assert study.chosen is trials[0]
    assert "| **63.3** / 60.7 / (84.0) / (64.5) |" in markdown(Tuned([], "last", [7, 8, 9], [study]))
    launched.clear()
    with pytest.raises(KeyError):  # without a margin all are run
        Runs((7, 8, 9), "last", [], []).grids([space], None)
    assert len(launched) == 12


def test_those_that_were_dropped_come_back_if_all_others_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {
        **{("1", 7): 0.9, ("1", 8): None},
        **{("2", 7): 0.7, ("2", 8): 0.7, ("2", 9): 0.7},
        **{("3", 7): 0.6, ("3", 8): 0.9, ("3", 9): 0.9},
    }
    launched = scored(scores, monkeypatch)
    (trials,) = Runs((7, 8, 9), "last", [], []).grids([Space.of(["method=x", "train.lr=1,2,3"])], 0.05)
    study = Study({}, [], trials)
    assert [launched.count((rate, 9)) for rate in "123"] == [0, 1, 0]
    assert study.chosen is trials[1]
    assert [study.dropped(trial) for trial in trials] == [False, False, True]  # the first has failed
    last = {key: 0.5 if key[0] == "1" else score for key, score in scores.items()} | {("1", 7): 0.9, ("1", 9): None}
    scored(last, monkeypatch)
    (trials,) = Runs((7, 8, 9), "last", [], []).grids([Space.of(["method=x", "train.lr=1,2,3"])], 0.01)
    assert Study({}, [], trials).chosen is trials[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["output=mine"], "output=mine: a run's folder is named after its key"),
        (["++output=a,b"], r"output: a run's folder"),
        (["max_rounds=1"], "max_rounds=1: a run that is stopped early does not count"),
        (["resume=true"], "resume=true: what was stopped goes on"),
        (["--seeds", "7,07"], "7,07 is no list of different seeds"),
        (["method=fedcorr", "rounds=2"], "rounds"),  # which FedCorr does not read
        (["method=fedavg,fedcorr", "rounds=2", "--each", "method"], "rounds"),
        (
            ["train.batch_size=interval(4,8)", "--trials", "2"],
            r"^train\.batch_size=interval\(4,8\): .* whole numbers; write train\.batch_size=int\(interval\(4,8\)\)$",
        ),
        (
            ["++train.batch_size=tag(log,interval(1.5,3))", "--trials", "2"],
            r"write \+\+train\.batch_size=int\(tag\(log,interval\(1\.5,3\)\)\)$",
        ),
        (["~train"], "^~train: nothing is chosen of train, so it cannot be deleted; leave ~train out$"),
        (["~noise=none"], "^~noise=none: noise=none is not chosen, so it cannot be deleted; leave ~noise=none out$"),
        (["~train.epochs"], r"train\.epochs is missing: write train\.epochs=\.\.\. in place of ~train\.epochs"),
    ],
)
def test_what_could_only_fail_is_refused_before_anything_runs(
    words: Sequence[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        tune.tune([*TINY[1:], "train.lr=0.1,0.2", "--seeds", "7", *words, "--", "hydra/launcher=basic"])
    assert not (tmp_path / "multirun").exists()


def test_a_choice_is_kept_where_the_next_command_has_none_or_its_report_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "--seeds", "7", "--measure", "last", "eval.validation=0.25", "--", "hydra/launcher=basic"]

    def stopped(*_: object) -> list[Study]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Runs, "reported", stopped)
    with pytest.raises(KeyboardInterrupt):
        tune.tune(["train.lr=0.1,0.2", "--report", "1", *words])
    (study,) = Tuned.load(tmp_path / "tuned.json").studies
    assert study.chosen is not None
    command = capsys.readouterr().out.splitlines()[-1]
    assert "eval.validation=0.25" in command, "it is the user's share"
    before = (tmp_path / "tuned.json").read_bytes()
    with pytest.raises(UserError, match=r"nothing could be chosen.*tuned\.json stays as it is"):
        tune.tune(["train.lr=1e30,2e30", *words])
    assert (tmp_path / "tuned.json").read_bytes() == before


def test_a_margin_goes_with_a_grid() -> None:
    with pytest.raises(UserError, match="--margin goes with a grid"):
        tune.tune([*TINY, "train.lr=0.1,0.2", "--margin", "0.1", "--trials", "2"])


def test_the_choice_is_run_again_under_seeds_that_took_no_part_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "train.lr=0.001,0.2", "--seeds", "7", "--report", "1,2", "--measure", "validation"]
    words += ["--markdown", "tables.md", "--", "hydra/launcher=basic"]
    tune.tune(words)
    (study,) = Tuned.load(tmp_path / "tuned.json").studies
    assert study.reported is not None
    assert study.chosen is not None
    assert set(study.reported.scores) == {"last", "mean_last_10", "best"}
    for seed in (1, 2):
        record = json.loads((tmp_path / study.reported.runs[seed] / "result.json").read_text())
        assert record["config"]["seed"] == seed
        assert record["config"]["eval"]["validation"] == 0  # the final runs train on all samples
        assert str(record["config"]["train"]["lr"]) == study.chosen.values["train.lr"]
        assert record["metrics"]["best"] == study.reported.scores["best"][seed]
    last = [100 * (score or 0.0) for score in study.reported.scores["last"].values()]
    shown = f"{fmean(last):.1f} ± {stdev(last):.1f}"
    assert f"| {shown} |" in (tmp_path / "tables.md").read_text()
    assert f"last {shown} %" in capsys.readouterr().out
    rows: Sequence[Trial | Reported] = [*study.trials, study.reported]
    for row in rows:
        assert {*row.traces} == {*row.runs}
        for seed, trace in row.traces.items():
            record = json.loads((tmp_path / row.runs[seed] / "result.json").read_text())
            assert trace.metrics == record["metrics"]
            assert (trace.drawn.data, trace.drawn.federation) == (record["data"], record["federation"])
            assert [asdict(one) for one in trace.origins] == [
                {key: record[key] for key in ("commit", "machine", "device", "executor")}
                | {"torch": record["versions"]["torch"]}
            ]
    assert "no trace" not in (tmp_path / "tables.md").read_text()
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("result.json")}
    assert len(before) == 4
    tune.tune(words)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("result.json")} == before
    shown = capsys.readouterr().out
    assert "eval.validation" not in shown.split("flnl method=")[1].splitlines()[0]  # the command of the reported runs
    (tmp_path / study.reported.runs[2] / "result.json").unlink()
    monkeypatch.setattr(listed, "launch", lambda *_: True)  # one that does not bring the run to its end
    with pytest.raises(UserError, match="a run of --report failed"):
        tune.tune(words)
    assert "last failed," in capsys.readouterr().out
    with pytest.raises(UserError, match="--report 7"):
        tune.tune([*TINY, "train.lr=0.1,0.2", "--seeds", "7,8", "--report", "1,7"])


AFTER_ONE = """
Chosen by test accuracy at the end (`last`), under seeds 7, 8.

At the edge of the grid, so that one beyond it may be better: lr=0.1, the smallest, in 1 of 1 choices (x).

5 of 5 runs have no trace in the file: commit, machine, digests of data and federation, and metrics.
"""


def test_tables_have_a_row_for_each_value_of_the_first_key_and_columns_for_the_second() -> None:
    def study(method: str, setting: str, best: float, other: float) -> Study:
        trials = [Trial({"lr": "0.1"}, {7: best - other, 8: best + other}), Trial({"lr": "0.3"}, {7: 0.1, 8: None})]
        reported = Reported(
            {"last": {1: best, 2: best + 0.02}, "best": {1: best, 2: 0.9}, "mean_last_10": {1: 0, 2: 0}}
        )
        return Study({"method": method, "setting": setting}, [], trials, reported)

    studies = [study("x", "in/a", 0.5, 0), study("x", "in/b", 0.6, 0), study("y", "in/a", 0.7, 0.1)]
    assert markdown(Tuned([], "last", [7, 8], studies)) == (
        "mean_last_10, %:\n\n"
        "| method | a | b |\n"
        "| --- | ---: | ---: |\n"
        "| x | 0.0 ± 0.0 | 0.0 ± 0.0 |\n"
        "| y | 0.0 ± 0.0 |  |\n"
        "\n"
        "last, %:\n\n"
        "| method | a | b |\n"
        "| --- | ---: | ---: |\n"
        "| x | 51.0 ± 1.4 | 61.0 ± 1.4 |\n"
        "| y | 71.0 ± 1.4 |  |\n"
        "\n"
        "best, %:\n\n"
        "| method | a | b |\n"
        "| --- | ---: | ---: |\n"
        "| x | 70.0 ± 28.3 | 75.0 ± 21.2 |\n"
        "| y | 80.0 ± 14.1 |  |\n"
        "\n"
        "chosen lr:\n\n"
        "| method | a | b |\n"
        "| --- | ---: | ---: |\n"
        "| x | 0.1 | 0.1 |\n"
        "| y | 0.1 |  |\n"
        "\n"
        "last, % at lr = 0.1 / 0.3:\n\n"
        "| method | a | b |\n"
        "| --- | ---: | ---: |\n"
        "| x | **50.0** / failed | **60.0** / failed |\n"
        "| y | **70.0** / failed |  |\n\n"
        "Chosen by test accuracy at the end (`last`), under seeds 7, 8.\n\n"
        "At the edge of the grid, so that one beyond it may be better: lr=0.1, the smallest, in 3 of 3 choices "
        "(a: x, y; b: x).\n\n"
        "15 of 15 runs have no trace in the file: commit, machine, digests of data and federation, and metrics.\n"
    )
    assert markdown(Tuned([], "last", [7, 8], studies[:1])).startswith("mean_last_10, %:\n\n| method | a |\n")
    assert "| x\\|y |" in markdown(Tuned([], "last", [7, 8], [study("x|y", "in/a", 0.5, 0)]))  # a bar ends no cell
    unreported = [studies[0], replace(studies[2], reported=None)]
    assert "| y |  |\n" in markdown(Tuned([], "last", [7, 8], unreported))  # not asked for
    of_one = [Study({"method": "x"}, [], studies[0].trials, studies[0].reported)]
    assert markdown(Tuned([], "last", [7, 8], of_one)) == (
        "| method | mean_last_10, % | last, % | best, % | chosen lr |\n"
        "| --- | ---: | ---: | ---: | ---: |\n"
        "| x | 0.0 ± 0.0 | 51.0 ± 1.4 | 70.0 ± 28.3 | 0.1 |\n"
        "\n"
        "| method | last, % at lr = 0.1 / 0.3 |\n"
        "| --- | ---: |\n"
        "| x | **50.0** / failed |\n" + AFTER_ONE
    )


@pytest.mark.parametrize(
    ("tried", "chosen", "edges"),
    [
        (("0.003", "0.01", "0.1"), "0.003", ["lr=0.003, the smallest"]),
        (("0.01", "0.003", "1e-1"), "1e-1", ["lr=1e-1, the largest"]),
        (("0.003", "0.01", "0.1"), "0.01", []),
        (("9", "10", "11"), "10", []),  # as texts, 9 would be the largest
        (("squared", "norm"), "squared", []),
        (("0.1", "null"), "0.1", []),
        (("0.1", "0.10"), "0.1", []),  # one number
    ],
)
def test_a_choice_at_either_edge_of_the_grid_is_named(
    tried: Sequence[str], chosen: str, edges: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the other edge failed or was dropped: it was tried."""
    trials = [Trial({"lr": value}, {1: float(value == chosen)}) for value in tried]
    failed = [Trial({"lr": value}, {1: 1.0 if value == chosen else None}) for value in tried]
    for study in (Study({}, [], trials), Study({}, [], failed)):
        assert [str(edge) for edge in study.edges] == edges
        show(Tuned([], "last", [1], [replace(study, fixed=["method=x"])]))
        said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("at the edge of the grid")]
        assert said == [f"at the edge of the grid: {edge}; one beyond it may be better" for edge in edges]
    assert Study({}, [], [Trial({"lr": "1"}, {1: None})]).edges == []


def test_options_may_stand_between_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--each noise"):
        tune.tune(["method=fedavg", "--each", "noise", "train.lr=0.1,0.2", "--seeds", "7"])


@pytest.mark.slow  # its workers start anew
def test_a_method_of_ones_own_is_tuned_in_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder is how the command finds it: keys, overrides and the file are those of any method."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "method").mkdir(parents=True)
    text = "defaults: [parts/default@_here_, override local: [cross_entropy, fedprox], _self_]\nname: mine\n"
    (tmp_path / "own" / "method" / "mine.yaml").write_text(f"# Mine.\n{text}")
    key = "method.local.fedprox.mu"
    words = ["--config-dir", "own", "method=mine", *TINY[1:], f"{key}=0.1,1", "--seeds", "7", "--report", "1"]
    tune.tune([*words, "--", "hydra.launcher.n_jobs=2"])
    (study,) = Tuned.load(tmp_path / "tuned.json").studies
    assert study.fixed == ["method=mine", *TINY[1:], "eval.validation=0.1"]
    assert study.reported is not None
    assert study.chosen is not None
    runs = [folder for trial in study.trials for folder in trial.runs.values()] + [*study.reported.runs.values()]
    records = [json.loads((tmp_path / folder / "result.json").read_text()) for folder in runs]
    assert [one["config"]["method"]["name"] for one in records] == ["mine"] * 3
    assert [one["config"]["method"]["local"]["fedprox"]["mu"] for one in records[:2]] == [0.1, 1]
    assert [Path(folder).name for folder in runs] == [one["key"][:16] for one in records]
    said = capsys.readouterr().out
    assert f"flnl \"hydra.searchpath=['file://{tmp_path}/own']\" method=mine " in said
    tune.tune([*words, "--", "hydra.launcher.n_jobs=2"])  # of runs that are finished
    assert "begins" not in capsys.readouterr().err


def test_validation_is_scored_on_held_out_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = [*TINY, "train.lr=0.2,0.1", "--seeds", "7", "--share", "0.2"]  # it is what chooses by default
    tune.tune([*command, "--", "hydra/launcher=basic"])
    (study,) = Tuned.load(tmp_path / "tuned.json").studies
    assert "eval.validation=0.2" in study.fixed
    for trial in study.trials:
        lines = (tmp_path / trial.runs[7] / "metrics.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines if '"validation_accuracy"' in line]
        expected = sum(row["validation_accuracy"] for row in rows) / len(rows)
        assert len(rows) < 10
        assert trial.scores[7] == pytest.approx(expected)


def test_a_share_of_no_sample_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the second of several data sets; the share that the message names is enough."""
    monkeypatch.chdir(tmp_path)
    many = [*TINY[:2], TINY[3], "partition.num_clients=20", *TINY[5:], "train.lr=0.2,0.1", "--seeds", "7,8"]

    def tuned(*words: str) -> None:
        tune.tune([*many, *words, "--", "hydra/launcher=basic"])

    with pytest.raises(
        UserError, match=r"^--share 0\.1 holds .*seed 7: .* than 6; --share 0\.17 holds out one of these$"
    ):
        tuned("dataset.train_size=120")
    with pytest.raises(
        UserError, match=r"^--share 0\.02 holds .*seed 7: .* than 3; --share 0\.34 holds out one of these$"
    ):
        tuned("dataset.train_size=1000,60", "--each", "dataset.train_size", "--share", "0.02")
    with pytest.raises(UserError, match=r"^--share 0\.1 holds .* than 1; choose by another measure$"):
        tuned("dataset.train_size=20")
    assert not (tmp_path / "multirun").exists()
    tuned("dataset.train_size=120", "--share", "0.17")
    assert Tuned.load(tmp_path / "tuned.json").studies[0].chosen is not None


def test_a_run_that_failed_is_not_run_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rate at which training diverges has no score; the other rate is chosen."""
    monkeypatch.chdir(tmp_path)
    launched: list[int] = []
    launch = listed.launch

    def counted(runs: Sequence[Any], *rest: Any) -> bool:
        launched.append(len(runs))
        return launch(runs, *rest)

    monkeypatch.setattr(listed, "launch", counted)
    tune.tune([*TINY, "train.lr=0.1,1e30", "--seeds", "7", "--", "hydra/launcher=basic"])
    assert launched == [2]
    assert "failed" in capsys.readouterr().out
    (study,) = Tuned.load(tmp_path / "tuned.json").studies
    assert [trial.scores[7] is None for trial in study.trials] == [False, True]
    assert study.overrides[-1] == "train.lr=0.1"


@pytest.mark.usefixtures("breaking_launcher")
def test_who_is_stopped_is_told_the_command_that_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``flnl benchmark run`` tunes, too, and has other arguments than ``flnl tune``."""
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "train.lr=0.1,0.2,0.3", "--seeds", "7", "--", "hydra/launcher=basic"]
    for typed, told in (
        (["flnl", "benchmark", "run", "method=a b"], "flnl benchmark run 'method=a b'"),
        (None, f"flnl tune {words[0]} "),
    ):
        with pytest.raises(UserError, match="the launcher ended"):
            tune.tune(words, typed)
        assert f"to go on: {told}" in capsys.readouterr().err


def test_values_are_shown_as_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brackets are no markup."""
    trial = Trial({"model.hidden": "[8,8]"}, {1: 0.5})
    show(Tuned([], "last", [1], [Study({"method/local": "[cross_entropy,fedprox]"}, [], [trial])]))
    shown = capsys.readouterr().out
    assert "[8,8]" in shown
    assert "[cross_entropy,fedprox]" in shown


def test_the_share_of_validation_is_an_option() -> None:
    with pytest.raises(UserError, match="--share"):
        tune.tune([*TINY, "train.lr=0.1,0.2", "eval.validation=0", "--measure", "validation"])
    with pytest.raises(UserError, match=r"--share 0\.2: only --measure validation"):
        tune.tune([*TINY, "train.lr=0.1,0.2", "--measure", "last", "--share", "0.2"])
    for seed in ("++seed=3", "seed=1,2", "seed=glob(*)", "~seed"):
        with pytest.raises(UserError, match=rf"^{re.escape(seed)}: .*--seeds"):
            tune.tune([*TINY, "train.lr=0.1,0.2", seed])


@pytest.mark.parametrize("option", ["--out", "--markdown"])
def test_where_a_file_cannot_be_written_nothing_runs(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for file, said in (("new/tuned", "there is no folder new"), ("folder", "is a folder; name a file")):
        with pytest.raises(UserError, match=f"{option} {file}.*{said}"):
            tune.tune([*TINY, "train.lr=0.1,0.2", "--seeds", "7", option, file, "--", "hydra/launcher=basic"])
    assert not (tmp_path / "multirun").exists()


def test_a_key_that_a_stage_does_not_have_yet_may_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    key = "+method.stages.training.train.epochs"
    tune.tune([*TINY, f"{key}=1,2", "--seeds", "7", "--", "hydra/launcher=basic"])
    (study,) = Tuned.load(tmp_path / "tuned.json").studies
    assert [trial.values for trial in study.trials] == [{key: "1"}, {key: "2"}]
    assert study.overrides[-1] in (f"{key}=1", f"{key}=2")
