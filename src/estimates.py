"""What methods made of clients and samples, against the truth: FedDiv's flags and FedES's qualities.

For whoever has the truth. A number that the state has no ground for is left out.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from src.core import FederatedState
from src.data.dataset import Labels
from src.data.federation import Federation
from src.diagnostics import detection_auc, filter_accuracy
from src.exchanges.noise_filter import FilterFlags, FilterState
from src.exchanges.quality import QualityState
from src.quality import rank_correlation, squared_error, squared_error_floor, true_quality


def by_client(federation: Federation, state: FederatedState) -> dict[str, list[Any]]:
    """A column a quantity, a row a client that holds data; nothing where the method estimates nothing.

    ``true_quality`` is the share of right labels as given. ``filter_accuracy`` (FedDiv, Figs. 3, 5) is of the flags at
    the client's last visit and the labels held then, NaN of one that was not visited; ``flagged`` is the share of its
    samples taken for wrong. ``quality`` is ρ (FedES, Fig. 2), ``indicator`` what it was scaled from, ``steps`` how many
    local steps the client took in the round of comparison.
    """
    assert federation.truth is not None, "for whoever has the truth"
    clients, quality, flags = list(federation.with_data), _quality(state), _flags(federation, state)
    if not flags and quality is None:
        return {}
    given = {c: federation.samples(c) for c in clients}
    truth = {c: federation.truth[s.index].numpy() for c, s in given.items()}
    rows: dict[str, list[Any]] = {
        "client": clients,
        "true_quality": [true_quality(truth[c], given[c].labels.numpy()) for c in clients],
    }
    if flags:
        clean = {c: f.clean.numpy() for c, f in flags.items()}
        nan = float("nan")
        rows["flagged"] = [float((~clean[c]).mean()) if c in clean else nan for c in clients]
        rows["filter_accuracy"] = [
            filter_accuracy(clean[c], _judged(federation, c, flags[c]), truth[c]) if c in clean else nan
            for c in clients
        ]
    if quality is not None:
        for name, values in (("quality", quality.rho), ("indicator", quality.indicator), ("steps", quality.steps)):
            rows[name] = values[clients].tolist()
    return rows


def summary(federation: Federation, state: FederatedState) -> dict[str, float]:
    """Over the clients: mean accuracy of the filter and its AUC over samples; error and rank correlation of quality.

    ``quality_error`` is FedES's MSE (Table 4), and ``quality_error_floor`` what a perfect estimate would still have.
    ``negative_signs`` counts clients below the server, of which there are next to none.
    """
    if federation.truth is None:
        return {}
    rows, found = by_client(federation, state), {}
    if "filter_accuracy" in rows:
        found["filter_accuracy"] = float(np.nanmean(rows["filter_accuracy"]))
        found["filter_auc"] = _auc(federation, state)
    if "quality" in rows:
        rho, true, indicator = (rows[key] for key in ("quality", "true_quality", "indicator"))
        found["quality_error"] = squared_error(rho, true)
        found["quality_error_floor"] = squared_error_floor(true)
        found["quality_rank_correlation"] = rank_correlation(rho, true)
        found["negative_signs"] = float(sum(d < 0 for d in indicator))
    return found


def _auc(federation: Federation, state: FederatedState) -> float:
    assert federation.truth is not None
    wrong, doubt = [], []
    for client, flags in _flags(federation, state).items():
        truth = federation.truth[federation.samples(client).index].numpy()
        wrong.append(_judged(federation, client, flags) != truth)
        doubt.append(1 - flags.probability.numpy())
    return detection_auc(np.concatenate(doubt), np.concatenate(wrong))


def _judged(federation: Federation, client: int, flags: FilterFlags) -> Labels:
    """The labels [n] that the flags are of: those that the client held at that visit."""
    return (federation.samples(client).labels if flags.labels is None else flags.labels).numpy()


def _flags(federation: Federation, state: FederatedState) -> dict[int, FilterFlags]:
    """The flags of clients that keep some.

    They are looked for where there is a filter: what clients keep may lie on disk, and be large.
    """
    if not any(isinstance(part, FilterState) for part in state.server.parts.values()):
        return {}
    found = {client: state.client(client).extras.get(FilterFlags) for client in federation.with_data}
    return {client: flags for client, flags in found.items() if flags is not None}


def _quality(state: FederatedState) -> QualityState | None:
    parts: Mapping[str, Any] = state.server.parts
    return next((part for part in parts.values() if isinstance(part, QualityState) and part.known), None)
