"""Server updates: compute the next global model from the current one and the combined one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flnl.core.parts import ServerUpdate
from flnl.core.payload import Params, is_learned
from flnl.core.ranges import Positive


@dataclass(frozen=True)
class Replace(ServerUpdate):
    """The combined model becomes the global one (FedAvg)."""

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Any
    ) -> tuple[Params, Any]:
        return combined, state


@dataclass(frozen=True)
class Scaled(ServerUpdate):
    """``θ_t + α_g (θ̄ − θ_t)`` with θ̄ the combined model (FedPeer, Algorithm 2); at α_g = 1 bit-identical to θ̄.

    Running statistics and integer buffers are those of the combined model.
    """

    rate: Positive

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Any
    ) -> tuple[Params, Any]:
        if self.rate == 1:
            return combined, state
        moved = {n: params[n] + self.rate * (p - params[n]) if is_learned(n, p) else p for n, p in combined.items()}
        return moved, state
