"""FedELC's objective: logit adjustment on clean clients; on noisy ones, network and soft labels learn in turn."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Fit
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import LossTerm
from flnl.core.payload import Payload
from flnl.core.ranges import NonNegative, Positive, PositiveCount, Share
from flnl.core.step import Step
from flnl.methods.fedelc.labels import LearnedLabels, label_gradient
from flnl.numerics.small_loss import smallest
from flnl.parts.losses.logit_adjustment import adjusted, log_prior
from flnl.parts.losses.targets import cross_entropy, expected, mixed_pair, of_labels
from flnl.parts.messages import ClientTag


@dataclass(frozen=True)
class Visit:
    """The term's state during one visit."""

    log_prior: Tensor  # [K]
    labels: LearnedLabels | None  # None until clients have been compared


@dataclass(frozen=True)
class FedELC(LossTerm):
    """``-log softmax(z + log π)_label`` on clean clients; on noisy ones PENCIL's loss (Yi and Wu, CVPR 2019).

    On a noisy client each sample has a vector ỹ, at first ``scale · onehot(label)``, and a soft label
    ``y = softmax(ỹ)``. The loss is ``KL(p ‖ y) / K + α CE(y, label) + β H(p) / K`` with p the softmax of the logits,
    not adjusted. After each epoch ``ỹ ← ỹ - λ ∂L/∂ỹ``; after the visit ``ỹ ← scale · (y + p) / 2`` with p that of the
    trained model in eval mode. ∂L/∂ỹ is that of the mean over a batch, so that the step falls with the size of the
    batch; λ is meant for batches of ``label_batch`` and adapted to others (None: it is taken as it is).
    ``compatible`` less than 1: the term with α is that of this share of the batch alone, the samples of smallest
    cross-entropy of p and their label, at least one; it is still divided by the whole batch (MaskedOptim).

    A sample is in one batch of an epoch, so its ỹ moves there and is used from the next epoch on. With mixed batches,
    log y is mixed like the inputs, and ỹ moves by the prediction on the unmixed inputs, in eval mode. All clients are
    trained as clean ones until they have been compared.
    """

    reads: ClassVar[tuple[type, ...]] = (ClientTag,)
    fits_labels: ClassVar[bool] = True
    alpha: NonNegative
    beta: NonNegative
    scale: Positive
    label_lr: NonNegative
    label_batch: PositiveCount | None
    compatible: Share

    def begin(self, network: Model, task: ClientTask, state: LearnedLabels | None) -> Visit:
        """The logarithms of π, and ỹ as the last visit left it; at the first, from the labels that the client holds."""
        prior, tag = log_prior(network, task), task.broadcast.extras.get(ClientTag)
        if tag is None:
            return Visit(prior, None)
        held = onto(task.labels, prior.device)
        if state is None:
            return Visit(prior, LearnedLabels.of(held, network.num_classes, self.scale, prior.dtype))
        return Visit(prior, state.following(held, self.scale))

    def __call__(self, step: Step, state: Visit) -> tuple[Tensor, Visit]:
        """The loss [B]; the state with this batch's steps of ỹ."""
        fitted = expected(-adjusted(step.logits, state.log_prior), step.targets)
        tag = step.broadcast.extras.get(ClientTag)
        if tag is None or state.labels is None or tag.noisy is False:
            return fitted, state
        values = state.labels.values.index_select(0, step.positions)
        alpha = self._compatibility(step)
        learned = self._learned(step, values, alpha)
        after = replace(state, labels=state.labels.moved(step.positions, self._label_step(step, values, alpha)))
        noisy = fitted.new_ones(()) * tag.noisy  # of clients that are trained together, only some may be noisy
        return noisy * learned + (1 - noisy) * fitted, after

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Visit) -> LearnedLabels | None:
        """The soft labels, merged with the trained model's predictions; None for a client that is not noisy."""
        tag = task.broadcast.extras.get(ClientTag)
        if tag is None or state.labels is None or not tag.noisy:
            return None
        predicted = network.logits(task.samples).softmax(1)
        return state.labels.merged(onto(predicted, state.labels.values), self.scale)

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """Samples whose largest soft label is not of their label, scored by one minus the label's soft label."""
        kept: Mapping[int, LearnedLabels] = state
        return tuple(_suspected(client, labels) for client, labels in kept.items())

    def _compatibility(self, step: Step) -> Tensor:
        """α of each sample, [B, 1]: 0 for those of large cross-entropy."""
        losses = cross_entropy(step.logits.detach(), step.targets)
        if self.compatible == 1:
            return torch.full_like(losses, self.alpha)[:, None]
        valid = torch.ones_like(losses, dtype=torch.bool) if step.weight is None else step.weight > 0
        return self.alpha * smallest(losses, valid, 1 - self.compatible).to(losses.dtype)[:, None]

    def _learned(self, step: Step, values: Tensor, alpha: Tensor) -> Tensor:
        logs = F.log_softmax(step.logits, 1)
        soft = F.log_softmax(values, 1).to(logs.dtype)
        compatibility = of_labels(-soft, step.labels)
        if step.mixing is not None:
            partner = onto(step.mixing.partner, soft.device)
            soft = mixed_pair(soft, soft[partner], step.mixing.share)
            compatibility = mixed_pair(compatibility, compatibility[partner], step.mixing.share)
        probabilities, classes = logs.exp(), logs.shape[1]
        divergence, entropy = (probabilities * (logs - soft)).sum(1), -(probabilities * logs).sum(1)
        return (divergence + self.beta * entropy) / classes + alpha[:, 0] * compatibility

    def _label_step(self, step: Step, values: Tensor, alpha: Tensor) -> Tensor:
        predicted = step.unmixed_logits.detach().softmax(1, dtype=values.dtype)
        gradient = label_gradient(values, predicted, step.labels, alpha.to(values.dtype))
        if step.weight is not None:
            gradient = gradient * (step.weight / step.weight.mean().clamp_min(1e-12))[:, None]
        return gradient * (-self.label_lr / (self.label_batch or len(values)))


def _suspected(client: int, labels: LearnedLabels) -> SuspectedSamples:
    held, proposed = labels.held.cpu(), labels.classes.cpu()
    doubt = 1 - labels.values.cpu().softmax(1).gather(1, held[:, None])[:, 0]
    return SuspectedSamples(client, proposed != held, doubt, held, proposed)
