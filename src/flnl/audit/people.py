"""Labels by several people: probabilities by models and people together (CROWDLAB; Goh, Tkachenko and Mueller, 2022).

What a person's labels weigh follows from how often they agree with others on the same samples, what the models weigh
from how often they agree with most people. A person is a column of the label file at one client. Of the clients, sums
alone are needed: samples with several labels by the class that most people gave, agreements, and the models' misses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flnl.audit.probability_table import ProbabilityTable
from flnl.core.images import Indices, Labels
from flnl.data.votes import NOBODY, counted

Array = NDArray[np.float64]

FLOOR = 1e-6
"""The least weight, and the least error of always guessing the most frequent class, as in cleanlab."""


@dataclass(frozen=True, eq=False)
class WithPeople:
    """Probabilities [N, K] of models and people together: (w_M p_i + Σ_j w_j e_ij) / (w_M + Σ_j w_j).

    e_ij is P at the label that person j gave to sample i, and (1 - P) / (K - 1) elsewhere, with P how often a label is
    the one that most people gave.
    """

    table: ProbabilityTable
    labels: Indices  # [A, N], NOBODY where one gave none
    weights: Array  # [A, N], w_j of who gave the label; 0 where there is none
    model: float  # w_M
    agreement: float  # P

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.table.shape

    def blocks(self) -> Iterator[Array]:
        """Consecutive rows."""
        start = 0
        for p in self.table.blocks():
            part, (rows, classes) = slice(start, start + len(p)), p.shape
            start = part.stop
            total = self.weights[:, part].sum(axis=0)
            joined = self.model * p + (total * (1 - self.agreement) / (classes - 1))[:, None]
            more = self.agreement - (1 - self.agreement) / (classes - 1)
            for labels, weights in zip(self.labels[:, part], self.weights[:, part], strict=True):
                joined[np.arange(rows), labels] += weights * more  # of no label the weight is 0
            yield joined / (self.model + total)[:, None]


def with_people(table: ProbabilityTable, labels: Indices, place: Indices) -> WithPeople | None:
    """The probabilities of models and people together; None if no sample has labels by several people.

    Args:
        table: the models' probabilities [N, K].
        labels: people's labels [A, N], ``NOBODY`` where one gave none.
        place: the number of each sample's client [N].
    """
    given = labels != NOBODY
    number = given.sum(axis=0)
    several = number > 1
    if not several.any():
        return None
    consensus, times, predicted = _consensus(table, labels)
    miss = float((predicted != consensus)[several].mean())
    guess = max(1 - float(np.bincount(consensus[several]).max()) / int(several.sum()), FLOOR)
    error = 1 - _agreements(labels, number, place)
    weights = np.maximum(1 - error / guess, FLOOR)[:, place]
    return WithPeople(
        table,
        labels,
        np.where(given, weights, 0.0),
        max(1 - miss / guess, FLOOR) * float(np.sqrt(number.mean())),
        float((times / np.maximum(number, 1))[several].mean()),
    )


def _consensus(table: ProbabilityTable, labels: Indices) -> tuple[Labels, Indices, Labels]:
    """The class that most people gave each sample [N], how many did [N], and the models' most probable one [N].

    Of equally frequent ones the most probable, of equally probable ones the first.
    """
    samples, classes = table.shape
    consensus, times, predicted = (np.empty(samples, np.int64) for _ in range(3))
    start = 0
    for p in table.blocks():
        part = slice(start, start + len(p))
        start = part.stop
        votes = counted(labels[:, part], classes)
        times[part] = votes.max(axis=1)
        consensus[part] = np.where(votes == times[part, None], p, -1.0).argmax(axis=1)
        predicted[part] = p.argmax(axis=1)
    return consensus, times, predicted


def _agreements(labels: Indices, number: Indices, place: Indices) -> Array:
    """How often each person's labels are those of others for the same samples, [A, C].

    Who has no sample with another person gets the mean of the others.
    """
    clients = int(place.max()) + 1
    same, others = np.zeros((len(labels), clients)), np.zeros((len(labels), clients))
    for j, mine in enumerate(labels):
        here = (mine != NOBODY) & (number > 1)
        agreeing = (labels[:, here] == mine[here]).sum(axis=0) - 1
        same[j] = np.bincount(place[here], weights=agreeing, minlength=clients)
        others[j] = np.bincount(place[here], weights=number[here] - 1, minlength=clients)
    known = others > 0
    shares = np.divide(same, others, out=np.zeros_like(same), where=known)
    return np.where(known, shares, shares[known].mean())
