"""A disk that fills up: exit code 1, one line that says so, and with room again the run goes on to the same end."""

import errno
import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flnl.config import compose
from flnl.data.federation import build
from flnl.record import label_table
from flnl.storage.atomic import FULL
from tests.cli.conftest import Command, Said
from tests.properties.runs import Ran, difference, run
from tests.registry import BY_NAME, TINY

FEDCORR = BY_NAME["fedcorr"].words
LONG = [*TINY, "method=fedavg", "rounds=40", "audit.record=false"]  # so that its checkpoints are small


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """A limit in bytes for files that this process writes: what goes beyond fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refused(said: Said, folder: str) -> None:
    assert said.code == 1
    lines = [line for line in said.err.splitlines() if "disk is full" in line]
    assert lines == [said.err.splitlines()[-1]]
    assert lines[0].startswith("error: ")
    assert f"the disk is full: {folder}" in lines[0]
    assert "Traceback" not in said.err
    assert "WARNING" not in said.err


@pytest.mark.parametrize(
    ("words", "every", "file", "share"),
    [(FEDCORR, 2, "checkpoints/round_00000020.pt", 0.99), (LONG, 10, "metrics.jsonl", 0.9)],
    ids=["checkpoint", "metrics"],
)
def test_it_goes_on_from_the_checkpoint_before_to_the_same_end(
    words: list[str], every: int, file: str, share: float, command: Command, tmp_path: Path
) -> None:
    """The file that grows largest meets the limit late in the run; the others stay below it."""
    unbroken = run(words, tmp_path / "unbroken")
    whole = [*words, f"checkpoint.every={every}", "output=run"]
    limit = int(share * (unbroken.folder / file).stat().st_size)
    with no_file_larger_than(limit):
        said = command(*whole)
    refused(said, str((Path("run") / file).parent))
    folder = tmp_path / "run"
    metrics = (folder / "metrics.jsonl").read_bytes()
    if file == "metrics.jsonl":
        assert len(metrics) == limit, "it fills up to the last byte, which mostly leaves half a line"
    else:
        assert metrics.endswith(b"\n")
    rounds = Ran(folder, {}).state.round
    assert rounds >= every
    assert json.loads((folder / "result.json").read_text())["status"] == "failed"
    assert "Traceback" in (folder / "error.log").read_text()
    assert not [p for p in folder.rglob(".*") if p.name != ".lock"]

    again = command(*whole, "resume=true")
    assert again.code == 0, again.err
    assert f"going on after round {rounds}" in again.err
    found = Ran(folder, json.loads((folder / "result.json").read_text()))
    assert difference(found.state, unbroken.state) is None
    assert found.lines == unbroken.lines
    assert found.corrections == unbroken.corrections
    assert found.record["metrics"] == unbroken.record["metrics"]


@pytest.mark.parametrize("limit", [0, 1000, 3000])
def test_a_run_that_cannot_begin_says_so(limit: int, command: Command, tmp_path: Path) -> None:
    """There is no space for its configuration, or none for its result."""
    words = [*TINY, "method=fedavg", "rounds=2", "output=run", f"cache={tmp_path / 'cache'}"]
    assert command(*words, "output=other").code == 0  # the federation is kept
    with no_file_larger_than(limit):
        refused(command(*words), "run")
    assert command(*words).code == 0


def test_products_without_space_leave_a_run_to_be_finished_later(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    words = [*TINY, "method=fedavg", "rounds=2", "output=run"]
    with monkeypatch.context() as patch:
        patch.setattr(label_table, "write_atomically", through(full))
        refused(command(*words), "run")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"
    assert command(*words, "resume=true").code == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"
    assert (tmp_path / "run" / "labels.csv").exists()


def through(write: Callable[[Path, bytes], None]) -> Callable[[Path, bytes], None]:
    """``write``, as what is written atomically tells of it."""
    from flnl.storage.atomic import writing

    def writes(path: Path, data: bytes) -> None:
        with writing(path):
            write(path, data)

    return writes


def test_figures_without_space_are_said_and_not_left_half(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*(w for w in TINY if not w.startswith("figures")), "audit.record=false"]  # all else is small
    with no_file_larger_than(12000):
        refused(command(*words, "method=fedavg", "rounds=2", "output=run"), "run/figures")
    assert not list((tmp_path / "run" / "figures").iterdir())


@pytest.mark.parametrize("number", sorted(FULL))
def test_a_cache_without_space_costs_time_and_leaves_nothing(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(file: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError(number, "no space")

    monkeypatch.setattr(np, "savez", full)
    build.from_config(compose.load(TINY), tmp_path / "cache")
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert list((tmp_path / "cache").iterdir()) == []
