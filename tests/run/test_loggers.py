"""Loggers: which are open, what they are given, that none fails a run; and ``metrics.csv``, which every run has."""

import csv
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import wandb

from flnl.config import compose, identity, schema
from flnl.config.check import check_config, check_machine
from flnl.core.errors import UserError
from flnl.core.run_logger import LoggedRun, Logger, OpenLogger
from flnl.record import metric_names
from flnl.run.loggers import tensorboard
from flnl.run.loggers.guarded import Loggers
from flnl.run.loggers.wandb import WeightsAndBiases
from flnl.run.mirror import Mirror
from flnl.run.run_name import group_of, name_of
from flnl.run.train import train
from tests.properties.runs import run
from tests.registry import BY_NAME, ONE_STAGE, TINY

WORDS = (*TINY, "method=fedavg", *ONE_STAGE, "rounds=3", "eval.every=2")


@dataclass
class Notes(OpenLogger):
    """Writes down what it is given; raises in the named call."""

    fails_in: str = ""
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    ended: list[bool] = field(default_factory=list)

    def log(self, row: Mapping[str, float | str], step: int) -> None:
        self._may_fail("log")
        self.rows.append((step, dict(row)))

    def images(self, files: Sequence[Path], step: int) -> None:
        self._may_fail("images")
        self.files += [file.name for file in files]

    def products(self, files: Sequence[Path]) -> None:
        self._may_fail("products")
        self.files += [file.name for file in files]

    def close(self, *, failed: bool, summary: Mapping[str, Any]) -> str | None:
        self._may_fail("close")
        self.ended.append(failed)
        return None

    def _may_fail(self, call: str) -> None:
        if call == self.fails_in:
            raise OSError(f"{call}\nfailed")


OPENED: dict[str, list[tuple[LoggedRun, Notes]]] = {}


@dataclass(frozen=True)
class Noted(Logger):
    """A logger of the test, known to it by its name."""

    name: str
    fails_in: str = ""

    def open(self, run: LoggedRun) -> OpenLogger:
        if self.fails_in == "open":
            raise OSError("no such place")
        notes = Notes(self.fails_in)
        OPENED.setdefault(self.name, []).append((run, notes))
        return notes


def noted(name: str, fails_in: str = "") -> str:
    target = f"{__name__}.Noted"
    return f"+logger.{name}={{_target_: {target}, name: {name}, fails_in: '{fails_in}'}}"


# --------------------------------------------------------------------------------------------------- in a run


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_logger_is_given_every_round_by_name(tmp_path: Path) -> None:
    ran = run(WORDS, tmp_path / "run", "figures=true", noted("one"), noted("two"))
    for name in ("one", "two"):
        ((about, notes),) = OPENED.pop(name)
        assert [step for step, _ in notes.rows] == [1, 2, 3]
        assert {row["stage"] for _, row in notes.rows} == {"training"}
        assert all({"train/loss", "participations", "round"} <= set(row) for _, row in notes.rows)
        scored = {step: row["test/accuracy"] for step, row in notes.rows if "test/accuracy" in row}
        assert scored == {row["round"]: row["accuracy"] for row in ran.lines if row["kind"] == "evaluation"}, (
            "of the rounds that were evaluated"
        )
        assert {"model.pt", "labels.csv", "accuracy.png"} <= set(notes.files)
        assert notes.ended == [False]
        assert (about.folder, about.key, about.method) == (ran.folder, ran.record["key"], "fedavg")
        assert about.name == f"{about.group} seed={ran.record['config']['seed']}"


