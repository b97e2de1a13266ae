"""The jobs besides local training, and the reduction that aggregates clients' results where they ran."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flnl.core import checked
from flnl.core.execution import Block, ClientJob
from flnl.core.fault import Fault
from flnl.core.messages import Answered, ClientResult, ClientTask, Opened
from flnl.core.model import Model
from flnl.core.parts import Aggregator, LabelCorrector
from flnl.core.payload import Params, Payload, all_finite
from flnl.engine.network import Network


@dataclass(frozen=True)
class Correct:
    """Job: a client corrects its labels."""

    corrector: LabelCorrector
    rule: str

    def __call__(self, network: Model, task: ClientTask) -> Answered:
        """Run the corrector on the received model; the client keeps the labels and weights."""
        assert isinstance(network, Network), "a correction needs a full Network, not only the Model protocol"
        network.load(task.broadcast.params)
        with network.lent():
            returned = self.corrector.correct(network, task, self.rule)
        made = checked.correction(self.corrector, returned, task, network.num_classes)
        state = replace(task.state.keeping(*made.keeps), labels=made.labels, weight=made.weight)
        return Answered(task.client, state, made.reports)


@dataclass(frozen=True)
class Open:
    """Job: what an exchange asks of clients before a round."""

    exchange: str  # its name
    job: ClientJob[Opened]

    def __call__(self, network: Model, task: ClientTask) -> Answered:
        """Run the exchange's job; the client keeps what it says."""
        opened = checked.opened(self.job, self.job(network, task), task)
        return Answered(task.client, task.state.keeping(*opened.keeps), opened.reports)


@dataclass(frozen=True)
class Reduce:
    """Reduction: the worker aggregates the results of a block of clients."""

    aggregator: Aggregator[Any]
    received: Params
    known: Payload
    models_wanted: bool  # an exchange reads the clients' models; otherwise they are not sent back

    def __call__(self, results: list[ClientResult]) -> Block[Any, ClientResult]:
        """Aggregate the clients with finite models; return every result, with its model only if wanted."""
        value = self.aggregator.block(self.received, [r for r in results if r.finite], self.known)
        return Block(value, results if self.models_wanted else [replace(r, params=None) for r in results])


@dataclass(frozen=True)
class Faulty:
    """Reduction: ``reduce`` of what clients send, of which some send faulty updates; it sees nothing else of them."""

    reduce: Callable[[list[ClientResult]], Block[Any, ClientResult]]
    fault: Fault
    clients: frozenset[int]
    received: Params
    seed: int
    round: int

    def __call__(self, results: list[ClientResult]) -> Block[Any, ClientResult]:
        """The block of the results, those of faulty clients with the model that they send."""
        return self.reduce([self._sent(result) if result.client in self.clients else result for result in results])

    def _sent(self, result: ClientResult) -> ClientResult:
        if result.params is None or not result.finite:
            return result
        sent = self.fault.sent(self.received, result.params, self.seed, self.round, result.client)
        return replace(result, params=sent, finite=all_finite(sent))
