"""A server and its sites, each a process that writes down what it opens: ``python -m tests.sites.watched FOLDER``.

``FOLDER`` has the federation ``lung`` and a folder ``lung-NAME`` of each site. The server trains, into ``there``, and
audits; ``NAME.opened`` and ``server.opened`` have a line for each file: ``w`` or ``r``, a space, and its path.
"""

import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
WAITS = 60.0
"""Seconds in which a site should listen."""


def watch(to: Path) -> None:
    """Write down each file that this process opens from now on; what a library opens in C is not seen."""
    lines = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            kind = "w" if (args[2] or 0) & WRITES else "r"
            os.write(lines, f"{kind} {Path.cwd() / os.fsdecode(args[0])}\n".encode())

    tempfile.gettempdir()  # asked for the first time, it tries to write there
    sys.addaudithook(note)


def handed(at: Path) -> Callable[[Sequence[bytes]], Sequence[bytes]]:
    """What a relay does with a message to the site that listens there."""
    from flnl.sites import sockets

    def handle(parts: Sequence[bytes]) -> Sequence[bytes]:
        with socket.socket(socket.AF_UNIX) as site:
            site.connect(str(at))
            sockets.send(site, {}, parts)
            return sockets.receive(site)[1]

    return handle


def serve(folder: Path, sites: Mapping[str, Path], words: Sequence[str]) -> None:
    """Train and audit with sites that listen at these places."""
    from flnl.audit.options import Options
    from flnl.sites import audit, greeting, link, relayed, serving, sockets
    from flnl.sites.federation import SOCKET, FederationFolder
    from tests.sites.relay_here import Node, RelayHere

    relayed.ASKS = relayed.AGAIN = relayed.LOOKS = greeting.WAITS = 0.0
    link.WAITS = 0.001
    federation, output = FederationFolder.read(folder / "lung"), folder / "there"
    transport = relayed.Relayed(sockets.listening(federation.folder / SOCKET, 0o600))
    RelayHere(federation.folder / SOCKET, {name: Node(handed(at)) for name, at in sites.items()}).start()
    serving.over_transport(transport, federation, [*words, f"output={output}"])
    audit.over_transport(transport, audit.federation_of(output, Options()), output, Options())
    transport.close()


def main(folder: Path, words: Sequence[str]) -> None:
    """All processes are forks of this one, which has imported everything: that takes longer than what they do."""
    from flnl.engine.local import lightning  # noqa: F401
    from flnl.sites import audit, serving, site  # noqa: F401
    from flnl.sites.site_folder import SiteFolder

    os.chdir(folder)
    sites = {path.name.removeprefix("lung-"): SiteFolder.read(path) for path in folder.glob("lung-*")}
    running: list[int] = []
    try:
        for name, one in sites.items():
            running.append(os.fork())
            if not running[-1]:
                watch(folder / f"{name}.opened")
                site.answer_for_ever(one, None)
        until = time.monotonic() + WAITS
        while not all(one.socket.exists() for one in sites.values()):
            assert time.monotonic() < until, "a site does not listen"
            time.sleep(0.05)
        watch(folder / "server.opened")
        serve(folder, {name: one.socket for name, one in sites.items()}, words)
    finally:
        for process in running:
            if process:
                os.kill(process, signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
