"""DivideMix's objectives: of the warm-up, and of a network that learns from the other's division."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.core.errors import UserError
from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import LossTerm, Part, Setting
from flnl.core.ranges import Neutral, NonNegative, Positive
from flnl.core.step import FIRST, SECOND, Mixing, Step
from flnl.numerics.losses import log_mean_prediction, weighted_mean
from flnl.numerics.ramp import linear_ramp
from flnl.parts.losses.targets import expected


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """``p_c^(1/T) / Σ_k p_k^(1/T)`` [B, K], from probabilities [B, K].

    >>> sharpened(torch.tensor([[0.75, 0.25]]), 0.5)
    tensor([[0.9000, 0.1000]])
    """
    logs = probabilities.log() / temperature
    return torch.softmax(logs, 1)


def refined(labels: Tensor, right: Tensor, predicted: Tensor, temperature: float, classes: int) -> Tensor:
    """``Sharpen(w e_y + (1 - w) p)`` [B, K]: labels int64 [B], probabilities ``right`` w [B], predictions p [B, K]."""
    given = (labels[:, None] == torch.arange(classes, device=labels.device)).to(predicted.dtype)
    return sharpened(torch.lerp(predicted, given, right.to(predicted.dtype)[:, None]), temperature)


def divergence(logits: Tensor, prior: Tensor) -> Tensor:
    """``Σ_c π_c log(π_c / p̄_c)``, a scalar: π [K] is ``prior``, p̄ the mean prediction of the rows, logits [B, K]."""
    return torch.xlogy(prior, prior).sum() - (prior * log_mean_prediction(logits)).sum()


OTHER = {FIRST: SECOND, SECOND: FIRST}


@dataclass(frozen=True)
class WarmUp(LossTerm):
    """``Σ_networks (ℓ_CE - H(p))``, per sample; without ``penalty`` the cross-entropy alone (Li et al. 2020, Sec. 3.1).

    The penalty keeps networks from being sure of labels that are wrong in one direction (asymmetric noise).
    """

    fits_labels: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True
    networks: ClassVar[int | None] = 2
    penalty: bool

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        logs = [F.log_softmax(step.output(name), 1) for name in (FIRST, SECOND)]
        loss = expected(-logs[0], step.targets) + expected(-logs[1], step.targets)
        if self.penalty:
            loss = loss + sum((one.exp() * one).sum(1) for one in logs)
        return loss, state


@dataclass(frozen=True)
class MixMatch(LossTerm):
    """``L_x + λ_u(t) L_u + λ_r L_reg`` of the phase's network (Li et al. 2020, Sec. 3.2 and 3.3).

    Of clean samples, labels are refined by the network's own predictions; the others' labels are guessed by both
    networks. Rows of both, in two views, are mixed with each other. L_x is the cross-entropy of rows that began as
    clean ones, L_u the squared error of the rest, a mean over rows and classes, and ``L_reg = KL(π ‖ p̄)`` with p̄ the
    mean prediction of all rows. λ_u(t) rises linearly to ``lambda_u`` over ``ramp`` local epochs, or rounds, from the
    start of the stage.

    No gradient flows into targets. For these, batch norm uses the batch of each view in the network that is trained,
    and the running statistics in the other. What is evaluated and divides samples are unmixed images, so the passes for
    targets update the running statistics, too (``running_statistics=all``, as in their code).
    """

    fits_labels: ClassVar[bool] = True
    networks: ClassVar[int | None] = 2
    alpha: NonNegative
    temperature: Positive
    lambda_u: NonNegative
    ramp: NonNegative
    clock: Literal["epochs", "rounds"]
    lambda_r: NonNegative
    prior: Literal["uniform", "labels"]  # π: the same share for each class, or the shares of the client's labels
    running_statistics: Annotated[Literal["all", "mixed"], Neutral("mixed")]  # of all passes, or of mixed rows alone

    def begin(self, network: Model, task: ClientTask, state: Any) -> Tensor:
        """π, [K]."""
        classes = network.num_classes
        counts = torch.bincount(task.labels, minlength=classes) if self.prior == "labels" else torch.ones(classes)
        return onto(counts.double() / counts.sum().clamp_min(1), network.device, network.dtype)

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        if setting.kind != "tokens" or self.alpha == 0:
            return None
        return f"MixMatch blends inputs, and words cannot be blended: set {setting.key}.alpha=0"

    def draw(self, rng: np.random.Generator, size: int) -> Mixing:
        """λ ~ Beta(α, α), or 1 - λ if that is larger, and a partner for each of the 2 ``size`` rows."""
        share = float(rng.beta(self.alpha, self.alpha)) if self.alpha > 0 else 1.0
        return Mixing(max(share, 1 - share), torch.from_numpy(rng.permutation(2 * size)))

    def __call__(self, step: Step, state: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, a scalar.

        Raises:
            UserError: if the batch rule does not divide the samples.
        """
        if step.phase.name not in OTHER or len(step.views) != 2:
            raise UserError("MixMatch learns from divided samples in two views: add method/batch=dividemix_co_divide")
        others = () if step.beside is None else step.beside.views
        with torch.no_grad():
            known, guessed = self._targets(step)
            soft = torch.cat([known, known] if guessed is None else [known, known, guessed, guessed])
        inputs, targets, weight = self._mixed(step.draw, torch.cat([*step.views, *others]), soft, step.weight)
        logs = F.log_softmax(step.output(step.phase.name, inputs), 1)
        rows = 2 * len(step.labels)
        total = weighted_mean(expected(-logs[:rows], targets[:rows]), None if weight is None else weight[:rows])
        if guessed is not None:
            total = total + self.weight(step) * (logs[rows:].exp() - targets[rows:]).square().mean()
        return total + self.lambda_r * divergence(logs, state), state

    def weight(self, step: Step) -> float:
        """λ_u(t)."""
        place, rounds = step.progress, step.broadcast.clock.since(step.broadcast.stage)
        assert place is not None, "phases are of one client"
        done = rounds * place.epochs + place.epoch + step.number / place.batches if self.clock == "epochs" else rounds
        return self.lambda_u * linear_ramp(done, self.ramp)

    def _targets(self, step: Step) -> tuple[Tensor, Tensor | None]:
        """Soft labels of the clean samples [B, K], and of the others [B', K]; None without others."""
        name = step.phase.name
        assert name is not None
        views, beside = step.views, () if step.beside is None else step.beside.views
        updating = self.running_statistics == "all"
        mine = step.opinions(name, [*beside, *views], updating=updating)  # guesses first, as in their code
        right = step.phase.facts[step.positions]
        seen = torch.stack(_predictions(views, mine[len(beside) :])).mean(0)
        known = refined(step.labels, right, seen, self.temperature, seen.shape[1])
        if not beside:
            return known, None
        theirs = step.opinions(OTHER[name], beside, training=False)
        guesses = [*_predictions(beside, mine), *_predictions(beside, theirs)]
        return known, sharpened(torch.stack(guesses).mean(0), self.temperature)

    @staticmethod
    def _mixed(
        draw: Mixing, inputs: Tensor, soft: Tensor, weight: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """All rows mixed with their partners: inputs, targets, and weights if the clean samples have some."""
        partner, share = onto(draw.partner, inputs.device), draw.share
        rows = [inputs, soft]
        if weight is not None:
            rows.append(torch.cat([weight, weight, weight.new_ones(len(inputs) - 2 * len(weight))]))
        mixed = rows if share == 1 else [torch.lerp(t[partner], t, share) for t in rows]
        return mixed[0], mixed[1], mixed[2] if weight is not None else None


def _predictions(views: tuple[Tensor, ...], logits: list[Tensor]) -> list[Tensor]:
    """The predictions on ``views``, of which ``logits`` are the first ones; one if all views are one tensor."""
    distinct = 1 if all(view is views[0] for view in views) else len(views)
    return [z.softmax(1) for z in logits[:distinct]]
