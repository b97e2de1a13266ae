"""Probabilities that agree with clean labels: temperature and class biases, fitted on the test set.

The mean over early models is less sure than right, a last model surer. Both are mended by ``softmax(t ln p + b)``, with
one t and a b for each class (bias-corrected temperature scaling; Alexandari, Kundaje and Shrikumar, 2020, Sec. 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from flnl.core.images import Labels

Array = NDArray[np.float64]

LEAST = 1e-7
"""Smallest probability, so that its logarithm is finite."""
RIDGE = 1e-3
"""Weight of the biases' squares; holds those of a class that few test samples or none are of."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """How a model's probabilities become calibrated ones."""

    sharpness: float  # t, the inverse of a temperature: below 1 for a model that is surer than right
    bias: Array  # b [K]

    @classmethod
    def fitted(cls, labels: Labels, probabilities: Array) -> Self:
        """The calibration that makes clean ``labels`` [M] the likeliest under ``probabilities`` [M, K]."""
        logs = _logs(probabilities)
        samples, classes = logs.shape
        right = np.zeros_like(logs)
        right[np.arange(samples), labels] = 1.0

        def loss(x: Array) -> tuple[float, Array]:
            t, bias = np.exp(x[0]), x[1:]
            chances = log_softmax(t * logs + bias, axis=1)
            off = (np.exp(chances) - right) / samples
            value = -(chances * right).sum() / samples + RIDGE * (bias**2).sum() / 2
            return float(value), np.concatenate([[t * (off * logs).sum()], off.sum(axis=0) + RIDGE * bias])

        found = minimize(loss, np.zeros(classes + 1), jac=True, method="L-BFGS-B", bounds=[(-5, 5)] * (classes + 1))
        return cls(float(np.exp(found.x[0])), found.x[1:])

    def __call__(self, probabilities: Array) -> Array:
        """The calibrated probabilities [n, K]."""
        return np.asarray(softmax(self.sharpness * _logs(probabilities) + self.bias, axis=1))


def _logs(probabilities: Array) -> Array:
    return np.log(np.clip(probabilities, LEAST, 1.0))
