"""The label that most of a sample's nearest neighbours have."""

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 1024
"""Number of samples whose distances to all others are in memory at once."""


def nearest_labels(features: Tensor, labels: Tensor, neighbours: int, classes: int) -> Tensor:
    """The most frequent label of each sample's nearest ``neighbours``, or of all samples if there are fewer; int64 [n].

    The sample itself is one of them. Of samples at the same distance the earlier one is nearer; of labels that are
    equally frequent the lowest wins.

    Args:
        features: float64 [n, d], compared by Euclidean distance.
        labels: int64 [n].
        neighbours: k, at least 1.
        classes: K.
    """
    hot, found = F.one_hot(labels, classes), []
    for rows in features.split(ROWS):
        near = torch.cdist(rows, features, compute_mode="donot_use_mm_for_euclid_dist").argsort(dim=1, stable=True)
        found.append(hot[near[:, :neighbours]].sum(1).argmax(1))
    return torch.cat(found) if found else labels
