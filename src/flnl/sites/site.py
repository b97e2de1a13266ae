"""A site's process: its runtime answers what the relay hands it, and Flower's SuperNode is started again if it ends."""

from __future__ import annotations

import json
import logging
import math
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import threadpoolctl
import torch

from flnl.console.terminal import print_line, print_rows
from flnl.core.errors import one_line
from flnl.sites import greeting, messages, sockets, wire
from flnl.sites.asked import asked
from flnl.sites.audit_messages import PageWritten
from flnl.sites.federation import NAME
from flnl.sites.flower_environment import Flower, end, free_port
from flnl.sites.greeting import HELLO
from flnl.sites.messages import AUDITED, NOT_DONE, REFUSED, Parts, RefusedError, WaitingError
from flnl.sites.runtime import PAGE, RUNS, SiteData, SiteRuntime
from flnl.sites.site_folder import CA, HOME, NODE, SiteFolder, permit
from flnl.sites.wire import WireError

log = logging.getLogger(__name__)

APPROVES = 1800.0
"""Seconds in which somebody may approve a run, before it is refused."""
GONE = 120.0
"""Seconds after which a server that has not asked again no longer waits for an approval: the next one starts over."""
LOOKS = 1.0
"""Seconds between two looks at whether a run is approved, or the SuperNode has ended."""
COMES = 600.0
"""Seconds in which a message should come, and its answer be taken."""
PAUSE = 15.0
"""Seconds before a SuperNode that has ended is started again: Flower refuses it for a minute after it was killed."""

ONE_USER = (
    "warning: the SuperNode, which runs code that the server sends, is this user: the server's operator can read this "
    "folder and the data; flnl site FOLDER --units shows how another user runs it"
)


@dataclass
class Door:
    """What comes in passes here: greetings, and runs that somebody has to approve; the runtime does the rest."""

    site: SiteFolder
    data: SiteData
    say: Any = print_rows
    runtime: SiteRuntime = field(init=False)
    _asked: dict[str, tuple[float, float]] = field(default_factory=dict)  # a key's first and last question

    def __post_init__(self) -> None:
        self.runtime = SiteRuntime(
            self.data, self.site.folder, self.site.policy, self.site.device, enter=self._enter, compute=use_threads
        )

    def handle(self, parts: Parts) -> list[bytes]:
        """The answer to a message, whatever it is."""
        try:
            header = messages.read_header(parts, {"hello": HELLO})
        except WireError:
            answer = self.runtime.handle(parts)
            self._tell(glimpse(parts), answer)
            return answer
        try:
            for name in (header["federation"], header["site"]):
                if not NAME.fullmatch(name):
                    raise RefusedError("a federation or a site has no such name")
            said = greeting.answer(header, self.data, self.site.policy)
            if header["site"] != self.site.name or header["federation"] != self.site.federation:
                ours = f"{self.site.federation}/{self.site.name}"
                raise RefusedError(f"this is {ours}, not {header['federation']:.64}/{header['site']:.64}")
        except RefusedError as error:
            self.say(f"refused: {error}")
            return [messages.written(REFUSED, kind="refused", why=str(error))]
        self.say(f"connected as {self.site.name}; {about_data(self.data)}; waiting for a run")
        return [said]

    def refuse(self, why: Exception) -> list[bytes]:
        """The answer to a message that was not read."""
        answer = self.runtime.refusal(why)
        self._tell({}, answer)
        return answer

    def _enter(self, header: Mapping[str, Any]) -> None:
        """Let a run in once it is approved, also one that was open before this process began.

        Raises:
            WaitingError: as long as it is not.
            RefusedError: if nobody approves it in time.
        """
        if self.site.asks and header["key"] not in self.site.approved:
            self._ask(header)
        if self._asked.pop(header["key"], None) is not None:
            self.say("approved")

    def _ask(self, header: Mapping[str, Any]) -> None:
        """Say once what a run would do, from plain values alone; meanwhile others are answered.

        Raises:
            WaitingError: so that the server asks again.
            RefusedError: if nobody has approved it in time, or it cannot be a run here.
        """
        key, now = header["key"], time.monotonic()
        why = f"this run is not approved; its key is {key}"
        first, last = self._asked.get(key, (now, -math.inf))
        if now - last < GONE:
            self._asked[key] = first, now
            if now - first > APPROVES:
                del self._asked[key]
                raise RefusedError(why)
            raise WaitingError(why)
        policy = self.site.policy
        held_out = self.data.held_out is not None and len(self.data.held_out) >= policy.min_count
        name, settings, leaves = asked(header["config"], self.data.dataset, counts=policy.counts, held_out=held_out)
        self.say(f"{self.site.federation} asks for {name}, with")
        for line in settings:
            self.say(f"  {line}")
        self.say(f"  sites: {header['clients']}, of which {header['holders']} hold samples")
        self.say("would leave this site, at most: its model, numbers of samples and steps, mean loss")
        for line in leaves:
            self.say(f"  {line}")
        self.site.note(key)
        self.say(f"to approve: flnl site {self.site.folder} --approve {key}")
        self._asked[key] = now, now
        raise WaitingError(why)

    def _tell(self, about: Mapping[str, Any], answer: Parts) -> None:
        """Say what was done."""
        kind = kind_of(answer)
        if kind == WaitingError.kind:
            return
        if kind in NOT_DONE:
            why = messages.read_header(answer, dict.fromkeys(NOT_DONE, REFUSED))["why"]
            self.say(f"{NOT_DONE[kind]}: {one_line(why)}")
        elif kind == "opened":
            self.say(f"run {str(about.get('run'))[:8]} is open, key {str(about.get('key'))[:8]}")
        elif kind == "audited" and _wrote_page(answer):
            self.say(f"the labels are audited; {self.site.folder / RUNS / str(about.get('run')) / PAGE} shows them")
        elif about.get("kind") == "task":
            self.say(f"round {about.get('round', 0) + 1}: {about.get('job')}")
        elif about.get("kind") == "finish":
            self.say(f"the run is over; {self.site.folder / RUNS / str(about.get('run'))} has the model and labels.csv")


