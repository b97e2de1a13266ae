"""Sites that are away, restarted, or a step behind: the run waits, goes on without them or stops, and names them."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flnl.core.errors import UserError
from flnl.engine.loop import NonFiniteError
from flnl.run.apart import AwayError
from flnl.sites import executor, link, messages, wire
from flnl.sites.messages import Parts
from flnl.sites.runtime import SiteRuntime
from flnl.sites.transport import Loopback
from tests.properties.runs import Ran, difference, run
from tests.registry import TINY
from tests.sites.test_runtime import visits_counted

WORDS = (
    *(word for word in TINY if not word.startswith("executor=")),
    *("executor=sites", "method=fedprox", "rounds=2", "train.keep_momentum=true", "train.momentum=0.5"),
)
AWAY = ("executor.patience=0.00005",)
"""0.18 seconds without an answer."""


@dataclass
class Faulty(Loopback):
    """A transport that may lose a message, or the answer to one, and whose sites may be away or start again."""

    lost: Callable[[str, dict[str, Any]], str] = lambda to, header: ""  # "message", "answer", "restart" or nothing
    away: set[str] = field(default_factory=set)
    pushed: list[tuple[str, str]] = field(default_factory=list)

    def nodes(self) -> Sequence[str]:
        return [name for name in self.runtimes if name not in self.away]

    def push(self, to: str, parts: Parts, ttl: float) -> str:
        self.pushed.append((to, str(wire.plain_in(parts[0], 10**8)["kind"])))
        return super().push(to, parts, ttl)

    def pull(self, ids: Sequence[str]) -> Mapping[str, Parts]:
        for number in ids:
            to, parts = self._waiting.get(number, ("", ()))
            if not to or to in self.away:
                continue
            match self.lost(to, wire.plain_in(parts[0], 10**8)):
                case "message":
                    del self._waiting[number]
                    continue
                case "answer":
                    super().pull([number])
                    continue
                case "restart":
                    runtime = self.runtimes[to]
                    again = SiteRuntime(runtime.data, runtime.folder, runtime.policy, runtime.device, runtime.building)
                    self.runtimes = {**self.runtimes, to: again}
            if to not in self.away:  # the fault may have been that
                return super().pull([number])
        return {}


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> list[Faulty]:
    """The transports of runs from now on; ``FAULT`` is what they do."""
    made = list[Faulty]()
    monkeypatch.setattr(link, "WAITS", 0.01)
    monkeypatch.setattr(link, "LOOKS", 0.05)
    return made


def faulty(monkeypatch: pytest.MonkeyPatch, transports: list[Faulty], **how: Any) -> None:
    def make(runtimes: Mapping[str, SiteRuntime]) -> Faulty:
        transports.append(Faulty(runtimes, **how))
        return transports[-1]

    monkeypatch.setattr(executor, "Loopback", make)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run in which nothing fails."""
    return run(WORDS, tmp_path_factory.mktemp("whole") / "run")


def once(what: str, kind: str) -> Callable[[str, dict[str, Any]], str]:
    """Each message of a kind fails at its first delivery to a site, in its first round there."""
    seen = set[tuple[str, str]]()

    def lost(to: str, header: dict[str, Any]) -> str:
        if header["kind"] != kind or (to, kind) in seen:
            return ""
        seen.add((to, kind))
        return what

    return lost


