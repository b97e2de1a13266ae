"""What a site keeps of a run: its states under handles that tell nothing of them, and its answers under their tasks.

A handle is an HMAC of the state under the site's secret, not a digest: labels have little entropy, and who knows a
digest could test guesses.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from flnl.core import stored
from flnl.core.messages import ClientState
from flnl.sites import wire
from flnl.sites.messages import LostError, Parts
from flnl.storage.atomic import write_atomically

STATES, REPLIES, INDEX, BEGUN, FLOOR = "states", "replies", "index.json", "begun.json", "floor"
SIZE = 8
"""Bytes of the length before each part of a stored answer."""


@dataclass(frozen=True)
class Entry:
    """A task that the site has done."""

    round: int
    job: str
    task: str
    named: str  # the handle that the server had
    put: str  # the handle that it has got


class Few:
    """What a server has asked for, in a JSON file: by what it is about, the digests of a few different things."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._asked: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}

    def takes(self, about: str, digest: str, most: int) -> bool:
        """Note what is asked for; False, without a note, if ``most`` other things were asked for about this."""
        known = self._asked.get(about, [])
        if digest in known:
            return True
        if len(known) >= most:
            return False
        self._asked[about] = [*known, digest]
        write_atomically(self._path, json.dumps(self._asked).encode())
        return True

    def forget_before(self, floor: int) -> None:
        """Forget what is about rounds before ``floor``; each begins with its round."""
        self._asked = {about: known for about, known in self._asked.items() if int(about.split()[0]) >= floor}


class SiteStates:
    """A run's folder at a site."""

    def __init__(self, folder: Path, secret: bytes) -> None:
        self._folder, self._secret = folder, secret
        for name in (STATES, REPLIES):
            (folder / name).mkdir(parents=True, exist_ok=True)
        index = folder / INDEX
        self.entries = [Entry(**one) for one in json.loads(index.read_text())] if index.exists() else []
        self._begun = Few(folder / BEGUN)

    def state(self, handle: str) -> tuple[ClientState, int]:
        """The state of a handle, and the number of the stage that it was kept in; an empty one of no handle.

        Raises:
            LostError: if there is none, or it is damaged.
        """
        if not handle:
            return ClientState(), 0
        path = self._folder / STATES / handle
        if not handle.isalnum() or not path.is_file():
            raise LostError(f"the state {handle[:32]!r}, which the server names, is not here")
        data = path.read_bytes()
        if not hmac.compare_digest(self._handle(data), handle):
            raise LostError(f"the state {handle} is damaged")
        stage, state, *_ = wire.read(data, stored.classes())
        return state, stage

    def put(self, state: ClientState, stage: int, task: str) -> str:
        """Keep a state of a stage, which a task has led to; return its handle, which is empty for an empty state.

        Equal states of two tasks have two handles, so that none tells whether a task has changed something.
        """
        if state.empty:
            return ""
        data = wire.written((stage, state, task))
        handle = self._handle(data)
        if not (self._folder / STATES / handle).exists():
            write_atomically(self._folder / STATES / handle, data)
        return handle

    def _handle(self, data: bytes) -> str:
        return hmac.new(self._secret, data, "sha256").hexdigest()[:32]

    def reply(self, task: str) -> Parts | None:
        """The stored answer to a task; None if there is none."""
        path = self._folder / REPLIES / task
        return _split(path.read_bytes()) if path.is_file() else None

    def begins(self, round: int, job: str, task: str, most: int) -> bool:
        """Note a task before it is done, as one that fails tells something, too; False if ``most`` others were begun.

        These are the tasks of one job in one round.
        """
        return self._begun.takes(f"{round} {job}", task, most)

    def answered(self, entry: Entry, reply: Parts) -> None:
        """Store the answer to a task, after the state that it names, so that asking again gives the same one."""
        self.entries.append(entry)
        self._write_index()
        joined = b"".join(len(part).to_bytes(SIZE, "little") + part for part in reply)
        write_atomically(self._folder / REPLIES / entry.task, joined)

    def forget_before(self, floor: int) -> None:
        """Delete what a server that begins no earlier than with the round ``floor`` cannot ask for again.

        It may still hold the handle that the last earlier task has led to, or, if it has left that answer out, the one
        that it had named.
        """
        if floor > self.floor:
            write_atomically(self._folder / FLOOR, str(floor).encode())
            self._begun.forget_before(floor)
        earlier = [entry for entry in self.entries if entry.round < floor]
        if len(earlier) < 2:
            return
        self.entries = [entry for entry in self.entries if entry is earlier[-1] or entry.round >= floor]
        self._write_index()
        kept = {
            STATES: {handle for entry in self.entries for handle in (entry.named, entry.put)},
            REPLIES: {entry.task for entry in self.entries},
        }
        for name, names in kept.items():
            for path in (self._folder / name).iterdir():
                if path.name not in names:
                    path.unlink(missing_ok=True)

    @property
    def floor(self) -> int:
        """The largest round of which the server has said that it begins no earlier."""
        path = self._folder / FLOOR
        return int(path.read_text()) if path.exists() else 0

    def _write_index(self) -> None:
        write_atomically(self._folder / INDEX, json.dumps([asdict(entry) for entry in self.entries]).encode())


def _split(joined: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(joined):
        end = at + SIZE + int.from_bytes(joined[at : at + SIZE], "little")
        parts.append(joined[at + SIZE : end])
        at = end
    return parts
