"""Frames over unix sockets: what was sent arrives, and what is none is refused without allocating it."""

import importlib.util
import json
import socket
import struct
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flnl.core.errors import UserError
from flnl.sites import flower_environment, sockets
from flnl.sites.sockets import BrokenFrameError


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    here, there = socket.socketpair()
    here.settimeout(5)
    with here, there:
        yield here, there


@pytest.fixture(scope="module")
def relay() -> Any:
    """The module that Flower ships, beside a Flower that does nothing."""

    class Anything:
        def __getattr__(self, name: str) -> Any:
            return lambda *args, **more: lambda function: function

        def __call__(self, *args: Any, **more: Any) -> Any:
            return self

    names = ("flwr", "flwr.app", "flwr.clientapp", "flwr.serverapp")
    before = {name: sys.modules.get(name) for name in names}
    try:
        for name in names:
            module: Any = types.ModuleType(name)
            for one in ("Array", "ArrayRecord", "Context", "Message", "RecordDict", "ClientApp", "Grid", "ServerApp"):
                setattr(module, one, Anything())
            sys.modules[name] = module
        path = flower_environment.RELAY / "flnl_relay.py"
        spec = importlib.util.spec_from_file_location("flnl_relay", path)
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return made
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


FRAME = {"ask": "push", "node": "1"}, [b"", b"a", bytes(3_000_000)]


def test_both_ends_speak_of_one_frame(ends: tuple[socket.socket, socket.socket], relay: Any) -> None:
    here, there = ends
    for send, receive in ((sockets.send, relay.receive), (relay.send, sockets.receive)):
        thread = threading.Thread(target=send, args=(there, *FRAME))
        thread.start()
        header, parts = receive(here)
        thread.join()
        assert ({key: header[key] for key in FRAME[0]}, parts) == FRAME


def test_a_relay_hands_on_no_more_than_an_answer_has(relay: Any, tmp_path: Path) -> None:
    """One of many parts, or an error of a long text, would break the frame with the answers of all sites."""
    arrays = {str(i): types.SimpleNamespace(data=b"x") for i in range(5000)}

    def message(reason: str) -> Any:
        metadata, error = types.SimpleNamespace(reply_to_message_id="1"), types.SimpleNamespace(code=3, reason=reason)
        return types.SimpleNamespace(
            metadata=metadata, error=error, has_error=lambda: bool(reason), content={relay.NAME: arrays}
        )

    grid = types.SimpleNamespace(pull_messages=lambda ids: [message(""), message("e" * 2**21)])
    with sockets.listening(tmp_path / "s", 0o600) as listener:
        context = types.SimpleNamespace(run_config={"socket": str(tmp_path / "s")})
        thread = threading.Thread(target=relay.main, args=(grid, context))
        thread.start()
        with listener.accept()[0] as there:
            sockets.send(there, {"ask": "pull", "ids": ["1"]})
            header, parts = sockets.receive(there)
        thread.join()
    assert header["answers"] == [["1", None, 3], ["1", "3: " + "e" * 197, 0]]
    assert parts == [b"x"] * 3


def test_a_relay_without_the_other_end_ends(ends: tuple[socket.socket, socket.socket], relay: Any) -> None:
    ends[1].close()
    with pytest.raises(EOFError):
        relay.receive(ends[0])


def framed(header: Any) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<I", len(text)) + text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        struct.pack("<I", 2**31) + b"{}",
        framed(b"{nonsense"),
        framed(b"[" * 100_000),
        framed([]),
        framed({}),
        framed({"sizes": 3}),
        framed({"sizes": [-1]}),
        framed({"sizes": [True]}),
        framed({"sizes": [1.0]}),
        framed({"sizes": [2**62]}),
        framed(b'{"sizes": [' + b"9" * 4300 + b", " + b"9" * 4300 + b"]}"),
        framed({"sizes": [60, 60]}) + bytes(120),
        framed({"sizes": [0] * 5000}),
        framed({"sizes": [10]}) + b"short",
    ],
)
def test_what_is_no_frame_is_refused(ends: tuple[socket.socket, socket.socket], data: bytes) -> None:
    here, there = ends
    there.sendall(data)
    there.close()
    with pytest.raises(BrokenFrameError):
        sockets.receive(here, most=100)


def test_a_message_comes_in_time(ends: tuple[socket.socket, socket.socket]) -> None:
    """Also one of which a byte comes now and then."""
    here, there = ends

    def trickle() -> None:
        with suppress(OSError):
            for one in framed({"sizes": [1000]}):
                there.sendall(bytes([one]))
                time.sleep(0.05)

    thread = threading.Thread(target=trickle)
    thread.start()
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        sockets.receive(here, seconds=0.3)
    assert time.monotonic() - begun < 2
    here.close()
    thread.join()


def test_a_socket_is_for_whom_it_is_for(tmp_path: Path) -> None:
    path = tmp_path / "one.sock"
    with sockets.listening(path, 0o660):
        assert path.stat().st_mode & 0o777 == 0o660
        with pytest.raises(UserError, match="another process listens there"):
            sockets.listening(path, 0o600)
    with sockets.listening(path, 0o600):  # what the first has left is replaced
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="100 bytes at most"):
        sockets.listening(tmp_path / ("x" * 120), 0o600)
