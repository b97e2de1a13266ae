"""Flower's processes of a server: what ends is started again, and what cannot be is tried again."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flnl.core.errors import UserError
from flnl.sites.flower_environment import Flower, end
from flnl.sites.superlink import SuperLink
from tests.sites.hospitals import write_federation


class Trying(SuperLink):
    """Whose programs sleep, and whose relay is noted."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.done: list[str] = []
        self.failures = 0

    def _started(self, name: str) -> subprocess.Popen[bytes]:
        self.done.append(name)
        if self.failures:
            self.failures -= 1
            raise UserError("it cannot be started")
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)

    def _start_superlink(self) -> None:
        self._superlink = self._started("superlink")

    def _start_gate(self) -> None:
        self._gate = self._started("gate")

    def submit(self) -> None:
        self.done.append("relay")


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trying]:
    monkeypatch.setattr(time, "monotonic", lambda: 1.0)
    made = Trying(write_federation(tmp_path / "lung"), Flower(tmp_path / "flower"))
    made.start()
    yield made
    made.stop()
    made.forget()


def test_what_has_ended_is_started_again(link: Trying) -> None:
    assert link.done == ["superlink", "gate"]
    link.revive()
    assert link.done[2:] == ["relay"]
    link.revive()
    assert link.done[3:] == []  # the relay has time to connect
    assert link.alive()
    end(link._gate)
    assert not link.alive()
    link.revive()
    assert link.alive()
    assert link.done[3:] == ["gate"]
    end(link._superlink)
    link.revive()
    assert link.done[4:] == ["superlink", "relay"]


def test_a_relay_that_does_not_connect_is_submitted_less_and_less_often(
    link: Trying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that were submitted wait at the SuperLink, and make a slow machine slower."""
    submitted, clock = [], [1.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def pass_by(seconds: int) -> None:
        for _ in range(seconds):
            before = len(link.done)
            link.revive()
            if len(link.done) > before:
                submitted.append(clock[0])
            clock[0] += 1

    pass_by(2000)
    assert submitted == [1, 31, 91, 211, 451, 931, 1531]
    link.came()
    submitted.clear()
    pass_by(40)
    assert submitted == [2001, 2031]


def test_what_cannot_be_started_is_tried_again(link: Trying) -> None:
    end(link._superlink)
    link.failures = 2
    for _ in range(3):
        link.revive()
    assert link.done[2:] == ["superlink", "superlink", "superlink", "relay"]


def test_what_was_in_transit_is_deleted_at_the_end_alone(link: Trying) -> None:
    paths = [link.home / f"superlink.db{end}" for end in ("", "-wal")]
    for path in paths:
        path.touch()
    link.stop()
    assert all(path.exists() for path in paths)
    link.stop()
    link.forget()
    assert not any(path.exists() for path in paths)


def test_the_file_of_the_connection_names_the_authority(link: Trying) -> None:
    text = (link.home / "config.toml").read_text()
    assert f'address = "127.0.0.1:{link.port}"' in text
    assert "ca.crt" in text
