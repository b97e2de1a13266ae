"""The closing numbers of a run, from its evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from flnl.core.numbers import is_number

CLOSED = ("finished", "stopped")
"""The ends of a run after which its record tells of all of its lines."""
LAST_TEN = {
    "accuracy_worst_client": "worst_client_mean_last_10",
    "validation_true_accuracy": "validation_true_mean_last_10",
}
"""Values of evaluations whose mean over the last ten is a closing number, and its name."""


def summarise(evaluations: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The accuracies that papers report, from all evaluations in order.

    ``best`` is the maximum over evaluations, an oracle over the test set; ``mean_last_10`` is the mean of the last ten
    evaluations, ``worst_client_mean_last_10`` that of each one's worst client, and
    ``validation_true_mean_last_10`` that on held-out samples of the clients by their true labels;
    ``best_mean_10`` is the highest mean of ten in a row: what the last ones lack of it has been forgotten;
    ``at_best_validation`` is the test accuracy at the first evaluation with the highest validation accuracy. There are
    none if a model was not tested, as where a server has no test set.
    """
    import numpy as np  # readers that have nothing to check do without it
    from numpy.lib.stride_tricks import sliding_window_view

    accuracies = [e["accuracy"] for e in evaluations]
    if not accuracies or any(one is None or math.isnan(one) for one in accuracies):
        return {}
    means = sliding_window_view(accuracies, min(10, len(accuracies))).mean(1)
    metrics = {
        "best": max(accuracies),
        "last": accuracies[-1],
        "mean_last_10": float(means[-1]),
        "best_mean_10": float(means.max()),
    }
    if all("validation_accuracy" in e for e in evaluations):
        held_out = [e["validation_accuracy"] for e in evaluations]
        metrics["at_best_validation"] = accuracies[int(np.argmax(held_out))]
    for name, means_of in LAST_TEN.items():
        if all(name in e for e in evaluations):
            metrics[means_of] = float(np.mean([e[name] for e in evaluations[-10:]]))
    return metrics


def same(held: object, value: float | None) -> bool:
    """Whether a file holds a number, but for the last bits: another machine may add up in another order."""
    if not is_number(held) or value is None:
        return held is value
    return math.isclose(held, value, rel_tol=1e-9, abs_tol=1e-12)
