"""Class by class, how sure a model must be of a label: the mean over all clients' samples with this label."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from flnl.core.reported import PerClass, SamplesPerClass
from flnl.core.stored import stored


@stored("ClassConfidence")
class ClassConfidence:
    """Sent to the server: the client's number of samples of each class, and the mean probability of their label."""

    means: PerClass  # float64 [K], 0 for a class without samples
    counts: SamplesPerClass  # int64 [K]


@stored("ClassThresholds")
class ClassThresholds:
    """Sent to clients: for each class, the probability above which it may be a sample's class."""

    values: Tensor  # float64 [K], infinite for a class that no client holds


def confidence(probabilities: Tensor, labels: Tensor, decimals: int | None = None) -> ClassConfidence:
    """Of probabilities float64 [n, K] and labels int64 [n]; the means are rounded if ``decimals`` are given."""
    classes = probabilities.shape[1]
    counts = torch.bincount(labels, minlength=classes)
    own = probabilities.gather(1, labels[:, None])[:, 0]
    sums = torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, own)
    means = sums / counts.clamp_min(1)
    return ClassConfidence(means if decimals is None else means.round(decimals=decimals), counts)


def consensus(reports: Iterable[ClassConfidence]) -> ClassThresholds:
    """The clients' means, weighted by their counts: the mean over all samples of the class, wherever they lie."""
    sent = list(reports)
    counts = torch.stack([one.counts for one in sent]).double()
    sums = (counts * torch.stack([one.means for one in sent])).sum(0)
    total = counts.sum(0)
    return ClassThresholds(torch.where(total > 0, sums / total.clamp_min(1), torch.inf))


def likely(probabilities: Tensor, thresholds: Tensor) -> Tensor:
    """The most probable of the classes that are above their thresholds, int64 [n]; -1 where none is."""
    above = probabilities > thresholds
    best = torch.where(above, probabilities, -torch.inf).argmax(1)
    return torch.where(above.any(1), best, -1)


@dataclass(frozen=True)
class Doubt:
    """A client's samples whose label the consensus contradicts."""

    held_out: Tensor  # bool [n]
    margin: Tensor  # float64 [n], the largest probability less that of the label
    likely: Tensor  # int64 [n], as of ``likely``


def doubt(probabilities: Tensor, labels: Tensor, thresholds: Tensor, margin: float) -> Doubt:
    """Samples of which another class is likely, and the largest probability exceeds the label's by over ``margin``.

    Args:
        probabilities: float64 [n, K].
        labels: int64 [n].
        thresholds: float64 [K].
        margin: τ.
    """
    other = likely(probabilities, thresholds)
    ahead = probabilities.amax(1) - probabilities.gather(1, labels[:, None])[:, 0]
    return Doubt((other >= 0) & (other != labels) & (ahead > margin), ahead, other)


def corrected(probabilities: Tensor, thresholds: Tensor) -> Tensor:
    """The likely class of each sample, the most probable one where none is likely; int64 [n]."""
    other = likely(probabilities, thresholds)
    return torch.where(other >= 0, other, probabilities.argmax(1))
