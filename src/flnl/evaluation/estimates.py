"""Compare a method's findings about clients and samples with the truth.

Metrics that a method's findings do not support are omitted.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
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
    filter_accuracy,
    squared_error,
    squared_error_floor,
    true_quality,
)
from flnl.numerics.ranks import auroc, rank_correlation

NAN = float("nan")


def by_client(federation: Federation, findings: Sequence[Finding]) -> dict[str, list[Any]]:
    """Per-client columns, one row for each client that holds data; empty if the method has no findings about clients.

    ``true_quality`` is the share of given labels that are correct. ``filter_accuracy`` (FedDiv, Figs. 3, 5) is the
    share of samples with a correct verdict on the judged label, NaN for clients whose samples were not judged;
    ``flagged`` is the share of samples suspected to be wrong. ``quality`` is the estimated quality (FedES, Fig. 2),
    ``noisy`` and ``level`` come from ``noise_columns``. The scores behind an estimate have columns under their names.

    The federation's truth must be known.
    """
    assert federation.truth is not None, "needs the truth"
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
    """For each of ``clients``: the scores of the noisy-client detection, its verdict, and the estimated noise level."""
    split, levels = first(findings, NoisyClients), first(findings, EstimatedNoise)
    columns: dict[str, Tensor] = {}
    if split is not None:
        columns |= {**split.scores, "noisy": split.noisy}
    if levels is not None:
        columns |= {**levels.scores, "level": levels.values}
    return {name: values[list(clients)].tolist() for name, values in columns.items()}


def summary(federation: Federation, findings: Sequence[Finding]) -> dict[str, float]:
    """Metrics over all clients, and the scalars that the method reports.

    ``suspected`` is the number of samples that are suspected to be wrong. If the truth is known, the others are: mean
    accuracy and AUC of the verdicts on samples; ``label_accuracy``, the share of right ones among the labels that the
    method proposes; for quality estimates the MSE (FedES, Table 4), the MSE that a perfect estimate would still have,
    and the rank correlation; precision, recall and F1 of the noisy-client detection, where a
    client is noisy if it has a wrong label; and the mean absolute error of noise levels.
    """
    metrics = dict[str, float]()
    if doubts := suspects(findings):
        metrics["suspected"] = float(sum(int(doubt.mask.sum()) for doubt in doubts.values()))
    if federation.truth is None:
        return metrics | scalars(findings)
    rows = by_client(federation, findings)
    if "filter_accuracy" in rows:
        metrics["filter_accuracy"] = float(np.nanmean(rows["filter_accuracy"]))
        metrics["filter_auc"] = _auc(federation, findings)
        if right := _right(federation, findings):
            metrics["label_accuracy"] = float(np.concatenate(right).mean())
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
    """The AUC of the samples' scores, or of the verdicts if there are no scores."""
    assert federation.truth is not None
    wrong, scores = [], []
    for client, doubt in suspects(findings).items():
        truth = federation.truth[federation.samples(client).index].numpy()
        wrong.append(_judged(federation, doubt) != truth)
        scores.append((doubt.mask if doubt.score is None else doubt.score).double().numpy())
    return auroc(np.concatenate(scores), np.concatenate(wrong))


def _right(federation: Federation, findings: Sequence[Finding]) -> list[NDArray[np.bool_]]:
    """Whether each proposed label is right, [n] of each client that has some."""
    assert federation.truth is not None
    return [
        doubt.proposed.numpy() == federation.truth[federation.samples(client).index].numpy()
        for client, doubt in suspects(findings).items()
        if doubt.proposed is not None
    ]


def _judged(federation: Federation, doubt: SuspectedSamples) -> Labels:
    """The labels [n] that the verdicts are about."""
    return (federation.samples(doubt.client).given if doubt.judged is None else doubt.judged).numpy()
