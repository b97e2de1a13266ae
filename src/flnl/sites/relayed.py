"""A transport over a relay: a process of another framework that connects to a unix socket here and does as told."""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, zip_longest
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from flnl.core.errors import one_line
from flnl.run.interrupt import at_once
from flnl.sites import messages, sockets
from flnl.sites.messages import Parts, Unread

log = logging.getLogger(__name__)

ANSWERS = 600.0
"""Seconds in which a relay that is there does what it is asked."""
CONNECTS = 1.0
"""Seconds to wait for a relay before looking what has become of it."""
ASKS = 0.5
"""Seconds between two questions for answers."""
LOOKS = 3.0
"""Seconds between two looks at who is there."""
AGAIN = 2.0
"""Seconds after which a message is sent again that could not be delivered."""

NOT_DELIVERED = {
    "3": "the SuperLink no longer has it",
    "4": "the SuperLink no longer has the answer",
    "5": "the site's SuperNode is not connected",
}
"""By Flower's number of an error; of others Flower's own words say more."""

ANSWER, ANSWER_ADDS = 2, 2**20
"""Parts of an answer, and bytes of which it is larger than what was asked, as a rule."""


@dataclass
class _Message:
    """A message that has no answer yet."""

    to: str
    parts: Parts
    until: float  # when it need not be delivered any more
    number: str | None = None  # the relay's; None: it has to be sent
    activated: str = ""  # when its site's node had been started, when it was sent
    after: float = -math.inf  # when it may be sent again


