"""Splits clients into noisy and clean ones by their mean loss on each class."""

import warnings
from collections import Counter

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

Array = NDArray[np.float64]

SEEDS = range(9)
"""Random states of the mixtures that vote (FedNoRo's code)."""


def scaled(losses: Array) -> Array:
    """Losses [N, K] of N clients on K classes, each class scaled to [0, 1] over the clients.

    NaN, of a client without samples of the class, becomes the smallest of its class, and so 0; an infinite loss becomes
    1. A class with equal losses, or without any, becomes 0.
    """
    known = np.isfinite(losses)
    lowest, highest = np.where(known, losses, np.inf).min(0), np.where(known, losses, -np.inf).max(0)
    spread = np.where(known.any(0), highest - lowest, 0.0)
    above = np.where(known, losses - np.where(known.any(0), lowest, 0.0), 0.0)
    points = np.divide(above, spread, out=np.zeros_like(above), where=spread > 0)
    return np.asarray(np.where(np.isposinf(losses) & known.any(0), 1.0, points))


def noisy_clients(losses: Array) -> NDArray[np.bool_]:
    """The noisy ones [N] of the clients, from their mean losses [N, K] on each class (FedNoRo, Sec. 3.2).

    Of two Gaussians fitted to the scaled losses, the one whose mean has the larger sum is the noisy one. Nine fits from
    different random states vote: the most frequent split counts, of equally frequent ones the first. If the clients do
    not differ, nobody is noisy.
    """
    if len(losses) < 2 or not (points := scaled(losses)).any():
        return np.zeros(len(losses), np.bool_)
    splits: Counter[tuple[bool, ...]] = Counter()
    for seed in SEEDS:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            mixture = GaussianMixture(n_components=2, random_state=seed).fit(points)
        splits[tuple((mixture.predict(points) == mixture.means_.sum(1).argmax()).tolist())] += 1
    return np.array(splits.most_common(1)[0][0])