@pytest.mark.parametrize("what", ["message", "answer"])
def test_what_is_lost_is_sent_again_and_no_visit_is_done_twice(
    what: str, whole: Ran, transports: list[Faulty], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    faulty(monkeypatch, transports, lost=once(what, "task"))
    trained = visits_counted(monkeypatch)
    done = run(WORDS, tmp_path / "run", "executor.ttl=0.05")
    assert difference(done.state.server, whole.state.server) is None
    assert done.state.counters == whole.state.counters
    assert len(trained) == whole.state.counters.participations
    visited = {to for to, kind in transports[0].pushed if kind == "task"}
    assert sum(kind == "task" for _, kind in transports[0].pushed) >= len(trained) + len(visited)


def test_a_site_that_starts_again_goes_on_with_the_run(
    whole: Ran, transports: list[Faulty], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before each message: it knows of a run what its folder has."""
    faulty(monkeypatch, transports, lost=lambda to, header: "restart")
    done = run(WORDS, tmp_path / "run")
    assert difference(done.state.server, whole.state.server) is None
    assert len([*done.folder.glob("sites/*/runs/*/labels.csv")]) == 8


def test_a_site_that_comes_back_is_asked_again_at_once(
    whole: Ran, transports: list[Faulty], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A message that reached it before it ended is lost; its time, an hour, is not waited for."""
    times = itertools.count()

    def lost(to: str, header: dict[str, Any]) -> str:
        if to == name and header["kind"] == "task" and next(times) == 0:
            transports[0].away.add(to)
            begun.append(time.monotonic())
            return "message"
        return ""

    name, begun, words = "0", list[float](), (*WORDS, "fraction=1.0")
    faulty(monkeypatch, transports, lost=lost)
    look = Faulty.nodes

    def nodes(transport: Faulty) -> Sequence[str]:
        there = look(transport)
        if begun and time.monotonic() - begun[0] > 0.2:
            transport.away.clear()
        return there

    monkeypatch.setattr(Faulty, "nodes", nodes)
    done = run(words, tmp_path / "run")
    assert begun
    assert done.state.counters.left_out == 0


def test_a_site_that_is_away_ends_the_run_by_name_and_the_run_goes_on(
    whole: Ran, transports: list[Faulty], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The state of the rounds that are done is kept, though no checkpoint was due."""

    def lost(to: str, header: dict[str, Any]) -> str:
        if header["kind"] == "task" and len(visited) > whole.state.counters.participations // 2:
            transports[-1].away = {*transports[-1].runtimes}
        return ""

    visited = visits_counted(monkeypatch)
    faulty(monkeypatch, transports, lost=lost)
    with pytest.raises(
        AwayError, match=r"site \d.* did not answer in executor.patience=5e-05 hours: go on with resume"
    ):
        run(WORDS, tmp_path / "run", *AWAY)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("*.pt")] == ["round_00000001.pt"]
    faulty(monkeypatch, transports)
    done = run(WORDS, tmp_path / "run", "resume=true")
    assert difference(done.state.server, whole.state.server) is None
    assert len(visited) == whole.state.counters.participations


def test_a_run_may_go_on_without_a_site_that_is_away(
    transports: list[Faulty], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out as one whose model is not finite, and its model is not counted as one that has come."""
    words = (*WORDS, "fraction=1.0", "rounds=1", "executor.absent=drop", *AWAY)

    def lost(to: str, header: dict[str, Any]) -> str:
        return "message" if to == "3" and header["kind"] == "task" else ""

    faulty(monkeypatch, transports, lost=lost)
    with caplog.at_level(logging.WARNING):
        done = run(words, tmp_path / "run")
    assert (done.state.counters.left_out, done.state.counters.participations) == (1, 8)
    assert done.state.counters.bytes_up * 8 == done.state.counters.bytes_down * 7
    assert "site 3 did not answer in 5e-05 hours: left out of this round" in caplog.text
    with pytest.raises(AwayError, match=r"site 3 did not .*; 7 of 8 have, and executor.least=8"):
        run(words, tmp_path / "other", "executor.least=8")
    with pytest.raises(NonFiniteError, match=r"round 1: client 3 \(site 3\) did not answer \(on_nonfinite=stop\)"):
        run(words, tmp_path / "third", "on_nonfinite=stop")


def test_what_is_asked_of_all_waits_for_all(
    transports: list[Faulty], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such as the end of a run, which is over nevertheless."""
    faulty(
        monkeypatch, transports, lost=lambda to, header: "message" if to == "3" and header["kind"] == "finish" else ""
    )
    words = (*WORDS[:-1], "fraction=1.0", "rounds=1", "executor.absent=drop", *AWAY)
    run(words, tmp_path / "run")
    assert [to for to, of in transports[0].pushed if of == "finish"] == [str(c) for c in range(8)]
    assert not [*(tmp_path / "run").glob("sites/3/runs/*/labels.csv")]


def test_a_refusal_is_told_though_a_site_is_away(
    transports: list[Faulty], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not only once the patience for who is away has ended, in a day."""
    monkeypatch.setattr(link, "OTHERS", 0.2)
    faulty(monkeypatch, transports, lost=lambda to, header: "message" if to == "3" else "")
    words = (
        *(word for word in WORDS if not word.startswith(("method=", "rounds="))),
        *("method=fednoro", "max_rounds=1"),
    )
    with pytest.raises(
        UserError, match=r"^site 0, 1, 2, 4, .* refused: fednoro sends .*; site 3 has not answered yet$"
    ):
        run(words, tmp_path / "run")


def test_a_state_that_is_lost_can_be_done_without(tmp_path: Path) -> None:
    """The record says so, and only the site that is named forgets."""
    words = [*WORDS, "fraction=1.0"]
    whole = run(words, tmp_path / "whole")
    broken = run(words, tmp_path / "run", "max_rounds=1")
    for path in broken.folder.glob("sites/3/runs/*/states/*"):
        path.unlink()
    with pytest.raises(Exception, match=r"is not here; to go on without it: resume=true executor.forget=\[3\]"):
        run(words, tmp_path / "run", "resume=true")
    with pytest.raises(Exception, match=r"executor.forget=nobody: there are the sites 0, 1"):
        run(words, tmp_path / "run", "resume=true", "executor.forget=[nobody]")
    done = run(words, tmp_path / "run", "resume=true", "executor.forget=[3]")
    assert done.record["executor"]["forget"] == ["3"]
    assert difference(done.state.server, whole.state.server) is not None
    assert {done.state.client(c) == whole.state.client(c) for c in (0, 3)} == {False}  # other models, other momenta


def test_other_versions_are_told(
    transports: list[Faulty], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = itertools.count()

    def versions() -> dict[str, str]:
        return {"torch": "2" if next(given) else "1", "numpy": "3"}

    monkeypatch.setattr(messages, "versions", versions)
    with caplog.at_level(logging.WARNING):
        run(WORDS, tmp_path / "run", "max_rounds=1")
    assert "site 0 has torch 2, not 1: the last bits of numbers may differ" in caplog.text