@dataclass
class Relayed:
    """Sends again what is known to be lost: with a relay that ended, at a site that was restarted or failed.

    A site answers from what it has stored if a message comes twice, so that nothing is done twice.

    Args:
        listener: where relays connect.
        revive: called while none is there, as often as somebody waits; it may start one.
        alive: whether what relays need is there; one that does not answer without it is given up.
        came: called when one has connected.
        clock: seconds that never go back.
    """

    listener: socket.socket
    revive: Callable[[], object] = lambda: None
    alive: Callable[[], bool] = lambda: True
    came: Callable[[], object] = lambda: None
    clock: Callable[[], float] = time.monotonic
    _relay: socket.socket | None = None
    _waiting: dict[str, _Message] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)
    _there: dict[str, tuple[str, str]] = field(default_factory=dict)  # number and start of the node of each site
    _looked: float = -math.inf
    _asked: float = -math.inf

    def nodes(self) -> Sequence[str]:
        """The sites whose nodes are connected."""
        with at_once():
            self._look()
        return list(self._there)

    def push(self, to: str, parts: Parts, ttl: float) -> str:
        """Keep a message, and send it as soon as its site is there."""
        number = str(next(self._numbers))
        self._waiting[number] = _Message(to, parts, self.clock() + ttl)
        return number

    def pull(self, ids: Sequence[str]) -> Mapping[str, Parts]:
        """The answers that have come, at most every ``ASKS`` seconds; what is lost is sent again.

        A signal stops a run that is here at once: what sites have done they answer again.
        """
        with at_once():
            return self._pulled(ids)

    def _pulled(self, ids: Sequence[str]) -> Mapping[str, Parts]:
        now = self.clock()
        for number in [one for one, message in self._waiting.items() if message.until < now]:
            del self._waiting[number]
        if now - self._asked < ASKS:
            return {}
        self._asked = now
        if now - self._looked >= LOOKS or not self._there:
            self._look()
        self._send()
        by_relay = {m.number: one for one in ids if (m := self._waiting.get(one)) is not None and m.number is not None}
        if not by_relay:
            return {}
        answers: dict[str, Parts] = {}
        for some in self._in_frames(by_relay):
            too_large = partial(self._too_large, by_relay)
            header, bodies = self._tell({"ask": "pull", "ids": some}, passed_over=too_large)
            if self._relay is None:  # it has ended
                break
            unread = too_large(header)
            for of, failed, own in _answers(header):
                one = by_relay.get(of)
                if one is None:
                    continue
                if failed is None:
                    why = next((unread[number] for number in own if number in unread), None)
                    answers[one] = [bodies[number] for number in own] if why is None else Unread.because(why)
                    del self._waiting[one]
                else:
                    message = self._waiting[one]
                    code, _, said = failed.partition(": ")
                    why = NOT_DELIVERED.get(code) or f"Flower says: {one_line(said)}"
                    log.info("%s: a message was not delivered, and is sent again: %s", message.to, why)
                    message.number, message.after = None, now + AGAIN
        return answers

    def _too_large(self, by_relay: Mapping[str, str], header: Mapping[str, Any]) -> dict[int, str]:
        """By number, the parts of a frame of answers that are larger than what was asked can have: why they are unread.

        ``by_relay`` has our numbers of messages by the relay's.
        """
        found: dict[int, str] = {}
        for of, _, own in _answers(header):
            most = messages.most_of_answer(self._waiting[by_relay[of]].parts) if of in by_relay else []
            for number, limit in zip_longest(own, most[: len(own)], fillvalue=0):
                if (size := header["sizes"][number]) > limit:
                    found[number] = f"a part of {size:,} bytes, of which {limit:,} are expected at most"
        return found

    def _in_frames(self, by_relay: Mapping[str, str]) -> Iterator[list[str]]:
        """The relay's numbers of messages, in lists of so few that a frame takes answers as large as what was sent."""
        some: list[str] = []
        room = sockets.MOST
        for number, one in by_relay.items():
            size = sum(map(len, self._waiting[one].parts))
            if some and (len(some) == sockets.MOST_PARTS // ANSWER or size > room):
                yield some
                some, room = [], sockets.MOST
            some.append(number)
            room -= size + ANSWER_ADDS
        if some:
            yield some

    def close(self) -> None:
        """Let the relay go, and end."""
        if self._relay is not None:
            self._relay.close()
        self._relay = None
        self.listener.close()

    def _look(self) -> None:
        """See who is there; a node that was started again has lost its messages."""
        self._looked = self.clock()
        header, _ = self._tell({"ask": "nodes"})
        self._there = {name: (node, started) for name, (node, started) in header.get("nodes", {}).items()}
        for message in self._waiting.values():
            there = self._there.get(message.to)
            if message.number is not None and there is not None and there[1] != message.activated:
                message.number = None

    def _send(self) -> None:
        now = self.clock()
        for message in self._waiting.values():
            there = self._there.get(message.to)
            if message.number is not None or there is None or message.after > now:
                continue
            asked = {"ask": "push", "node": there[0], "ttl": max(1.0, message.until - now)}
            header, _ = self._tell(asked, message.parts)
            ids = header.get("ids") or [None]
            message.number, message.activated = ids[0], there[1]
            if message.number is None:
                message.after = now + AGAIN

    def _tell(
        self,
        asked: Mapping[str, Any],
        parts: Parts = (),
        passed_over: Callable[[Mapping[str, Any]], Collection[int]] = lambda header: (),
    ) -> tuple[dict[str, Any], list[bytes]]:
        """What the relay answers, as ``sockets.receive`` has it; nothing, if there is none now."""
        if self._relay is None and not self._connected():
            return {}, []
        assert self._relay is not None
        try:
            sockets.send(self._relay, asked, parts)
            self._await(self._relay)
            return sockets.receive(self._relay, passed_over=passed_over)
        except OSError as error:
            log.info("the relay has ended (%s)", error)
            self._relay.close()
            self._relay, self._there = None, {}
            for message in self._waiting.values():
                message.number = None
            return {}, []

    def _await(self, relay: socket.socket) -> None:
        """Wait until the relay begins to answer.

        Raises:
            ConnectionError: if it cannot any more.
        """
        with DefaultSelector() as answers:
            answers.register(relay, EVENT_READ)
            while not answers.select(CONNECTS):
                if not self.alive():
                    raise ConnectionError("what it runs on has ended")

    def _connected(self) -> bool:
        self.revive()
        self.listener.settimeout(CONNECTS)
        try:
            self._relay, _ = self.listener.accept()
        except TimeoutError:
            return False
        self._relay.settimeout(ANSWERS)
        self.came()
        return True


def _answers(header: Mapping[str, Any]) -> Iterator[tuple[str, str | None, range]]:
    """Of each answer in a frame: the relay's number of its message, why it failed, and the numbers of its parts."""
    first = 0
    for of, failed, parts in header.get("answers", ()):
        yield of, failed, range(first, first + parts)
        first += parts
