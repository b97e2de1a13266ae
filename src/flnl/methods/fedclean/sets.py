"""Which of a client's samples are trained on, and which labels are corrected (FedClean, Sec. 4)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from flnl.core.stored import stored
from flnl.numerics.losses import sample_losses
from flnl.numerics.mixture import two_gaussians
from flnl.numerics.rounding import TOLERANCE

FEWEST = 4
"""Values that a mixture needs."""
TrainOn = Literal["corrected", "accumulated"]


@stored("TrainingSets")
class TrainingSets:
    """Kept on the client: its samples by what has been found out about them."""

    judged: Tensor  # int64 [n], the labels with which it trained alone
    inferred: Tensor  # int64 [n], the labels that its own model infers
    first: Tensor  # bool [n], relabelled as inferred
    second: Tensor  # bool [n], relabelled by the global model
    rest: Tensor  # bool [n], kept as they are after both
    corrections: int  # how many have been made, 0 to 2

    @classmethod
    def of(cls, labels: Tensor, inferred: Tensor) -> TrainingSets:
        """Before any correction."""
        none = torch.zeros_like(labels, dtype=torch.bool)
        return cls(labels, inferred, none, none, none, 0)

    @property
    def clean(self) -> Tensor:
        """Samples whose label is the inferred one, bool [n]."""
        return self.judged == self.inferred

    @property
    def used(self) -> Tensor:
        """The samples that have been accepted so far, bool [n]; their number is the client's weight (Eqs. 12 to 18)."""
        return self.clean | self.first | self.second | self.rest

    def trained(self, on: TrainOn) -> Tensor:
        """The samples of the next round's training, bool [n]: what the last correction has brought, or all so far."""
        if on == "accumulated" or self.corrections == 0:
            return self.used
        return self.first if self.corrections == 1 else self.second | self.rest


def upper(values: Tensor, among: Tensor) -> Tensor:
    """Of the samples ``among`` bool [n], those whose ``values`` [n] are of the Gaussian of larger mean, bool [n].

    Nobody is if there are fewer than four, or if their values are equal.
    """
    found = torch.zeros_like(among)
    if int(among.sum()) >= FEWEST:
        found[among] = torch.from_numpy(two_gaussians(values[among].double().numpy()).upper)
    return found


def largest(values: Tensor, among: Tensor, share: float) -> Tensor:
    """The ``⌈share m⌉`` samples of largest ``values`` [n] of the m ``among`` bool [n]; of equal ones the first."""
    count = math.ceil(share * int(among.sum()) - TOLERANCE)
    order = values.where(among, -torch.inf).sort(descending=True, stable=True).indices
    return torch.zeros_like(among).index_fill(0, order[:count], True) & among


def candidates(sets: TrainingSets, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Disputed samples for which the global model is on the side of the inferred label, bool [n], and ``L_co`` [n].

    ``L_co`` is the cross-entropy of the given label less that of the inferred one, from logits [n, K].
    """
    backed = ~sets.clean & (logits.argmax(1) == sets.inferred)
    return backed, sample_losses(logits, sets.judged) - sample_losses(logits, sets.inferred)


def towards_inferred(sets: TrainingSets, logits: Tensor, share: float) -> Tensor:
    """The samples that take their inferred label, bool [n] (Sec. 4.3)."""
    backed, gain = candidates(sets, logits)
    return largest(gain, upper(gain, backed), share)


def towards_predicted(
    sets: TrainingSets, labels: Tensor, logits: Tensor, high: Tensor, share: float, confidence: float
) -> tuple[Tensor, Tensor]:
    """The samples that take the global model's prediction, and those that stay as they are, bool [n] each (Sec. 4.4).

    ``high`` bool [n] are those of what is left whose loss is of the upper Gaussian; of these, some take it.
    """
    left = ~sets.clean & ~sets.first
    sure = logits.double().softmax(1).amax(1) >= confidence
    return largest(sample_losses(logits, labels), high & left, share) & sure, left & ~high
