"""A round by hand: what the loop holds on to, and what it reports of the clients' training."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from flnl.core.execution import Block, ClientJob, Executor
from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import Aggregator
from flnl.core.payload import Params
from flnl.core.state import FederatedState
from flnl.core.step import WHOLE, Phase
from flnl.engine import loop
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.network import Network
from flnl.parts.aggregators.mean import Mean
from flnl.parts.aggregators.median import Median
from flnl.parts.batches import Plain
from tests.properties.parts import Judge
from tests.toys import ONE_STEP, NoEvaluation, method, mlp, network, random_federation, rounds, stage


@dataclass(frozen=True)
class Models(Executor):
    """Another executor, and weak references to the tensors of all models that clients returned."""

    inner: Executor
    tensors: list["weakref.ref[torch.Tensor]"] = field(default_factory=list)

    def map(
        self, job: ClientJob[Any], tasks: Sequence[ClientTask], reduce: Callable[[list[Any]], Block[Any, Any]]
    ) -> Iterator[Block[Any, Any]]:
        def noting(results: list[Any]) -> Block[Any, Any]:
            self.tensors.extend(weakref.ref(tensor) for r in results for tensor in r.params.values())
            return reduce(results)

        yield from self.inner.map(job, tasks, noting)

    @property
    def held(self) -> int:
        """Number of these tensors that are in memory."""
        return sum(tensor() is not None for tensor in self.tensors)


@dataclass(frozen=True)
class Counting(NoEvaluation):
    """Counts the models of clients that are in memory when a global model is scored."""

    models: Models
    held: list[int] = field(default_factory=list)

    def model(self, params: Params, after: FederatedState) -> Mapping[str, float]:
        self.held.append(self.models.held)
        return super().model(params, after)


@pytest.mark.parametrize("aggregator", [Mean("samples"), Median("uniform")], ids=["mean", "median"])
@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize("executor", [Sequential, lambda net: Stacked(net, 4, 1.0)], ids=["sequential", "stacked"])
def test_no_model_of_a_client_is_in_memory_when_the_global_model_is_scored(
    aggregator: Aggregator[Any], judged: bool, executor: Callable[[Network], Executor]
) -> None:
    exchange = {"judge": Judge()} if judged else {}
    toy = method(stage(rounds=3, aggregator=aggregator, exchange=exchange), exchange=exchange)
    net = network(mlp(4, 3))
    models = Models(executor(net))
    evaluator = Counting(models)
    settings = loop.Settings(1, ONE_STEP, None, "drop")
    run = loop.Federated(toy, random_federation([6, 5, 4]), models, evaluator, settings)
    assert len(list(loop.rounds(run, loop.initial_state(net.params())))) == 3
    assert len(models.tensors) == 3 * 3 * len(net.params())
    assert evaluator.held == [0, 0, 0]


@dataclass(frozen=True)
class Resting(Plain):
    """These clients train on none of their samples."""

    clients: tuple[int, ...]

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> tuple[Phase, ...]:
        return (Phase(positions=torch.arange(0)) if task.client in self.clients else WHOLE,)


def test_the_loss_of_a_round_is_that_of_the_clients_that_trained() -> None:
    """A client without a step has no loss to average; a round without steps has 0."""

    def loss(*resting: int) -> float:
        toy = method(stage(batch=Resting(resting)))
        metrics = rounds(toy, random_federation([6, 5]), mlp(4, 3))[0].metrics
        assert metrics["idle"] == len(resting)
        return metrics["loss"]

    first, second = loss(1), loss(0)
    assert min(first, second) > 0.1
    assert loss() == pytest.approx((first + second) / 2, rel=1e-12)
    assert loss(0, 1) == 0
