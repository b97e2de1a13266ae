"""How many labels of each client are wrong: an estimate with an interval, from scores and a clean test set.

A label's score is its log odds u by calibrated probabilities (``calibration``). A client's scores are a mixture of two
kinds, a share π of wrong labels and the right ones. The test set shows how both kinds score: its own labels, and every
other class in their place. But models have seen the clients' labels, and a step of gradient descent raises the log odds
of a seen label in proportion to 1 - p. So a label that would have scored u is taken to score ``u + s (a σ(-u) + b)``.
Here a, b >= 0 make the scores of all clients the likeliest, each with its own π and s = 1. How strongly the labels of a
single client were memorised differs, and the scores hardly tell it: s is log-normal about 1, and its likelihood enters
with a small power. This makes most of the interval where models have memorised, and nothing where they have not.

Nothing but sums over clients is needed for a and b, of the logarithm of their scores' likelihood at the pairs that are
tried; the rest is each client's own, from the test set's shares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit, ndtr

from flnl.audit.assessment import CleanSamples, LabelledSamples
from flnl.audit.calibration import Calibration
from flnl.audit.probability_table import ProbabilityTable
from flnl.audit.result import Mask, WrongLabels
from flnl.core.images import Labels

Array = NDArray[np.float64]

SPREAD = 0.5
"""Standard deviation of ln s."""
POWER = 0.1
"""Of the likelihood of s. Both were chosen on MNIST and CIFAR-10 (docs/audit.md, How many labels are wrong)."""
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
STRENGTHS = np.linspace(-2.0, 2.0, 17)
"""Values of ln s in standard deviations [E]."""
TAILS = 0.025, 0.975
"""Of a 95 % interval."""
LEAST_CHANCE = 1e-6
"""Log odds are of probabilities at least this far from 0 and 1."""


@dataclass(frozen=True)
class Estimate:
    """How many labels of a client are wrong."""

    every: WrongLabels
    missed: WrongLabels  # those of them that are no issues


def wrong_labels(
    samples: LabelledSamples, table: ProbabilityTable, test: CleanSamples, is_issue: Mask, *, seen: bool
) -> list[Estimate] | None:
    """The estimate for each client [C]; None if the models have memorised too much to tell.

    They have if they are clearly surer of test samples than right: wrong labels that are memorised score as right ones.

    Args:
        samples: the samples.
        table: their probabilities.
        test: clean samples.
        is_issue: the samples [N] that are listed.
        seen: whether a model behind the probabilities was trained on the clients' labels.
    """
    calibration = Calibration.fitted(test.labels, test.probabilities)
    if seen and calibration.sharpness < SUREST:
        return None
    clients, classes, bins = len(samples.clients), table.shape[1], len(EDGES) + 1
    scores, given = np.zeros((2, clients, bins)), np.zeros((clients, classes))
    for index, labels, probabilities in samples.blocks(table):
        own = _log_odds(calibration(probabilities)[np.arange(len(labels)), labels])
        place = samples.place[index]
        np.add.at(scores, (is_issue[index].astype(int), place, np.searchsorted(EDGES, own)), 1)
        np.add.at(given, (place, labels), 1)
    mix = given / given.sum(axis=1, keepdims=True)
    right, wrong = _unseen(_log_odds(calibration(test.probabilities)), test.labels)
    mixture = _Mixture(scores.sum(axis=0), mix @ right, mix @ wrong)
    return mixture.estimates(mixture.memory() if seen else (0.0, 0.0), unlisted=scores[0])


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
    right: Array  # [C, F]
    wrong: Array  # [C, F]

    def seen(self, a: float, b: float) -> tuple[Array, Array]:
        """The chances [C, B] of right and of wrong labels to score in each bin, once seen."""
        step = UNSEEN[1] - UNSEEN[0]
        centres = np.append(UNSEEN, UNSEEN[-1] + step) - step / 2
        below = ndtr((EDGES - (centres + a * expit(-centres) + b)[:, None]) / WIDTH)
        into = np.diff(below, axis=1, prepend=0.0, append=1.0) * (1 - ANYWHERE) + ANYWHERE / (len(EDGES) + 1)
        return self.right @ into, self.wrong @ into

    def memory(self) -> tuple[float, float]:
        """The a and b under which the scores of all clients are the likeliest, each with its own π."""
        shares = np.full(len(self.scores), 0.3)

        def loss(x: Array) -> float:
            nonlocal shares
            if min(x) < 0:
                return float("inf")
            right, wrong = self.seen(*x)
            shares = _likeliest(self.scores, right, wrong, np.clip(shares, 0.02, 0.9))
            return -float((self.scores * np.log(shares[:, None] * wrong + (1 - shares[:, None]) * right)).sum())

        start = np.array([[1.0, 0.3], [0.3, 0.1], [1.5, 0.6]])
        a, b = minimize(
            loss,
            start[0],
            method="Nelder-Mead",
            options={"initial_simplex": start, "xatol": 0.01, "fatol": 0.1, "maxfev": 100},
        ).x
        return float(a), float(b)

    def estimates(self, memory: tuple[float, float], unlisted: Array) -> list[Estimate]:
        """The estimates, given a and b, and of the scores those [C, B] of labels that are no issues."""
        seen = [self.seen(*(np.exp(SPREAD * s) * np.array(memory))) for s in STRENGTHS]
        right, wrong = (np.stack([pair[i] for pair in seen]) for i in range(2))
        found = []
        for c, scores in enumerate(self.scores):
            both = SHARES[:, None] * wrong[:, c, None] + (1 - SHARES[:, None]) * right[:, c, None]  # [E, J, B]
            chance, is_wrong = _posterior(np.log(both) @ scores), SHARES[:, None] * wrong[:, c, None] / both
            every, missed = (_counted(chance, is_wrong, counts) for counts in (scores, unlisted[c]))
            found.append(Estimate(every, missed))
        return found


def _likeliest(scores: Array, right: Array, wrong: Array, start: Array) -> Array:
    """The π [C] under which each client's scores are the likeliest, by expectation maximisation from ``start``."""
    shares, total = start, scores.sum(axis=1)
    for _ in range(60):
        mixed = shares[:, None] * wrong
        shares = (scores * mixed / (mixed + (1 - shares[:, None]) * right)).sum(axis=1) / total
    return np.clip(shares, 1e-6, 1 - 1e-6)


def _posterior(likelihood: Array) -> Array:
    """The chance of each s and π [E, J], from the logarithm of their likelihood."""
    of_share = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    total = of_share.sum(axis=1, keepdims=True)
    evidence = (np.log(total) + likelihood.max(axis=1, keepdims=True))[:, 0]
    of_strength = np.exp(POWER * (evidence - evidence.max()) - STRENGTHS**2 / 2)
    return np.asarray(of_share / total * (of_strength / of_strength.sum())[:, None])


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
