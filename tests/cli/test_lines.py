"""What a run has written down and what became of it: damage is named with file and line, half a last line is none."""

import hashlib
import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from flnl.core.errors import UserError
from flnl.instruments.compare.runs import find
from flnl.instruments.tables import run_record
from flnl.instruments.tune.scores import score
from flnl.record.lines import Checksums, DamagedLinesError, Lines
from flnl.record.run import RunRecord
from flnl.run import checkpoint
from flnl.storage.atomic import write_atomically
from tests.cli.conftest import Command
from tests.properties.runs import Ran, difference, run
from tests.registry import BY_NAME

FEDCORR, FEDAVG = BY_NAME["fedcorr"].words, BY_NAME["fedavg"].words
FILES = ("metrics.jsonl", "corrections.jsonl")


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))


def line_at(data: bytes, place: int) -> int:
    """The number of the line that a byte is in, from 1; the end of a line is in it."""
    return data.count(b"\n", 0, place) + 1


# -------------------------------------------------------------------------------------------------------- one file


@pytest.fixture
def file(tmp_path: Path) -> Lines:
    made = Lines(tmp_path / "metrics.jsonl")
    for number in range(1, 6):
        made.write({"kind": "evaluation", "round": number, "accuracy": number / 7, "loss": float("nan")})
    return made


def test_every_flipped_byte_is_told_with_its_line(file: Lines) -> None:
    known, whole = file.checksums, file.path.read_bytes()
    assert known.demand(file.path, whole, whole=True) == whole
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(DamagedLinesError) as told:
            known.demand(file.path, bytes(damaged), whole=False)
        assert f"line {line_at(whole, place)} of {file.path} " in str(told.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda rows: rows[:3], "ends after line 3 of 5"),
        (lambda rows: [*rows[:3], rows[3][:9]], "line 4 of"),
        (lambda rows: [], "ends after line 0 of 5"),
        (lambda rows: rows[1:], "line 1 of"),
        (lambda rows: [rows[0], rows[2], rows[1], *rows[3:]], "line 2 of"),
        (lambda rows: [*rows[:2], b"\n", *rows[2:]], "line 3 of"),
        (lambda rows: [*rows, rows[4]], "line 6 of"),
    ],
)
def test_lines_that_are_gone_or_moved_or_too_many_are_told(
    file: Lines, edit: Callable[[list[bytes]], list[bytes]], message: str
) -> None:
    data = b"".join(edit(file.path.read_bytes().splitlines(keepends=True)))
    with pytest.raises(DamagedLinesError, match=message):
        file.checksums.demand(file.path, data, whole=True)


def test_checksums_are_those_of_the_file_whoever_wrote_its_parts(file: Lines) -> None:
    """Taken line by line, also by a process that goes on; the file itself is not read for them."""
    first = file.checksums
    again = Lines(file.path)
    with file.path.open("a") as half:
        half.write('{"kind": "rou')
    rows = again.go_on_after(5, Checksums.read(json.loads(json.dumps(asdict(first)))))
    again.cut()
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]
    assert (again.checksums, file.path.stat().st_size) == (first, first.size)
    again.write({"round": 6})
    data = file.path.read_bytes()
    again.path.unlink()
    found = again.checksums
    assert (found.lines, found.demand(file.path, data, whole=True)) == (6, data)
    assert found.demand(file.path, data + b'{"rou', whole=False) == data


@pytest.mark.parametrize("held", [None, {}, {"lines": 1}, {"lines": True, "size": 1, "sha256": "", "crc32": ""}, 3])
def test_what_knows_nothing_of_a_file_is_none(held: object) -> None:
    assert Checksums.read(held) is None


