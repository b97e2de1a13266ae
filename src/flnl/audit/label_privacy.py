"""Messages of the two rounds under label differential privacy.

Each client randomises its labels once (``RandomisedResponse``) and sends functions of the drawn labels only, so all of
its messages together cost one ε. The draws are a function of a secret, ε, the client's labels and number, and the
number of classes: a later audit of the same uses the same draws, whatever the model. The server recovers unbiased
totals. This covers the messages of an audit: the
model itself has learned from the labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from flnl.audit.counting import ONE, Counts, fixed_point, thresholds_of
from flnl.core.errors import UserError
from flnl.core.images import Labels
from flnl.core.streams import secret_stream
from flnl.numerics.randomised_response import RandomisedResponse
from flnl.storage import secret_file

Array = NDArray[np.float64]

PURPOSE = "audit label privacy"
NAME = "label_privacy.secret"
"""Name of the file of the secret."""
FEWEST = 0.5
"""A class with a recovered count below this counts as absent."""


def secret_in(file: Path | None, handed_on: Sequence[Path], report: Callable[[str], None]) -> bytes:
    """The secret in ``file``, by default one in the user's state folder; it is made if it does not exist.

    Args:
        file: the file that the user has named.
        handed_on: folders that others may get, in which no secret may lie.
        report: is told in a line that a secret was made.

    Raises:
        UserError: if it lies in one of these folders, cannot be made or read, or may be known to others.
    """
    path = secret_file.state_folder() / NAME if file is None else file
    for folder in handed_on:
        if path.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"--secret {path} lies in {folder}, which others may get: name a file elsewhere")
    if secret_file.made_once(path):
        report(f"made {path}, the secret of label privacy: show it to nobody, and keep it, as another costs ε again")
    return secret_file.read(path)


def drawn_labels(
    response: RandomisedResponse, labels: Sequence[Labels], clients: Sequence[int], secret: bytes
) -> Labels:
    """The randomised labels [N] of all clients, one after another.

    Args:
        response: the randomised response.
        labels: each client's given labels [n].
        clients: the clients' numbers; equal labels of two clients are drawn apart.
        secret: on which the draws depend, besides response and labels. In a federation, each client has its own.
    """
    about = response.epsilon, response.num_classes
    drawn = [
        response.randomised(own, secret_stream(secret, PURPOSE, own, *about, c))
        for c, own in zip(clients, labels, strict=True)
    ]
    return np.concatenate(drawn) if drawn else np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class RandomisedSums:
    """A client's message of the first round, or a total: functions of drawn labels."""

    counts: Counts  # [K], samples with each drawn label
    sums: Counts  # [K, K], of the probability of class k (column) over samples with drawn label j (row), times ``ONE``

    @classmethod
    def of(cls, drawn: Labels, probabilities: Array) -> Self:
        """The sums over samples with ``drawn`` labels [n] and ``probabilities`` [n, K]."""
        classes = probabilities.shape[1]
        sums = np.zeros((classes, classes), np.int64)
        np.add.at(sums, drawn, fixed_point(probabilities))
        return cls(np.bincount(drawn, minlength=classes).astype(np.int64), sums)

    def __add__(self, other: RandomisedSums) -> RandomisedSums:
        return RandomisedSums(self.counts + other.counts, self.sums + other.sums)

    def recovered_counts(self, response: RandomisedResponse) -> Array:
        """Estimated counts [K] of the given classes; 0 for a class that counts as absent."""
        counts = recovered(response, self.counts)
        return np.where(counts < FEWEST, 0.0, counts)

    def thresholds(self, response: RandomisedResponse) -> Array:
        """Estimated thresholds [K]."""
        return thresholds_of(self.recovered_counts(response), recovered(response, self.sums / ONE).diagonal())


def recovered(response: RandomisedResponse, totals: Counts | Array) -> Array:
    """Unbiased totals [K] or [K, ...] over given classes, from totals over drawn labels (first axis)."""
    return np.asarray(response.inverse() @ totals)


def recovered_joint(response: RandomisedResponse, joint: Counts) -> Array:
    """Estimated joint counts [K, K] from those by drawn label (rows); negative ones are 0."""
    return np.maximum(recovered(response, joint), 0.0)


def recovered_disagreements(response: RandomisedResponse, agreeing: Counts, samples: Counts) -> Array:
    """Each client's estimated number [C] of samples whose most probable class is not the given one.

    Args:
        response: the randomised response.
        agreeing: samples [C] whose most probable class is the drawn label.
        samples: all samples [C].
    """
    agree = (agreeing - response.other * samples) / response.gap
    return np.clip(samples - agree, 0.0, samples)
