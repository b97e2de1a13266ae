"""Carries opaque bytes over Flower: all that a server ships to its sites. It holds no data, no model and no method.

At each end, a process listens on a unix socket. A frame there is the length of its header (4 bytes, little endian), the
header as JSON, and parts, whose lengths the header has in ``sizes``.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

NAME = "flnl"
"""The record of a message's parts."""
MOST = 3
"""Parts of an answer that are handed on: it has two at most, and the server's process refuses a third."""
LONGEST = 200
"""Characters of an error that are handed on."""


def send(to: socket.socket, header: Mapping[str, Any], parts: Sequence[bytes] = ()) -> None:
    """Write a frame."""
    text = json.dumps({**header, "sizes": [len(part) for part in parts]}).encode()
    to.sendall(struct.pack("<I", len(text)) + text)
    for part in parts:
        to.sendall(part)


def receive(of: socket.socket) -> tuple[dict[str, Any], list[bytes]]:
    """Read a frame.

    Raises:
        EOFError: if the other end has closed.
    """
    (length,) = struct.unpack("<I", _exactly(of, 4))
    header = json.loads(_exactly(of, length))
    return header, [_exactly(of, size) for size in header["sizes"]]


def _exactly(of: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    left = memoryview(data)
    while left:
        got = of.recv_into(left)
        if not got:
            raise EOFError
        left = left[got:]
    return bytes(data)


def _connected(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(path)
    return made


def _record(parts: Sequence[bytes]) -> RecordDict:
    arrays = {str(i): Array("uint8", (len(part),), "flnl.bytes", part) for i, part in enumerate(parts)}
    return RecordDict({NAME: ArrayRecord(arrays)})


def _parts(content: RecordDict) -> list[bytes]:
    """The parts of a message; none of one that another program has written."""
    try:
        arrays = content[NAME]
        return [arrays[str(i)].data for i in range(len(arrays))]
    except (KeyError, AttributeError, TypeError):
        return []


client = ClientApp()


@client.query()
def relayed(message: Message, context: Context) -> Message:
    """Hand a message to the site's process, and its answer back."""
    with _connected(str(context.node_config["socket"])) as site:
        send(site, {}, _parts(message.content))
        _, answer = receive(site)
    return Message(_record(answer), reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Do what the server's process asks: who is there, send a message, which answers have come."""
    with _connected(str(context.run_config["socket"])) as asking:
        while True:
            try:
                asked, parts = receive(asking)
            except EOFError:
                return
            if asked["ask"] == "nodes":
                there = {node.name: [str(node.node_id), str(node.last_activated_at)] for node in grid.get_nodes()}
                send(asking, {"nodes": there})
            elif asked["ask"] == "push":
                message = Message(_record(parts), int(asked["node"]), "query", ttl=asked["ttl"])
                send(asking, {"ids": list(grid.push_messages([message]))})
            elif asked["ask"] == "pull":
                answers: list[list[Any]] = []
                bodies: list[bytes] = []
                for one in grid.pull_messages(asked["ids"]):
                    failed = f"{one.error.code}: {one.error.reason}"[:LONGEST] if one.has_error() else None
                    body = [] if failed else _parts(one.content)[:MOST]
                    answers.append([one.metadata.reply_to_message_id, failed, len(body)])
                    bodies += body
                send(asking, {"answers": answers}, bodies)
