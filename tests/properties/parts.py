"""Parts that remember, as later methods will: a server with momentum, a term with state a client, a choice of samples.

They are no method of anybody's. They stand in the registry so that every slot of the state is saved, gone on from and
independent of order, before a method that needs it exists.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.messages import ClientResult, ClientTask, Clock, Combined, Fit, Gathered
from flnl.core.model import Model
from flnl.core.parts import Aggregator, BatchRule, Exchange, GradientTransform, LossTerm, ServerUpdate, Wants
from flnl.core.payload import Params, Payload
from flnl.core.step import FEATURES, FIRST, LOGITS, SECOND, Phase, Step
from flnl.numerics.averaging import WeightedSum, divided, summed
from flnl.parts.losses.targets import cross_entropy


@dataclass(frozen=True)
class Momentum(ServerUpdate):
    """The server goes on in the direction of its last steps; its state is the velocity."""

    beta: float

    def init(self, params: Params) -> Any:
        return {name: torch.zeros_like(p) for name, p in params.items() if p.is_floating_point()}

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Any
    ) -> tuple[Params, Any]:
        velocity = {name: self.beta * v + combined[name] - params[name] for name, v in state.items()}
        return {
            name: params[name] + velocity[name] if name in velocity else p for name, p in combined.items()
        }, velocity


@dataclass(frozen=True)
class Pull(LossTerm):
    """Pulls the parameters towards where this client last left them, and counts its visits and its batches."""

    copies: ClassVar[float] = 1
    strength: float

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        if state is not None:
            return state
        start = {name: p.clone() for name, p in task.broadcast.params.items()}
        device = next(iter(start.values())).device
        return {"last": start, "seen": torch.zeros(len(task.samples), device=device), "visits": 0}

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        far = torch.stack([(p - state["last"][name]).square().sum() for name, p in step.params.items()]).sum()
        seen = state["seen"].clone()
        seen[step.positions] += 1
        return self.strength * (1 + state["visits"]) * far, {**state, "seen": seen}

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        return {**state, "last": fit.params, "visits": state["visits"] + 1}


@dataclass(frozen=True)
class Trailing(LossTerm):
    """Pulls to an average of the client's models after each step, running statistics included, which it keeps."""

    copies: ClassVar[float] = 1
    strength: float
    decay: float

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        return averageable(task.broadcast.params) if state is None else state

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        far = torch.stack([(p - state[name]).square().sum() for name, p in step.params.items()]).sum()
        return self.strength * far, state

    def stepped(self, params: Params, state: Any) -> Any:
        return averaged(state, params, self.decay)

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        return state


def averageable(params: Params) -> Params:
    """Copies of what can be averaged: no count of batches."""
    return {name: p.clone() for name, p in params.items() if p.is_floating_point()}


def averaged(average: Mapping[str, Tensor], params: Mapping[str, Tensor], decay: float) -> Params:
    """A step of an exponential average."""
    return {name: decay * kept + (1 - decay) * params[name] for name, kept in average.items()}


@dataclass(frozen=True)
class Scaled(GradientTransform):
    """Gradients times a number."""

    by: float

    def __call__(self, gradients: Mapping[str, Tensor], step: Step) -> Mapping[str, Tensor]:
        return {name: self.by * gradient for name, gradient in gradients.items()}


