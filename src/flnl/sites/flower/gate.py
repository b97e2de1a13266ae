"""The only door to a SuperLink: passes ``POST /v1/fleet/NAME``, which SuperNodes need, and nothing else.

    python gate.py --listen HOST:PORT --to HOST:PORT --ca FILE --certificate FILE --key FILE

The SuperLink's other interfaces have no authentication: whoever reaches them runs code on the server and at all sites.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

MOST = 8 * 2**20
"""Bytes of a request's body; Flower sends pieces of 5 MB."""
SECONDS = 60.0
"""How long the SuperLink may take."""
BODY = 180.0
"""Seconds in which all of a body should have come."""
HEADS = 10.0
"""Seconds in which the head of a request should have come, or a connection is closed."""
CALLS, OF_ONE = 256, 32
"""Connections at a time; requests from one address, which may fill ``MOST`` bytes each without having shown a key."""
CONNECTIONS = 64
"""Connections from one address, with or without TLS."""
PASSED = re.compile(rb"/v1/fleet/[a-z]+(-[a-z]+)*")
NOT_PASSED = (
    *(b"host", b"content-length", b"transfer-encoding", b"connection", b"keep-alive", b"upgrade"),
    *(b"forwarded", b"x-forwarded-for", b"x-forwarded-proto"),
)
"""Headers that are about a connection, of which there are two; and what anybody can say of where it begins."""

Headers = list[tuple[bytes, bytes]]
Upstream = Callable[[str, Headers, bytes], Awaitable[tuple[int, Headers, bytes]]]
"""Posts a body to a path, and gives status, headers and body of the answer.

Raises:
    OSError: if nobody answers.
"""
Event = MutableMapping[str, Any]
App = Callable[[Mapping[str, Any], Callable[[], Awaitable[Event]], Callable[[Event], Awaitable[None]]], Awaitable[None]]


def gate(upstream: Upstream, most: int = MOST) -> App:
    """An ASGI application: 404 for anything but the fleet interface, 413 for large bodies, 503 if nobody answers.

    A SuperNode tries again after 503, and ends with 500.
    """
    calls: Counter[str] = Counter()  # by address

    async def app(
        scope: Mapping[str, Any], receive: Callable[[], Awaitable[Event]], send: Callable[[Event], Awaitable[None]]
    ) -> None:
        async def answer(status: int, headers: Headers = [], body: bytes = b"") -> None:  # noqa: B006
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

        if scope["type"] != "http":
            return
        path = scope.get("raw_path") or b""
        if scope["method"] != "POST" or scope.get("query_string") or not PASSED.fullmatch(path):
            await answer(404)
            return
        address = str((scope.get("client") or ("",))[0])
        if calls[address] >= OF_ONE:
            await answer(503, [(b"connection", b"close")])
            return
        calls[address] += 1
        try:
            body = await _body(receive, most)
            if body is None:
                return  # whoever asked has left
            status, headers, content = await upstream(path.decode(), _passed(scope["headers"]), body)
        except TimeoutError:
            await answer(408, [(b"connection", b"close")])
        except OverflowError:
            await answer(413, [(b"connection", b"close")])
        except OSError:
            await answer(503)
        else:
            # 500 as while it ends
            await (answer(503) if status == 500 else answer(status, _passed(headers), content))
        finally:
            calls[address] -= 1
            if not calls[address]:
                del calls[address]

    return app


async def _body(receive: Callable[[], Awaitable[Event]], most: int) -> bytes | None:
    """All of a body; None if whoever sends it has left.

    Raises:
        TimeoutError: if it has not come after ``BODY`` seconds.
        OverflowError: if it is larger than ``most`` bytes.
    """
    body = bytearray()
    async with asyncio.timeout(BODY):
        while True:
            event = await receive()
            if event["type"] != "http.request":
                return None
            body += event.get("body", b"")
            if len(body) > most:
                raise OverflowError
            if not event.get("more_body", False):
                return bytes(body)


def _passed(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in NOT_PASSED]


class Door(socket.socket):
    """A listening socket that has at most ``CONNECTIONS`` from an address, and closes further ones at once.

    They are counted before their TLS handshake, for which asyncio gives a stranger a minute.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        family, kind, protocol, _, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        super().__init__(family, kind, protocol)
        self.held: Counter[str] = Counter()  # by address
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.bind(place)

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection and its address.

        Raises:
            ConnectionAbortedError: if its address has enough; asyncio goes on with the next.
        """
        plain, address = super().accept()
        connection = Held(self, str(address[0]), plain.detach())
        if self.held[connection.address] > CONNECTIONS:
            connection.close()
            raise ConnectionAbortedError
        return connection, address


class Held(socket.socket):
    """A connection, counted by its door until it is closed."""

    def __init__(self, door: Door, address: str, descriptor: int) -> None:
        super().__init__(door.family, door.type, door.proto, fileno=descriptor)
        self.door, self.address = door, address
        door.held[address] += 1

    def close(self) -> None:
        """Close it; a second time does nothing."""
        if self.fileno() != -1:
            self.door.held[self.address] -= 1
            if not self.door.held[self.address]:
                del self.door.held[self.address]
        super().close()


def main() -> None:
    """Run the gate until it is ended."""
    import httpx
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol  # whose heads have at most 64 KiB

    class Hasty(H11Protocol):
        """Closes a connection that has no request at the end of ``HEADS`` seconds; uvicorn would wait for ever."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(HEADS, self._look)

        def _look(self) -> None:
            if self.transport.is_closing():
                return
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()
            else:
                self.loop.call_later(HEADS, self._look)

    options = argparse.ArgumentParser(description=__doc__)
    for name in ("--listen", "--to", "--ca", "--certificate", "--key"):
        options.add_argument(name, required=True)
    given = options.parse_args()
    host, _, port = given.listen.rpartition(":")
    client = httpx.AsyncClient(
        base_url=f"https://{given.to}",
        verify=ssl.create_default_context(cafile=given.ca),
        timeout=SECONDS,
        trust_env=False,
    )

    async def upstream(path: str, headers: Headers, body: bytes) -> tuple[int, Headers, bytes]:
        try:
            request = client.build_request("POST", path, headers=headers, content=body)
            answer = await client.send(request)
            raw = [(name, value) for name, value in answer.headers.raw if name.lower() != b"content-encoding"]
            return answer.status_code, raw, answer.content
        except httpx.TransportError as error:
            raise ConnectionError(str(error)) from error

    config = uvicorn.Config(
        gate(upstream),
        ssl_certfile=given.certificate,
        ssl_keyfile=given.key,
        lifespan="off",
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CALLS,
        http=Hasty,
        loop="asyncio",  # others do not ask a Door
    )
    uvicorn.Server(config).run([Door((host.strip("[]"), int(port)))])


if __name__ == "__main__":
    main()
