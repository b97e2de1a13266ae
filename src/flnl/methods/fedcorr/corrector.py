"""FedCorr's label correction: estimate how noisy the client is, then let the model overrule the labels it doubts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Correction
from flnl.core.model import Model
from flnl.core.parts import LabelCorrector
from flnl.core.payload import Payload
from flnl.core.ranges import Share
from flnl.core.stored import stored
from flnl.methods.fedcorr.exchange import NoiseDirective, NoiseLevel, NoiseLevels, SampleLosses
from flnl.numerics.losses import sample_losses
from flnl.numerics.mixture import two_gaussians


@stored("Suspects")
@dataclass(frozen=True)
class Suspects:
    """Kept on the client: which samples it takes for wrongly labelled, bool [n], and the model's confidence [n]."""

    mask: Tensor
    confidence: Tensor


@dataclass(frozen=True)
class FedCorr(LabelCorrector):
    """Two rules, for the ends of FedCorr's first two stages (Sec. 3.2, 3.3; Eq. 6).

    ``top_losses``: a client that the server calls noisy splits its stored losses with a two-component mixture; the
    component of the larger mean is D_k^n and μ̂_k = |D_k^n| / n_k. Of D_k^n, the ⌊π |D_k^n|⌋ samples of largest loss
    take the received model's prediction where its probability is at least θ.

    ``all_confident``: every sample of a client with μ̂_k > κ does, whatever its loss.

    The text's π and θ hold where Algorithm 1 has neither. ``relabel=false`` estimates without correcting;
    ``rank_loss=global`` ranks by the received model's loss; ``relabel_set=lid_noisy`` asks the clients on the noisy
    side of the last split in place of those above κ; ``strict_theta`` demands more than θ, as the released code does.
    """

    reads: ClassVar[tuple[type, ...]] = (NoiseDirective, SampleLosses, NoiseLevels)
    rules: ClassVar[tuple[str, ...]] = ("top_losses", "all_confident")
    theta: Share
    pi: Share
    kappa: Share
    relabel: bool
    rank_loss: Literal["local", "global"]
    relabel_set: Literal["paper", "lid_noisy"]
    strict_theta: bool
    loss: Literal["ce", "ce_of_softmax"]
    inference_augment: bool

    def chosen(self, rule: str, known: Payload, clients: Sequence[int]) -> list[int]:
        """Noisy clients after a pass; at the end of fine-tuning those outside its cohort."""
        levels = known.one(NoiseLevels)
        if rule == "all_confident" and not self.relabel:
            return []
        above = levels.level > self.kappa
        ask = levels.noisy if rule == "top_losses" or self.relabel_set == "lid_noisy" else above
        return [client for client in clients if bool(ask[client])]

    def correct(self, network: Model, task: ClientTask, rule: str) -> Correction:
        """Labels after correction, the samples under suspicion, and μ̂_k."""
        labels = task.labels
        logits = network.logits(task.samples, task.stream("relabel augmentation") if self.inference_augment else None)
        confidence, prediction = torch.softmax(logits.double(), dim=1).max(dim=1)
        sure = confidence > self.theta if self.strict_theta else confidence >= self.theta
        if rule == "all_confident":
            change, reports = sure, Payload()
            before = task.state.extras.get(Suspects)
            suspects = (
                (prediction != labels) & sure if before is None else before.mask | ((prediction != labels) & sure)
            )
        else:
            losses = task.state.extras.one(SampleLosses).values
            suspects = torch.from_numpy(two_gaussians(losses.numpy()).upper)
            if self.rank_loss == "global":
                losses = sample_losses(logits, labels, of_softmax=self.loss == "ce_of_softmax")
            change = sure & _largest(losses, suspects, int(self.pi * int(suspects.sum()) + 1e-9))
            reports = Payload(NoiseLevel(float(suspects.double().mean())))
        corrected = torch.where(change, prediction, labels) if self.relabel else labels
        return Correction(task.client, corrected, task.state.weight, Payload(Suspects(suspects, confidence)), reports)

    def findings(self, known: Payload, clients: Mapping[int, ClientState]) -> tuple[Finding, ...]:
        """The suspects of clients that the server calls noisy; the others have none, whatever they kept before."""
        noisy = known.one(NoiseLevels).noisy
        suspects = ((client, kept.extras.get(Suspects)) for client, kept in clients.items())
        return tuple(SuspectedSamples(c, s.mask & noisy[c]) for c, s in suspects if s is not None)


def _largest(losses: Tensor, among: Tensor, count: int) -> Tensor:
    """Mask [n] of the ``count`` largest losses among those marked; ties go to the earlier sample."""
    order = torch.sort(torch.where(among, losses, -torch.inf), descending=True, stable=True).indices
    chosen = torch.zeros_like(among)
    chosen[order[:count]] = True
    return chosen & among
