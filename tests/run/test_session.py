"""A session that goes on with the work of an earlier process, or of an earlier call in this one."""

import signal
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from flnl.core.errors import Interrupted
from flnl.figures import drawing
from flnl.record.run import RunRecord
from flnl.run import checkpoint, opening, session
from tests.properties.runs import run
from tests.registry import BY_NAME


def test_seconds_go_on_from_those_of_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the first process goes a million seconds a look, that of the second one second."""
    words = BY_NAME["fedavg"].words
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=count(5, 1_000_000).__next__))
    first = run(words, tmp_path / "run", "max_rounds=2")
    kept = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert kept is not None
    saved = kept.seconds
    assert 2_000_000 <= saved <= first.record["wall_time_s"]
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=count(7, 1).__next__))
    second = run(words, tmp_path / "run", "resume=true")
    assert saved + 3 <= second.record["wall_time_s"] < saved + 1_000
    assert second.record["rounds"] == 5


def test_a_run_that_is_killed_while_it_draws_draws_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finishes with the last file that it writes."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    words = [*BY_NAME["fedavg"].words, "figures=true"]
    with monkeypatch.context() as patched:
        patched.setattr(drawing, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            run(words, tmp_path / "run")
    assert not RunRecord.open(tmp_path / "run").finished
    ran = run(words, tmp_path / "run", "resume=true")
    assert (ran.record["status"], ran.record["rounds"]) == ("finished", 5)
    assert [file.name for file in (tmp_path / "run" / "figures").iterdir()] == ["accuracy.png"]
    assert ran.lines == run(words, tmp_path / "unbroken").lines


def test_a_signal_before_anything_is_opened_leaves_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while something, here ``stopped``, still holds the traceback, and with it the lock."""

    def interrupted(*_: object) -> None:
        raise Interrupted(signal.SIGTERM)

    words = BY_NAME["fedavg"].words
    with monkeypatch.context() as patched:
        patched.setattr(opening, "open_session", interrupted)
        with pytest.raises(Interrupted) as stopped:
            run(words, tmp_path / "run")
    assert run(words, tmp_path / "run", "resume=true", "max_rounds=1").record["status"] == "stopped", stopped
