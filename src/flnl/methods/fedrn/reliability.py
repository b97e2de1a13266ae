"""How reliable a client's model is for another client: its accuracy at home, and how alike both answer to noise."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flnl.core.ranges import Count, Share
from flnl.numerics.scaling import Array, min_max


@dataclass(frozen=True)
class Neighbourhood:
    """A client and its neighbours, with the shares with which their opinions count."""

    clients: tuple[int, ...]  # the client first, then its neighbours, most reliable first
    weights: tuple[float, ...]  # of all of them, in the same order; they sum to 1


def similarities(outputs: Tensor, of: int) -> Array:
    """Cosine of the angle between row ``of`` and each row of ``outputs`` [N, K], float64 [N]; 0 where a row is zero."""
    rows = outputs.double()
    lengths = torch.linalg.vector_norm(rows, dim=1)
    products, scale = rows @ rows[of], lengths * lengths[of]
    return np.asarray(torch.where(scale > 0, products / scale.where(scale > 0, 1.0), 0.0))


def scores(expertise: Array, similarity: Array, alpha: Share) -> Array:
    """``α a_u + (1 - α) sim_u`` [N], each scaled to [0, 1] over all N clients first (FedRN).

    Where all clients are equal, the scaled value is 0.
    """
    return np.asarray(alpha * min_max(expertise) + (1 - alpha) * min_max(similarity))


def neighbourhood(
    client: int, expertise: Mapping[int, float], outputs: Mapping[int, Tensor], *, alpha: Share, count: Count
) -> Neighbourhood:
    """The client's ``count`` most reliable neighbours, fewer if there are fewer other clients.

    The client's similarity with itself counts as 1 also where all clients answer alike. Of equally reliable clients,
    the one of the lower number comes first. Scores that are all 0 give equal weights.

    Args:
        client: one of the clients below.
        expertise: accuracy of each client's model on the client's own labels.
        outputs: each model's logits [K] on the same noise image; of the same clients.
        alpha: share of the expertise in the score.
        count: number of neighbours.
    """
    everyone = sorted(expertise)
    me = everyone.index(client)
    own = np.array([expertise[k] for k in everyone])
    score = scores(own, similarities(torch.stack([outputs[k] for k in everyone]), me), alpha)
    score[me] = alpha * min_max(own)[me] + (1 - alpha)
    others = [place for place in np.argsort(-score, kind="stable") if place != me][:count]
    places = [me, *others]
    total = float(score[places].sum())
    weights = score[places] / total if total > 0 else np.full(len(places), 1 / len(places))
    return Neighbourhood(tuple(everyone[place] for place in places), tuple(weights.tolist()))
