"""``flnl config``: what a record says of a run's configuration."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from flnl import __main__ as program
from flnl.config import compose, identity
from flnl.config.recorded_settings import short
from flnl.record.run import RESULT, RunRecord
from tests.registry import BY_NAME, TINY

Config = Callable[..., str]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Config:
    """What ``flnl config`` prints; a code other than 0 is printed first, with what it says of the error."""

    def said(*words: object) -> str:
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        monkeypatch.setattr(sys, "argv", ["flnl", "config", *map(str, words)])
        try:
            program.main()
        except SystemExit as left:
            return f"{left.code} {capsys.readouterr().err}"
        return capsys.readouterr().out

    return said


def recorded(folder: Path, *words: str) -> Path:
    """A folder with the record of a run with these overrides, as far as it is read here."""
    plain = compose.resolved(compose.load([*TINY, *words]))
    record = {
        "key": identity.run_key(plain),
        "key_format": identity.FORMAT,
        "config": plain,
        "identity": identity.identity(plain),
    }
    folder.mkdir()
    (folder / RESULT).write_text(json.dumps(record))
    return folder


def test_all_of_it_is_what_the_record_has(config: Config, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run", "method=fedcorr")
    assert yaml.safe_load(config(folder)) == json.loads((folder / RESULT).read_text())["config"]


def test_short_is_what_counts_by_the_keys_that_people_type(config: Config, tmp_path: Path) -> None:
    words = ("method=fedprox", "method.mu=0.25", "rounds=7", "threads=1", "noise.rho=0.3", "output=x")
    lines = config(recorded(tmp_path / "run", *words), "--short").splitlines()
    values = yaml.safe_load("\n".join(lines))
    assert len(values) == len(lines)
    assert lines[0] == "method: fedprox"
    expected = {"method.mu": 0.25, "rounds": 7, "noise": "FedCorr", "noise.rho": 0.3}
    assert {key: values.get(key) for key in expected} == expected
    assert values["model.hidden"] == [8]
    assert not [key for key in values if "_target_" in key or key.startswith("protocol") or identity.outside(key)]
    assert "method.local.fedprox.mu" not in values
    assert "method.prox" not in values  # neutral
    assert not {"train.milestones", "train.clip", "train.optimizer", "dataset.noise_rate", "eval.every"} & {*values}


@pytest.mark.parametrize("name", ["fedcorr", "co_teaching", "fedcorr_released", "feddiv"])
def test_short_leaves_nothing_out_that_counts(name: str, tmp_path: Path) -> None:
    """Every value of the identity is there, under its key or a short one, unless it is nothing at all."""
    words = BY_NAME[name].words if name in BY_NAME else [f"method={name}"]
    record = RunRecord.open(recorded(tmp_path / "run", *words))
    values, whole = short(record.defining, record.config), record.identity
    double = "method.stages.training.rounds" if name == "co_teaching" else "rounds"  # one of several stages has its own
    kept = [key for key, value in whole.items() if value not in (None, {}, []) and key != double]
    assert len(values) == len(kept)
    assert double not in values
    plain = record.config
    for key in (key for key in values if key.startswith("method.") and key.count(".") == 1 and key not in whole):
        if f"{key}._target_" not in whole:
            assert values[key] == plain["method"][key.removeprefix("method.")]
    for key in kept:
        if key in values:
            assert values[key] == whole[key]


def test_a_variant_has_the_short_keys_of_what_it_starts_from(config: Config, tmp_path: Path) -> None:
    values = yaml.safe_load(config(recorded(tmp_path / "run", "method=fedcorr_released"), "--short"))
    assert {"method.T1", "method.theta", "method.k_lid"} <= {*values}


def test_a_short_key_that_says_something_else_is_not_used(tmp_path: Path) -> None:
    """The file of the method may have changed since."""
    folder = recorded(tmp_path / "run", "method=fedprox")
    record = json.loads((folder / RESULT).read_text())
    record["config"]["method"]["mu"] = 9.0
    assert "method.local.fedprox.mu" in short(record["identity"], record["config"])
    del record["config"]["method"]["mu"]
    assert "method.local.fedprox.mu" in short(record["identity"], record["config"])


@pytest.mark.parametrize("more", [[], ["--short"]])
def test_a_senders_record_is_printed_and_nothing_of_it_is_done(more: list[str], config: Config, tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    record = json.loads((folder / RESULT).read_text())
    for values in (record["config"], record["identity"]):
        values["noise.\x1b[2J"] = "a\x1b]0;b\x07\n\u202ec ${oc.env:HOME}"
    record["config"]["method"]["name"] = "../../x"
    (folder / RESULT).write_text(json.dumps(record))
    said = config(folder, *more)
    assert "${oc.env:HOME}" in said
    assert all(line.isprintable() for line in said.splitlines())


def test_folders_without_a_run_and_readers_that_leave(config: Config, tmp_path: Path) -> None:
    said = config(tmp_path)
    assert said.startswith(f"2 error: {tmp_path}: no run is recorded there")
    assert said.count("\n") == 1
    folder = recorded(tmp_path / "run")
    command = f"{sys.executable} -m flnl config {folder} | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "protocol:\n", "")
