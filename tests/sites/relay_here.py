"""A relay in this process, as ``flower/relay`` is one in Flower's: between the server's socket and its sites'."""

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from flnl.sites import sockets
from flnl.sites.messages import Parts

Handler = Callable[[Parts], Sequence[bytes]]


@dataclass
class Node:
    """A site's node: what it does with a message, and since when it has been there."""

    handle: Handler
    activated: str = "1"
    there: bool = True


class LostError(Exception):
    """A message gets lost at a site."""


class FailedError(Exception):
    """A message ends with an error of the transport."""


@dataclass
class RelayHere:
    """Does what a server asks, in a thread; a message is handled when answers are asked for, one at a time."""

    path: Path
    nodes: Mapping[str, Node]
    dies: Callable[[int], bool] = lambda number: False  # whether it ends in place of its n-th answer
    waiting: dict[str, tuple[str, Parts]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)  # sites that were sent something
    ttls: list[float] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=count)

    def start(self) -> threading.Thread:
        """Connect."""
        thread = threading.Thread(target=self.run, daemon=True)
        thread.start()
        return thread

    def run(self) -> None:
        """Until the server goes, or it dies."""
        with socket.socket(socket.AF_UNIX) as server:
            server.connect(str(self.path))
            for number in count():
                try:
                    asked, parts = sockets.receive(server)
                    if self.dies(number):
                        return
                    getattr(self, f"_{asked['ask']}")(server, asked, parts)
                except OSError:
                    return

    def _nodes(self, server: socket.socket, asked: Mapping[str, str], parts: Parts) -> None:
        there = {name: [name.upper(), node.activated] for name, node in self.nodes.items() if node.there}
        sockets.send(server, {"nodes": there})

    def _push(self, server: socket.socket, asked: Mapping[str, str], parts: Parts) -> None:
        number = f"flower-{next(self._numbers)}"
        self.waiting[number] = asked["node"].lower(), parts
        self.seen.append(asked["node"].lower())
        self.ttls.append(float(asked["ttl"]))
        sockets.send(server, {"ids": [number]})

    def _pull(self, server: socket.socket, asked: Mapping[str, str], parts: Parts) -> None:
        answers, bodies = [], []
        for number in asked["ids"]:
            if number not in self.waiting:
                continue
            site, message = self.waiting.pop(number)
            try:
                answer = list(self.nodes[site].handle(message))
            except LostError:
                continue
            except FailedError:
                answers.append([number, "5: node unavailable", 0])
                continue
            answers.append([number, None, len(answer)])
            bodies += answer
        sockets.send(server, {"answers": answers}, bodies)
