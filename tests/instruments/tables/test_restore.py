"""Runs that another machine made count here, with nothing but their records."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from flnl.config.identity import identity
from flnl.figures import accuracy
from flnl.instruments.tables import run_record
from flnl.record.run import RunRecord
from tests.instruments.tables.conftest import Tables, copied

RECORDS = "records=results/small/runs.jsonl"


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
    assert "2 runs restored from results/small/runs.jsonl" in ran.err
    assert "missing" not in ran.err
    assert elsewhere("render", "mine", "out=again").code == 0
    again = {file.name: file.read_bytes() for file in (tmp_path / "again").glob("**/*") if file.is_file()}
    assert again == rendered
    assert again["runs.jsonl"].count(b"\n") == 2
    restored = next((tmp_path / "multirun/tables/small").glob("*/result.json")).parent
    for file in (tmp_path / "multirun/tables/small").glob("*/result.json"):  # FedProx has a value that keys leave out
        record = RunRecord.open(file.parent)
        assert record.run_key == record.key
        assert record.defining == identity(record.config)
    assert accuracy.draw(RunRecord.open(restored)) is not None


def test_a_run_that_began_here_stays(elsewhere: Tables, tmp_path: Path) -> None:
    assert elsewhere("run", "mine", "rows=FedProx", "--", "hydra/launcher=basic").code == 0
    (own,) = (tmp_path / "multirun/tables/small").glob("*/result.json")
    before = own.read_bytes()
    assert "1 runs restored" in elsewhere("plan", "mine", RECORDS).err
    assert own.read_bytes() == before
    assert "0 runs restored" in elsewhere("plan", "mine", RECORDS).err


def test_a_folder_in_which_a_run_begins_meanwhile_stays(elsewhere: Tables, tmp_path: Path) -> None:
    """Its lines would be mixed with those of the record, and its hours lost."""
    mine, other = (tmp_path / "multirun/tables/small" / name for name in run_record.load(tmp_path / "results/small"))
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
    rewrite(tmp_path, lambda held: {**held, "folder": f"multirun/tables/small/{held['folder'][-15:]}0"})
    found = elsewhere("plan", "mine", RECORDS).err
    assert "0 runs restored" in found
    assert "none of the 2 records there is of a run of these tables: others, another scale or other seeds\n" in found


def rewrite(tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change what each line says."""
    held = [dict(run.record.raw) for run in run_record.load(tmp_path / "results/small").values()]
    lines = [run_record.signed(change(one)) for one in held]
    (tmp_path / "results/small/runs.jsonl").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("change", [{"key": "0" * 64}, {"status": "failed"}])
def test_the_record_of_another_run_is_named(elsewhere: Tables, tmp_path: Path, change: dict[str, str]) -> None:
    rewrite(tmp_path, lambda held: {**held, **change})
    found = elsewhere("plan", "mine", RECORDS)
    assert found.code == 2
    assert "is not the record of the finished run flnl" in found.err
    assert len(found.err.splitlines()) == 1
    assert any(name in found.err for name in run_record.load(tmp_path / "results/small"))


def test_a_damaged_line_is_named(elsewhere: Tables, tmp_path: Path) -> None:
    file = tmp_path / "results/small/runs.jsonl"
    file.write_text(file.read_text()[:-100])
    found = elsewhere("plan", "mine", RECORDS)
    assert (found.code, len(found.err.splitlines())) == (2, 1)
    assert "line 2 of results/small/runs.jsonl is damaged; restore it from where it is from, or remove it" in found.err


@pytest.mark.parametrize("given", ["results/small", "results/small/runs.jsonl"])
def test_the_file_or_its_folder_is_given(elsewhere: Tables, given: str) -> None:
    assert "2 runs restored" in elsewhere("plan", "mine", f"records={given}").err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("results/smal/runs.jsonl", "records are in results/SCALE/runs.jsonl"),
        ("results/small/runs", "did you mean results/small/runs.jsonl?"),
        ("results/small/run.jsonl", "did you mean results/small/runs.jsonl?"),
    ],
)
def test_what_has_no_record_is_refused(elsewhere: Tables, given: str, said: str) -> None:
    found = elsewhere("run", "mine", f"records={given}")
    assert found.code == 2
    assert found.err.splitlines() == [f"error: records={given}: there is no record of a run; {said}"]
