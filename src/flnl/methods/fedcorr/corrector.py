"""FedCorr's label correction: estimate the client's noise level, then replace suspected labels by predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Correction, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import LabelCorrector
from flnl.core.payload import Payload
from flnl.core.ranges import Neutral, Positive, Share
from flnl.core.stored import stored
from flnl.methods.fedcorr.exchange import NoiseDirective, NoiseLevel, NoiseLevels, SampleLosses
from flnl.numerics.losses import sample_losses
from flnl.numerics.mixture import TOLERANCE, two_gaussians
from flnl.numerics.rounding import whole


@stored("Suspects")
class Suspects:
    """Kept on the client: the samples it considers wrongly labelled, bool [n], and the model's confidence [n]."""

    mask: Tensor
    confidence: Tensor


@dataclass(frozen=True)
class FedCorr(LabelCorrector):
    """Two rules, for the ends of FedCorr's first two stages (Sec. 3.2, 3.3; Eq. 6).

    ``top_losses``: each client that the server considers noisy fits a two-component mixture to its stored losses; the
    component with the larger mean is D_k^n, and μ̂_k = |D_k^n| / n_k. The ⌊π |D_k^n|⌋ samples of D_k^n with the largest
    losses get the received model's prediction as their label if its probability is at least θ.

    ``all_confident``: all samples of clients with μ̂_k > κ get the prediction if its probability is at least θ.

    π and θ follow the text; Algorithm 1 has neither. ``relabel=false`` estimates without correcting;
    ``rank_loss=global`` ranks by the received model's loss; ``relabel_set=lid_noisy`` selects the clients on the noisy
    side of the last split instead of those above κ; ``strict_theta`` requires more than θ, as the released code does.
    """

    reads: ClassVar[tuple[type, ...]] = (NoiseDirective, SampleLosses, NoiseLevels)
    reports: ClassVar[tuple[type, ...]] = (NoiseLevel,)
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
    gmm_tol: Annotated[Positive, Neutral(TOLERANCE)]

    def chosen(self, rule: str, known: Payload, clients: Sequence[int]) -> list[int]:
        """After a pass the noisy clients; at the end of fine-tuning those above κ, or as ``relabel_set`` says."""
        levels = known.one(NoiseLevels)
        if rule == "all_confident" and not self.relabel:
            return []
        above = levels.level > self.kappa
        ask = levels.noisy if rule == "top_losses" or self.relabel_set == "lid_noisy" else above
        return [client for client in clients if bool(ask[client])]

    def correct(self, network: Model, task: ClientTask, rule: str) -> Correction:
        """The corrected labels; keeps the suspected samples, and reports μ̂_k after ``top_losses``.

        Suspects are those of this correction alone: the labels of earlier ones have changed, or were confirmed, since.
        """
        labels = task.labels
        logits = network.logits(task.samples, task.stream("relabel augmentation") if self.inference_augment else None)
        confidence, prediction = torch.softmax(logits.double(), dim=1).max(dim=1)
        sure = confidence > self.theta if self.strict_theta else confidence >= self.theta
        if rule == "all_confident":
            change, reports = sure, Payload()
            suspects = (prediction != labels) & sure
        else:
            losses = task.state.extras.one(SampleLosses).values
            suspects = torch.from_numpy(two_gaussians(losses.numpy(), self.gmm_tol).upper)
            if self.rank_loss == "global":
                losses = sample_losses(logits, labels, of_softmax=self.loss == "ce_of_softmax")
            change = sure & _largest(losses, suspects, whole(self.pi * int(suspects.sum())))
            reports = Payload(NoiseLevel(float(suspects.double().mean())))
        corrected = torch.where(change, prediction, labels) if self.relabel else labels
        return Correction(task.client, corrected, task.state.weight, Payload(Suspects(suspects, confidence)), reports)

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """Suspected samples of the clients that the server considers noisy; none of others, whatever they kept."""
        noisy = known.one(NoiseLevels).noisy
        suspects = kept_by_client(clients, Suspects)
        return tuple(SuspectedSamples(c, s.mask & noisy[c]) for c, s in suspects.items())


def _largest(losses: Tensor, among: Tensor, count: int) -> Tensor:
    """Mask [n] of the ``count`` largest losses in the mask ``among``; of ties the earlier sample comes first."""
    order = torch.sort(torch.where(among, losses, -torch.inf), descending=True, stable=True).indices
    chosen = torch.zeros_like(among)
    chosen[order[:count]] = True
    return chosen & among
