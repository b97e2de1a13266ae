"""A run's record: what stands in ``result.json``, and how readers have it."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from flnl.core.errors import UserError
from flnl.core.state import Counters
from flnl.record.lines import DamagedLinesError
from flnl.record.run import OF_A_PROCESS, RESULT, RunRecord
from tests.properties.runs import run
from tests.registry import BY_NAME

WHOLE: dict[str, Any] = {"key": "k", "config": {}}


def put(folder: Path, text: str) -> Path:
    (folder / RESULT).write_text(text)
    return folder


def test_a_record_that_was_read_is_written_as_it_was(tmp_path: Path) -> None:
    """Of a run that has nearly all there is: it went on, was given a rate, and holds files, warnings and findings."""
    words = BY_NAME["fedcorr"].words
    run(words, tmp_path / "run", "max_rounds=2", "products=true")
    folder = run(words, tmp_path / "run", "resume=true", "products=true").folder
    found = RunRecord.open(folder)
    assert found.earlier
    assert found.files
    (tmp_path / "copy").mkdir()
    found.write(tmp_path / "copy")
    assert (tmp_path / "copy" / RESULT).read_bytes() == (folder / RESULT).read_bytes()


def test_what_a_record_lacks_or_holds_otherwise_is_its_default(tmp_path: Path) -> None:
    odd = {"status": 3, "metrics": [1], "rounds": "7", "order": True, "started": None, "overrides": "seed=1", "new": 1}
    found = RunRecord.read(put(tmp_path, json.dumps(WHOLE | odd)))
    assert found is not None
    assert (found.status, found.metrics, found.rounds, found.order, found.overrides) == ("unknown", {}, None, None, [])
    assert (found.age, found.how_far, found.called(3)) == ((0, 0.0), "unknown after round ?", "3")
    assert found.title == "? on ?, seed ? (unknown)"
    assert found.raw == WHOLE | odd, "with keys that another version may know"


def test_a_number_of_seconds_may_be_whole(tmp_path: Path) -> None:
    found = RunRecord.open(put(tmp_path, json.dumps(WHOLE | {"started": 3, "wall_time_s": 2, "rounds": 2.5})))
    assert (found.started, found.wall_time_s, found.rounds) == (3, 2, None)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "7", "\x00", '{"key": "k"}', '{"config": {}}'),
        *('{"key": 3, "config": {}}', '{"key": "k", "config": []}', '{"key": "k", "config": {}, "earlier": {}}'),
        *('{"key": "k", "config": {}, "earlier": [3]}', '{"key": "k", "config": {}, "executor": 3}'),
    ],
)
def test_what_is_no_record_is_none(text: str, tmp_path: Path) -> None:
    assert RunRecord.read(put(tmp_path, text)) is None
    with pytest.raises(UserError, match=r"^[^\n]*no run is recorded there \(result\.json is missing or unreadable\)$"):
        RunRecord.open(tmp_path)


def test_each_process_is_told_of_and_what_it_does_not_say_is_as_the_last_ones() -> None:
    raw = {"key": "new", "commit": "b", "device": "cpu", "rounds": 5, "earlier": [{"key": "old", "commit": "a"}, {}]}
    first, second, last = RunRecord.of(raw).processes
    assert [one.key for one in (first, second, last)] == ["old", "new", "new"]
    assert [one.commit for one in (first, second, last)] == ["a", "b", "b"]
    assert first.device == "cpu"
    *before, itself = last.with_itself
    assert before == raw["earlier"]
    assert itself.keys() == {*OF_A_PROCESS}
    assert (itself["key"], itself["rounds"]) == ("new", 5)


def test_a_file_of_an_earlier_key_of_the_run_is_its_own(tmp_path: Path) -> None:
    found = RunRecord.of({"key": "new", "earlier": [{"key": "old"}]}, tmp_path)
    for key in ("new", "old"):
        found.refuse_another(tmp_path / "model.pt", key)
    with pytest.raises(UserError, match=r"model\.pt is of another run, with key other, than .* with key new"):
        found.refuse_another(tmp_path / "model.pt", "other")


def test_a_record_in_no_folder_has_no_lines() -> None:
    """It would read those of the current folder."""
    assert RunRecord.of(WHOLE).metrics_rows == []
    with pytest.raises(DamagedLinesError, match="cannot be checked"):
        RunRecord.of({**WHOLE, "lines": None}).with_lines()


def test_a_record_counts_what_a_state_counts() -> None:
    assert {field.name for field in fields(Counters)} <= {field.name for field in fields(RunRecord)}
