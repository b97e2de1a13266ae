"""``executor=served``: clients are sites elsewhere, which ``flnl serve`` has connected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flnl.core.errors import UserError
from flnl.data.datasets.elsewhere import Told
from flnl.data.federation.build import Federation
from flnl.sites.executor import Sites
from flnl.sites.policy import Streams
from flnl.sites.transport import Transport

CONNECTED: list[tuple[Transport, Told]] = []
"""What carries messages to sites, while this process serves them, and what these have told."""


@dataclass(frozen=True)
class Served(Sites):
    """As ``Sites``, but that these are elsewhere, and have policies of their own."""

    allow: list[str] = field(default_factory=list, init=False)
    max_epsilon: float | None = field(default=None, init=False)
    least_samples: int = field(default=1, init=False)
    approve: str = field(default="any", init=False)
    counts: bool = field(default=True, init=False)
    min_count: int = field(default=20, init=False)
    folder: str | None = field(default=None, init=False)
    streams: Streams = field(default="run", init=False)

    def _transport(self, federation: Federation, names: Mapping[int, str], base: Path) -> Transport:
        """What ``flnl serve`` has connected.

        Raises:
            UserError: if this is another command, or the run is of other sites.
        """
        return self._connected(names.values())[0]

    def _where(self) -> str:
        return "elsewhere"

    def _held_out(self, federation: Federation) -> bool:
        told = self._connected(map(federation.called, federation.with_data))[1]
        return any(told.held_out.values())

    def _connected(self, names: Iterable[str]) -> tuple[Transport, Told]:
        """The sites that are connected, which must be the federation's."""
        if not CONNECTED:
            raise UserError("executor=served: the sites are connected by flnl serve FOLDER; begin or go on with that")
        transport, told = CONNECTED[-1]
        if others := {*names} ^ {*told.sizes}:
            raise UserError(f"executor=served: {', '.join(sorted(others))} differ from the sites that are connected")
        return transport, told

    def settings(self) -> dict[str, Any]:
        """How long sites are waited for, and which of them were started over; policies are theirs."""
        policy = {"allow", "max_epsilon", "least_samples", "approve", "counts", "min_count", "folder"}
        return {name: value for name, value in super().settings().items() if name not in policy}
