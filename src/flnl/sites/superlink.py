"""The server's side of Flower: a SuperLink that only this machine reaches, the gate before it, and the relay."""

from __future__ import annotations

import json
import logging
import math
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flnl.console.terminal import print_line
from flnl.core.errors import UserError
from flnl.sites import sockets
from flnl.sites.federation import HOME, SOCKET, FederationFolder
from flnl.sites.flower_environment import GATE, RELAY, Flower, end, free_port
from flnl.sites.relayed import Relayed
from flnl.sites.transport import Transport

log = logging.getLogger(__name__)

DATABASE, CONNECTION = "superlink.db", "flnl"
READY = 90.0
"""Seconds in which a SuperLink should be ready."""
SUBMITS, LATEST = 30.0, 600.0
"""Seconds in which a relay should have connected, before it is submitted again: doubled each time, up to the latter.

Relays that are submitted wait for each other's end, so that on a slow machine many would make each other slower.
"""
LEAVES = 1.0
"""Seconds that SuperLink and gate have to end when the server does; nothing is lost if they are killed."""
HERE = "127.0.0.1"


@dataclass
class SuperLink:
    """Flower's processes of a server; what ends is started again.

    Registrations survive in a file, with models in transit, which is deleted at the end of a run.
    """

    federation: FederationFolder
    flower: Flower
    port: int = field(default_factory=free_port)
    _superlink: subprocess.Popen[bytes] | None = None
    _gate: subprocess.Popen[bytes] | None = None
    _due: float = -math.inf  # when the relay is submitted, if none has connected
    _patience: float = SUBMITS

    @property
    def home(self) -> Path:
        """Where Flower writes."""
        return self.federation.folder.absolute() / HOME

    def listener(self) -> socket.socket:
        """Where the relay connects."""
        return sockets.listening(self.federation.folder.absolute() / SOCKET, 0o600)

    def start(self) -> None:
        """Start the SuperLink, admit the sites, and open the gate.

        Raises:
            UserError: if one of them does not start.
        """
        self.home.mkdir(parents=True, exist_ok=True)
        self._write_connection()
        self._start_superlink()
        self._start_gate()

    def alive(self) -> bool:
        """Whether SuperLink and gate run. A relay outlives its SuperLink, and calls it for ever."""
        return all(one is not None and one.poll() is None for one in (self._superlink, self._gate))

    def revive(self) -> None:
        """Start again what has ended, and submit the relay if none has connected for a while.

        What cannot be started now is tried again the next time.
        """
        try:
            self._revive()
        except UserError as error:
            log.warning("%s; it is tried again", error)
            end(self._superlink)
            self._superlink = None

    def _revive(self) -> None:
        if self._superlink is None or self._superlink.poll() is not None:
            log.warning("the SuperLink has ended; it is started again")
            self._start_superlink()
            self._due = -math.inf
        if self._gate is None or self._gate.poll() is not None:
            log.warning("the gate has ended; it is started again")
            self._start_gate()
        if time.monotonic() >= self._due:
            self.submit()
            self._due = time.monotonic() + self._patience
            self._patience = min(2 * self._patience, LATEST)

    def came(self) -> None:
        """A relay has connected: once it has ended, it is submitted at once."""
        self._due, self._patience = -math.inf, SUBMITS

    def submit(self) -> None:
        """Have the relay run here and at the sites."""
        path = str(self.federation.folder.absolute() / SOCKET)
        words = ("run", str(RELAY), CONNECTION, "--run-config", f"socket={json.dumps(path)}")
        try:
            self.flower.run(self.home, self.flower.program("flwr"), *words)
        except UserError as error:
            log.warning("the relay could not be started (%s); it is tried again", error)

    @contextmanager
    def connected(self) -> Iterator[Transport]:
        """All processes run within this."""
        transport = Relayed(self.listener(), self.revive, self.alive, self.came)
        try:
            self.start()
            print_line(f"{self.federation.name} listens at {self.federation.listen}", to=sys.stderr)
            yield transport
        finally:
            transport.close()
            self.stop()

    def stop(self) -> None:
        """End all."""
        end(self._gate, self._superlink, seconds=LEAVES)
        self._gate = self._superlink = None
        (self.federation.folder / SOCKET).unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete what was in transit."""
        for path in self.home.glob(f"{DATABASE}*"):
            path.unlink(missing_ok=True)

    def _write_connection(self) -> None:
        lines = [
            "[superlink]",
            f"default = {json.dumps(CONNECTION)}",
            f"[superlink.{CONNECTION}]",
            f"address = {json.dumps(f'{HERE}:{self.port}')}",
            f"root-certificates = {json.dumps(str(self.federation.folder.absolute() / 'ca.crt'))}",
        ]
        (self.home / "config.toml").write_text("\n".join(lines) + "\n")

    def _start_superlink(self) -> None:
        end(self._superlink)
        folder, program = self.federation.folder.absolute(), self.flower.program("flower-superlink")
        words = [
            *(program, "--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt")),
            *("--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"),
            *("--database", str(self.home / DATABASE), "--host", HERE, "--port", str(self.port)),
            "--disable-runtime-dependency-installation",
        ]
        said = self.home / "superlink.log"
        self._superlink = self.flower.start(self.home, said, *words)
        trusted, until = ssl.create_default_context(cafile=str(folder / "ca.crt")), time.monotonic() + READY
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted)
        )
        while True:
            if self._superlink.poll() is not None or time.monotonic() > until:
                raise UserError(f"Flower's SuperLink has not started; {said} says why")
            try:
                opener.open(f"https://{HERE}:{self.port}/health", timeout=2).close()
                break
            except (OSError, urllib.error.URLError):
                time.sleep(0.3)
        for site, key in self.federation.admitted.items():
            self._register(site, key)

    def _register(self, site: str, key: Path) -> None:
        program = self.flower.program("flwr")
        try:
            self.flower.run(self.home, program, "supernode", "register", str(key), CONNECTION, "--name", site)
        except UserError as error:
            if "already" not in str(error):  # as after a SuperLink was started again
                raise

    def _start_gate(self) -> None:
        end(self._gate)
        folder, said = self.federation.folder.absolute(), self.home / "gate.log"
        words = [
            *(self.flower.program("python"), str(GATE), "--listen", self.federation.listen),
            *("--to", f"{HERE}:{self.port}", "--ca", str(folder / "ca.crt")),
            *("--certificate", str(folder / "server.crt"), "--key", str(folder / "server.key")),
        ]
        self._gate = self.flower.start(self.home, said, *words)
        host, port = self.federation.listen.rsplit(":", 1)
        until = time.monotonic() + READY
        while True:
            if self._gate.poll() is not None or time.monotonic() > until:
                raise UserError(f"nobody can listen at {self.federation.listen}; {said} says why")
            try:
                socket.create_connection((HERE if host == "0.0.0.0" else host.strip("[]"), int(port)), 2).close()
                break
            except OSError:
                time.sleep(0.2)
