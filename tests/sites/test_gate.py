"""The gate passes the fleet interface alone: what else comes, or is too large, never reaches the SuperLink."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from flnl.sites.flower import gate as door
from flnl.sites.flower.gate import Door, Headers, gate


class Upstream:
    """A SuperLink that notes what it gets."""

    def __init__(self, status: int = 200, error: OSError | None = None) -> None:
        self.got: list[tuple[str, Headers, bytes]] = []
        self.status, self.error = status, error

    async def __call__(self, path: str, headers: Headers, body: bytes) -> tuple[int, Headers, bytes]:
        self.got.append((path, headers, body))
        if self.error is not None:
            raise self.error
        return self.status, [(b"content-type", b"application/protobuf"), (b"transfer-encoding", b"chunked")], b"answer"


def asked(
    upstream: Upstream,
    path: bytes,
    method: str = "POST",
    body: Sequence[bytes] = (b"",),
    query: bytes = b"",
    **more: Any,
) -> tuple[int | None, Headers, bytes]:
    """What the gate answers: status, headers and body; no status if nothing."""
    events = [
        {"type": "http.request", "body": part, "more_body": i + 1 < len(body)} for i, part in enumerate(body)
    ] + more.get("after", [])
    sent: list[Mapping[str, Any]] = []

    async def receive() -> Any:
        if not events:
            await asyncio.sleep(10)
        return events.pop(0)

    async def send(event: Any) -> None:
        sent.append(event)

    headers = [(b"host", b"evil"), (b"content-length", b"3"), (b"flwr-key", b"k"), (b"Connection", b"upgrade")]
    headers += [(b"X-Forwarded-For", b"127.0.0.1"), (b"x-forwarded-proto", b"http"), (b"Forwarded", b"for=me")]
    scope = {"type": "http", "method": method, "raw_path": path, "query_string": query, "headers": headers}

    async def call() -> None:
        await gate(upstream, most=10)({**scope, **more.get("scope", {})}, receive, send)

    asyncio.run(call())
    if not sent:
        return None, [], b""
    return sent[0]["status"], sent[0]["headers"], sent[1]["body"]


def test_a_call_of_a_supernode_passes() -> None:
    upstream = Upstream()
    status, headers, body = asked(upstream, b"/v1/fleet/pull-messages", body=[b"ab", b"c"])
    assert (status, headers, body) == (200, [(b"content-type", b"application/protobuf")], b"answer")
    assert upstream.got == [("/v1/fleet/pull-messages", [(b"flwr-key", b"k")], b"abc")]


@pytest.mark.parametrize(
    "path",
    [
        *(b"/v1/control/start-run", b"/v1/runtime/acquire-task", b"/health", b"/docs", b"/", b"", b"/v1/fleet/"),
        *(
            b"/v1/fleet",
            b"/v1/fleet/../control/start-run",
            b"/v1/fleet/%2e%2e/control/start-run",
            b"//v1/fleet/get-run",
        ),
        *(b"/v1/fleet/get-run/", b"/v1/fleet/get-run%00", b"/v1/fleet/Get-Run", b"/V1/fleet/get-run", b"/v1/fleet/a\n"),
        *(b"/v1/fleet/..", b"http://127.0.0.1/v1/control/start-run", b"/v1/fleet/get-run;/v1/control/start-run"),
    ],
)
def test_nothing_else_passes(path: bytes) -> None:
    upstream = Upstream()
    assert asked(upstream, path)[0] == 404
    assert not upstream.got


@pytest.mark.parametrize(
    "more", [{"method": "GET"}, {"method": "PUT"}, {"query": b"a=1"}, {"scope": {"raw_path": None}}]
)
def test_nor_does_another_kind_of_call(more: dict[str, Any]) -> None:
    upstream = Upstream()
    assert asked(upstream, b"/v1/fleet/get-run", **more)[0] == 404
    assert not upstream.got


def test_a_websocket_is_not_answered() -> None:
    upstream = Upstream()
    assert asked(upstream, b"/v1/fleet/get-run", scope={"type": "websocket"})[0] is None
    assert not upstream.got


def test_a_large_body_is_refused_before_all_of_it_has_come() -> None:
    upstream = Upstream()
    assert asked(upstream, b"/v1/fleet/push-object", body=[b"x" * 6, b"x" * 5, b"never read", b""])[0] == 413
    assert not upstream.got
    assert asked(upstream, b"/v1/fleet/push-object", body=[b"x" * 10])[0] == 200


def test_who_sends_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "BODY", 0.01)
    upstream = Upstream()
    assert asked(upstream, b"/v1/fleet/push-object", body=[]) == (408, [(b"connection", b"close")], b"")
    assert not upstream.got


def test_one_address_does_not_take_all_calls() -> None:
    """Who never ends a body keeps no other out, and is served again once it has been let go."""
    upstream, sent = Upstream(), list[int]()
    app: Any = gate(upstream)
    call = {"type": "http", "method": "POST", "raw_path": b"/v1/fleet/get-run", "query_string": b"", "headers": []}

    async def never() -> Any:
        await asyncio.sleep(10)

    async def whole() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(event: Any) -> None:
        sent.extend([event["status"]] if "status" in event else [])

    async def calls() -> None:
        slow = [asyncio.create_task(app({**call, "client": ("a", n)}, never, send)) for n in range(door.OF_ONE)]
        await asyncio.sleep(0)
        await app({**call, "client": ("a", 99)}, whole, send)
        await app({**call, "client": ("b", 1)}, whole, send)
        for one in slow:
            one.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        await app({**call, "client": ("a", 99)}, whole, send)

    asyncio.run(calls())
    assert sent == [503, 200, 200]


def test_one_address_does_not_take_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bare ones, that never begin TLS, are counted too; they make room when they are closed."""
    monkeypatch.setattr(door, "CONNECTIONS", 3)

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await reader.read()
        writer.close()

    async def greeted(place: tuple[str, int], source: str) -> tuple[bytes, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*place, local_addr=(source, 0))
        with suppress(ConnectionResetError):
            return await asyncio.wait_for(reader.read(5), 10), writer
        return b"", writer

    async def connections() -> None:
        listening = Door(("127.0.0.1", 0))
        place = listening.getsockname()
        async with await asyncio.start_server(greet, sock=listening):
            first = [await greeted(place, "127.0.0.1") for _ in range(5)]
            assert [said for said, _ in first] == 3 * [b"hello"] + 2 * [b""]
            other = await greeted(place, "127.0.0.2")
            assert other[0] == b"hello"
            assert listening.held == {"127.0.0.1": 3, "127.0.0.2": 1}
            for _, writer in [*first, other]:
                writer.close()
            while listening.held:
                await asyncio.sleep(0.01)
            last = await greeted(place, "127.0.0.1")
            assert last[0] == b"hello"
            last[1].close()

    asyncio.run(asyncio.wait_for(connections(), 30))


def test_who_leaves_is_not_answered() -> None:
    upstream = Upstream()
    left = [{"type": "http.disconnect"}]
    assert asked(upstream, b"/v1/fleet/push-object", body=[], after=left)[0] is None
    assert not upstream.got


@pytest.mark.parametrize("upstream", [Upstream(error=ConnectionRefusedError()), Upstream(status=500)])
def test_a_supernode_is_told_to_try_again(upstream: Upstream) -> None:
    """It ends with 500, and tries again with 503."""
    assert asked(upstream, b"/v1/fleet/get-run")[0] == 503


def test_other_answers_pass_as_they_are() -> None:
    assert asked(Upstream(status=401), b"/v1/fleet/get-run")[0] == 401


def test_the_limit_holds_what_flower_sends() -> None:
    """Pieces of 5 MB, and what is around them."""
    assert 5 * 2**20 < door.MOST <= 64 * 2**20
