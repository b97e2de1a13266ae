"""Frames over unix sockets, as the relay (``flower/relay``) reads and writes them, and limits for what comes."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flnl.core.errors import UserError

LONGEST_HEADER = 2**20
MOST_PARTS = 4096
MOST = 2 * 2**30
"""Bytes of a frame's parts."""
LONGEST_PATH = 100
"""Bytes of a socket's path; systems allow 104 to 108."""
PIECE = 2**20
"""Bytes that are read at once, so that no more is allocated than has come."""


class BrokenFrameError(ConnectionError):
    """The other end has closed within a frame, or has sent none."""


class UnreadError(Exception):
    """A message that was not read to its end, for a reason, ``why``, that a part of it has given."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


def send(to: socket.socket, header: Mapping[str, Any], parts: Sequence[bytes] = ()) -> None:
    """Write a frame."""
    text = json.dumps({**header, "sizes": [len(part) for part in parts]}).encode()
    to.sendall(struct.pack("<I", len(text)) + text)
    for part in parts:
        to.sendall(part)


def receive(
    of: socket.socket,
    most: int = MOST,
    check: Callable[[Sequence[bytes], int], None] = lambda parts, size: None,
    passed_over: Callable[[Mapping[str, Any]], Collection[int]] = lambda header: (),
    seconds: float | None = None,
) -> tuple[dict[str, Any], list[bytes]]:
    """Read a frame of at most ``most`` bytes.

    Args:
        of: where it comes from.
        most: the largest number of bytes of its parts that are kept.
        check: called before each part with those before it and its size; if it raises, no more is kept in memory.
        passed_over: which parts, by the header, are not kept; they are empty here.
        seconds: in which all of the frame should come; None for the socket's own limit between two pieces.

    Raises:
        BrokenFrameError: if it is none, or larger.
        UnreadError: if ``check`` has raised; all bytes of the frame have come, so that it can be answered.
        TimeoutError: if there is a time limit, and it is over.
    """
    until = None if seconds is None else time.monotonic() + seconds
    (length,) = struct.unpack("<I", _exactly(of, 4, until))
    if length > LONGEST_HEADER:
        raise BrokenFrameError(f"a header of {length:,} bytes")
    try:
        header = json.loads(_exactly(of, length, until))
    except (ValueError, RecursionError):
        raise BrokenFrameError("a header that is no JSON") from None
    sizes = header.get("sizes") if isinstance(header, dict) else None
    if not (
        isinstance(sizes, list) and len(sizes) <= MOST_PARTS and all(type(n) is int and 0 <= n < 2**63 for n in sizes)
    ):
        raise BrokenFrameError("a header without the sizes of its parts")
    left_out = passed_over(header)
    kept = [0 if number in left_out else size for number, size in enumerate(sizes)]
    if sum(kept) > most:
        raise BrokenFrameError(f"{sum(kept):,} bytes, of which {most:,} are expected at most")
    parts: list[bytes] = []
    for number, size in enumerate(sizes):
        try:
            check(parts, size)
        except Exception as error:
            _pass_over(of, sum(sizes[number:]), until)
            raise UnreadError(error) from None
        _pass_over(of, size - kept[number], until)
        parts.append(_exactly(of, kept[number], until))
    return header, parts


def _pass_over(of: socket.socket, count: int, until: float | None) -> None:
    while count > 0:
        count -= len(_some(of, count, until))


def _exactly(of: socket.socket, count: int, until: float | None) -> bytes:
    data = bytearray()
    while len(data) < count:
        data += _some(of, count - len(data), until)
    return bytes(data)


def _some(of: socket.socket, count: int, until: float | None) -> bytes:
    """Up to ``count`` bytes, one at least."""
    if until is not None:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError("a message takes too long")
        of.settimeout(left)
    if not (got := of.recv(min(PIECE, count))):
        raise BrokenFrameError("the other end has closed")
    return got


def listening(path: Path, mode: int) -> socket.socket:
    """A unix socket at ``path`` that is listened to, with this ``mode``; one that a process has left is replaced.

    Raises:
        UserError: if another process listens to it, or the path is too long.
    """
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise UserError(
            f"{path}: the path of a socket has {LONGEST_PATH} bytes at most: use a folder nearer to the root"
        )
    made = socket.socket(socket.AF_UNIX)
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as other:
            try:
                other.connect(str(path))
            except OSError:
                path.unlink(missing_ok=True)
            else:
                made.close()
                raise UserError(f"{path}: another process listens there: is this one running already?")
    before = os.umask(0o777 & ~mode)
    try:
        made.bind(str(path))
    except OSError as error:
        made.close()
        raise UserError(f"{path}: no socket can be made there ({error.strerror})") from None
    finally:
        os.umask(before)
    made.listen(8)
    return made
