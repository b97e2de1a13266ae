"""The evaluator: the only part that is given the truth. It measures and never changes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from src.core import FederatedState, Params
from src.correctors.fedcorr import Suspects
from src.data.federation import Federation
from src.exchanges.lid import LidState
from src.network import Network


def accuracy_and_loss(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Share of rows of ``logits`` [n, K] whose largest entry is at the label, and the mean cross-entropy."""
    right = (logits.argmax(1) == labels).double().mean()
    return float(right), float(F.cross_entropy(logits.double(), labels))


def detection(flagged: NDArray[np.bool_], wrong: NDArray[np.bool_]) -> dict[str, float]:
    """Precision, recall and F1 of ``flagged`` [n] as a detector of ``wrong`` [n]; 0 where one is undefined.

    >>> detection(np.array([True, True, False]), np.array([True, False, True]))
    {'precision': 0.5, 'recall': 0.5, 'f1': 0.5}
    """
    hit = float((flagged & wrong).sum())
    precision = hit / flagged.sum() if flagged.any() else 0.0
    recall = hit / wrong.sum() if wrong.any() else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {"precision": float(precision), "recall": float(recall), "f1": float(f1)}


@dataclass(frozen=True)
class Evaluator:
    """Scores of models on the test set, and of corrected labels against the truth where it is known."""

    federation: Federation
    network: Network

    def model(self, params: Params) -> dict[str, float]:
        """Accuracy in [0, 1] and loss on the test set; and on the (noisy) validation set where one is held out."""
        self.network.load(params)
        data = self.federation.dataset
        everything = torch.arange(len(data.test))
        scores = accuracy_and_loss(self.network.outputs(data.test, everything), torch.from_numpy(data.test_labels))
        found = {"accuracy": scores[0], "test_loss": scores[1]}
        if len(self.federation.validation):
            held_out = torch.as_tensor(self.federation.validation)
            labels = torch.as_tensor(self.federation.given)[held_out]
            accuracy, loss = accuracy_and_loss(self.network.outputs(data.train, held_out), labels)
            found |= {"validation_accuracy": accuracy, "validation_loss": loss}
        return found

    def labels(self, state: FederatedState) -> dict[str, float]:
        """Quality of the labels that clients hold now, over all their samples: what was wrong, found and mended."""
        if self.federation.truth is None:
            return {}
        clients = self.federation.with_data
        true = np.concatenate([self._true(c) for c in clients])
        given = np.concatenate([self._given(c) for c in clients])
        held = np.concatenate([self._held(state, c) for c in clients])
        found = {"noise_given": float((given != true).mean()), "noise_final": float((held != true).mean())}
        suspects = {c: s for c in clients if (s := state.client(c).extras.get(Suspects)) is not None}
        changed = held != given
        if suspects or changed.any():
            flagged = np.concatenate([_mask(suspects.get(c), len(self._given(c))) for c in clients]) | changed
            found |= {f"detection_{k}": v for k, v in detection(flagged, given != true).items()}
            found["changed"] = float(changed.sum())
            found["correction_accuracy"] = float((held[changed] == true[changed]).mean()) if changed.any() else 0.0
        return found

    def correction(self, before: FederatedState, after: FederatedState, asked: Sequence[int]) -> dict[str, Any]:
        """What one correction did: numbers over the federation, and a row a client for figures."""
        clients = list(self.federation.with_data)
        lid = next((p for p in after.server.parts.values() if isinstance(p, LidState)), None)
        rows: dict[str, Any] = {"client": clients, "asked": [c in set(asked) for c in clients]}
        if lid is not None:
            rows |= {
                "lid": lid.latest[clients].tolist(),
                "cumulative_lid": lid.cumulative[clients].tolist(),
                "noisy": lid.noisy[clients].tolist(),
                "level": lid.level[clients].tolist(),
            }
        summary: dict[str, Any] = {
            "asked": len(asked),
            "relabelled": int(sum((self._held(before, c) != self._held(after, c)).sum() for c in asked)),
        }
        if self.federation.truth is not None:
            summary |= self.labels(after)
            shares = [float((self._held(before, c) != self._true(c)).mean()) for c in clients]
            rows["true_noise_before"] = shares
            rows["true_noise_after"] = [float((self._held(after, c) != self._true(c)).mean()) for c in clients]
            if lid is not None:
                gap = np.abs(np.asarray(rows["level"]) - np.asarray(shares))
                summary["noise_level_error"] = float(gap.mean())
        if lid is not None:
            summary["mixture"] = list(lid.mixture)
        return {**summary, "clients": rows}

    def _true(self, client: int) -> NDArray[np.int64]:
        assert self.federation.truth is not None
        index = self.federation.samples(client).index
        return np.asarray(torch.as_tensor(self.federation.truth)[index])

    def _given(self, client: int) -> NDArray[np.int64]:
        return np.asarray(self.federation.samples(client).labels)

    def _held(self, state: FederatedState, client: int) -> NDArray[np.int64]:
        own = state.client(client).labels
        return self._given(client) if own is None else own.numpy()


def _mask(suspects: Suspects | None, count: int) -> NDArray[np.bool_]:
    return np.zeros(count, np.bool_) if suspects is None else suspects.mask.numpy()


def summarise(evaluations: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The numbers that papers report, from all evaluations in order.

    ``best`` is the maximum over evaluations, an oracle over the test set; ``mean_last_10`` is over the last ten
    evaluations; ``at_best_validation`` is the test accuracy where the validation accuracy was highest (the first time).
    """
    accuracies = [e["accuracy"] for e in evaluations]
    if not accuracies:
        return {}
    found = {"best": max(accuracies), "last": accuracies[-1], "mean_last_10": float(np.mean(accuracies[-10:]))}
    if "validation_accuracy" in evaluations[-1]:
        held_out = [e["validation_accuracy"] for e in evaluations]
        found["at_best_validation"] = accuracies[int(np.argmax(held_out))]
    return found
