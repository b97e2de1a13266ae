"""Energies of predictions, how noisy clients are by them, and the weights that follow."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.ranges import Share
from flnl.core.reported import PerSample
from flnl.core.stored import stored

Effect = Literal["min", "max"]
Suspects = Literal["above", "below"]
Array = NDArray[np.float64]


def energies(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """``T log Σ_c exp(z_c / T)`` of logits z [n, K], float64 [n]; large where the model is certain."""
    return temperature * torch.logsumexp(logits.double() / temperature, dim=1)


@stored("Energies")
class Energies:
    """Sent to the server once: energies of the client's samples."""

    received: PerSample  # float64 [n], under the received model
    trained: PerSample  # float64 [n], under the client's trained model


def noisy_shares(sent: Mapping[int, Energies], percentile: float, suspects: Suspects = "above") -> dict[int, float]:
    """Of each client, the share of samples whose energy reaches the reference after training, or stays ``below`` it.

    The reference is the ``percentile``, in [0, 100] and linear between values, of all clients' energies under the
    received model.
    """
    pooled = np.concatenate([one.received.numpy() for one in sent.values()])
    reference = float(np.percentile(pooled, percentile))
    found = {}
    for client, one in sent.items():
        noisy = one.trained >= reference if suspects == "above" else one.trained < reference
        found[client] = float(noisy.double().mean())
    return found


def weights(shares: Array, samples: Array, *, threshold: Share, keep: Share, effect: Effect) -> Array:
    """The weight of each client, from its share of noisy samples [m] and its number of samples [m].

    Below ``threshold``, and without a noisy sample, it is the number n of samples. From there on, it is the smaller one
    of ``keep · n`` and the number of samples that are not noisy (``effect=max``: the larger one). All n if otherwise
    all would be 0.
    """
    clean = samples - np.rint(shares * samples)
    chosen = np.minimum(keep * samples, clean) if effect == "min" else np.maximum(keep * samples, clean)
    found = np.where((shares < threshold) | (shares == 0), samples, chosen)
    return found if found.any() else samples
