"""SCAFFOLD's exchange: the server's control variate down, the change of the client's own up."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Interval
from torch import nn

from flnl.core.findings import Finding, Scalar
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, Gathered
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.optimizer import SGD
from flnl.core.parts import Aggregator, BatchRule, Exchange, LossTerm, Part, Setting
from flnl.core.payload import Params, Payload, is_learned
from flnl.core.reported import OfModel
from flnl.core.stored import stored
from flnl.methods.scaffold.control_variates import full_gradient, gain, mean_gradient
from flnl.parts.losses.cross_entropy import CrossEntropy


class Correcting:
    """Marker base class of SCAFFOLD's gradient transform, by which the exchange checks that it is present."""


@stored("ControlVariate")
class ControlVariate:
    """c, the server's; sent to every client of the cohort."""

    values: Params  # of each parameter


@stored("ControlVariateChange")
class ControlVariateChange:
    """Sent to the server after training: ``c_k⁺ − c_k``."""

    values: Annotated[Params, OfModel()]  # of each parameter
    distance: float  # ‖c_k⁺ − c‖, with the c that the client received


@stored("OwnControlVariate")
class OwnControlVariate:
    """c_k, kept on the client; a client that has kept none has zeros."""

    values: Params  # of each parameter, on the CPU


@dataclass(frozen=True)
class Drift:
    """``c_k − c``, which a visit's gradients are corrected by; neither sent nor kept."""

    values: Params  # of each trainable parameter, on the network's device


@stored("ControlVariatesState")
class ControlVariatesState:
    """The server's state."""

    variate: ControlVariate
    distances: Mapping[int, float]  # ‖c_k⁺ − c‖ at the last visit of each client that has trained


