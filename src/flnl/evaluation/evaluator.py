"""The evaluator: the only component with access to the truth. It measures and never changes anything.

Methods obtain ground truth only through ``Evaluator.aid``; those that do are marked as upper bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.findings import (
    EstimatedNoise,
    Finding,
    LabelShares,
    NoisyClients,
    SuspectedSamples,
    first,
    scalars,
    suspects,
)
from flnl.core.images import Indices, Labels
from flnl.core.messages import ClientTask, Observation, Oracle, Samples, ServerSamples
from flnl.core.method import Method
from flnl.core.parts import BatchRule
from flnl.core.payload import Params, Payload
from flnl.core.state import FederatedState
from flnl.core.step import FIRST, SECOND
from flnl.data.federation.build import Federation
from flnl.engine.network import Network
from flnl.evaluation import estimates
from flnl.evaluation.estimates import noise_columns
from flnl.evaluation.metrics import (
    Mask,
    absolute_error,
    accuracy_and_loss,
    confusion,
    detection,
    l1_error,
    mean_memorization,
    memorization,
    training_stability,
    true_quality,
    worst_client,
)
from flnl.evaluation.probabilities import Probabilities
from flnl.evaluation.recording import Recorder
from flnl.numerics.scaling import label_shares
from flnl.record.label_table import LabelTable

_Labels = tuple[Labels, Labels, Labels, Mask]

FEW_CLASSES, MANY_CLASSES = 20, 200
"""Maximum number of classes for which confusion matrices of single clients, and of the federation, are recorded."""

FIRST_CLIENTS = 5
"""Number of clients whose confusion matrices are recorded (FedCorr, Fig. 8)."""

SCORED = 16_384
"""Number of samples whose class probabilities are held in memory at once."""


@dataclass(frozen=True)
class Evaluator:
    """Scores models on the test set, and labels and findings against the truth if it is known."""

    federation: Federation
    network: Network
    method: Method  # whose findings are measured
    memorization: bool = False  # whether to score models also on all training data, if the truth is known
    recorder: Recorder | None = None  # to which the evaluated models' class probabilities are added

    def model(self, params: Params, after: FederatedState | None = None) -> dict[str, float]:
        """Accuracy in [0, 1] and loss on the test set, and on the (noisy) validation set if there is one.

        ``validation_true_accuracy`` is by the true labels of the validation set, whose people (or sites) the clients
        trained on, where the test set may be of others. ``accuracy_worst_client`` is ``metrics.worst_client``, if the
        truth is known and there are several clients. For a pair of networks, also the accuracy of each. With
        ``memorization``, also the shares of predictions on correctly and on wrongly labelled training samples.

        Args:
            params: the model to score.
            after: the state after whose round it is evaluated; None outside a run, where nothing is recorded.
        """
        data, tested = self.federation.dataset, self.federation.tested
        self.network.load(params)
        logits = self.network.shared_outputs(data.test, torch.from_numpy(tested))
        labels = torch.from_numpy(data.test_labels[tested])
        accuracy, loss = accuracy_and_loss(logits, labels)
        metrics = {"accuracy": accuracy, "test_loss": loss}
        if self._classes is not None:
            right = (logits.argmax(1) == labels).numpy()
            if (lowest := worst_client(right, labels.numpy(), self._classes)) is not None:
                metrics["accuracy_worst_client"] = lowest
        if self.method.networks > 1:
            metrics |= self._each_network(tested)
        if len(self.federation.validation):
            metrics |= self._held_out()
        if self.memorization and self.federation.truth is not None:
            metrics |= self._memorized(self.federation.truth)
        if self.recorder is not None and after is not None:
            self.recorder.add(after, logits)
        return metrics

    @cached_property
    def _classes(self) -> NDArray[np.int64] | None:
        """How many samples of each class clients hold [clients, K], by right labels; None of one, or without truth."""
        truth = self.federation.truth
        if truth is None or len(self.federation.with_data) < 2:
            return None
        return self.federation.class_counts(truth)

    def _held_out(self) -> dict[str, float]:
        """Scores of the loaded model on the clients' samples that are held out."""
        held_out = torch.as_tensor(self.federation.validation)
        logits = self.network.shared_outputs(self.federation.dataset.train, held_out)
        accuracy, loss = accuracy_and_loss(logits, torch.as_tensor(self.federation.given)[held_out])
        metrics = {"validation_accuracy": accuracy, "validation_loss": loss}
        if self.federation.truth is not None:
            right = logits.argmax(1) == self.federation.truth[held_out]
            metrics["validation_true_accuracy"] = float(right.double().mean())
        return metrics

    def _outputs(self, params: Params, index: Indices) -> tuple[Tensor, Tensor]:
        """Logits of ``params`` on the test samples at ``index``, and their labels."""
        self.network.load(params)
        data = self.federation.dataset
        return self.network.outputs(data.test, torch.from_numpy(index)), torch.from_numpy(data.test_labels[index])

    def _each_network(self, index: Indices) -> dict[str, float]:
        """Accuracy of each network of the loaded pair on the test samples at ``index``."""
        data = self.federation.dataset
        labels, tested = torch.from_numpy(data.test_labels[index]), torch.from_numpy(index)
        outputs = {name: self.network.shared_outputs(data.test, tested, output=name) for name in (FIRST, SECOND)}
        return {f"accuracy_{name}": accuracy_and_loss(logits, labels)[0] for name, logits in outputs.items()}

    def aid(self, kinds: Collection[type]) -> Payload:
        """The aids of these ``kinds`` for a method: the only way in which ground truth can reach it.

        Raises:
            UserError: if an aid is not available in this federation.
        """
        given: list[ServerSamples | Oracle] = []
        if ServerSamples in kinds:
            held = self.federation.benchmark
            if not len(held):
                raise UserError(
                    "the method scores models on clean samples that the server holds, and it holds none: set "
                    "eval.benchmark=0.2, which takes a fifth of the test set for that"
                )
            given.append(
                ServerSamples(
                    lambda params: accuracy_and_loss(*self._outputs(params, held)),
                    lambda params: _by_predicted(*self._outputs(params, held)),
                )
            )
        if Oracle in kinds:
            truth = self.federation.truth
            if truth is None:
                names = " and ".join(f"method.exchange.{n}" for n, e in self.method.exchange.items() if Oracle in e.aid)
                raise UserError(
                    f"{names} is given the true labels, and those of {self.federation.dataset.name} are not known: "
                    "choose values for it that make do without them"
                )
            samples = {client: self.federation.samples(client) for client in self.federation.with_data}
            given.append(Oracle({c: true_quality(truth[s.index].numpy(), s.given.numpy()) for c, s in samples.items()}))
        return Payload(*given)

    def _memorized(self, truth: Tensor) -> dict[str, float]:
        """Server-side memorization (FLR, Table 1): the loaded model on all training samples with given labels."""
        held = torch.from_numpy(self.federation.held)
        predicted = self.network.shared_outputs(self.federation.dataset.train, held).argmax(1).numpy()
        given = torch.as_tensor(self.federation.given)[held].numpy()
        shares = asdict(memorization(predicted, given, truth[held].numpy()))
        return {f"memorization_{name}": share for name, share in shares.items()}

    def cohort(self, seen: Mapping[int, Observation]) -> dict[str, float]:
        """Metrics of a round's local models: training stability (FedDiv, Fig. 4) and memorization (FLR, Table 1).

        Memorization is the mean over the clients with wrong labels, on their training samples with given labels.
        """
        metrics = {"training_stability": training_stability([one.moved for one in seen.values()])}
        truth = self.federation.truth
        if truth is None:
            return metrics
        samples = {client: self.federation.samples(client) for client in seen}
        shares = mean_memorization(
            [
                memorization(one.predicted.numpy(), samples[c].given.numpy(), truth[samples[c].index].numpy())
                for c, one in seen.items()
            ]
        )
        return metrics | {f"local_memorization_{name}": share for name, share in asdict(shares).items()}

    def shared(self, state: FederatedState) -> dict[str, float]:
        """Metrics of a shared label distribution: its error, its smallest entry, and the privacy budget epsilon.

        The error is ``Σ_c |q_c - p_c|``, where p are the shares of the given labels of all clients. The privacy is
        simulated: what clients randomise their labels with is drawn from the run's seed.
        """
        shares = first(self._measured(state), LabelShares)
        if shares is None:
            return {}
        given = np.concatenate([self.federation.samples(c).given.numpy() for c in self.federation.with_data])
        true = label_shares(given, self.federation.num_classes)
        return {
            "label_distribution_error": l1_error(shares.values.cpu().numpy(), true),
            "label_distribution_least": shares.least,
            "label_privacy_epsilon": shares.epsilon,
            **({"label_privacy_simulated": True} if shares.epsilon else {}),
        }

    def labels(self, state: FederatedState) -> dict[str, float]:
        """Metrics of the labels that clients hold now, over all their samples: noise, detection and correction.

        Detected are the samples that the method suspects or whose label it has changed. If it judges labels,
        ``labels`` is the number of all, ``flagged`` of the detected and ``changed`` of the changed ones, also if the
        truth is unknown.
        """
        findings = self._findings(state)
        labels = self._all(state, findings)
        _, given, held, suspected = labels
        changed = held != given
        flagged = suspected | changed
        metrics = {} if self.federation.truth is None else _quality(labels)
        if _has_judged(findings, flagged):
            counts = {"labels": len(given), "flagged": flagged.sum(), "changed": changed.sum()}
            metrics |= {name: float(count) for name, count in counts.items()}
        return metrics | self.estimates(state)

    def estimates(self, state: FederatedState) -> dict[str, float]:
        """Metrics of the method's findings about samples and clients."""
        return estimates.summary(self.federation, self._current(state))

    def clients(self, state: FederatedState) -> dict[str, list[Any]]:
        """The method's findings about each client beside the truth; empty if either is missing."""
        return {} if self.federation.truth is None else estimates.by_client(self.federation, self._current(state))

    def _measured(self, state: FederatedState) -> list[Finding]:
        return _all(self.method.findings(state, self.federation.sizes).values())

    def _findings(self, state: FederatedState) -> list[Finding]:
        """All findings of the method."""
        return [*self._measured(state), *self.method.findings_of_corrector(state, self.federation.sizes)]

    def _current(self, state: FederatedState) -> list[Finding]:
        """The findings that are measured at every evaluation: those of all parts but the corrector.

        If there is a corrector, verdicts on clients are excluded: it has acted on them, so they refer to labels that
        are no longer held. They are recorded beside each correction instead.
        """
        beside = () if self.method.corrector is None else (NoisyClients, EstimatedNoise)
        return [finding for finding in self._measured(state) if not isinstance(finding, beside)]

    def correction(self, before: FederatedState, after: FederatedState, asked: Sequence[int]) -> dict[str, Any]:
        """Record one correction: metrics over the federation, per-client columns, and confusion matrices for figures.

        Noise levels and suspects are compared with the labels that the clients held when they were estimated.
        """
        clients, chosen = list(self.federation.with_data), set(asked)
        rows: dict[str, Any] = {"client": clients, "asked": [c in chosen for c in clients]}
        by_place = self.method.findings(after, self.federation.sizes)
        of_corrector = self.method.findings_of_corrector(after, self.federation.sizes)
        findings = [*_all(by_place.values()), *of_corrector]
        doubts = suspects(findings)
        were, are = [self._client(before, c) for c in clients], [self._client(after, c, doubts) for c in clients]
        summary: dict[str, Any] = {
            "asked": len(asked),
            "relabelled": sum(int((b[2] != a[2]).sum()) for b, a in zip(were, are, strict=True)),
        }
        split = first(findings, NoisyClients)
        rows |= noise_columns(findings, clients)
        if split is not None and split.mixture:
            summary["mixture"] = list(split.mixture)
        summary |= scalars(of_corrector)
        if self.federation.truth is None:
            return {**summary, "changed": float(sum(int((a[2] != a[1]).sum()) for a in are)), "clients": rows}
        wrong = [b[2] != b[0] for b in were]
        rows["true_noise_before"] = [float(w.mean()) for w in wrong]
        rows["true_noise_after"] = [float((a[2] != a[0]).mean()) for a in are]
        suspected = [a[3] for a in are]
        rows["true_positives"] = [int((s & w).sum()) for s, w in zip(suspected, wrong, strict=True)]
        rows["false_positives"] = [int((s & ~w).sum()) for s, w in zip(suspected, wrong, strict=True)]
        rows["false_negatives"] = [int((~s & w).sum()) for s, w in zip(suspected, wrong, strict=True)]
        rows["true_negatives"] = [int((~s & ~w).sum()) for s, w in zip(suspected, wrong, strict=True)]
        if matrices := self._confusion(were, are):
            summary["confusion"] = matrices
        summary |= _quality(_joined(are))
        active = dict(self.method.at(before.round, len(clients))[0].acting())
        of_active = _all(found for place, found in by_place.items() if place in active)
        levels = noise_columns([*of_active, *of_corrector], clients).get("level")
        if levels is not None:  # a part that is inactive now has estimated labels of an earlier time
            summary["noise_level_error"] = absolute_error(levels, rows["true_noise_before"])
        return {**summary, "clients": rows}

    def selection(self, rule: BatchRule, tasks: Sequence[ClientTask]) -> list[dict[str, Any]]:
        """Confusion matrices of the samples that each step of ``rule`` keeps, a row per client (FedDiv, Fig. 7).

        The first matrix is of the given labels; if any client's labels have changed, the next is of the held ones.
        Empty if the truth is unknown, there are too many classes, or the rule selects nothing.
        """
        C, rows = self.federation.num_classes, []
        changed = any(task.state.labels is not None for task in tasks)
        for task in tasks if self.federation.truth is not None and C <= FEW_CLASSES else ():
            assert self.federation.truth is not None, "checked above"
            true, held = self.federation.truth[task.samples.index], task.labels
            begun = {"as given": task.samples.given, **({"as held": held} if changed else {})}
            self.network.load(task.broadcast.params)
            row: dict[str, Any] = {}
            for name, subset in rule.selections(self.network, task).items():
                labels = held if subset.labels is None else subset.labels
                kept = torch.arange(len(held)) if subset.positions is None else subset.positions
                row[name] = confusion(true[kept].numpy(), labels[kept].numpy(), C)
            if row:
                row = {name: confusion(true.numpy(), labels.numpy(), C) for name, labels in begun.items()} | row
                rows.append({"client": task.client, **row})
        return rows

    @property
    def has_labels(self) -> bool:
        """Whether clients' labels are here, for a table of them."""
        return True

    def finish(self, state: FederatedState) -> None:
        """Tell clients that are elsewhere the end of the run; here is none."""

    def table(self, state: FederatedState) -> LabelTable:
        """The given and the final label of every sample, beside the true one if it is known.

        ``confidence`` is the probability that the global model of ``state`` assigns to the final label, and
        ``self_confidence`` that of the given label, in eval mode and without augmentation. ``flagged`` marks the
        samples that ``labels`` counts as detected. The samples are scored in full batches, which takes one more pass
        over the images.
        """
        self.network.load(state.server.params)
        data = self.federation.dataset
        findings = self._findings(state)
        true, given, held, suspected = self._all(state, findings)
        flagged = suspected | (held != given)
        everything = Samples(data.train, torch.from_numpy(self.federation.held), torch.from_numpy(given))
        confidence = self._confidence(everything, torch.from_numpy(np.stack([held, given])))
        return LabelTable(
            classes=data.classes,
            client=[self.federation.called(client) for client in self.federation.holders.tolist()],
            sample=self.federation.names,
            given=given.tolist(),
            final=held.tolist(),
            confidence=confidence[0],
            self_confidence=confidence[1],
            flagged=flagged.tolist() if _has_judged(findings, flagged) else None,
            true=None if self.federation.truth is None else true.tolist(),
        )

    def probabilities(self, state: FederatedState, key: str) -> Probabilities:
        """The recorded probabilities, with those of the global model of ``state`` as the final ones.

        This takes a pass over the training and the test images. ``key`` is the run's.
        """
        assert self.recorder is not None, "the run records probabilities"
        self.network.load(state.server.params)
        federation = self.federation
        return self.recorder.probabilities(
            client=federation.holders,
            sample=np.array(federation.names),
            key=key,
            federation=federation.fingerprint,
            round=state.round,
        )

    def _confidence(self, samples: Samples, labels: Tensor) -> Tensor:
        """The loaded model's probability float64 [m, n] of each of ``labels``, int64 [m, n], of the n samples."""
        parts = torch.arange(len(samples)).split(SCORED)
        return torch.cat(
            [self.network.probabilities(samples.at(part)).gather(1, labels[:, part].T).T for part in parts], dim=1
        )

    def _confusion(self, were: Sequence[_Labels], are: Sequence[_Labels]) -> dict[str, Any]:
        """Confusion matrices of the labels held before and after, of all clients together and of the first ones."""
        C = self.federation.num_classes
        if C > MANY_CLASSES:
            return {}

        def count(clients: Sequence[_Labels]) -> list[list[int]]:
            true, held = (np.concatenate([c[i] for c in clients]) for i in (0, 2))
            return confusion(true, held, C)

        matrices: dict[str, Any] = {"before": count(were), "after": count(are)}
        if C <= FEW_CLASSES:
            shown = list(zip(self.federation.with_data, were, are, strict=True))[:FIRST_CLIENTS]
            matrices["first_clients"] = [{"client": c, "before": count([b]), "after": count([a])} for c, b, a in shown]
        return matrices

    def _all(self, state: FederatedState, findings: Iterable[Finding]) -> _Labels:
        """What ``_client`` gives of every client that holds data, one after the other, each [N]."""
        federation = self.federation
        given = federation.given.numpy()[federation.held]
        true = given if federation.truth is None else federation.truth.numpy()[federation.held]
        held, suspected = given.copy(), np.zeros(len(given), np.bool_)
        ends = np.cumsum(federation.counts)
        places = {
            c: slice(end - n, end) for c, end, n in zip(federation.with_data, ends, federation.counts, strict=True)
        }
        for client in state.clients:
            if (labels := state.client(client).labels) is not None:
                held[places[client]] = labels.numpy()
        for client, doubt in suspects(findings).items():
            suspected[places[client]] = doubt.mask.numpy()
        return true, given, held, suspected

    def _client(
        self, state: FederatedState, client: int, doubts: Mapping[int, SuspectedSamples] | None = None
    ) -> _Labels:
        """A client's true labels (given ones if unknown), given labels, held labels and suspects, each [n]."""
        samples, kept = self.federation.samples(client), state.client(client)
        given, held = samples.given.numpy(), kept.held(samples.given).numpy()
        true = given if self.federation.truth is None else self.federation.truth[samples.index].numpy()
        doubt = None if doubts is None else doubts.get(client)
        return true, given, held, np.zeros(len(given), np.bool_) if doubt is None else doubt.mask.numpy()