def _wrote_page(answer: Parts) -> bool:
    """Whether this answers the last question of an audit."""
    try:
        return bool(messages.read_header(answer, {"audited": AUDITED}, {PageWritten}))
    except WireError:
        return False


def about_data(data: SiteData) -> str:
    """How many samples of how many classes a site has."""
    assert data.dataset.given is not None
    there, classes = len(set(data.dataset.given.tolist())), len(data.dataset.classes)
    kind = "images" if data.dataset.transform.kind == "image" else "samples"
    return f"{len(data.dataset.train):,} {kind}, {there} of {classes} classes"


def kind_of(parts: Parts) -> str:
    """The kind of a message of this site."""
    return str(glimpse(parts).get("kind"))


def glimpse(parts: Parts) -> dict[str, Any]:
    """The plain values of a header, for what is shown alone: nothing of it is checked."""
    with suppress(WireError, IndexError):
        plain = wire.plain_in(parts[0], messages.LARGEST)
        return {key: value for key, value in plain.items() if isinstance(value, int) or value.isalnum()}
    return {}


@dataclass
class SuperNode:
    """Flower's process at a site, which runs what the server ships and sees the socket."""

    site: SiteFolder
    flower: Flower
    _process: subprocess.Popen[bytes] | None = None
    _started: float = float("-inf")

    def check(self) -> None:
        """Start it if it does not run, at most every ``PAUSE`` seconds."""
        if self._process is not None and self._process.poll() is None:
            return
        if time.monotonic() - self._started < PAUSE:
            return
        if self._process is not None:
            log.info(
                "the SuperNode has ended (exit status %s); it is started again; %s says why",
                *(self._process.returncode, self._said),
            )
            end(self._process)
        self._started = time.monotonic()
        folder = self.site.folder.absolute()
        words = supernode(self.site, folder, str(self.site.socket), free_port())
        self._process = self.flower.start(self._said.parent, self._said, self.flower.program(words[0]), *words[1:])

    def stop(self) -> None:
        """End it."""
        end(self._process)

    @property
    def _said(self) -> Path:
        """The file of what it says."""
        return self.site.folder.absolute() / HOME / "supernode.log"


def supernode(site: SiteFolder, folder: Path, at: str, port: int) -> list[str]:
    """The command of a SuperNode that finds key and certificate in ``folder``, and the site's socket at ``at``."""
    return [
        *("flower-supernode", "--superlink", site.server, "--root-certificates", str(folder / CA)),
        *("--auth-supernode-private-key", str(folder / NODE), "--host", "127.0.0.1", "--port", str(port)),
        *("--node-config", f"socket={json.dumps(at)}"),
    ]


def use_threads(number: int) -> None:
    """Compute with this many threads from now on."""
    torch.set_num_threads(number)
    threadpoolctl.threadpool_limits(number)


def answer_for_ever(site: SiteFolder, supernode: SuperNode | None) -> None:
    """Answer what comes, until this process is ended.

    Raises:
        UserError: if the data cannot be read, or another process is this site.
    """
    data = site.site_data()
    print_line(f"{site.name}: {about_data(data)}; calling {site.server}", to=sys.stderr)
    door = Door(site, data)
    with sockets.listening(site.socket, 0o660) as listener:
        permit(site.socket, site.group)
        listener.settimeout(LOOKS)
        try:
            while True:
                if supernode is not None:
                    supernode.check()
                try:
                    caller, _ = listener.accept()
                except TimeoutError:
                    continue
                with caller:
                    attend(caller, door)
        finally:
            if supernode is not None:
                supernode.stop()
            site.socket.unlink(missing_ok=True)


def attend(caller: socket.socket, door: Door) -> None:
    """Answer one message; one that does not come whole has none."""
    try:
        try:
            _, parts = sockets.receive(caller, check=door.runtime.check, seconds=COMES)
            answer = door.handle(parts)
        except sockets.UnreadError as unread:
            answer = door.refuse(unread.why)
        caller.settimeout(COMES)
        sockets.send(caller, {}, answer)
    except OSError as error:  # the answer is stored, and the server asks again
        log.info("the relay has gone (%s)", error)
    except Exception:  # whatever came, a site goes on
        log.warning("a message could not be answered", exc_info=True)
