"""Clients that send something else than what they have trained, whatever the method is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from flnl.core.ranges import Neutral, NonNegative, Share

if TYPE_CHECKING:
    from flnl.core.payload import Params

CLIENTS, UPDATES = "faulty clients", "faulty updates"
"""Purposes of draws: which clients are faulty, once a run, and what they send, in each round."""


@dataclass(frozen=True)
class Fault:
    """``fault``: which share of the clients sends a faulty update in every round, and what that is.

    With Δ the update that a client has trained, it sends instead of Δ: -scale · Δ (``sign_flip``), scale · Δ
    (``scaled``), or Δ + scale · r · z (``noise``), where z is standard normal and r the root mean square of Δ. Buffers,
    such as running statistics, and the messages of exchanges are as they were.
    """

    share: Annotated[Share, Neutral(0.0)] = 0.0
    kind: Annotated[Literal["sign_flip", "scaled", "noise"], Neutral("sign_flip")] = "sign_flip"
    scale: Annotated[NonNegative, Neutral(1.0)] = 1.0

    def clients(self, seed: int, clients: Sequence[int]) -> frozenset[int]:
        """The faulty ones of ``clients``: ``⌊share · m⌋`` of the m, drawn once in a run."""
        import numpy as np  # the configuration's schema has this class, and commands that only read it start at once

        from flnl.core.streams import stream

        count = int(self.share * len(clients) + 1e-9)
        if not count:
            return frozenset()
        return frozenset(stream(seed, CLIENTS).choice(np.array(clients), count, replace=False).tolist())

    def sent(self, received: Params, trained: Params, seed: int, round: int, client: int) -> Params:
        """What a faulty client sends in this round for the model that it has trained."""
        import torch

        from flnl.core.payload import is_learned
        from flnl.core.streams import stream

        moved = {name: trained[name] - p for name, p in received.items() if is_learned(name, p)}
        if self.kind != "noise":
            factor = self.scale if self.kind == "scaled" else -self.scale
            return {**trained, **{name: received[name] + factor * by for name, by in moved.items()}}
        total = sum(float(by.double().square().sum()) for by in moved.values())
        width = self.scale * (total / max(sum(by.numel() for by in moved.values()), 1)) ** 0.5
        rng = stream(seed, UPDATES, round, client)
        drawn = {name: torch.from_numpy(rng.standard_normal(tuple(by.shape))).to(by) for name, by in moved.items()}
        return {**trained, **{name: trained[name] + width * z for name, z in drawn.items()}}
