"""How messages get from a server to sites and back: three calls, whatever carries them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from flnl.sites.messages import Parts
from flnl.sites.runtime import SiteRuntime


class Transport(Protocol):
    """Carries messages, whose bytes it neither reads nor changes."""

    def nodes(self) -> Sequence[str]:
        """The names of the sites that can be reached now."""
        ...

    def push(self, to: str, parts: Parts, ttl: float) -> str:
        """Send a message to a site; return the number under which its answer comes.

        ``ttl`` is the number of seconds after which it need not be delivered any more.
        """
        ...

    def pull(self, ids: Sequence[str]) -> Mapping[str, Parts]:
        """The answers that have come to messages of these numbers; each is given once."""
        ...


@dataclass
class Loopback:
    """Runtimes in this process. A message is handled when its answer is asked for, one at a time."""

    runtimes: Mapping[str, SiteRuntime]
    _waiting: dict[str, tuple[str, Parts]] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def nodes(self) -> Sequence[str]:
        """All of them."""
        return list(self.runtimes)

    def push(self, to: str, parts: Parts, ttl: float) -> str:
        """Put a message down."""
        number = str(next(self._numbers))
        self._waiting[number] = to, parts
        return number

    def pull(self, ids: Sequence[str]) -> Mapping[str, Parts]:
        """The answer to the first of these that was put down."""
        number = next((one for one in ids if one in self._waiting), None)
        if number is None:
            return {}
        to, parts = self._waiting.pop(number)
        return {number: self.runtimes[to].handle(parts)}
