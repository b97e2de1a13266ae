"""The transport over a relay: answers come once, and what is known to be lost is sent again."""

import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from flnl.sites import messages, relayed, sockets
from flnl.sites.messages import Parts
from flnl.sites.relayed import Relayed
from flnl.sites.wire import WireError
from tests.sites.relay_here import FailedError, LostError, Node, RelayHere


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("ASKS", 0.0), ("LOOKS", 0.0), ("AGAIN", 0.0), ("CONNECTS", 0.2)):
        monkeypatch.setattr(relayed, name, seconds)


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[Relayed]:
    made = Relayed(sockets.listening(tmp_path / "s", 0o600))
    yield made
    made.close()


def echo(parts: Parts) -> Parts:
    return [b"echo", *parts]


def answered(transport: Relayed, ids: list[str], seconds: float = 10.0) -> Mapping[str, Parts]:
    """Ask until all have come."""
    found: dict[str, Parts] = {}
    until = time.monotonic() + seconds
    while len(found) < len(ids) and time.monotonic() < until:
        found |= transport.pull([one for one in ids if one not in found])
    return found


def test_each_message_has_its_answer_once(transport: Relayed, tmp_path: Path) -> None:
    RelayHere(tmp_path / "s", {"a": Node(echo), "b": Node(echo)}).start()
    ids = [transport.push(site, [text], 60.0) for site, text in (("a", b"1"), ("b", b"2"), ("a", b"3"))]
    assert answered(transport, ids) == {ids[0]: [b"echo", b"1"], ids[1]: [b"echo", b"2"], ids[2]: [b"echo", b"3"]}
    assert transport.pull(ids) == {}
    assert transport.nodes() == ["a", "b"]


def test_three_thousand_sites_that_answer_at_once_are_heard(transport: Relayed, tmp_path: Path) -> None:
    """A frame has 4,096 parts at most, and an answer two."""
    nodes = {f"site-{number}": Node(lambda parts: [b"done", *parts]) for number in range(3000)}
    relay = RelayHere(tmp_path / "s", nodes)
    relay.start()
    ids = [transport.push(site, [site.encode()], 60.0) for site in nodes]
    assert answered(transport, ids, 60.0) == {
        one: [b"done", site.encode()] for one, site in zip(ids, nodes, strict=True)
    }
    assert len(relay.seen) == 3000


