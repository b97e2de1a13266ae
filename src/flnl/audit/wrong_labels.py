"""How many labels of each client are wrong: an estimate with an interval, from scores and a clean test set.

A label's score is its log odds u by calibrated probabilities (``calibration``). A client's scores are a mixture of two
kinds, a share π of wrong labels and the right ones. The test set shows how both kinds score: its own labels, and every
other class in their place. But models have seen the clients' labels, and a step of gradient descent raises the log odds
of a seen label in proportion to 1 - p. So a label that would have scored u is taken to score ``u + s (a σ(-u) + b)``.
The pair (a, b) is common to all clients, and s says how strongly the labels of one were memorised: it is log-normal
about 1. Scores hardly tell either, so that their likelihood enters with a small power, of the pair that of the other
clients. Beforehand the length of (a, b) is half-normal, and any direction as likely. Where many clients agree, this
tells the pair; with one or two, a label that scores well may be right or memorised, and the interval says so.

Nothing but sums over clients is needed for the pair, of the logarithm of their scores' likelihood at the pairs of a
grid; the rest is each client's own, from the test set's shares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, logsumexp, ndtr, softmax

from flnl.audit.calibration import Calibration
from flnl.audit.clean_samples import CleanSamples
from flnl.audit.probability_table import ProbabilityTable
from flnl.audit.result import Mask, WrongLabels
from flnl.audit.samples import LabelledSamples
from flnl.core.images import Labels

Array = NDArray[np.float64]

SPREAD = 0.5
"""Standard deviation of ln s."""
POWER = 0.1
"""Of the likelihood of s, and of that of (a, b). Both were chosen on MNIST and CIFAR-10 (docs/audit_measured.md)."""
LONGEST = 4.0
"""Scale of the half-normal prior on the length of (a, b)."""
LENGTHS = np.geomspace(0.06, 12.0, 43)
"""Lengths of s (a, b) that are tried [R], a quarter of a ``SPREAD`` apart."""
ANGLES = np.linspace(0.0, np.pi / 2, 7)
"""Their directions [D]: a alone, as a step of gradient descent has it, to b alone."""
SUREST = 0.9
"""Least sharpness of models that have seen the labels: 1 is as sure as right, and last models on MNIST had .5 to .7."""
EDGES = np.linspace(-6.0, 4.0, 41)
"""Between the bins of clients' scores [B - 1]. Beyond, a label is as good as certainly wrong or right."""
UNSEEN = np.linspace(-12.0, 12.0, 241)
"""Between the finer bins of the test set's scores [F - 1]."""
WIDTH = 0.3
"""Standard deviation of the kernel that smooths the test set's scores."""
ANYWHERE = 1e-3
"""Share of scores that may be in any bin, so that no single one decides."""
SHARES = np.sin((np.arange(60) + 0.5) / 60 * np.pi / 2) ** 2
"""Values of π [J], dense near 0 and 1: equally likely beforehand, by Jeffreys' prior."""
TAILS = 0.025, 0.975
"""Of a 95 % interval."""
NEGLIGIBLE = 1e-6
"""Of the largest chance: what is less likely is left out."""
LEAST_CHANCE = 1e-6
"""Log odds are of probabilities at least this far from 0 and 1."""


@dataclass(frozen=True)
class Estimate:
    """How many labels of a client are wrong."""

    every: WrongLabels
    missed: WrongLabels  # those of them that are no issues


def wrong_labels(
    samples: LabelledSamples,
    table: ProbabilityTable,
    test: CleanSamples,
    is_issue: Mask,
    *,
    seen: bool,
    together: Array | None = None,
) -> list[Estimate] | None:
    """The estimate for each client [C]; None if the models have memorised too much to tell.

    They have if they are clearly surer of test samples than right: wrong labels that are memorised score as right ones.

    Args:
        samples: the samples.
        table: their probabilities.
        test: clean samples.
        is_issue: the samples [N] that are listed.
        seen: whether a model behind the probabilities was trained on the clients' labels.
        together: the sum [G] of the ``evidence`` of all clients; None if all are among the samples.
    """
    mixture = _mixture(samples, table, test, is_issue, seen=seen)
    return None if mixture is None else mixture.estimates(seen=seen, together=together)


