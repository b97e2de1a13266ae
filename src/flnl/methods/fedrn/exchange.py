"""FedRN's exchange: clients receive models of reliable neighbours, and choose clean samples with them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientResult, ClientState, ClientTask, Clock, Fit, kept_by_client
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import Exchange, Part, Setting
from flnl.core.payload import Params, Payload
from flnl.core.ranges import Count, Positive, Share, StageNumber
from flnl.core.reported import PerClass
from flnl.core.step import LOGITS
from flnl.core.stored import stored
from flnl.core.streams import stream
from flnl.core.training import Training
from flnl.methods.fedrn.head import in_head, with_trained_head
from flnl.methods.fedrn.reliability import neighbourhood
from flnl.numerics.mixture import LossMixture
from flnl.numerics.scaling import Array
from flnl.parts.messages import LastModel


@stored("Reliability")
class Reliability:
    """Sent to the server after training: how accurate the model is on the client's labels, and its answer to noise."""

    expertise: Share  # accuracy of the trained model on the client's own labels
    output: PerClass  # float64 [K], its logits on the noise image that all clients share


@stored("Neighbours")
class Neighbours:
    """Sent to a client: the last models of its neighbours, and how much each opinion counts."""

    clients: tuple[int, ...]  # their numbers
    models: tuple[Params, ...]
    weights: tuple[float, ...]  # of the client itself, then of the neighbours; they sum to 1


@stored("CleanSamples")
class CleanSamples:
    """Kept on the client: the samples that it took for clean at the start of its last visit."""

    mask: Tensor  # bool [n]
    probability: Tensor  # float64 [n], that the label is right
    labels: Tensor | None  # int64 [n], the labels that were judged; None for the given labels


@stored("ReliabilityState")
class ReliabilityState:
    """The server's state: what each client that has trained reported last."""

    expertise: Mapping[int, float] = field(default_factory=dict)
    outputs: Mapping[int, Tensor] = field(default_factory=dict)  # float64 [K] each


@dataclass(frozen=True)
class ReliableNeighbours(Exchange):
    """The server sends the models of the most reliable clients along (FedRN, Kim et al. 2022).

    A client judges its samples by its own last model first. On those that are clean by this, it trains the last layer
    of each neighbour's model; then all models judge together.

    Neighbours are among the clients that have trained. A client that has not gets none, and chooses nothing.
    """

    sends: ClassVar[tuple[type, ...]] = (Neighbours,)
    reports: ClassVar[tuple[type, ...]] = (Reliability,)
    keeps: ClassVar[tuple[type, ...]] = (LastModel, CleanSamples)
    reveals: ClassVar[Mapping[type, float]] = {Neighbours: math.inf}
    neighbours: Count
    alpha: Share
    threshold: Share
    tolerance: Positive
    min_variance: Positive
    head: Training
    stage: StageNumber

    @property
    def available_from(self) -> int:
        """The stage in which clients begin to choose samples."""
        return self.stage

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        """Why the neighbours' last layers cannot be trained, or models not be asked what they make of noise."""
        if setting.kind == "tokens":
            return "FedRN compares models by their answers to an input of noise, and there is none among texts"
        names = [name for name, _ in network.named_parameters()]
        if any(map(in_head, names)):
            return None
        return (
            "FedRN trains the last layer of neighbours' models, which must be called head; this network has "
            f"{', '.join(sorted({name.rpartition('.')[0] for name in names}))}: rename its last layer"
        )

    def init(self, clients: int, params: Params) -> ReliabilityState:
        return ReliabilityState()

    def relay(
        self, state: ReliabilityState, client: int, clock: Clock, clients: Mapping[int, ClientState]
    ) -> tuple[Any, ...]:
        """The neighbours' models; nothing before the stage, or if the client has not trained yet."""
        if clock.stage < self.stage or client not in state.expertise:
            return ()
        of = neighbourhood(client, state.expertise, state.outputs, alpha=self.alpha, count=self.neighbours)
        others = of.clients[1:]
        models = tuple(clients[other].extras.one(LastModel).params for other in others)
        return (Neighbours(others, models, of.weights),)

    def mirrors(self, result: ClientResult) -> Payload:
        """The client's last model, which it has sent; none of a visit that has reported nothing."""
        if result.params is None or result.reports.get(Reliability) is None:
            return Payload()
        return Payload(LastModel(result.params))

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        """Choose clean samples, if the client received neighbours."""
        received = task.broadcast.extras.get(Neighbours)
        if received is None or len(task.samples) == 0:
            return Payload(), Payload()
        own = task.state.extras.one(LastModel).params
        probabilities = [self._clean(network, own, task)]
        among = above(probabilities[0], self.threshold)
        for other, params in zip(received.clients, received.models, strict=True):
            tuned = with_trained_head(network, task, params, among, self.head, other)
            probabilities.append(self._clean(network, tuned, task))
        probability = agreed(received.weights, probabilities)
        mask = above(probability, self.threshold)
        return Payload(), Payload(CleanSamples(mask, torch.from_numpy(probability), task.state.labels))

    def _clean(self, network: Model, params: Params, task: ClientTask) -> Any:
        """The probability that each label is right, float64 [n], by a model."""
        mixture = LossMixture(self.tolerance, self.min_variance)
        return mixture.clean_probability(network.at(params).outputs(task.samples)[LOGITS], task.labels)

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """Report the trained model's accuracy on the client's labels and its answer to noise; keep the model.

        Of a model whose logits overflow, neither: the client stays with its last one.
        """
        logits = network.logits(task.samples)
        right = logits.argmax(1) == task.labels
        noise = stream(task.seed, "image of noise").standard_normal((1, *task.samples.images.shape))
        output = network.scored(onto(torch.from_numpy(noise), network.device, network.dtype))[0]
        if not (torch.isfinite(logits).all() and torch.isfinite(output).all()):
            return Payload(), Payload()
        up = Payload(Reliability(float(right.double().mean()), output.double().cpu()))
        return up, Payload(LastModel({name: tensor.cpu() for name, tensor in fit.params.items()}))

    def receive(self, state: ReliabilityState, reports: Mapping[int, Payload], seed: int) -> ReliabilityState:
        got = {client: r for client, sent in reports.items() if (r := sent.get(Reliability)) is not None}
        if not got:
            return state
        return ReliabilityState(
            {**state.expertise, **{client: r.expertise for client, r in got.items()}},
            {**state.outputs, **{client: r.output for client, r in got.items()}},
        )

    def findings(
        self, state: ReliabilityState, clients: Mapping[int, ClientState], known: Payload
    ) -> tuple[Finding, ...]:
        """The samples that each client left out at its last visit, scored by the probability of a wrong label."""
        clean = kept_by_client(clients, CleanSamples)
        return tuple(SuspectedSamples(c, ~s.mask, 1 - s.probability, s.labels) for c, s in clean.items())


def above(probability: Array, threshold: Share) -> Tensor:
    """Mask bool [n] of the samples whose ``probability`` [n] is above ``threshold``; of all samples if none is."""
    mask = torch.from_numpy(probability > threshold)
    return mask if bool(mask.any()) else torch.ones_like(mask)


def agreed(weights: Sequence[float], probabilities: Sequence[Array]) -> Array:
    """``Σ_u w_u P_u`` [n], from the ``weights`` of the models and each one's probabilities [n] (FedRN)."""
    return np.asarray(np.average(np.stack(probabilities), axis=0, weights=weights))