@pytest.mark.parametrize("call", ["open", "log", "images", "products", "close"])
def test_a_logger_that_fails_costs_no_run_and_no_other_logger(
    call: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ran = run(WORDS, tmp_path / "run", "figures=true", noted("broken", call), noted("whole"))
    assert ran.record["status"] == "finished"
    said = [r.getMessage() for r in caplog.records if "broken" in r.getMessage()]
    assert len(said) == 1, said
    assert "\n" not in said[0]
    assert len(OPENED.pop("whole")[0][1].rows) == 3
    OPENED.pop("broken", None)


def test_a_run_that_fails_ends_its_loggers_and_has_its_table(tmp_path: Path) -> None:
    words = [*WORDS, "train.lr=1e30", "on_nonfinite=stop", f"output={tmp_path / 'run'}", f"cache={tmp_path}"]
    words += [noted("one")]
    with pytest.raises(Exception, match="non-finite"):
        train(compose.load(words), words)
    assert OPENED.pop("one")[0][1].ended == [True]
    assert (tmp_path / "run" / "metrics.csv").exists()


def test_every_run_has_a_table_of_its_rounds(tmp_path: Path) -> None:
    ran = run(WORDS, tmp_path / "run", "logger=csv", "figures=false")
    rows = table(ran.folder)
    assert list(rows[0])[:5] == list(metric_names.FIRST)
    lines = [json.loads(line) for line in (ran.folder / "metrics.jsonl").read_text().splitlines()]
    for row, line in zip(rows, (line for line in lines if line["kind"] == "round"), strict=True):
        assert (int(row["round"]), row["stage"]) == (line["round"], line["stage"])
        assert float(row["train/loss"]) == line["loss"]
    scores = {line["round"]: line["accuracy"] for line in lines if line["kind"] == "evaluation"}
    assert {int(row["round"]): float(row["test/accuracy"]) for row in rows if row["test/accuracy"]} == scores
    assert not (ran.folder / "wandb").exists()


def test_the_table_of_a_run_that_is_continued_is_whole(tmp_path: Path) -> None:
    run(WORDS, tmp_path / "run", "max_rounds=1")
    assert [row["round"] for row in table(tmp_path / "run")] == ["1"]
    run(WORDS, tmp_path / "run", "resume=true")
    assert [row["round"] for row in table(tmp_path / "run")] == ["1", "2", "3"]


def test_corrections_have_columns(tmp_path: Path) -> None:
    ran = run([*BY_NAME["fedcorr"].words], tmp_path / "run")
    rows = table(ran.folder)
    corrected = [row for row in rows if row["correction/changed"]]
    corrections = sum(1 for row in ran.lines if "correction" in row)
    assert 0 < len(corrected) == corrections < len(rows)


def test_a_value_that_appears_late_has_empty_cells_before() -> None:
    lines = [
        {"kind": "round", "round": 1, "stage": "=a", "participations": 2, "loss": 0.5, "cohort": [1]},
        {"kind": "round", "round": 2, "stage": "b", "participations": 4, "loss": 0.25, "new": 7},
        {"kind": "evaluation", "round": 2, "stage": "b", "participations": 4, "accuracy": 0.5, "test_loss": 1.5},
    ]
    assert metric_names.table(lines).splitlines() == [
        "round,stage,participations,train/loss,test/accuracy,new,test/loss",
        "1,'=a,2,0.5,,,",
        "2,b,4,0.25,0.5,7,1.5",
    ]
    assert metric_names.table([]) == "round,stage,participations,train/loss,test/accuracy\n"


# ---------------------------------------------------------------------------------------------------- choice


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("seed=1", ["wandb"]),
        ("logger=wandb", ["wandb"]),
        ("logger=csv", []),
        ("logger=[]", []),
        ("logger=tensorboard", ["tensorboard"]),
        ("logger=[csv,tensorboard,wandb]", ["tensorboard", "wandb"]),
    ],
)
def test_one_or_several_are_chosen_and_no_key_changes(word: str, names: list[str]) -> None:
    cfg = compose.load([word])
    check_config(cfg)
    assert sorted(cfg.logger) == names
    assert identity.run_key(compose.resolved(cfg)) == identity.run_key(compose.resolved(compose.load()))


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (
            "logger.wandb=3",
            "logger.wandb=3: must be a part, with a _target_ and its values; choose one with logger=csv",
        ),
        ("logger.wandb._target_=flnl.models.mlp.MLP", "logger.wandb._target_=flnl.models.mlp.MLP: cannot stand there"),
        ("wandb.artifacts=3", "wandb.artifacts=3: must be a valid boolean"),
    ],
)
def test_what_is_no_logger_is_refused(word: str, reason: str) -> None:
    with pytest.raises(UserError) as refused:
        check_config(compose.load([word]))
    assert str(refused.value).startswith(reason)


def test_a_missing_package_is_named_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "tensorboard" else whole(name))
    check_machine(compose.load(["logger=csv"]))
    with pytest.raises(UserError, match=r"pip install .*\[tensorboard\]'"):
        check_machine(compose.load(["logger=[csv,tensorboard]"]))


def test_tensorboard_has_scalars_figures_and_stages(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    ran = run(WORDS, tmp_path / "run", "logger=tensorboard", "figures=true")
    events = EventAccumulator(str(ran.folder / tensorboard.FOLDER))
    events.Reload()
    tags = events.Tags()
    assert {"train/loss", "test/accuracy", "participations"} <= set(tags["scalars"])
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3]
    losses = [row["loss"] for row in ran.lines if row["kind"] == "round"]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(losses)
    assert "figures/accuracy" in tags["images"]
    assert {"stage/text_summary", "config/text_summary"} <= set(tags["tensors"])


# ------------------------------------------------------------------------------------------------------ W&B


