"""M-DYR's objective: mixup, in which labels that are probably wrong give way to the network's predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Fit
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import BatchRule, LossTerm, Part, Setting
from flnl.core.payload import Payload
from flnl.core.ranges import Count, NonNegative, Positive, PositiveCount, StageNumber
from flnl.core.step import LOGITS, Mixing, Step
from flnl.core.stored import stored
from flnl.methods.m_dyr.bootstrapping import both, by_cleanness, one_hot, softened, temperature
from flnl.methods.m_dyr.mixture import WrongByLoss
from flnl.numerics.losses import log_mean_prediction, sample_losses
from flnl.parts.losses.targets import of_labels


@stored("WrongProbability")
class WrongProbability:
    """Kept on the client for the record: what the received model made of its samples at the start of a visit."""

    values: Tensor  # float [n]
    labels: Tensor  # int64 [n], the labels that were judged


@dataclass(frozen=True)
class Visit:
    """The term's state during one visit."""

    by_loss: WrongByLoss
    found: WrongProbability


@dataclass(frozen=True)
class MDYR(LossTerm):
    """Dynamic bootstrapping with mixup (Arazo et al., ICML 2019); the term mixes batches itself.

    At the start of a visit a client fits two beta distributions to its samples' losses under the received model, which
    give the probability B that a label with some loss is wrong; in every batch B is that of each sample's loss in eval
    mode. λ ~ Beta(a, a) is drawn once a batch.

    ``hard``, ``soft``: ``λ ℓ_i + (1-λ) ℓ_π(i)`` with ``ℓ_j = (1-B_j) CE(p, y_j) + B_j CE(p, q_j)``, p the prediction
    on the mixed image, q_j that on the unmixed one in training mode: its largest class, or as it is.

    ``soft_to_hard``: for ``guided`` rounds mixup of images by ``(1-B_i) : (1-B_π(i))``, of labels by λ; then images
    likewise, ℓ_i and ℓ_π(i) with weights 1/2, and q softened by a temperature that falls from 1 to 0.001 in ``cooling``
    rounds. Rounds count from stage ``first_stage`` on.

    All bootstrapped losses have ``regularisation`` times KL(u ‖ p̄), p̄ the mean prediction of the batch, beside them.
    Clients with fewer than ``fewest`` samples have B = 1/2.
    """

    fits_labels: ClassVar[bool] = True
    form: Literal["hard", "soft", "soft_to_hard"]
    alpha: Positive
    regularisation: NonNegative
    guided: Count
    cooling: PositiveCount
    fewest: PositiveCount
    first_stage: StageNumber

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        mixing = next((part for part in stage if isinstance(part, BatchRule) and part.overrides("mixing")), None)
        if mixing is None:
            words = "M-DYR blends inputs, and words cannot be blended: choose another method"
            return words if setting.kind == "tokens" else None
        return f"M-DYR mixes batches itself, and {type(mixing).__name__} has mixed them: choose method/batch=plain"

    def begin(self, network: Model, task: ClientTask, state: Any) -> Visit:
        like = next(p for p in task.broadcast.params.values() if p.is_floating_point())
        labels = task.labels
        losses = sample_losses(network.received(task), labels)
        by_loss = WrongByLoss.fitted(losses.numpy(), self.fewest, like)
        return Visit(
            by_loss,
            WrongProbability(by_loss.of(onto(losses, like)), onto(labels, like.device)),
        )

    def draw(self, rng: np.random.Generator, size: int) -> Mixing:
        return Mixing(float(rng.beta(self.alpha, self.alpha)), torch.from_numpy(rng.permutation(size)))

    def __call__(self, step: Step, state: Visit) -> tuple[Tensor, Visit]:
        mixing: Mixing = step.draw
        own = step.logits.detach()
        wrong = state.by_loss.of(-of_labels(F.log_softmax(step.passes.scored(step.inputs), 1), step.labels))
        if self.form != "soft_to_hard":
            logits = step.output(LOGITS, mixing.rows(step.inputs))
            predicted = one_hot(own) if self.form == "hard" else softened(own, 1.0)
            return self._bootstrapped(step, logits, predicted, wrong, mixing), state
        logits = step.output(LOGITS, by_cleanness(step.inputs, wrong, mixing.partner))
        cooled = step.broadcast.clock.since(self.first_stage) - self.guided
        if cooled < 0:
            return mixed_up(logits, step.labels, mixing), state
        predicted = softened(own, temperature(cooled, self.cooling))
        return self._bootstrapped(step, logits, predicted, wrong, Mixing(0.5, mixing.partner)), state

    def _bootstrapped(self, step: Step, logits: Tensor, predicted: Tensor, wrong: Tensor, mixing: Mixing) -> Tensor:
        losses = both(F.log_softmax(logits, 1), step.labels, predicted, wrong.to(logits), mixing)
        logs = log_mean_prediction(logits, step.weight)
        divergence = -logs.mean() - torch.log(torch.full_like(logs[0], len(logs)))
        return losses + self.regularisation * divergence

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Visit) -> WrongProbability:
        return state.found

    def caution(self, setting: Setting) -> str | None:
        """Most clients have too few samples, or losses are those of the initial model."""
        if not sum(setting.lengths[: self.first_stage - 1]):
            return (
                f"{setting.key} judges labels by a model that has learned nothing; choose stages with training before, "
                "such as method/stages=m_dyr"
            )
        few = sum(size < self.fewest for size in setting.sizes.values())
        if 2 * few <= len(setting.sizes):
            return None
        return (
            f"{setting.key}.fewest={self.fewest}: {few} of {len(setting.sizes)} clients have fewer samples, and cannot "
            "tell right labels from wrong ones"
        )

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """Samples that are probably wrong, by this probability."""
        kept: Mapping[int, WrongProbability] = state
        return tuple(
            SuspectedSamples(client, found.values.cpu() > 0.5, found.values.cpu(), found.labels.cpu())
            for client, found in kept.items()
        )


def mixed_up(logits: Tensor, labels: Tensor, mixing: Mixing) -> Tensor:
    """The cross-entropies [B] of mixed images: that of the own label with λ, that of the partner's with 1 - λ."""
    losses, partner = -F.log_softmax(logits, 1), onto(mixing.partner, labels.device)
    return mixing.share * of_labels(losses, labels) + (1 - mixing.share) * of_labels(losses, labels[partner])
