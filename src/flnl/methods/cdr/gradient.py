"""CDR's gradient transform: weights that matter little for the labels only decay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from flnl.core.optimizer import SGD
from flnl.core.parts import GradientTransform, Part, Setting
from flnl.core.ranges import NonNegative, Share
from flnl.core.step import Step
from flnl.numerics.rounding import TOLERANCE, whole


@dataclass(frozen=True)
class CriticalOnly(GradientTransform):
    """``(1 - τ) ∇`` for the ``⌊(1 - τ) m⌋`` weights of the largest ``|w ∇|``, 0 for the others (Xia et al. 2021).

    One threshold holds for all m entries of tensors with 2 or 4 dimensions, at every step; entries equal to it count as
    critical, but for zeros. On texts m counts entries with a gradient: words that a batch lacks are most of an
    embedding. Biases and batch norm keep their gradients. Weight decay and momentum act afterwards, on
    every weight. ``decay=sign`` replaces ``λ w`` by ``λ sign(w)`` for these weights, the paper's form, with
    λ = ``weight_decay``.
    """

    noise_rate: Share
    decay: Literal["l2", "sign"]
    weight_decay: NonNegative

    def caution(self, setting: Setting) -> str | None:
        """Nothing decays, so that weights without a gradient stay, and both forms of decay are the same."""
        if setting.training.weight_decay:
            return None
        return "train.weight_decay=0: weights that are not critical do not decay, as they do in CDR (0.001 there)"

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        """Why ``λ sign(w)`` cannot replace ``λ w``: it goes through the gradient of SGD."""
        training = setting.training
        if self.decay == "l2" or (
            type(training.optimizer) is SGD and training.clip is None and training.weight_decay == self.weight_decay
        ):
            return None
        return (
            f"{setting.key}.decay=sign needs SGD without train.clip, and the stage's weight_decay: "
            f"{training.weight_decay:g}"
        )

    def __call__(self, gradients: Mapping[str, Tensor], step: Step) -> Mapping[str, Tensor]:
        values = {n: (g * step.params[n]).abs() for n, g in gradients.items() if step.params[n].dim() in (2, 4)}
        if not values or not self.noise_rate:
            return gradients
        least = self._least(torch.cat([value.flatten() for value in values.values()]), step)
        changed = dict(gradients)
        for name, value in values.items():
            changed[name] = torch.where((value >= least) & (value > 0), (1 - self.noise_rate) * gradients[name], 0.0)
            if self.decay == "sign":
                changed[name] = changed[name] + self.weight_decay * (step.params[name].sign() - step.params[name])
        return changed

    def _least(self, every: Tensor, step: Step) -> Tensor:
        """The smallest critical value of ``every`` [m], a scalar; infinite if none is critical."""
        if step.inputs.is_floating_point():
            kept = critical(len(every), self.noise_rate)
            return every.topk(kept, sorted=False).values.min() if kept else every.new_full((), torch.inf)
        falling = every.sort(descending=True).values
        counted = ((1 - self.noise_rate) * (every > 0).sum().double() + TOLERANCE).floor().long()
        return torch.where(counted > 0, falling.gather(0, (counted - 1).clamp_min(0)[None])[0], torch.inf)


def critical(size: int, noise_rate: float) -> int:
    """How many of ``size`` weights are critical, ``⌊(1 - τ) m⌋``.

    >>> critical(10, 0.9), critical(10, 0.4), critical(10, 1.0)
    (1, 6, 0)
    """
    return whole((1 - noise_rate) * size)