def evidence(
    samples: LabelledSamples, table: ProbabilityTable, test: CleanSamples, *, seen: bool
) -> NDArray[np.float64] | None:
    """What each client sends: its scores' log likelihood [C, G] at the pairs of the grid; None as ``wrong_labels``."""
    mixture = _mixture(samples, table, test, np.zeros(len(samples), np.bool_), seen=seen)
    return None if mixture is None else mixture.evidence(_grid(seen=seen))


def _mixture(
    samples: LabelledSamples, table: ProbabilityTable, test: CleanSamples, is_issue: Mask, *, seen: bool
) -> _Mixture | None:
    """The clients' scores; None if the models have memorised too much to tell."""
    model = np.zeros(len(samples), np.int64) if test.model is None else test.model
    tests = np.split(np.arange(len(test.labels)), 1 if test.model is None else test.times)  # of each model
    calibrations = [Calibration.fitted(test.labels[part], test.probabilities[part]) for part in tests]
    if seen and min(calibration.sharpness for calibration in calibrations) < SUREST:
        return None
    clients, classes, bins = len(samples.clients), table.shape[1], len(EDGES) + 1
    scores, given = np.zeros((2, clients, bins)), np.zeros((clients, len(tests), classes))
    for index, labels, probabilities in samples.blocks(table):
        own, place = np.empty(len(labels)), samples.place[index]
        for m, calibration in enumerate(calibrations):
            at = np.flatnonzero(model[index] == m)
            own[at] = _log_odds(calibration(probabilities[at])[np.arange(len(at)), labels[at]])
        np.add.at(scores, (is_issue[index].astype(int), place, np.searchsorted(EDGES, own)), 1)
        np.add.at(given, (place, model[index], labels), 1)
    mix = given / given.sum(axis=(1, 2), keepdims=True)
    unseen = [
        _unseen(_log_odds(calibration(test.probabilities[part])), test.labels[part])
        for part, calibration in zip(tests, calibrations, strict=True)
    ]
    right, wrong = (  # a client at a time, as it has the same bits then beside others and alone
        np.stack([sum(own[m] @ both[kind] for m, both in enumerate(unseen)) for own in mix]) for kind in range(2)
    )
    return _Mixture(scores.sum(axis=0), scores[0], right, wrong)


def _grid(*, seen: bool) -> Array:
    """The chances of an unseen score to become one in each bin [G, F, B], by s (a, b)."""
    if not seen:
        return _moved(0.0, 0.0)[None]
    return np.stack([_moved(r * np.cos(angle), r * np.sin(angle)) for angle in ANGLES for r in LENGTHS])


def _log_odds(probabilities: Array) -> Array:
    return np.asarray(logit(np.clip(probabilities, LEAST_CHANCE, 1 - LEAST_CHANCE)))


def _unseen(log_odds: Array, labels: Labels) -> tuple[Array, Array]:
    """How test samples' ``log_odds`` [M, K] of each class are distributed [K, F], where it is right and where wrong.

    A class that no test sample is of, or that all are of, has the distribution of all classes together.
    """
    classes, bins = log_odds.shape[1], len(UNSEEN) + 1
    counts = np.zeros((2, classes, bins))
    for k in range(classes):
        place, is_right = np.searchsorted(UNSEEN, log_odds[:, k]), labels == k
        counts[0, k] = np.bincount(place[is_right], minlength=bins)
        counts[1, k] = np.bincount(place[~is_right], minlength=bins)
    counts = np.where(counts.sum(axis=2, keepdims=True) > 0, counts, counts.sum(axis=1, keepdims=True))
    right, wrong = counts / counts.sum(axis=2, keepdims=True)
    return right, wrong


