"""What is written down of a run, and what becomes of clients that diverge, hold nothing, or are held out."""

import csv
import json
import math
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flnl.config import compose, identity
from flnl.config.folders import CONF
from flnl.console.cores import processor
from flnl.core.messages import ClientState
from flnl.core.parts import ClientSampler, Sampling
from flnl.core.state import Spilled
from flnl.engine.loop import NonFiniteError
from flnl.record.run import RunRecord
from flnl.run import progress
from flnl.run import record as run_record
from tests.cli.conftest import ROOT, Command, Launch
from tests.properties.runs import Ran, assembled, difference, run
from tests.registry import BY_NAME, REPRESENTATIVES, TINY, Entry

FEDAVG = BY_NAME["fedavg"].words


# ------------------------------------------------------------------------------------------------------- the record


@pytest.mark.parametrize("name", ["fedcorr", pytest.param("fedavg_with_dropout", marks=pytest.mark.slow)])
def test_from_the_command_line_alone_it_is_the_same_run(name: str, tmp_path: Path) -> None:
    """Another process, another folder, another hash seed, another locale: the same bits and the same key."""
    here = run(BY_NAME[name].words, tmp_path / "here")
    command = [sys.executable, "-m", "flnl", *BY_NAME[name].words, "output=there"]
    environment = {**os.environ, "PYTHONHASHSEED": "17", "LC_ALL": "C", "PYTHONPATH": str(ROOT / "src")}
    said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert said.returncode == 0, said.stderr
    there = Ran(tmp_path / "there", json.loads((tmp_path / "there" / "result.json").read_text()))
    assert difference(there.state, here.state) is None
    assert there.lines == here.lines
    assert there.record["key"] == here.record["key"]
    assert there.record["metrics"] == here.record["metrics"]
    for stage in BY_NAME[name].acting:
        assert stage in said.stderr
    assert "best test accuracy" in said.stdout


