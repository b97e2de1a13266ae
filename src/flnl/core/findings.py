"""What a method says of clients and of their samples: all that measures, figures and ``labels.csv`` know of it.

Exchanges and label correctors give findings (``Exchange.findings``, ``LabelCorrector.findings``), and the evaluator
compares them with the truth. N counts all clients, K classes, n the samples of one client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torch import Tensor


@dataclass(frozen=True)
class SuspectedSamples:
    """Which samples of one client are taken for wrongly labelled.

    An exchange's suspects are measured at every evaluation, a corrector's beside each correction; both are part of
    what a run has detected, and flagged in ``labels.csv``.
    """

    client: int
    mask: Tensor  # bool [n]
    score: Tensor | None = None  # float [n], larger for a more doubtful label; None where the mask is all there is
    judged: Tensor | None = None  # int64 [n], the labels that were judged; None where they were as given


@dataclass(frozen=True)
class NoisyClients:
    """A split of the clients into those with wrong labels and those without; given once it has been made."""

    noisy: Tensor  # bool [N]
    scores: Mapping[str, Tensor] = field(default_factory=dict)  # float [N] each, what the split was made from
    mixture: tuple[float, ...] = ()  # means, variances and weights of two fitted Gaussians, lower component first


@dataclass(frozen=True)
class EstimatedNoise:
    """The estimated share of wrong labels of each client."""

    values: Tensor  # float [N] in [0, 1]; NaN where there is no estimate


@dataclass(frozen=True)
class EstimatedQuality:
    """The estimated share of right labels of each client, up to scale."""

    values: Tensor  # float [N] in [0, 1]
    scores: Mapping[str, Tensor] = field(default_factory=dict)  # float [N] each, what the estimate was made from


@dataclass(frozen=True)
class LabelShares:
    """How often each class occurs among the labels of all clients, as far as clients share that."""

    values: Tensor  # float [K], sums to 1
    least: float  # the smallest share before they were made a distribution; negative where noise outweighs a rare class
    epsilon: float  # label differential privacy spent by the client that spent most


@dataclass(frozen=True)
class Scalar:
    """A number about the method, recorded under its name at every evaluation."""

    name: str
    value: float


Finding = SuspectedSamples | NoisyClients | EstimatedNoise | EstimatedQuality | LabelShares | Scalar

F = TypeVar("F", NoisyClients, EstimatedNoise, EstimatedQuality, LabelShares)


def first(findings: Iterable[Finding], kind: type[F]) -> F | None:
    """The first finding of a kind of which there is one for all clients; None where no part gives one."""
    return next((finding for finding in findings if isinstance(finding, kind)), None)


def suspects(findings: Iterable[Finding]) -> dict[int, SuspectedSamples]:
    """The suspects by client. Where several parts judge a client's samples, a sample that any suspects is suspected.

    Score and judged labels are then those of the first.
    """
    clients: dict[int, SuspectedSamples] = {}
    for finding in findings:
        if isinstance(finding, SuspectedSamples):
            before = clients.get(finding.client)
            clients[finding.client] = finding if before is None else replace(before, mask=before.mask | finding.mask)
    return clients


def scalars(findings: Iterable[Finding]) -> dict[str, float]:
    """The named numbers; of two of one name the later."""
    return {finding.name: finding.value for finding in findings if isinstance(finding, Scalar)}
