"""What a method says of clients and samples, against the truth.

For whoever has the truth. A number that the findings have no ground for is left out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from flnl.core.findings import (
    EstimatedNoise,
    EstimatedQuality,
    Finding,
    NoisyClients,
    SuspectedSamples,
    first,
    scalars,
    suspects,
)
from flnl.core.images import Labels
from flnl.data.federation.build import Federation
from flnl.evaluation.metrics import (
    absolute_error,
    detection,
    detection_auc,
    filter_accuracy,
    rank_correlation,
    squared_error,
    squared_error_floor,
    true_quality,
)

NAN = float("nan")


def by_client(federation: Federation, findings: Sequence[Finding]) -> dict[str, list[Any]]:
    """A column a quantity, a row a client that holds data; nothing where the method says nothing of clients.

    ``true_quality`` is the share of right labels as given. ``filter_accuracy`` (FedDiv, Figs. 3, 5) is the share of
    samples with a right verdict, of the labels that were judged, NaN of a client whose samples were not; ``flagged`` is
    the share of its samples taken for wrong. ``quality`` is the estimated one (FedES, Fig. 2), ``noisy`` and ``level``
    are those of ``noise_columns``. Scores that an estimate was made from have columns of their own names.
    """
    assert federation.truth is not None, "for whoever has the truth"
    clients, doubts = list(federation.with_data), suspects(findings)
    quality, noise = first(findings, EstimatedQuality), noise_columns(findings, clients)
    if not doubts and quality is None and not noise:
        return {}
    given = {c: federation.samples(c) for c in clients}
    truth = {c: federation.truth[s.index].numpy() for c, s in given.items()}
    rows: dict[str, list[Any]] = {
        "client": clients,
        "true_quality": [true_quality(truth[c], given[c].given.numpy()) for c in clients],
    }
    if doubts:
        wrong = {c: doubt.mask.numpy() for c, doubt in doubts.items()}
        rows["flagged"] = [float(wrong[c].mean()) if c in wrong else NAN for c in clients]
        rows["filter_accuracy"] = [
            filter_accuracy(~wrong[c], _judged(federation, doubts[c]), truth[c]) if c in wrong else NAN for c in clients
        ]
    if quality is not None:
        rows["quality"] = quality.values[clients].tolist()
        rows |= {name: values[clients].tolist() for name, values in quality.scores.items()}
    return rows | noise


def noise_columns(findings: Sequence[Finding], clients: Sequence[int]) -> dict[str, list[Any]]:
    """Of each of ``clients``: the scores that it was called noisy by, whether it was, and its estimated noise level."""
    split, levels = first(findings, NoisyClients), first(findings, EstimatedNoise)
    columns: dict[str, Tensor] = {}
    if split is not None:
        columns |= {**split.scores, "noisy": split.noisy}
    if levels is not None:
        columns["level"] = levels.values
    return {name: values[list(clients)].tolist() for name, values in columns.items()}


def summary(federation: Federation, findings: Sequence[Finding]) -> dict[str, float]:
    """Over the clients, where the truth is known; and the numbers that the method names itself.

    Mean accuracy of verdicts on samples and their AUC. Of quality the error, which is FedES's MSE (Table 4), that which
    a perfect estimate would still have, and the rank correlation. Precision, recall and F1 of the clients called noisy
    as a detector of those that were given a wrong label. Mean absolute error of noise levels.
    """
    if federation.truth is None:
        return scalars(findings)
    rows, metrics = by_client(federation, findings), dict[str, float]()
    if "filter_accuracy" in rows:
        metrics["filter_accuracy"] = float(np.nanmean(rows["filter_accuracy"]))
        metrics["filter_auc"] = _auc(federation, findings)
    if "quality" in rows:
        estimated, true = (np.array(rows[name]) for name in ("quality", "true_quality"))
        known = ~np.isnan(estimated)
        estimated, true = estimated[known], true[known]
        metrics["quality_error"] = squared_error(estimated, true)
        metrics["quality_error_floor"] = squared_error_floor(true)
        metrics["quality_rank_correlation"] = rank_correlation(estimated, true)
    noise = 1 - np.array(rows.get("true_quality", ()))
    if "noisy" in rows:
        rates = detection(np.array(rows["noisy"]), noise > 0)
        metrics |= {f"client_detection_{name}": rate for name, rate in rates.items()}
    if "level" in rows:
        metrics["noise_level_error"] = absolute_error(rows["level"], noise)
    return metrics | scalars(findings)


def _auc(federation: Federation, findings: Sequence[Finding]) -> float:
    """By the scores of samples, or by the verdicts themselves where a part gives no scores."""
    assert federation.truth is not None
    wrong, scores = [], []
    for client, doubt in suspects(findings).items():
        truth = federation.truth[federation.samples(client).index].numpy()
        wrong.append(_judged(federation, doubt) != truth)
        scores.append((doubt.mask if doubt.score is None else doubt.score).double().numpy())
    return detection_auc(np.concatenate(scores), np.concatenate(wrong))


def _judged(federation: Federation, doubt: SuspectedSamples) -> Labels:
    """The labels [n] that were judged."""
    return (federation.samples(doubt.client).given if doubt.judged is None else doubt.judged).numpy()