def _all(findings: Iterable[Sequence[Finding]]) -> list[Finding]:
    return [finding for some in findings for finding in some]


def _joined(clients: Sequence[_Labels]) -> _Labels:
    """The labels and suspects of all these clients, one after the other, each [N]."""
    true, given, held, suspected = (np.concatenate(parts) for parts in zip(*clients, strict=True))
    return true, given, held, suspected


def _quality(labels: _Labels) -> dict[str, float]:
    true, given, held, flagged = labels
    changed = held != given
    metrics = {"noise_given": float((given != true).mean()), "noise_final": float((held != true).mean())}
    if flagged.any() or changed.any():
        metrics |= {f"detection_{k}": v for k, v in detection(flagged | changed, given != true).items()}
        metrics["changed"] = float(changed.sum())
        if changed.any():
            metrics["correction_accuracy"] = float((held == true)[changed].mean())
    return metrics


def _has_judged(findings: Iterable[Finding], flagged: Mask) -> bool:
    """Whether the method has judged labels: it has suspects, has split the clients, or has ``flagged`` [N] any."""
    return any(isinstance(finding, SuspectedSamples | NoisyClients) for finding in findings) or bool(flagged.any())


def _by_predicted(logits: Tensor, labels: Tensor) -> Tensor:
    """Counts of samples by class and predicted class, int64 [K, K], from logits [n, K] and labels [n]."""
    classes = logits.shape[1]
    return torch.bincount(labels * classes + logits.argmax(1), minlength=classes**2).reshape(classes, classes)
