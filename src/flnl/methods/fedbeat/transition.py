"""FedBeat's terms: a transition matrix of each sample is learned from features, and corrects the classifier's loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import BatchRule, LossTerm, Part, Setting
from flnl.core.payload import Params
from flnl.core.step import FEATURES, Step
from flnl.core.stored import stored
from flnl.core.streams import of_part, stream
from flnl.methods.fedbeat.ensemble import DistilledSet
from flnl.models.outputs import why_features_stay, why_no_features
from flnl.parts.losses.targets import cross_entropy, of_labels
from flnl.parts.shared_layers import Descent, Layers, SharedLayers

MIXED = "FedBeat corrects the label of each sample, and mixed batches have none: choose method/batch=plain"


@stored("Transitions")
class Transitions:
    """Read in the client's visit, and kept: a matrix of each sample, from the true class (row) to the given label."""

    values: Tensor  # float [n, K, K], rows sum to 1


def log_transitions(layers: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """The logarithms of the matrices [B, K, K] of features [B, d], by the last layer's K² outputs."""
    outputs = features @ layers["weight"].to(features.dtype).T + layers["bias"].to(features.dtype)
    classes = round(outputs.shape[1] ** 0.5)
    logs: Tensor = outputs.unflatten(1, (classes, classes)).log_softmax(2)
    return logs


def transition_loss(logs: Tensor, true: Tensor, given: Tensor) -> Tensor:
    """``-log T(x)[ŷ, y]`` [B] of log matrices [B, K, K], classes ŷ and labels y, int64 [B] each."""
    classes = torch.arange(logs.shape[1], device=true.device)
    return -of_labels(torch.where((true[:, None] == classes)[:, :, None], logs, 0.0).sum(1), given)


def corrected_loss(logits: Tensor, transitions: Tensor, given: Tensor) -> Tensor:
    """``-log (Σ_i p_i T(x)[i, y])`` [B] of logits [B, K], matrices [B, K, K] and labels y int64 [B]."""
    classes = torch.arange(logits.shape[1], device=given.device)
    column = torch.where(given[:, None, None] == classes, transitions, 0.0).sum(2)
    return -(logits.log_softmax(1) + column.log()).logsumexp(1)


def why_not(network: nn.Module, stage: Sequence[Part]) -> str | None:
    """Why neither term can work: batches are mixed, or there are no features."""
    if any(isinstance(part, BatchRule) and part.overrides("mixing") for part in stage):
        return MIXED
    return why_no_features(network)


@dataclass(frozen=True)
class LearnTransitions(LossTerm):
    """``-log T(x)[ŷ, y]`` on samples that the ensemble has labelled ŷ; the global model is T's body meanwhile.

    T's last layer of K² outputs is trained by the term itself, with ``descent``.
    """

    reads: ClassVar[tuple[type, ...]] = (DistilledSet,)
    fits_labels: ClassVar[bool] = True
    networks: ClassVar[int | None] = 1
    descent: Descent

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        if (why := why_not(network, stage)) is not None or (why := why_features_stay(network)) is None:
            return why
        return f"the network of transition matrices has the features of this one, and {why}"

    def begin(self, network: Model, task: ClientTask, state: Any) -> Layers:
        """The last layer as it was sent; at first, drawn as torch draws layers, equally on all clients."""
        sent = task.broadcast.extras.get(SharedLayers)
        return Layers.of(self._drawn(network, task) if sent is None else sent.values, network)

    def _drawn(self, network: Model, task: ClientTask) -> Params:
        one = task.samples.at(torch.tensor([0]))
        width = network.at(task.broadcast.params).outputs(one, names=(FEATURES,))[FEATURES].shape[1]
        rng, outputs = stream(task.seed, of_part("transition layer")), network.num_classes**2
        weight, bias = (torch.from_numpy(rng.uniform(-1, 1, shape)) for shape in ((outputs, width), (outputs,)))
        return {"weight": weight / width**0.5, "bias": bias / width**0.5}

    def __call__(self, step: Step, state: Layers) -> tuple[Tensor, Layers]:
        """The loss [B], and the layer after a step on this batch."""
        true, features = step.kept.one(DistilledSet).labels[step.positions], step.output(FEATURES)
        seen = features.detach()

        def mean(layers: Params) -> Tensor:
            return transition_loss(log_transitions(layers, seen), true, step.labels).mean()

        after = state.after(torch.func.grad(mean)(dict(state.values)), self.descent)
        return transition_loss(log_transitions(state.values, features), true, step.labels), after


@dataclass(frozen=True)
class FedBeat(LossTerm):
    """``-log (Σ_i p_i T(x)[i, y])`` with the sample's own transition matrix; cross-entropy as long as there is none."""

    reads: ClassVar[tuple[type, ...]] = (Transitions,)
    fits_labels: ClassVar[bool] = True
    networks: ClassVar[int | None] = 1

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        return why_not(network, stage)

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        own = step.visit.get(Transitions)
        if own is None:
            return cross_entropy(step.logits, step.targets), state
        return corrected_loss(step.logits, own.values[step.positions].to(step.logits.dtype), step.labels), state
