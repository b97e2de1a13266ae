"""FedDiv's batch rule: each epoch trains, with mixup, on the samples on which the filter and two models agree."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.ranges import Count, Neutral, NonNegative, Share
from flnl.core.step import WHOLE, Phase
from flnl.methods.feddiv import consistency
from flnl.methods.feddiv.consistency import debiased, no_bias
from flnl.methods.feddiv.exchange import ClassBias, LastPredictions, received_logits
from flnl.methods.feddiv.noise_filter import Filter, LossKind, LossNorm, clean_flags, filter_losses
from flnl.parts.batches import Mixup


@dataclass(frozen=True)
class Reselection(Mixup):
    """Filters and relabels samples, and keeps consistently predicted ones, in every epoch (FedDiv, Eqs. 6 to 11).

    The filter and ŷ use the received model, whose logits are computed once per visit (of augmented images in every
    epoch); ỹ is the debiased prediction of the model being trained. New labels hold for the epoch, or,
    with ``persist``, from then on. A noisy client that keeps no more than ``at_least`` samples trains on none in that
    epoch (the withdrawn code uses one batch as the limit). A client that received no filter uses all its samples.
    ``flnl.methods.feddiv.consistency.Selection`` documents the other settings.
    """

    reads: ClassVar[tuple[type, ...]] = (Filter, ClassBias)
    loss: LossKind
    norm: LossNorm
    threshold: Share
    guard: bool
    guard_above: Annotated[bool, Neutral(False)]
    delta: Share
    strict_delta: bool
    zeta: Share
    relabel: bool
    relabel_min_delta: Share
    persist: bool
    pcs: Literal["per_epoch", "cached", "off"]
    pcs_start: Count
    clean_agrees: bool
    xi: NonNegative
    at_least: Count
    inference_augment: bool

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        yield self.select(network, task, epoch)

    def select(self, network: Model, task: ClientTask, epoch: int) -> Phase:
        """The selected samples and their labels; the whole client if it counts as clean."""
        by = task.broadcast.extras.get(Filter)
        if by is None or len(task.samples) == 0:
            return WHOLE
        logits, labels = received_logits(network, task, augmented=self.inference_augment), task.labels
        losses = filter_losses(logits, labels, loss=self.loss, norm=self.norm)
        flags = clean_flags(losses, by, threshold=self.threshold, guard=self.guard, guard_above=self.guard_above)
        clean = torch.from_numpy(flags)
        bias = task.state.extras.get(ClassBias) or ClassBias(no_bias(network.num_classes), 0)
        selected = self._choice(
            clean, labels, torch.softmax(logits.double(), dim=1), self._local(network, task, epoch, bias), bias.visits
        )
        if not selected.noisy:
            return WHOLE
        kept = selected.keep.nonzero()[:, 0]
        return Phase(None, kept if len(kept) > self.at_least else kept[:0], selected.labels)

    def selections(self, network: Model, task: ClientTask) -> Mapping[str, Phase]:
        """Selections at the start of a visit: after filtering and relabelling, after reselection (FedDiv, Fig. 7)."""
        steps = {"filtered and relabelled": "off", "re-selected": self.pcs}
        return {name: replace(self, pcs=pcs, at_least=0).select(network, task, 0) for name, pcs in steps.items()}

    def relabels(self, network: Model, task: ClientTask) -> Tensor | None:
        """Under ``persist``, a noisy client's labels with relabelled samples; else None."""
        return self.select(network, task, 0).labels if self.persist else None

    @property
    def _choice(self) -> consistency.Selection:
        return consistency.Selection(
            delta=self.delta,
            strict_delta=self.strict_delta,
            zeta=self.zeta,
            relabel=self.relabel,
            relabel_min_delta=self.relabel_min_delta,
            pcs=self.pcs,
            pcs_start=self.pcs_start,
            clean_agrees=self.clean_agrees,
        )

    def _local(self, network: Model, task: ClientTask, epoch: int, bias: ClassBias) -> Tensor | None:
        """ỹ int64 [n]; None if it is not used or not known yet."""
        if self.pcs == "off":
            return None
        if self.pcs == "cached":
            last = task.state.extras.get(LastPredictions)
            return None if last is None else last.labels
        if epoch == 0:  # training has not begun
            logits = received_logits(network, task, augmented=self.inference_augment)
        else:
            augment = task.stream("agreement augmentation", epoch) if self.inference_augment else None
            logits = network.logits(task.samples, augment)
        return debiased(logits.double(), bias.mean, self.xi).argmax(1)
