"""What an audit pools over clients: thresholds and joint counts, with label privacy or without."""

from __future__ import annotations

import numpy as np

from flnl.audit.counting import Counts, ProbabilitySums, joint_counts
from flnl.audit.joint import calibrated, estimated_issues, latent, with_diagonal
from flnl.audit.label_privacy import RandomisedSums, drawn_labels, recovered_disagreements, recovered_joint
from flnl.audit.probability_table import ProbabilityTable
from flnl.audit.result import JointEstimate
from flnl.audit.samples import Array, LabelledSamples, check_rows
from flnl.core.images import Indices, Labels
from flnl.numerics.randomised_response import RandomisedResponse


def probability_sums(samples: LabelledSamples, table: ProbabilityTable) -> ProbabilitySums:
    """The message of the first round about these samples; rows that are no distribution are refused."""
    counting = count_clients(samples, table, None, None)
    assert isinstance(counting, _Plain), "without label privacy"
    assert counting.sums is not None, "there are samples"
    return counting.sums


def count_clients(
    samples: LabelledSamples, table: ProbabilityTable, epsilon: float | None, secret: bytes | None
) -> _Plain | _Private:
    """The clients' messages of the first round; rows that are no distribution are refused."""
    if epsilon is None:
        counting: _Plain | _Private = _Plain(samples)
    else:
        assert secret is not None, "label privacy rests on a secret"
        counting = _Private(samples, RandomisedResponse(epsilon, table.shape[1]), secret)
    for index, _, probabilities in samples.blocks(table):
        check_rows(samples, index, probabilities)
        counting.add(index, probabilities)
    return counting


class _Plain:
    """The clients' messages without label privacy; their sums are those over blocks of all samples."""

    def __init__(self, samples: LabelledSamples) -> None:
        self._samples = samples
        self.sums: ProbabilitySums | None = None

    def add(self, index: Indices, probabilities: Array) -> None:
        """Add the samples at ``index`` to the first round."""
        sums = ProbabilitySums.of(self._samples.given[index], probabilities)
        self.sums = sums if self.sums is None else self.sums + sums

    @property
    def thresholds(self) -> Array:
        """The pooled thresholds [K]."""
        assert self.sums is not None, "there are samples"
        return self.sums.thresholds

    def joint(self, confident: Labels, thresholds: Array, off_diagonal: int) -> JointEstimate:
        """The estimates after the second round."""
        assert self.sums is not None, "there are samples"
        counts = joint_counts(self._samples.given, confident, len(thresholds))
        return estimated(self.sums.counts, thresholds, counts, off_diagonal)

    def disagreements(self, predicted: Labels) -> Array:
        """Each client's samples [C] whose most probable class is not the given one."""
        samples = self._samples
        differs = (predicted != samples.given).astype(np.float64)
        return np.bincount(samples.place, weights=differs, minlength=len(samples.clients)).astype(np.float64)


class _Private:
    """The clients' messages under label privacy: functions of labels that each client draws once."""

    def __init__(self, samples: LabelledSamples, response: RandomisedResponse, secret: bytes) -> None:
        self._samples, self._response = samples, response
        parts = [samples.given[samples.place == c] for c in range(len(samples.clients))]
        self._drawn = drawn_labels(response, parts, samples.clients.tolist(), secret)
        self._sums: RandomisedSums | None = None

    def add(self, index: Indices, probabilities: Array) -> None:
        """Add the samples at ``index`` to the first round."""
        sums = RandomisedSums.of(self._drawn[index], probabilities)
        self._sums = sums if self._sums is None else self._sums + sums

    @property
    def thresholds(self) -> Array:
        """The estimated thresholds [K]."""
        assert self._sums is not None, "there are samples"
        return self._sums.thresholds(self._response)

    def joint(self, confident: Labels, thresholds: Array, off_diagonal: int) -> JointEstimate:
        """The estimates after the second round; the number of issues is estimated, too."""
        assert self._sums is not None, "there are samples"
        counts = recovered_joint(self._response, joint_counts(self._drawn, confident, len(thresholds)))
        issues = int(np.rint(counts.sum() - counts.trace()))
        return estimated(self._sums.recovered_counts(self._response), thresholds, counts, issues)

    def disagreements(self, predicted: Labels) -> Array:
        """Each client's estimated samples [C] whose most probable class is not the given one."""
        samples = self._samples
        agreeing = np.bincount(samples.place[predicted == self._drawn], minlength=len(samples.clients))
        return recovered_disagreements(self._response, agreeing, samples.sizes)


def estimated(counts: Counts | Array, thresholds: Array, joint: Counts | Array, off_diagonal: int) -> JointEstimate:
    """The pooled estimates, from the samples [K] of each given class and the joint counts [K, K]."""
    confident = with_diagonal(joint)
    scaled = calibrated(confident, counts)
    hidden = latent(scaled, counts)
    return JointEstimate(
        counts=counts,
        thresholds=thresholds,
        confident=confident,
        calibrated=scaled,
        prior=hidden.prior,
        noise=hidden.noise,
        inverse_noise=hidden.inverse_noise,
        off_diagonal=off_diagonal,
        off_diagonal_calibrated=estimated_issues(scaled),
    )