class WandbRun:
    """What ``wandb.init`` gives."""

    def __init__(self, folder: Path, given: Mapping[str, Any]) -> None:
        self.dir, self.id, self.given, self.summary = str(folder / "files"), "abc", given, dict[str, Any]()
        self.artifacts: list[tuple[str, str, str]] = []

    def log_artifact(self, file: str, name: str, type: str) -> None:
        if self.given["tags"]:
            raise OSError("no space")
        self.artifacts.append((Path(file).name, name, type))

    def finish(self, exit_code: int) -> None:
        self.summary["exit_code"] = exit_code


def opened(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: Any) -> tuple[Loggers, list[WandbRun]]:
    runs: list[WandbRun] = []

    def init(**given: Any) -> WandbRun:
        runs.append(WandbRun(folder, given))
        return runs[-1]

    monkeypatch.setattr(wandb, "init", init)
    own: dict[str, Any] = {"mode": "offline", "project": "flnl", "group": None, "tags": []}
    about = LoggedRun(folder, "k" * 64, {"seed": 1}, "fedavg digits seed=1", "fedavg digits", "fedavg")
    return Loggers({"wandb": WeightsAndBiases({**own, **settings})}, about), runs


def test_wandb_is_given_names_that_tell_runs_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (run,) = opened(monkeypatch, tmp_path)
    names = {key: run.given[key] for key in ("name", "group", "job_type")}
    assert names == {"name": "fedavg digits seed=1", "group": "fedavg digits", "job_type": "fedavg"}
    _, (other,) = opened(monkeypatch, tmp_path, group="mine")
    assert other.given["group"] == "mine"


def test_a_process_that_is_forked_beside_wandb_imports_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers import late what few clients need, among it packages whose imports W&B reports."""
    (tmp_path / "fastai.py").write_text("here = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    mirror = Mirror.open(schema.Wandb("offline", "flnl", None, []), tmp_path, "k" * 64, {})
    assert any(type(finder).__module__.startswith("wandb.") for finder in sys.meta_path), "W&B watches no import now"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about forking with threads
        child = os.fork()
    if child == 0:
        try:
            __import__("fastai")
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    mirror.close(failed=False, summary={})
    assert os.waitstatus_to_exitcode(status) == 0


def test_products_are_artifacts_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = [tmp_path / "model.pt", tmp_path / "labels.csv"]
    for asked, sent in (
        (False, []),
        (True, [("model.pt", "abc-model", "model"), ("labels.csv", "abc-labels", "dataset")]),
    ):
        loggers, (run,) = opened(monkeypatch, tmp_path, artifacts=asked)
        loggers.products(files)
        assert run.artifacts == sent
    failing, _ = opened(monkeypatch, tmp_path, artifacts=True, tags=["fails"])
    failing.products(files)
    assert [r.getMessage() for r in caplog.records] == ["W&B failed to take the run's products (no space)"]
    assert failing.close(failed=False, summary={}) == str(tmp_path)


def test_artifacts_are_the_model_and_the_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class probabilities, with the names of all samples, are written too; they stay in the run's folder."""
    given: list[str] = []
    monkeypatch.setattr(Loggers, "products", lambda self, files: given.extend(file.name for file in files))
    words = [*TINY, "method=fedavg", "products=true", "audit.record=true", "logger=csv", f"output={tmp_path / 'run'}"]
    train(compose.load(words), words)
    assert (tmp_path / "run" / "probabilities.npz").exists()
    assert given == ["model.pt", "labels.csv"]


def test_runs_of_one_setting_share_a_group_and_no_name() -> None:
    words = ["method=fedcorr", "noise.rho=0.6", "+method.stages.usual.train.epochs=2", "wandb.mode=disabled"]
    groups = [group_of("fedcorr", "digits", [*words, f"seed={seed}", "output=x"]) for seed in (1, 2)]
    assert groups == ["fedcorr digits method.stages.usual.train.epochs=2 noise.rho=0.6"] * 2
    assert name_of(groups[0], 1) != name_of(groups[1], 2)
    others = ["noise.rho=0.4", "train/optimizer=adam", "protocol=cifar10", "protocol.lr=0.2", "data_seed=3"]
    assert len({group_of("fedcorr", "digits", [*words, other]) for other in others}) == len(others)
    left_out = ["hydra.job.num=3", "executor=stacked", "dataset.download=false", "dataset=digits", "logger=csv"]
    assert group_of("fedcorr", "digits", [*words, *left_out]) == groups[0]
    long = [group_of("fedcorr", "digits", [f"noise.rho={'0' * 200}{n}"]) for n in range(2)]
    assert long[0] != long[1]
    assert max(len(name_of(name, 10**6)) for name in long) < 128


def test_settings_have_the_fields_of_the_schema() -> None:
    assert set(compose.resolved(compose.load())["logger"]["wandb"]["settings"]) == set(schema.Wandb.__annotations__)