def test_the_exit_code_of_a_mistake(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    said = launch("noise.rho=2", cwd=tmp_path / "here").wait()
    assert (said.code, said.out) == (2, ""), said.err
    assert said.err == "error: noise.rho=2: must be less than or equal to 1\n"
    assert not list((tmp_path / "here").iterdir())


def test_the_result_says_what_was_run_and_what_came_of_it(tmp_path: Path) -> None:
    words = BY_NAME["fedcorr"].words
    ran = run(words, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    plain = compose.resolved(compose.load([*words, f"output={tmp_path / 'run'}", f"cache={tmp_path / 'cache'}"]))
    assert record["status"] == "finished"
    assert record["config"] == json.loads(json.dumps(plain))
    assert record["key"] == identity.run_key(plain)
    assert len(record["key"]) == len(record["data"]) == len(record["federation"]) == 64
    assert record["commit"] is None or len(record["commit"].removesuffix("+changes")) == 40
    assert {"python", "torch", "numpy", "lightning", "hydra-core", "scikit-learn"} <= set(record["versions"])
    assert record["machine"] == f"{platform.platform()}, {processor()}, {torch.backends.cpu.get_cpu_capability()}"
    assert (record["threads"], record["executor"], record["device"]) == (1, {"name": "sequential"}, "cpu")
    assert record["overrides"][: len(words)] == words
    assert record["wall_time_s"] > 0
    assert record["rounds"] == 20
    assert record["bytes"] == record["bytes_down"] + record["bytes_up"] > 0
    lines = [line for line in ran.lines if line["kind"] == "round"]
    assert record["participations"] == sum(len(line["cohort"]) for line in lines) == lines[-1]["participations"]
    assert (record["bytes_down"], record["bytes_up"]) == (lines[-1]["bytes_down"], lines[-1]["bytes_up"])
    accuracies = [line["accuracy"] for line in ran.lines if line["kind"] == "evaluation"]
    metrics = record["metrics"]
    assert (metrics["best"], metrics["last"]) == (max(accuracies), accuracies[-1])
    assert metrics["mean_last_10"] == pytest.approx(sum(accuracies[-10:]) / len(accuracies[-10:]), abs=1e-12)
    assert {"detection_precision", "detection_recall", "detection_f1", "correction_accuracy"} <= set(metrics)
    assert json.loads(json.dumps(ran.record, default=str))["metrics"] == metrics


def test_to_ask_for_the_commit_writes_nothing_into_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git would renew its index under a lock, which a run that is killed meanwhile would leave there."""

    def git(*words: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", str(tmp_path), *name, *words], check=True, capture_output=True)

    (tmp_path / "module.py").write_text("")
    git("init")
    git("add", "module.py")
    git("commit", "-m", "first")
    os.utime(tmp_path / "module.py", (1, 1))  # the index no longer knows it as unchanged
    index = (tmp_path / ".git" / "index").read_bytes()
    monkeypatch.setattr(run_record, "CONF", tmp_path / "conf")
    commit = run_record.environment().commit
    assert len(commit or "") == 40
    assert (tmp_path / ".git" / "index").read_bytes() == index


def test_evaluations_fall_due_by_participations_at_borders_and_at_the_end(tmp_path: Path) -> None:
    words = [w for w in BY_NAME["fedcorr"].words if not w.startswith("fraction")] + ["fraction=0.5"]  # cohorts of 4

    def evaluated(name: str, *more: str) -> list[int]:
        return [line["round"] for line in run(words, tmp_path / name, *more).lines if line["kind"] == "evaluation"]

    default = evaluated("default")
    assert default[:4] == [4, 8, 12, 16]  # a cohort of the last stage is 4 participations
    assert default[-2:] == [18, 20] or default[-1] == 20
    assert {16, 18, 20} <= set(default)
    assert evaluated("rare", "eval.every=1000") == [16, 18, 20]
    assert evaluated("often", "eval.every=1") == list(range(1, 21))


def test_a_model_is_counted_as_it_travels(tmp_path: Path) -> None:
    """FedAvg sends the model down and up, and nothing else."""
    ran = run(FEDAVG, tmp_path / "run")
    size = sum(p.numel() * p.element_size() for p in ran.state.server.params.values())
    assert ran.record["bytes_down"] == ran.record["bytes_up"] == size * ran.record["participations"]
    assert ran.record["participations"] == 5 * 6


def test_what_is_not_a_number_is_null_in_the_lines(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError):
        run(FEDAVG, tmp_path / "run", "train.lr=1e30")
    ran = Ran(tmp_path / "run", {})
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    assert all(line["loss"] is None for line in ran.lines if line["kind"] == "round")


# ------------------------------------------------------------------------------------------------ clients that fail


@dataclass(frozen=True)
class Only(ClientSampler):
    """These clients and no others."""

    clients: tuple[int, ...]

    def __call__(self, sampling: Sampling) -> list[int]:
        return list(self.clients)

    def size(self, clients: int) -> int:
        return len(self.clients)


def test_a_client_that_diverges_is_left_out_and_counted(tmp_path: Path) -> None:
    """The round is what it would have been without that client."""
    with assembled(FEDAVG, tmp_path / "run") as parts:
        first = next(parts.rounds())
        poisoned, size = first.cohort[2], parts.federation.sizes[first.cohort[2]]
        nan = ClientState(weight=torch.full((size,), math.nan))
        results = parts.results(state=replace(parts.state, clients=Spilled({poisoned: nan})))
        present = [poisoned in r.cohort for r in results]
        assert [r.metrics["left_out"] for r in results] == [float(p) for p in present]
        assert results[-1].state.counters.left_out == sum(present)
        assert all(torch.isfinite(p).all() for r in results for p in r.state.server.params.values())
        assert all(math.isfinite(r.metrics["loss"]) for r in results)
        assert results[0].cohort == first.cohort
        assert results[0].state.counters.participations == len(first.cohort)

        others = Only(tuple(c for c in first.cohort if c != poisoned))
        stage = replace(parts.method.stages[0], sampler=others)
        without = next(parts.rounds(method=replace(parts.method, stages=(stage,))))
        assert without.cohort == others.clients
        assert difference(without.state.server.params, results[0].state.server.params) is None


@pytest.mark.parametrize("name", ["fedavg", "fedcorr", "fedcorr_with_batch_norm", "parts_with_memory"])
def test_where_all_diverge_the_model_stays(name: str, tmp_path: Path) -> None:
    with assembled(BY_NAME[name].words, tmp_path / "run", "train.lr=1e30") as parts:
        results = parts.results()
        assert difference(results[-1].state.server.params, parts.state.server.params) is None
        assert results[-1].state.counters.left_out == results[-1].state.counters.participations > 0


def test_stopping_at_divergence_fails_the_run(command: Command, tmp_path: Path) -> None:
    said = command(*FEDAVG, "train.lr=1e30", "on_nonfinite=stop", "output=run")
    assert said.code == 1
    assert "non-finite" in said.err.splitlines()[-1]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"


METHODS = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
REPRESENTED = {word.removeprefix("method=") for name in REPRESENTATIVES for word in BY_NAME[name].overrides}


@pytest.mark.parametrize(
    "name", [name if name in REPRESENTED else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_a_run_in_which_every_training_diverged_has_failed(name: str, command: Command, tmp_path: Path) -> None:
    """At the end of a stage: later ones may need what it makes, and have rates of their own."""
    words = ["debug=fast", f"method={name}", "train.lr=1e30", "eval.benchmark=0.2", "figures=false", "output=run"]
    said = command(*words)
    assert said.code == 1
    (error,) = (line for line in said.err.splitlines() if line.startswith("error: "))
    assert "local trainings returned non-finite parameters" in error
    assert "smaller train.lr (it is 1e+30)" in error
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["status"] == "failed"
    assert record["left_out"] == record["participations"] > 0
    assert record["error"].removeprefix("NonFiniteError: ") in error
    assert not (tmp_path / "run" / "model.pt").exists()


def test_it_fails_again_where_it_is_gone_on_with(command: Command, tmp_path: Path) -> None:
    words = [*FEDAVG, "train.lr=1e30", "output=run"]
    assert command(*words).code == 1
    said = command(*words, "resume=true")
    assert (said.code, "learned nothing" in said.err.splitlines()[-1]) == (1, True)


def test_the_closing_table_says_what_share_was_left_out(command: Command, tmp_path: Path) -> None:
    """The images of the first of ten clients are so bright that the loss overflows."""
    rng = np.random.default_rng(0)
    images, labels = rng.random((60, 1, 4, 4), dtype=np.float32), np.arange(60) % 3
    images[:6] = 1e38
    owners = np.repeat(np.arange(10), 6)
    np.savez(tmp_path / "own.npz", x_train=images, y_train=labels, x_test=images[6:], y_test=labels[6:], clients=owners)
    words = ["dataset=arrays", f"dataset.file={tmp_path / 'own.npz'}", "dataset.normalize=none", "partition=file"]
    words += ["partition.num_clients=10", "noise=none", "method=fedavg", "rounds=3", "fraction=1.0", "model=mlp"]
    said = command(*words, "wandb.mode=disabled", "figures=false", "executor=sequential", "output=run")
    assert said.code == 0, said.err
    (row,) = (line for line in said.out.splitlines() if "left out" in line)
    assert "3 (10.00 %)" in row
    assert json.loads((tmp_path / "run" / "result.json").read_text())["left_out"] == 3


# ---------------------------------------------------------------------------------- held out, empty, without truth


def test_validation_is_reported_beside_the_oracle(command: Command, tmp_path: Path) -> None:
    said = command(*FEDAVG, "eval.validation=0.2", "output=run")
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    rows = [line for line in Ran(tmp_path / "run", record).lines if line["kind"] == "evaluation"]
    best = max(range(len(rows)), key=lambda i: rows[i]["validation_accuracy"])
    assert record["metrics"]["at_best_validation"] == rows[best]["accuracy"]
    assert "at the best validation round" in said.out
    assert "an oracle over the test set" in said.out
    without = run(FEDAVG, tmp_path / "without").record["metrics"]
    assert "at_best_validation" not in without


def own_data(folder: Path) -> list[str]:
    """A small data set of one's own, and the overrides that choose it."""
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    images = (rng.random((90, 1, 4, 4)) + labels[:, None, None, None]).astype(np.float32)
    np.savez(folder / "own.npz", x_train=images, y_train=labels, x_test=images[:30], y_test=labels[:30])
    chosen = ("dataset=arrays", f"dataset.file={folder / 'own.npz'}", "~dataset.train_size", "~dataset.test_size")
    return [w for w in Entry("", chosen, {}).words if not w.startswith("partition")]


@pytest.mark.parametrize("method", [("method=fedavg", "rounds=8"), ("method=fedcorr", "method.T1=2", "method.T2=2")])
def test_clients_without_samples_are_never_asked(method: tuple[str, ...], tmp_path: Path) -> None:
    np.save(tmp_path / "clients.npy", np.repeat([0, 2, 3, 5, 6], 18))
    natural = ["partition=file", f"partition.path={tmp_path / 'clients.npy'}", "partition.num_clients=9"]
    words = [*own_data(tmp_path), *natural, *method]
    if "method=fedcorr" in method:
        words.append("method.T3=2")
    ran = run(words, tmp_path / "run")
    asked = {client for line in ran.lines if line["kind"] == "round" for client in line["cohort"]}
    assert asked == {0, 2, 3, 5, 6}
    assert set(ran.state.clients) <= asked
    assert ran.record["status"] == "finished"


def test_without_a_truth_what_needs_it_is_left_out(command: Command, tmp_path: Path) -> None:
    words = [*own_data(tmp_path), "dataset.truth=none", "noise=none", "partition.num_clients=5"]
    words += ["method=fedcorr", "method.T1=1", "method.T2=1", "method.T3=1"]
    said = command(*words, "output=run")
    assert said.code == 0, said.err
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    metrics = record["metrics"]
    assert set(metrics) == {"best", "last", "mean_last_10", "best_mean_10", "labels", "flagged", "changed"}
    assert "wrong" not in said.out
    with (tmp_path / "run" / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert (metrics["labels"], metrics["flagged"]) == (len(rows), sum(row["flagged"] == "1" for row in rows))
    assert metrics["changed"] == sum(row["final"] != row["given"] for row in rows)


def test_the_end_says_what_a_run_has_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"training_passes": 240000, "forward_passes": 0, "optimizer_steps": 3750, "bytes": 2.5e6}
    used = {"wall_time_s": 12.34, "cpu_time_s": 23.45, "peak_memory": 2.5e9, "peak_gpu_memory": None}
    progress.closing("finished", tmp_path, RunRecord.of(counts | used))
    shown = [" ".join(line.split(None)).strip("│ ") for line in capsys.readouterr().out.splitlines()]
    assert "training passes, forward passes, optimiser steps │ 240,000, 0, 3,750" in shown
    assert "wall time, CPU time │ 12.3 s, 23.4 s" in shown
    assert "peak memory │ 2.50 GB" in shown
    early = {**dict.fromkeys(counts), "wall_time_s": 12.34, "cpu_time_s": None}
    progress.closing("finished", tmp_path, RunRecord.of(early | {"peak_memory": 1e9, "peak_gpu_memory": 4e9}))
    shown = [" ".join(line.split(None)).strip("│ ") for line in capsys.readouterr().out.splitlines()]
    assert "wall time │ 12.3 s" in shown
    assert "peak memory, in tensors on the GPU │ 1.00 GB, 4.00 GB" in shown
    assert not any("passes" in line for line in shown)


def test_the_end_counts_flagged_and_changed_labels_and_names_their_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"labels": 600.0, "flagged": 227.0, "changed": 0.0}
    progress.closing(
        "finished", tmp_path, RunRecord.of({"metrics": {"last": 0.5, **counts}, "warnings": ["one", "two"]})
    )
    shown = capsys.readouterr()
    (flagged,) = (line for line in shown.out.splitlines() if "labels flagged" in line)
    assert "227 (37.83 %)" in flagged
    (changed,) = (line for line in shown.out.splitlines() if "labels changed" in line)
    assert "0 (0.00 %)" in changed
    assert "labels.csv" not in shown.out
    assert shown.err == "warning: one\nwarning: two\n"
    (tmp_path / "labels.csv").touch()
    progress.closing("finished", tmp_path, RunRecord.of({"metrics": {"last": 0.5}}))
    shown = capsys.readouterr()
    assert f"all labels: {tmp_path / 'labels.csv'}\n" in shown.out
    assert "labels flagged" not in shown.out
    assert shown.err == ""


def test_the_table_at_the_end_has_the_numbers_of_the_record(command: Command, tmp_path: Path) -> None:
    said = command(*TINY, "method=fedavg", "rounds=3", "output=run")
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    for key in ("best", "last", "mean_last_10"):
        assert f"{100 * record['metrics'][key]:.2f} %" in said.out
    assert str(record["participations"]) in said.out
    assert "protocol digits" in said.err
