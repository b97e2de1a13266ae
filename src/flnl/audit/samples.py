"""Samples with their given labels, and the check of their probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flnl.audit.probability_table import ProbabilityTable
from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.data.owners import called

Array = NDArray[np.float64]

OUTSIDE, OFF_ONE = 1e-6, 1e-3 + 1e-9
"""How far a probability may lie outside [0, 1], and the sum of a row off 1, with room for the rounding of the sum."""


@dataclass(frozen=True, eq=False)
class LabelledSamples:
    """Samples with their given labels, by client and then by position."""

    client: Indices  # [N]
    name: Sequence[str | int]  # [N]
    given: Labels  # [N]
    client_names: Sequence[str] | None = None  # of all clients by number; None: they are called by their numbers
    people: Indices | None = None  # [A, N], labels by several people, -1 where one gave none; None: one person's

    def __len__(self) -> int:
        return len(self.client)

    @cached_property
    def clients(self) -> Indices:
        """The clients' numbers [C], ascending."""
        return np.unique(self.client)

    @cached_property
    def place(self) -> Indices:
        """The place [N] of each sample's client in ``clients``."""
        return np.searchsorted(self.clients, self.client)

    @cached_property
    def sizes(self) -> Indices:
        """Each client's number of samples [C]."""
        return np.bincount(self.place, minlength=len(self.clients)).astype(np.int64)

    @cached_property
    def owner(self) -> list[str]:
        """What each sample's client is called, [N]."""
        return [called(self.client_names, client) for client in self.client.tolist()]

    def describe(self, i: int) -> str:
        """A sample, for messages."""
        return f"client {self.owner[i]}, sample {self.name[i]}"

    def blocks(self, table: ProbabilityTable) -> Iterator[tuple[Indices, Labels, Array]]:
        """Consecutive samples: their indices [n], labels [n] and probabilities [n, K] in ``table``."""
        start = 0
        for probabilities in table.blocks():
            index = np.arange(start, start + len(probabilities))
            yield index, self.given[index], probabilities
            start += len(probabilities)


def check_labels(samples: LabelledSamples, shape: tuple[int, int]) -> None:
    """Refuse samples that do not fit probabilities of this shape [N, K].

    Raises:
        UserError: naming the number, or the first label, that does not fit.
    """
    count, classes = shape
    if count != len(samples):
        raise UserError(
            f"there are probabilities of {count} samples and labels of {len(samples)}; they should be equal"
        )
    if not count:
        raise UserError("there are no samples to audit")
    if classes < 2:
        raise UserError(f"the probabilities are of {classes} class; there should be at least two")
    wrong = np.flatnonzero((samples.given < 0) | (samples.given >= classes))
    if len(wrong):
        first = int(wrong[0])
        raise UserError(
            f"{samples.describe(first)} has label {samples.given[first]}; there are classes 0 to {classes - 1}"
        )


def check_rows(samples: LabelledSamples, index: Indices, probabilities: Array) -> None:
    """Refuse rows [n, K] that are no distributions; they are of the samples at ``index`` [n].

    Raises:
        UserError: naming the first sample of such a row.
    """
    if (fault := row_fault(probabilities)) is not None:
        row, text = fault
        raise UserError(f"{samples.describe(int(index[row]))}: {text}")


def row_fault(probabilities: Array) -> tuple[int, str] | None:
    """The first row that is not a distribution, and why."""
    valid = (probabilities >= -OUTSIDE) & (probabilities <= 1 + OUTSIDE)  # False for NaN
    sums = probabilities.sum(axis=1)
    wrong = np.flatnonzero(~valid.all(axis=1) | ~(np.abs(sums - 1) <= OFF_ONE))
    if not len(wrong):
        return None
    row = int(wrong[0])
    if np.isnan(probabilities[row]).any():
        return row, (
            "a probability is nan; the model that gave it has probably diverged, so repeat its training with a smaller "
            "learning rate (train.lr)"
        )
    for value in probabilities[row].tolist():
        if not -OUTSIDE <= value <= 1 + OUTSIDE:
            return row, f"a probability is {value:g}; it should be in [0, 1]"
    return row, f"its probabilities sum to {sums[row]:g}; they should sum to 1"