@dataclass(frozen=True)
class ControlVariates(Exchange):
    """Keeps ``c = Σ_k p_k c_k`` over all N clients that hold data (SCAFFOLD, Karimireddy et al. 2020, Algorithm 1).

    Server and clients begin with zeros. After its visit, client k of the cohort S sends ``Δ_k = c_k⁺ − c_k``, and the
    server sets ``c ← c + Σ_{k ∈ S} p_k Δ_k``. Use it with ``method/gradient=scaffold_drift_correction``.

    ``option``: c_k⁺ is, under I, the gradient at the received model over all of the client's samples; under II
    ``c_k − c + (x − y_k)/(K η)``, the mean of its gradients at its K steps. ``normaliser`` is, under II and with
    ``train.momentum``, what stands for K: ``gain``, how far the steps go along a constant gradient; ``steps``, K.
    ``momentum`` is that of training.

    ``weights``: p_k is 1/N (``uniform``), or the client's share of all samples (``samples``), as the aggregator has it.
    """

    sends: ClassVar[tuple[type, ...]] = (ControlVariate, Drift)
    reports: ClassVar[tuple[type, ...]] = (ControlVariateChange,)
    keeps: ClassVar[tuple[type, ...]] = (OwnControlVariate,)

    option: Literal["I", "II"]
    weights: Literal["uniform", "samples"]
    normaliser: Literal["gain", "steps"]
    momentum: Annotated[float, Interval(ge=0, lt=1)]

    def lacks(self, stage: Sequence[Part]) -> Sequence[str]:
        by_samples = self.weights == "samples"
        alike = all(part.by_samples == by_samples for part in stage if isinstance(part, Aggregator))
        return () if alike else ("method/aggregator=mean" if by_samples else "method/aggregator=uniform_mean",)

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        """Why control variates are no gradients here: by how clients train, or by what option I does not compute."""
        if not any(isinstance(part, Correcting) for part in stage):
            return (
                "needs method/gradient=scaffold_drift_correction in every stage in which it is not silent "
                "(method.stages.NAME.silent)"
            )
        training = setting.training
        if not isinstance(training.optimizer, SGD):
            name = type(training.optimizer).__name__
            return f"needs train/optimizer=sgd: the steps of {name} are no sum of gradients"
        if training.clip is not None:
            return f"needs train.clip=null: steps clipped to {training.clip:g} are no sum of gradients"
        if training.visit_cosine:
            return "needs train.visit_cosine=false: the mean gradient is the move divided by one rate"
        if training.momentum and training.keep_momentum:
            return "needs train.keep_momentum=false or train.momentum=0: a visit's steps would hold earlier gradients"
        if training.momentum != self.momentum:
            return f"momentum={self.momentum:g} must be that of the stage's training, {training.momentum:g}"
        return self._refuses_gradient(stage) if self.option == "I" else None

    def _refuses_gradient(self, stage: Sequence[Part]) -> str | None:
        terms = [part for part in stage if isinstance(part, LossTerm)]
        if [type(term) for term in terms] != [CrossEntropy]:
            return "option=I computes the gradient of cross_entropy alone; use option=II with other loss terms"
        rules = [part for part in stage if isinstance(part, BatchRule)]
        changed = any(rule.overrides(method) for rule in rules for method in ("mixing", "phases"))
        return (
            "option=I computes the gradient of unmixed samples; use option=II or method/batch=plain"
            if changed
            else None
        )

    def caution(self, setting: Setting) -> str | None:
        """Momentum, with which the paper's method is another one."""
        momentum = setting.training.momentum
        if not momentum:
            return None
        said = f"SCAFFOLD is for plain SGD; it runs with train.momentum={momentum:g}"
        if self.normaliser == "gain" or self.option == "I":
            return said
        most = 1 / (1 - momentum)
        return f"{said}, and {setting.key}.normaliser=steps makes control variates up to {most:.3g} times too large"

    def init(self, clients: int, params: Params) -> ControlVariatesState:
        return ControlVariatesState(ControlVariate(_zeros(params)), {})

    def broadcast(self, state: ControlVariatesState, clock: Clock) -> tuple[ControlVariate]:
        return (state.variate,)

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        """``c_k − c`` for the visit."""
        variate, own = task.broadcast.extras.one(ControlVariate).values, _own(task)
        return Payload(
            Drift({name: onto(own[name] - variate[name], network.device) for name in network.trainable()})
        ), Payload()

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """Send the change of c_k, and keep the new one; neither after a visit without steps."""
        if fit.steps == 0:
            return Payload(), Payload()
        drift = task.visit.one(Drift).values
        if self.option == "I":
            after = full_gradient(network, task)
        else:
            steps = gain(fit.steps, self.momentum) if self.normaliser == "gain" else fit.steps
            after = mean_gradient(task.broadcast.params, fit.params, drift, steps * fit.lr)
        variate, own = task.broadcast.extras.one(ControlVariate).values, _own(task)
        new = {name: after[name].cpu() if name in after else zero for name, zero in own.items()}
        change = {name: value - own[name] for name, value in new.items()}
        away = torch.stack([(value - variate[name]).double().square().sum() for name, value in new.items()])
        return Payload(ControlVariateChange(change, math.sqrt(away.sum()))), Payload(OwnControlVariate(new))

    def gathered(self, state: ControlVariatesState, gathered: Gathered) -> ControlVariatesState:
        """``c + Σ_{k ∈ S} p_k Δ_k``, in float64 and in the order of clients."""
        sent = {r.client: r.reports.get(ControlVariateChange) for r in gathered.results}
        changes = {client: change for client, change in sorted(sent.items()) if change is not None}
        sizes = gathered.num_samples
        moved = {name: value.double() for name, value in state.variate.values.items()}
        for client, change in changes.items():
            share = 1 / len(sizes) if self.weights == "uniform" else sizes[client] / sum(sizes.values())
            for name, value in change.values.items():
                moved[name] = moved[name] + share * value.to(moved[name])
        values = {name: value.to(state.variate.values[name].dtype) for name, value in moved.items()}
        distances = {client: change.distance for client, change in changes.items()}
        return ControlVariatesState(ControlVariate(values), {**state.distances, **distances})

    def findings(
        self, state: ControlVariatesState, clients: Mapping[int, ClientState], known: Payload
    ) -> tuple[Finding, ...]:
        """The mean distance of the clients' control variates from the server's."""
        far = state.distances.values()
        return (Scalar("control_variate_distance", sum(far) / len(far)),) if far else ()


def _zeros(params: Params) -> Params:
    return {name: torch.zeros_like(p, device="cpu") for name, p in params.items() if is_learned(name, p)}


def _own(task: ClientTask) -> Params:
    kept = task.state.extras.get(OwnControlVariate)
    return _zeros(task.broadcast.params) if kept is None else kept.values
