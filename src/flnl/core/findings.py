"""Findings: what a method concludes about clients and their samples, the source of metrics, figures and ``labels.csv``.

Parts return findings (``Part.findings``), and the evaluator compares them with the truth. N is the number of clients,
K of classes, n of one client's samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torch import Tensor


@dataclass(frozen=True)
class SuspectedSamples:
    """The samples of one client that the method considers wrongly labelled.

    A corrector's suspects are measured at each correction, those of other parts at every evaluation; both count as
    detected by the run and are flagged in ``labels.csv``.
    """

    client: int
    mask: Tensor  # bool [n]
    score: Tensor | None = None  # float [n], larger for more doubtful labels; None if there is only the mask
    judged: Tensor | None = None  # int64 [n], the labels that were judged; None for the given labels
    proposed: Tensor | None = None  # int64 [n], the labels that the method trains towards in their place, if any


@dataclass(frozen=True)
class NoisyClients:
    """A split of the clients into noisy and clean ones; returned once the method has made it."""

    noisy: Tensor  # bool [N]
    scores: Mapping[str, Tensor] = field(default_factory=dict)  # float [N] each, basis of the split
    mixture: tuple[float, ...] = ()  # means, variances and weights of two fitted Gaussians, lower component first


@dataclass(frozen=True)
class EstimatedNoise:
    """Each client's estimated share of wrong labels."""

    values: Tensor  # float [N] in [0, 1]; NaN if there is no estimate
    scores: Mapping[str, Tensor] = field(default_factory=dict)  # float [N] each, beside the estimate


@dataclass(frozen=True)
class EstimatedQuality:
    """Each client's estimated share of right labels, up to scale."""

    values: Tensor  # float [N] in [0, 1]
    scores: Mapping[str, Tensor] = field(default_factory=dict)  # float [N] each, basis of the estimate


@dataclass(frozen=True)
class LabelShares:
    """Each class's share of all clients' labels, as far as clients share that information."""

    values: Tensor  # float [K], sums to 1
    least: float  # the smallest share before normalisation; negative if the privacy noise outweighs a rare class
    epsilon: float  # the largest epsilon of label differential privacy that any client has spent


OF_RUNS = re.compile(
    "kind|stage|round|participations|cohort|best|last|mean_last_10|best_mean_10|at_best_validation|test_loss|labels|"
    "worst_client.*|flagged|changed|suspected|accuracy.*|"
    "(validation|noise|filter|quality|label|detection|client_detection|correction|memorization)_.*"
)
"""The names of what every run may record of itself; a ``Scalar`` has another one."""


@dataclass(frozen=True)
class Scalar:
    """A number about the method, recorded under its name, a word, at every evaluation."""

    name: str
    value: float


Finding = SuspectedSamples | NoisyClients | EstimatedNoise | EstimatedQuality | LabelShares | Scalar

F = TypeVar("F", NoisyClients, EstimatedNoise, EstimatedQuality, LabelShares)


def first(findings: Iterable[Finding], kind: type[F]) -> F | None:
    """The first finding of ``kind``; None if there is none."""
    return next((finding for finding in findings if isinstance(finding, kind)), None)


def suspects(findings: Iterable[Finding]) -> dict[int, SuspectedSamples]:
    """Suspected samples by client; if several parts judge a client's samples, the union of their suspects.

    Score, judged and proposed labels are those of the first part.
    """
    clients: dict[int, SuspectedSamples] = {}
    for finding in findings:
        if isinstance(finding, SuspectedSamples):
            before = clients.get(finding.client)
            clients[finding.client] = finding if before is None else replace(before, mask=before.mask | finding.mask)
    return clients


def scalars(findings: Iterable[Finding]) -> dict[str, float]:
    """The scalar findings by name; a later one replaces an earlier one of the same name."""
    return {finding.name: finding.value for finding in findings if isinstance(finding, Scalar)}