@dataclass(frozen=True)
class HalfTheSamples(BatchRule):
    """Another half of the samples each epoch, those with the largest outputs first."""

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        scores = network.logits(task.samples).max(1).values
        half = torch.argsort(scores, descending=True, stable=True)[: (len(task.samples) + 1) // 2]
        chosen = task.stream("half", epoch).permutation(len(half))
        yield Phase(positions=half[torch.from_numpy(chosen)].sort().values)


@dataclass(frozen=True)
class TwoViews(BatchRule):
    """Two views of each image."""

    views: ClassVar[int] = 2


@dataclass(frozen=True)
class Agreement(LossTerm):
    """Holds the last view of an image to the mean of the network's opinions of all of them, without gradients."""

    strength: float
    training: bool = True

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        opinions = [z.softmax(1) for z in step.opinions(LOGITS, step.views, training=self.training)]
        opinion = torch.stack(opinions).mean(0)
        return self.strength * (step.output(LOGITS, step.views[-1]).softmax(1) - opinion).square().sum(1), state


@dataclass(frozen=True)
class EasyThenHard(BatchRule):
    """Trains on the easier half of the samples beside the harder one, then on what is harder by then, beside nothing.

    Each in two views; ``facts`` are the samples' losses before the phase.
    """

    views: ClassVar[int] = 2
    alone: ClassVar[str | None] = "has several phases in an epoch"

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        for name in ("easy", "hard"):
            losses = F.cross_entropy(network.logits(task.samples).double(), task.labels, reduction="none")
            order = torch.argsort(losses, stable=True)
            easy, hard = order.tensor_split(2)
            yield Phase(name, easy if name == "easy" else hard, beside=hard if name == "easy" else None, facts=losses)


@dataclass(frozen=True)
class Guesses(LossTerm):
    """Cross-entropy, the more the easier a sample was; in the second pool, two views are held to each other.

    The latter rises over the epochs of a visit. A draw moves a row of either pool.
    """

    fits_labels: ClassVar[bool] = True

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        return torch.from_numpy(rng.normal(size=size))

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        trust = torch.exp(-step.phase.facts).to(step.logits, non_blocking=True)[step.positions]
        total = (F.cross_entropy(step.logits, step.labels, reduction="none") * trust).mean()
        if step.beside is not None:
            assert step.progress is not None
            share = (step.progress.epoch + step.number / step.progress.batches) / step.progress.epochs
            one, other = (step.output(LOGITS, view).softmax(1) for view in step.beside.views)
            moved = 0.1 * step.draw[len(step.labels) :, None].to(one, non_blocking=True)
            total = total + share * (one - other + moved).square().mean()
        return total + 0.1 * step.draw.to(total, non_blocking=True).mean(), state


@dataclass(frozen=True)
class PeerNetworks(LossTerm):
    """Each of two networks learns the half of the batch on which the other's loss is smaller.

    Beside it one network is held to the other's opinion of inputs with noise, given without gradients.
    """

    fits_labels: ClassVar[bool] = True
    networks: ClassVar[int | None] = 2
    again: bool  # whether a network takes a second pass with gradients, which batch norm keeps from being stacked

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        return torch.from_numpy(rng.normal(size=(size, 1, 1, 1)))

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        losses = [cross_entropy(step.outputs[name], step.labels) for name in (FIRST, SECOND)]
        ranks = [loss.detach().argsort(stable=True).argsort(stable=True) for loss in losses]
        easy = [(rank < (len(rank) + 1) // 2).to(losses[0].dtype) for rank in ranks]
        total = (losses[0] * easy[1]).mean() + (losses[1] * easy[0]).mean()
        noisy = step.inputs + 0.1 * step.draw.to(step.inputs, non_blocking=True)
        opinion = step.opinions(SECOND, [noisy])[0].softmax(1)
        first = step.output(FIRST, noisy) if self.again else step.output(FIRST)
        return total + (first.softmax(1) - opinion).square().mean(), state


@dataclass(frozen=True)
class ClassCentres(LossTerm):
    """Holds features to the mean features of their class under the received model, as a visit begins.

    After a visit the client keeps how much its features moved, and the learning rate.
    """

    strength: float

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        features = network.received(task, output=FEATURES)
        rows = F.one_hot(task.labels, network.num_classes).to(features)
        moved = features.new_zeros(2) if state is None else state["moved"]
        return {"centres": rows.T @ features / rows.sum(0).clamp_min(1)[:, None], "moved": moved}

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        centres = state["centres"].to(step.logits, non_blocking=True)
        return self.strength * (step.output(FEATURES) - centres[step.labels]).square().sum(1), state

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        features = network.logits(task.samples, output=FEATURES)
        change = (features - network.received(task, output=FEATURES)).square().mean()
        moved = state["moved"][0] + change
        return {**state, "moved": torch.stack([moved, torch.full_like(moved, fit.lr)])}


@dataclass(frozen=True)
class Easiness:
    """What a visit begins with: how easy each sample is for the received model, [n]. It is not a stored class."""

    values: Tensor


@dataclass(frozen=True)
class Eases(Exchange):
    """Begins each visit with the samples' easiness, which nobody keeps."""

    sends: ClassVar[tuple[type, ...]] = (Easiness,)

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        losses = F.cross_entropy(network.received(task).double(), task.labels, reduction="none")
        return Payload(Easiness(torch.exp(-losses))), Payload()


@dataclass(frozen=True)
class ByEasiness(LossTerm):
    """Holds the logits of easy samples down."""

    reads: ClassVar[tuple[type, ...]] = (Easiness,)
    strength: float

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        easy = step.visit.one(Easiness).values.to(step.logits, non_blocking=True)
        return self.strength * easy[step.positions] * step.logits.square().sum(1), state


@dataclass(frozen=True)
class Trust:
    """Known on the server: a weight for every client, float64 [N]."""

    values: Tensor


@dataclass(frozen=True)
class Judge(Exchange):
    """Trusts clients the less, the further their models are from the middle of this round's."""

    knows: ClassVar[tuple[type, ...]] = (Trust,)

    def init(self, clients: int, params: Params) -> Any:
        return {"trust": torch.ones(clients, dtype=torch.float64), "visits": 0}

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        return Payload(fit.steps), Payload()

    def wants_models(self, clock: Clock) -> Wants:
        return "before"

    def gathered(self, state: Any, gathered: Gathered) -> Any:
        assert gathered.combined is None
        models = torch.stack([_flat(result.params) for result in gathered.results])
        far = (models - models.mean(0)).square().sum(1)
        trust = state["trust"].clone()
        trust[[result.client for result in gathered.results]] = (1 / (1 + far)).cpu()
        return {**state, "trust": trust}

    def receive(self, state: Any, reports: Mapping[int, Payload], seed: int) -> Any:
        return {**state, "visits": state["visits"] + len(reports)}

    def known(self, state: Any) -> tuple[Any, ...]:
        return (Trust(state["trust"]),)


@dataclass(frozen=True)
class Spread(Exchange):
    """How far a round's models are from the combined one, summed; and which clients had a weight, in every round.

    It wants the models of every other round, of which one is the first.
    """

    def init(self, clients: int, params: Params) -> Any:
        return {"far": 0.0, "weighted": torch.zeros(clients, dtype=torch.int64)}

    def wants_models(self, clock: Clock) -> Wants:
        return "no" if clock.round % 2 else "after"

    def gathered(self, state: Any, gathered: Gathered) -> Any:
        combined = gathered.combined
        assert combined is not None
        weighted = state["weighted"].clone()
        weighted[list(combined.weights)] += 1
        far = state["far"]
        if self.wants_models(gathered.broadcast.clock) == "after":
            centre = _flat(combined.params)
            far += sum(float((_flat(result.params) - centre).square().sum()) for result in gathered.results)
        return {"far": far, "weighted": weighted}


def _flat(params: Params | None) -> Tensor:
    assert params is not None
    return torch.cat([p.double().flatten() for p in params.values()])


@dataclass(frozen=True)
class TrustedSum:
    """A block's contribution, and whose it is."""

    clients: tuple[int, ...]
    summed: WeightedSum


@dataclass(frozen=True)
class TrustedMean(Aggregator[TrustedSum]):
    """The mean of the clients' models by their trust, times their samples or not."""

    reads: ClassVar[tuple[type, ...]] = (Trust,)
    weights: Literal["samples", "uniform"]

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> TrustedSum:
        clients = tuple(result.client for result in results)
        trust = known.one(Trust).values[list(clients)].tolist()
        sizes = [result.num_samples if self.weights == "samples" else 1 for result in results]
        weights = [share * size for share, size in zip(trust, sizes, strict=True)]
        return TrustedSum(clients, summed(params, results, weights))

    def combine(self, params: Params, values: Iterable[TrustedSum], known: Payload) -> Combined:
        blocks, trust = list(values), known.one(Trust).values
        weights = {client: float(trust[client]) for block in blocks for client in block.clients}
        combined = divided(params, [block.summed for block in blocks])
        return Combined(combined, weights, {"least_trust": min(weights.values())})