# --------------------------------------------------------------------------------------------------- going on with it


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(FEDCORR, tmp_path_factory.mktemp("fedcorr") / "unbroken")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedCorr after nine rounds, with a correction."""
    return run(FEDCORR, tmp_path_factory.mktemp("stopped") / "run", "max_rounds=9").folder


@pytest.mark.parametrize("name", FILES)
def test_damage_before_the_checkpoint_is_an_error_that_names_file_and_line(
    name: str, command: Command, stopped: Path
) -> None:
    path = stopped / name
    whole = path.read_bytes()
    rng = random.Random(name)
    try:
        for place in (len(whole) - 1, rng.randrange(len(whole))):
            flip(path, place)
            before = {p: p.read_bytes() for p in stopped.rglob("*") if p.is_file() and p.name != "config.yaml"}
            said = command(*FEDCORR, f"resume={stopped}")
            assert said.code == 2
            (error,) = (line for line in said.err.splitlines() if line.startswith("error: "))
            assert f"line {line_at(whole, place)} of {path} " in error
            assert "put back a copy" in error
            assert {p: p.read_bytes() for p in before} == before
            path.write_bytes(whole)
        path.unlink()
        said = command(*FEDCORR, f"resume={stopped}")
        assert (said.code, f"{path} is missing" in said.err) == (2, True)
    finally:
        path.write_bytes(whole)


@pytest.mark.parametrize("later", [b'{"kind": "round", "round": 10, "st', b"\xff\xfe\n3\n"])
def test_what_came_after_the_checkpoint_is_cut_whatever_it_is(unbroken: Ran, later: bytes, tmp_path: Path) -> None:
    folder = run(FEDCORR, tmp_path / "run", "max_rounds=9").folder
    for name in FILES:
        with (folder / name).open("ab") as file:
            file.write(later)
    found = run(FEDCORR, folder, "resume=true")
    assert (found.lines, found.corrections) == (unbroken.lines, unbroken.corrections)
    assert found.record["lines"].keys() == set(FILES)
    assert RunRecord.open(folder).damage() is None


def without_checksums(path: Path) -> None:
    """A checkpoint as it was once written."""
    held = torch.load(path, weights_only=True)
    del held[checkpoint.FIELDS]["lines"]
    torch.save(held, path)
    write_atomically(path.with_suffix(".sha256"), hashlib.sha256(path.read_bytes()).hexdigest().encode())


def test_a_checkpoint_without_checksums_is_gone_on_from_with_a_note(
    unbroken: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run(FEDCORR, tmp_path / "run", "max_rounds=9").folder
    (path,) = (folder / "checkpoints").glob("*.pt")
    without_checksums(path)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "round", "round": 10}\n{"kind": "rou')
    capsys.readouterr()
    found = run(FEDCORR, folder, "resume=true")
    assert "note: the checkpoint has no checksums" in capsys.readouterr().err
    assert (found.lines, found.corrections) == (unbroken.lines, unbroken.corrections)
    assert difference(found.state, unbroken.state) is None
    assert found.record["metrics"] == unbroken.record["metrics"]
    assert RunRecord.open(folder).damage() is None


def test_without_checksums_a_line_that_is_none_is_still_told(tmp_path: Path) -> None:
    folder = run(FEDAVG, tmp_path / "run", "max_rounds=2").folder
    (path,) = (folder / "checkpoints").glob("*.pt")
    without_checksums(path)
    flip(folder / "metrics.jsonl", 0)
    with pytest.raises(UserError, match=r"line 1 of .*metrics\.jsonl"):
        run(FEDAVG, folder, "resume=true")


# ------------------------------------------------------------------------------------------- readers of finished runs


def digit(path: Path) -> int:
    """Change a digit of the last accuracy, which leaves the line JSON; gives the line's number."""
    data = path.read_bytes()
    place = data.rindex(b'"accuracy": 0.') + len(b'"accuracy": 0.')
    path.write_bytes(data[:place] + (b"8" if data[place : place + 1] != b"8" else b"7") + data[place + 1 :])
    return line_at(data, place)


def test_readers_of_finished_runs_name_the_line(tmp_path: Path, command: Command) -> None:
    ran = run(FEDAVG, tmp_path / "run")
    other = run(FEDAVG, tmp_path / "other", "seed=2")
    assert RunRecord.open(ran.folder).evaluations
    number = digit(ran.folder / "metrics.jsonl")
    place = f"line {number} of {ran.folder / 'metrics.jsonl'} "
    with pytest.raises(UserError, match=place):
        RunRecord.open(ran.folder).with_lines()
    with pytest.raises(UserError, match=place):
        run_record.read(ran.folder)
    assert run_record.read(other.folder).evaluations
    said = command(*FEDAVG, f"resume={ran.folder}")
    assert (said.code, f"{100 * ran.record['metrics']['last']:.2f} %" in said.out) == (0, True)