@dataclass(frozen=True, eq=False)
class _Mixture:
    """Clients' scores, and how right and wrong labels of their classes score unseen."""

    scores: Array  # [C, B]
    unlisted: Array  # [C, B], of labels that are no issues
    right: Array  # [C, F]
    wrong: Array  # [C, F]

    def mixed(self, client: int, moved: Array) -> tuple[Array, Array]:
        """The chances of a label to score in each bin and be wrong, and to score in it, by s (a, b) and π [G, J, B].

        Args:
            client: the client's place.
            moved: the chances of an unseen score to become one in each bin [G, F, B].
        """
        right, wrong = (unseen[client] @ moved for unseen in (self.right, self.wrong))
        is_wrong = SHARES[:, None] * wrong[:, None]
        return is_wrong, is_wrong + (1 - SHARES[:, None]) * right[:, None]

    def evidence(self, moved: Array) -> Array:
        """The log likelihood of each client's scores [C, G]."""
        clients = range(len(self.scores))
        return np.stack([logsumexp(np.log(self.mixed(c, moved)[1]) @ self.scores[c], axis=1) for c in clients])

    def estimates(self, *, seen: bool, together: Array | None) -> list[Estimate]:
        """The estimates, given the sum [G] of the evidence of all clients, by default of these."""
        moved, found = _grid(seen=seen), []
        evidence = self.evidence(moved)
        together = evidence.sum(axis=0) if together is None else together
        for c in range(len(self.scores)):
            weight = _memory(together - evidence[c], evidence[c]) if seen else np.ones(1)
            at = weight > NEGLIGIBLE * weight.max()
            is_wrong, both = self.mixed(c, moved[at])
            chance = softmax(np.log(both) @ self.scores[c], axis=1) * (weight[at] / weight[at].sum())[:, None]
            every, missed = (_counted(chance, is_wrong / both, counts) for counts in (self.scores[c], self.unlisted[c]))
            found.append(Estimate(every, missed))
        return found


def _moved(a: float, b: float) -> Array:
    """The chances of each unseen score [F] to become one in each bin [B], once seen."""
    step = UNSEEN[1] - UNSEEN[0]
    centres = np.append(UNSEEN, UNSEEN[-1] + step) - step / 2
    below = ndtr((EDGES - (centres + a * expit(-centres) + b)[:, None]) / WIDTH)
    return np.asarray(np.diff(below, axis=1, prepend=0.0, append=1.0)) * (1 - ANYWHERE) + ANYWHERE / (len(EDGES) + 1)


def _memory(others: Array, own: Array) -> Array:
    """The chances [G] of a client's s (a, b), not yet adding up to 1.

    Args:
        others: log likelihood [G] of the other clients' scores, for each direction and length of (a, b).
        own: that of the client's, for each s (a, b).
    """
    length = np.log(LENGTHS)
    common = POWER * others.reshape(len(ANGLES), len(LENGTHS)) + length - (LENGTHS / LONGEST) ** 2 / 2
    of_client = softmax(-(((length[:, None] - length) / SPREAD) ** 2) / 2, axis=0)  # from each common length
    return np.asarray((softmax(common) @ of_client.T).ravel() * np.exp(POWER * (own - own.max())))


def _counted(chance: Array, is_wrong: Array, counts: Array) -> WrongLabels:
    """How many of the labels with ``counts`` [B] scores are wrong.

    Args:
        chance: of each s and π [E, J].
        is_wrong: the chance of a label in each bin to be wrong, given s and π [E, J, B].
        counts: labels in each bin.
    """
    weight, mean = chance.ravel(), (is_wrong @ counts).ravel()
    deviation = np.sqrt((is_wrong * (1 - is_wrong)) @ counts + 0.01).ravel()
    low, high = (_quantile(tail, weight, mean, deviation, round(counts.sum())) for tail in TAILS)
    return WrongLabels(float(weight @ mean), low, high)


def _quantile(tail: float, weight: Array, mean: Array, deviation: Array, most: int) -> int:
    """The first whole number, or ``most``, below which a mixture of normal distributions has ``tail`` of its mass."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if weight @ ndtr((middle + 0.5 - mean) / deviation) >= tail:
            high = middle
        else:
            low = middle + 1
    return low
