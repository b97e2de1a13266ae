"""How well an audit has found the wrong labels, where the truth is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from flnl.core.images import Indices, Labels
from flnl.data.federation.build import Federation
from flnl.evaluation.metrics import Mask, detection
from flnl.numerics.ranks import auroc


def true_labels(federation: Federation, position: Indices) -> Labels | None:
    """The true labels [n] of the training samples at ``position`` [n]; None if the truth is unknown."""
    return None if federation.truth is None else federation.truth.numpy()[position]


def audit_measures(true: Labels, given: Labels, rank: Indices, is_issue: Mask) -> dict[str, Any]:
    """The ranking and the issues of an audit, measured; None where a measure is not defined.

    Args:
        true: the true labels [N].
        given: the given labels [N].
        rank: a permutation of 0..N-1, the most suspicious sample first.
        is_issue: the samples [N] that the audit marks.
    """
    wrong = given != true
    count = int(wrong.sum())
    by_rank = wrong[np.argsort(rank)]
    flags = detection(is_issue, wrong)
    measures = {
        "average_precision": average_precision(by_rank),
        "auroc": auroc(-rank.astype(np.float64), wrong),
        "precision_at_errors": float(by_rank[:count].mean()) if count else float("nan"),
        "issues_precision": flags["precision"],
        "issues_recall": flags["recall"],
    }
    known = {name: None if np.isnan(value) else value for name, value in measures.items()}
    return {"errors": count, **known}


def average_precision(wrong: Mask) -> float:
    """The mean, over the wrong labels, of the share of wrong ones among all ranked as high; NaN without any.

    >>> average_precision(np.array([True, False, True]))
    0.8333333333333333
    """
    hits = np.flatnonzero(wrong)
    return float((np.arange(1, len(hits) + 1) / (hits + 1)).mean()) if len(hits) else float("nan")