def test_answers_are_asked_for_in_frames_that_take_them(
    transport: Relayed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have come when they are asked for, and together they are larger than a frame may be."""
    monkeypatch.setattr(sockets, "MOST", 250_000)
    monkeypatch.setattr(sockets.receive, "__defaults__", (250_000, *(sockets.receive.__defaults__ or ())[1:]))
    monkeypatch.setattr(relayed, "ANSWER_ADDS", 10)
    RelayHere(tmp_path / "s", {"a": Node(echo)}).start()
    ids = [transport.push("a", [bytes(100_000)], 60.0) for _ in range(5)]
    assert answered(transport, ids) == {one: [b"echo", bytes(100_000)] for one in ids}


@pytest.mark.parametrize(
    ("asked", "answer", "told"),
    [
        ([b"1"], [300 * 2**20], "314,572,800 bytes, of which 67,108,864 are"),
        ([b"1"], [3, 300 * 2**20], "314,572,800 bytes, of which 1,048,592 are"),
        ([b"1", bytes(10**6)], [3, 300 * 2**20], "314,572,800 bytes, of which 2,048,592 are"),
        ([b"1", bytes(10**6)], [3, 3, 300 * 2**20], "314,572,800 bytes, of which 0 are"),
        ([b"1"], [3, 3 * 2**30], "3,221,225,472 bytes, of which 1,048,592 are"),  # of more than a frame may have
    ],
)
def test_an_answer_that_is_too_large_fills_no_memory(
    transport: Relayed, tmp_path: Path, asked: list[bytes], answer: list[int], told: str
) -> None:
    """It costs 8 MiB at most; its site is known, and those that answer in the same frame are heard."""
    Zeros(tmp_path / "s", {"a": Node(echo), "b": Node(echo)}, sizes=answer).start()
    ids = [transport.push(site, asked, 60.0) for site in ("a", "b")]
    tracemalloc.start()
    try:
        found = answered(transport, ids, 60.0)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()
    assert found[ids[1]] == [b"echo"]
    with pytest.raises(WireError, match=f"^a part of {told} expected at most"):
        messages.read_header(found[ids[0]], {})


@dataclass
class Zeros(RelayHere):
    """Answers one of two messages with zeros in parts of these sizes, and the other with one part."""

    sizes: Sequence[int] = ()

    def _pull(self, server: socket.socket, asked: Mapping[str, str], parts: Parts) -> None:
        first, second = list(asked["ids"])
        self.waiting.clear()
        text = json.dumps({"answers": [[first, None, len(self.sizes)], [second, None, 1]], "sizes": [*self.sizes, 4]})
        server.sendall(len(text).to_bytes(4, "little") + text.encode())
        piece, left = bytes(2**20), sum(self.sizes)
        while left:
            server.sendall(piece[:left])
            left -= min(left, len(piece))
        server.sendall(b"echo")


def test_only_what_is_asked_for_is_given(transport: Relayed, tmp_path: Path) -> None:
    RelayHere(tmp_path / "s", {"a": Node(echo)}).start()
    first, second = (transport.push("a", [text], 60.0) for text in (b"1", b"2"))
    assert answered(transport, [second]) == {second: [b"echo", b"2"]}
    assert answered(transport, [first]) == {first: [b"echo", b"1"]}


def test_a_message_waits_for_its_site(transport: Relayed, tmp_path: Path) -> None:
    away = Node(echo, there=False)
    relay = RelayHere(tmp_path / "s", {"a": away})
    relay.start()
    number = transport.push("a", [b"1"], 60.0)
    for _ in range(5):
        assert transport.pull([number]) == {}
    assert not relay.seen
    assert transport.nodes() == []
    away.there = True
    assert answered(transport, [number]) == {number: [b"echo", b"1"]}
    assert 50 < relay.ttls[0] <= 60


def test_what_failed_is_sent_again(transport: Relayed, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    calls: list[Parts] = []

    def third_time(parts: Parts) -> Parts:
        calls.append(parts)
        if len(calls) < 3:
            raise FailedError
        return parts

    RelayHere(tmp_path / "s", {"a": Node(third_time)}).start()
    number = transport.push("a", [b"1"], 60.0)
    assert answered(transport, [number]) == {number: [b"1"]}
    assert calls == [[b"1"]] * 3
    told = "a: a message was not delivered, and is sent again: the site's SuperNode is not connected"
    assert caplog.messages == [told] * 2


def test_what_a_node_lost_is_sent_to_the_one_that_was_started_again(transport: Relayed, tmp_path: Path) -> None:
    node = Node(echo)

    def lost(parts: Parts) -> Parts:
        raise LostError

    node.handle = lost
    relay = RelayHere(tmp_path / "s", {"a": node})
    relay.start()
    number = transport.push("a", [b"1"], 60.0)
    for _ in range(10):
        assert transport.pull([number]) == {}
    assert relay.seen == ["a"]  # nobody knows yet
    node.handle, node.activated = echo, "2"
    assert answered(transport, [number]) == {number: [b"echo", b"1"]}
    assert relay.seen == ["a", "a"]


def test_what_a_relay_lost_is_sent_by_the_next(tmp_path: Path) -> None:
    started: list[RelayHere] = []

    def revive() -> None:
        dies = (lambda number: number > 3) if len(started) < 3 else (lambda number: False)
        handle = Node(echo if len(started) == 3 else lost)
        started.append(RelayHere(tmp_path / "s", {"a": handle}, dies))
        started[-1].start()

    def lost(parts: Parts) -> Parts:
        raise LostError

    transport = Relayed(sockets.listening(tmp_path / "s", 0o600), revive)
    number = transport.push("a", [b"1"], 60.0)
    assert answered(transport, [number]) == {number: [b"echo", b"1"]}
    assert len(started) == 4
    transport.close()


def test_a_relay_that_cannot_answer_any_more_is_given_up(tmp_path: Path) -> None:
    """As one whose SuperLink has ended."""
    ended, stuck, lives = threading.Event(), threading.Event(), [True]
    threads: list[threading.Thread] = []

    def revive() -> None:
        lives[0] = True
        handle = echo if ended.is_set() else waits
        threads.append(RelayHere(tmp_path / "s", {"a": Node(handle)}).start())

    def waits(parts: Parts) -> Parts:
        ended.set()
        lives[0] = False
        stuck.wait(60)
        return parts

    transport = Relayed(sockets.listening(tmp_path / "s", 0o600), revive, lambda: lives[0])
    number = transport.push("a", [b"1"], 60.0)
    assert answered(transport, [number]) == {number: [b"echo", b"1"]}
    transport.close()
    stuck.set()
    for thread in threads:
        thread.join(10)


def test_what_need_not_be_delivered_any_more_is_not(tmp_path: Path) -> None:
    now = [0.0]
    transport = Relayed(sockets.listening(tmp_path / "s", 0o600), clock=lambda: now[0])
    away = Node(echo, there=False)
    relay = RelayHere(tmp_path / "s", {"a": away})
    relay.start()
    number = transport.push("a", [b"1"], 60.0)
    assert transport.pull([number]) == {}
    now[0], away.there = 61.0, True
    for _ in range(5):
        assert transport.pull([number]) == {}
    assert not relay.seen
    transport.close()
