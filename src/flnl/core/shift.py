"""Clients whose images differ from those of others, as images of another device do, whatever the labels are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from flnl.core.ranges import Neutral, NonNegative

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Shift:
    """``shift``: how much the images of a client differ from those of others; the test set stays as it is.

    With a pixel x in [0, 1] of channel c, client k of K has instead, clipped to [0, 1] and drawn once:

    - ``device``: a_c · x^γ + b, with log₂ a_c and log₂ γ from U(-level, level), b from U(-level/4, level/4);
    - ``gaussian``: x + N(0, level · k/K), the variance growing from client to client, k from 1 (Li et al., 2022,
      NIID-Bench, "noise-based feature imbalance").
    """

    level: Annotated[NonNegative, Neutral(0.0)] = 0.0
    kind: Annotated[Literal["device", "gaussian"], Neutral("device")] = "device"

    def of(self, x: Tensor, client: int, clients: int, seed: int) -> Tensor:
        """The images of ``client``, counted from 0, in place of ``x`` float64 [n, C, H, W]."""
        import torch  # the configuration's schema has this class, and commands that only read it start at once

        from flnl.core.streams import stream

        rng = stream(seed, "shift", client)
        if self.kind == "gaussian":
            width = (self.level * (client + 1) / clients) ** 0.5
            return torch.clamp(x + width * torch.from_numpy(rng.standard_normal(tuple(x.shape))), 0, 1)
        gamma, *gains = 2.0 ** rng.uniform(-self.level, self.level, 1 + x.shape[1])
        gain = torch.tensor(gains, dtype=x.dtype)[:, None, None]
        return torch.clamp(gain * x ** float(gamma) + float(rng.uniform(-self.level / 4, self.level / 4)), 0, 1)