@pytest.mark.parametrize("key", ["best", "last", "mean_last_10", "at_best_validation", "rounds", "participations"])
def test_closing_numbers_that_the_lines_do_not_give_are_damage(key: str, tmp_path: Path, validated: Ran) -> None:
    """Tables, curves and choices read them from the record alone."""
    shutil.copytree(validated.folder, tmp_path / "run")
    file = tmp_path / "run" / "result.json"
    held = json.loads(file.read_text())
    place = held if key in held else held["metrics"]
    assert score(file.parent, "last") == held["metrics"]["last"]
    place[key] = 99 if key in held else 0.99
    file.write_text(json.dumps(held))
    said = rf"result\.json contradicts its lines: (metrics\.)?{key} is (0\.)?99, "
    for reader in (
        lambda folder: RunRecord.open(folder).with_lines(),
        run_record.read,
        lambda folder: score(folder, "last"),
    ):
        with pytest.raises(UserError, match=said):
            reader(file.parent)
    assert re.search(said, RunRecord.open(file.parent).damage() or "")


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run((*FEDAVG, "eval.validation=0.2"), tmp_path_factory.mktemp("validated") / "run")


def test_a_damaged_run_is_left_out_of_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    ran = run(FEDAVG, tmp_path / "runs" / "a")
    run(FEDAVG, tmp_path / "runs" / "b", "seed=2")
    number = digit(ran.folder / "metrics.jsonl")
    capsys.readouterr()
    found = find([str(tmp_path / "runs")])
    assert [one.folder.name for one in found] == ["b"]
    (note,) = capsys.readouterr().err.splitlines()
    assert f"is left out: line {number} of {ran.folder / 'metrics.jsonl'} " in note
    with pytest.raises(UserError, match="no run can be read completely"):
        find([str(ran.folder)])
    caplog.clear()
    run(FEDAVG, ran.folder, "resume=true")
    assert [f"line {number} of" in r.getMessage() for r in caplog.records] == [True]


def test_a_run_that_was_killed_may_have_more_lines_than_its_record_knows(tmp_path: Path) -> None:
    """The record was written when it began; what came since is read as far as it goes."""
    folder = run(FEDAVG, tmp_path / "run", "max_rounds=2").folder
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**result, "status": "interrupted"}))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "round", "round": 3}\n{"kind": "rou')
    assert [row["round"] for row in RunRecord.open(folder).per_round] == [1, 2, 3]
    flip(folder / "metrics.jsonl", 5)
    with pytest.raises(UserError, match="line 1 of"):
        RunRecord.open(folder).with_lines()


def test_a_finished_run_has_no_more_lines_than_its_record_knows(file: Lines) -> None:
    folder, known = file.path.parent, {"lines": {"metrics.jsonl": asdict(file.checksums)}}
    assert RunRecord.of({**known, "status": "finished"}, folder).damage() is None
    with file.path.open("a") as more:
        more.write('{"kind": "evaluation", "accuracy": 9.14}\n')
    assert RunRecord.of({**known, "status": "interrupted"}, folder).damage() is None
    wrong = RunRecord.of({**known, "status": "finished"}, folder).damage()
    assert wrong == f"line 6 of {file.path} is not the run's, which wrote 5 lines"


@pytest.mark.parametrize("held", [None, 3, {"metrics.jsonl": {"lines": "many"}}])
def test_checksums_that_cannot_be_read_are_damage(tmp_path: Path, held: object) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    wrong = RunRecord.of({"status": "finished", "lines": held}, tmp_path).damage()
    assert wrong is not None
    assert "cannot be checked" in wrong


def test_a_record_that_was_kept_alone_still_counts(tmp_path: Path) -> None:
    """Its numbers are in the record; who wants the lines is told that they are missing."""
    ran = run(FEDAVG, tmp_path / "run")
    (ran.folder / "metrics.jsonl").unlink()
    assert [one.folder for one in find([str(ran.folder)])] == [ran.folder]
    with pytest.raises(UserError, match=r"metrics\.jsonl is missing"):
        RunRecord.open(ran.folder).with_lines()


def test_runs_of_before_have_no_checksums(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"kind": "evaluation"}\n')
    assert RunRecord.of({"status": "finished"}, tmp_path).damage() is None
