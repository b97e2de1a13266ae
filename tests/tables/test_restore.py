"""Runs that another machine made count here, with nothing but their records."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from flnl.config.identity import identity, recorded_identity, recorded_key
from flnl.figures import accuracy
from flnl.figures.record import read
from flnl.tables import run_record
from tests.tables.conftest import Tables, copied

ROOT = Path(__file__).resolve().parents[2]
RECORDS = "records=results/small/runs"


@pytest.fixture
def elsewhere(command: Tables, tmp_path: Path) -> Tables:
    """The command where two runs were made and rendered, and only what was rendered is left."""
    copied(tmp_path)
    assert command("run", "mine", "--", "hydra/launcher=basic").code == 0
    assert command("render", "mine").code == 0
    shutil.rmtree(tmp_path / "multirun")
    return command


def test_tables_of_records_are_those_of_the_runs(elsewhere: Tables, tmp_path: Path) -> None:
    """All that is rendered, to the byte: a number or a curve that is not in the record would be missing or another."""
    rendered = {file.name: file.read_bytes() for file in (tmp_path / "results/small").glob("**/*") if file.is_file()}
    ran = elsewhere("run", "mine", RECORDS)
    assert ran.out.splitlines()[-1] == "2 of 2 cells can run, 2 have run, 0 failed", ran.err
    assert "2 runs restored from results/small/runs" in ran.err
    assert "missing" not in ran.err
    assert elsewhere("render", "mine", "out=again").code == 0
    again = {file.name: file.read_bytes() for file in (tmp_path / "again").glob("**/*") if file.is_file()}
    assert again == rendered
    assert sum(name.endswith(".json") for name in again) == 2
    restored = next((tmp_path / "multirun/tables/small").glob("*/result.json")).parent
    for file in (tmp_path / "multirun/tables/small").glob("*/result.json"):  # FedProx has a value that keys leave out
        record = json.loads(file.read_text())
        assert recorded_key(record) == record["key"]
        assert recorded_identity(record) == identity(record["config"])
    assert accuracy.draw(read(restored)) is not None


def test_a_run_that_began_here_stays(elsewhere: Tables, tmp_path: Path) -> None:
    assert elsewhere("run", "mine", "rows=FedProx", "--", "hydra/launcher=basic").code == 0
    (own,) = (tmp_path / "multirun/tables/small").glob("*/result.json")
    before = own.read_bytes()
    assert "1 runs restored" in elsewhere("plan", "mine", RECORDS).err
    assert own.read_bytes() == before
    assert "0 runs restored" in elsewhere("plan", "mine", RECORDS).err


def test_a_folder_in_which_a_run_begins_meanwhile_stays(elsewhere: Tables, tmp_path: Path) -> None:
    """Its lines would be mixed with those of the record, and its hours lost."""
    names = [file.stem for file in sorted((tmp_path / "results/small/runs").glob("*.json"))]
    mine, other = (tmp_path / "multirun/tables/small" / name for name in names)
    mine.mkdir(parents=True)
    (mine / "metrics.jsonl").write_text("mine\n")
    with FileLock(mine / ".lock"):
        assert "1 runs restored" in elsewhere("plan", "mine", RECORDS).err
    assert sorted(file.name for file in mine.iterdir() if file.name != ".lock") == ["metrics.jsonl"]
    assert (mine / "metrics.jsonl").read_text() == "mine\n"
    assert (other / "result.json").exists()
    assert "1 runs restored" in elsewhere("plan", "mine", RECORDS).err, "the lock of the other one has been released"


def test_records_of_which_none_is_asked_for_are_told_of(elsewhere: Tables, tmp_path: Path) -> None:
    assert "none of" not in elsewhere("plan", "mine", RECORDS).err
    shutil.rmtree(tmp_path / "multirun")
    for number, file in enumerate([*(tmp_path / "results/small/runs").glob("*.json")]):
        file.rename(file.with_name(f"{number:016x}.json"))
    found = elsewhere("plan", "mine", RECORDS).err
    assert "0 runs restored" in found
    assert "none of the 2 records there is of a run of these tables: others, another scale or other seeds\n" in found


def _changed(**fields: object) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), **fields})


def _with_metric(name: str, value: float) -> Callable[[str], str]:
    return lambda text: _changed(metrics=json.loads(text)["metrics"] | {name: value})(text)


def _with_last(accuracy: float) -> Callable[[str], str]:
    return lambda text: _changed(evaluation=json.loads(text)["evaluation"] | {"accuracy": accuracy})(text)


def _without(key: str) -> Callable[[str], str]:
    return lambda text: json.dumps({name: value for name, value in json.loads(text).items() if name != key})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:100], "is damaged"),
        (lambda _: "3", "is damaged"),
        (_changed(metrics=None), "is damaged"),
        (_changed(evaluations={}), "is damaged"),
        (_changed(evaluations={"training": {"round": [1]}}), "is damaged"),
        (_with_metric("best", 0.99), r"is damaged: metrics.best is 0.99, and its evaluations give 0."),
        (_with_metric("last", 0.99), r"is damaged: metrics.last is 0.99, and its evaluations give 0."),
        (_with_metric("mean_last_10", 0.99), r"is damaged: metrics.mean_last_10 is 0.99"),
        (_with_last(0.99), r"and its evaluations give 0.99"),
        (_changed(rounds=99), "is damaged: rounds is 99, and its last line says 3"),
        (_changed(participations=99), "is damaged: participations is 99"),
        (_changed(key="0" * 64), "is not the record of the finished run flnl"),
        (_changed(status="failed"), "is not the record of the finished run flnl"),
        (_without("evaluations"), "lacks the accuracies of its evaluations"),
    ],
)
def test_a_record_that_cannot_be_used_is_named(
    elsewhere: Tables, tmp_path: Path, change: Callable[[str], str], said: str
) -> None:
    file = sorted((tmp_path / "results/small/runs").glob("*.json"))[0]
    file.write_text(change(file.read_text()))
    found = elsewhere("plan", "mine", RECORDS)
    assert found.code == 2
    assert said in found.err
    assert len(found.err.splitlines()) == 1
    assert file.name in found.err


@pytest.mark.parametrize("folder", sorted((ROOT / "results").glob("*/runs")), ids=lambda folder: folder.parent.name)
def test_the_records_of_this_project_agree_with_themselves(folder: Path) -> None:
    files = sorted(folder.glob("*.json"))
    assert files
    for file in files:
        assert run_record.compact(file).record["status"] == "finished"


def test_a_folder_that_is_not_there_is_refused(elsewhere: Tables) -> None:
    found = elsewhere("run", "mine", "records=results/smal/runs")
    assert (found.code, found.err.splitlines()) == (
        2,
        ["error: records=results/smal/runs: there is no such folder; records are in results/SCALE/runs"],
    )
