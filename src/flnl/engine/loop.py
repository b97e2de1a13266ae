"""The federated loop: one round after another, state in and state out.

A round is one aggregation. The loop holds nothing between rounds but the state it yields, so whoever stores that
value can go on from it.
"""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from flnl.config.schema import Training
from flnl.core.execution import Block, ClientJob, Executor, as_list
from flnl.core.messages import Broadcast, ClientResult, ClientTask, Correction, Gathered, Observation, Samples
from flnl.core.method import Method, Stage, exchange_slot
from flnl.core.model import Model
from flnl.core.parts import Aggregator, LabelCorrector, Sampling, ServerUpdate
from flnl.core.payload import Params, Payload, size_in_bytes
from flnl.core.state import FederatedState, RoundResult, ServerState
from flnl.data.federation.build import Federation
from flnl.engine.local.sgd import LocalTraining

log = logging.getLogger(__name__)


class NonFiniteError(Exception):
    """Local training diverged and ``on_nonfinite=stop`` was asked for."""


class Evaluate(Protocol):
    """The one who sees the truth."""

    def model(self, params: Params) -> Mapping[str, float]:
        """Scores of a global model."""
        ...

    def cohort(self, seen: Mapping[int, Observation]) -> Mapping[str, float]:
        """What the clients' models of a round look like, by client."""
        ...

    def correction(self, before: FederatedState, after: FederatedState, asked: Sequence[int]) -> Mapping[str, Any]:
        """What a correction did, as far as the truth is known."""
        ...

    def aid(self, kinds: Collection[type]) -> Payload:
        """What a method is given beyond its federation, of these kinds: the one way by which truth can reach it."""
        ...


@dataclass(frozen=True)
class Settings:
    """What a run says of the loop itself."""

    seed: int
    training: Training
    eval_every: int | None  # participations; None for one cohort of the last stage
    on_nonfinite: Literal["drop", "stop"]
    observe: bool = False  # whether clients' models are observed after their training
    initial: Params | None = None  # the model that the run began with, for a stage that begins with it again


@dataclass(frozen=True)
class Correct:
    """The job of correcting labels."""

    corrector: LabelCorrector
    rule: str

    def __call__(self, network: Model, task: ClientTask) -> Correction:
        """Correct with the received model."""
        network.load(task.broadcast.params)
        return self.corrector.correct(network, task, self.rule)


@dataclass(frozen=True)
class Reduce:
    """Turns the results of a few clients into the aggregator's value, where they ran."""

    aggregator: Aggregator[Any]
    received: Params
    known: Payload
    models_wanted: bool  # by an exchange; else they go no further

    def __call__(self, results: list[ClientResult]) -> Block[Any, ClientResult]:
        """The value of the clients whose models are finite, and every result, with its model where that is wanted."""
        value = self.aggregator.block(self.received, [r for r in results if r.finite], self.known)
        return Block(value, results if self.models_wanted else [replace(r, params=None) for r in results])


def initial_state(params: Params) -> FederatedState:
    """The state before the first round."""
    return FederatedState(0, ServerState(params))


def shown(method: Method, state: FederatedState, clients: int) -> Params:
    """The model to evaluate and to hand out, as the server's part of the last round's stage has it."""
    server = method.at(max(state.round - 1, 0), clients)[0].server
    own = state.server.parts.get(_slot_of(server))
    return state.server.params if own is None else server.shown(state.server.params, own)


def _slot_of(server: ServerUpdate) -> str:
    return f"server {type(server).__name__}"


def next_tasks(
    method: Method,
    federation: Federation,
    executor: Executor,
    state: FederatedState,
    settings: Settings,
    clients: Sequence[int],
) -> list[ClientTask]:
    """What these clients would be given to do after ``state``, in the stage of its last round."""
    stage = method.at(max(state.round - 1, 0), len(federation.with_data))[0]
    server = _Server(method, federation, executor, settings, federation.with_data, Payload())
    return [server.task(state, client, stage, stage.exchange) for client in clients]


def run(
    method: Method,
    federation: Federation,
    executor: Executor,
    evaluate: Evaluate,
    state: FederatedState,
    settings: Settings,
) -> Iterator[RoundResult]:
    """Rounds from ``state`` to the method's end.

    Raises:
        NonFiniteError: if a client diverges under ``on_nonfinite=stop``.
    """
    clients = federation.with_data
    last = method.stages[-1]
    every = settings.eval_every or last.sampler.size(len(clients))
    server = _Server(method, federation, executor, settings, clients, evaluate.aid(method.asks))
    end = method.length(len(clients))
    while state.round < end:
        before = state
        stage, stage_round = method.at(state.round, len(clients))
        state, cohort, metrics, seen = server.train(state, stage, stage_round)
        if settings.observe:
            metrics = {**metrics, **evaluate.cohort(seen)}
        correction = None
        if stage.corrects_after(stage_round, len(clients)):
            uncorrected = state
            state, asked = server.correct(state, stage)
            correction = evaluate.correction(uncorrected, state, asked)
        state = replace(state, round=state.round + 1)
        due = state.counters.participations // every > before.counters.participations // every
        border = stage_round + 1 == stage.length(len(clients))
        scores = evaluate.model(shown(method, state, len(clients))) if due or border else None
        yield RoundResult(state, stage.name, cohort, metrics, scores, correction)


def _sent(task: ClientTask) -> int:
    """Bytes that went down for a task: the model and what exchanges send."""
    return size_in_bytes(task.broadcast.params) + size_in_bytes(task.broadcast.extras)


@dataclass(frozen=True)
class _Server:
    """A round's work on the server side; stateless, the state passes through."""

    method: Method
    federation: Federation
    executor: Executor
    settings: Settings
    clients: tuple[int, ...]
    aid: Payload

    # ----------------------------------------------------------------------------------------------------- training

    def train(
        self, state: FederatedState, stage: Stage, stage_round: int
    ) -> tuple[FederatedState, tuple[int, ...], dict[str, float], dict[int, Observation]]:
        """Sample, train locally, aggregate, update, fold what was reported; and what was observed of clients."""
        if stage_round == 0:
            if stage.restart:
                assert self.settings.initial is not None, "the initial model is known"
                state = replace(state, server=replace(state.server, params=self.settings.initial))
            state = self._open(state, stage)
        state, chosen = self._sample(state, stage, stage_round)
        received = state.server.params
        tasks = [self.task(state, client, stage, stage.exchange) for client in sorted(chosen)]
        job = LocalTraining(
            self.settings.training.at(state.round),
            stage.batch,
            stage.local,
            stage.gradient,
            stage.exchange,
            self.settings.observe,
        )
        watching = [n for n, e in stage.exchange.items() if tasks and e.wants_models(tasks[0].broadcast)]
        reduce = Reduce(stage.aggregator, received, self._known(state), bool(watching))
        values, results = [], []
        for block in self.executor.map(job, tasks, reduce):
            values.append(block.value)
            results += block.results
        finite = self._finite(state, results)
        params = received
        parts = dict(state.server.parts)
        if finite:
            combined = stage.aggregator.combine(received, values)
            for name in watching:
                sent = replace(tasks[0].broadcast, extras=Payload())
                gathered = Gathered(sent, finite, combined, self.aid, self.settings.seed)
                parts[exchange_slot(name)] = stage.exchange[name].fold_models(self._slot(state, name), gathered)
            slot = _slot_of(stage.server)
            own = parts[slot] if slot in parts else stage.server.init(received)
            cohort = [r.client for r in finite]
            params, own = stage.server(received, combined, cohort, len(self.clients), own)
            if own is not None:
                parts[slot] = own
        model = size_in_bytes(received)
        state = replace(state, server=ServerState(params, parts)).keeping({r.client: r.state for r in finite})
        state = state.counted(
            participations=len(results),
            bytes_down=sum(map(_sent, tasks)),
            bytes_up=sum(model + size_in_bytes(r.reports) for r in results),
            left_out=len(results) - len(finite),
        )
        state = self._fold(state, {r.client: r.reports for r in finite})
        metrics = {
            "loss": sum(r.loss for r in finite) / len(finite) if finite else float("nan"),
            "left_out": float(len(results) - len(finite)),
            "idle": float(sum(not r.steps for r in finite)),
        }
        seen = {r.client: r.observation for r in finite if r.observation is not None}
        return state, tuple(t.client for t in tasks), metrics, seen

    def _open(self, state: FederatedState, stage: Stage) -> FederatedState:
        """Ask all clients what exchanges want to know before a stage."""
        for exchange in stage.exchange.values():
            job = exchange.opening(stage.number)
            if job is None:
                continue
            tasks = [self.task(state, client, stage, stage.exchange) for client in self.clients]
            answers = [r for block in self.executor.map(job, tasks, as_list) for r in block.results]
            kept = {}
            for answer in answers:
                was = state.client(answer.client)
                kept[answer.client] = replace(was, extras=was.extras.including(*answer.keeps))
            state = state.keeping(kept).counted(
                bytes_down=sum(map(_sent, tasks)), bytes_up=sum(size_in_bytes(a.reports) for a in answers)
            )
            state = self._fold(state, {a.client: a.reports for a in answers})
        return state

    def _finite(self, state: FederatedState, results: Sequence[ClientResult]) -> list[ClientResult]:
        """The results to go on with; those that diverged are left out, and the first time is said aloud."""
        diverged = [r.client for r in results if not r.finite]
        if diverged and self.settings.on_nonfinite == "stop":
            raise NonFiniteError(
                f"round {state.round + 1}: client {', '.join(map(str, diverged))} came back with non-finite parameters "
                "(on_nonfinite=stop)"
            )
        if diverged and not state.counters.left_out:
            log.warning(
                "round %d: client %d came back with non-finite parameters and is left out; such clients are counted, "
                "and this is said once. A smaller train.lr may help",
                state.round + 1,
                diverged[0],
            )
        return [r for r in results if r.finite]

    def _sample(self, state: FederatedState, stage: Stage, stage_round: int) -> tuple[FederatedState, list[int]]:
        travelled = {"bytes_down": 0, "bytes_up": 0}

        def ask(job: ClientJob[Any], ids: Sequence[int]) -> list[Any]:
            tasks = [self.task(state, client, stage, stage.exchange) for client in ids]
            answers = [r for block in self.executor.map(job, tasks, as_list) for r in block.results]
            travelled["bytes_down"] += sum(map(_sent, tasks))
            travelled["bytes_up"] += size_in_bytes(answers)
            return answers

        chosen = stage.sampler(
            Sampling(
                seed=self.settings.seed,
                round=state.round,
                stage_round=stage_round,
                clients=self.clients,
                num_samples=self.federation.sizes,
                known=self._known(state),
                ask=ask,
            )
        )
        return state.counted(**travelled), chosen

    # --------------------------------------------------------------------------------------------------- correction

    def correct(self, state: FederatedState, stage: Stage) -> tuple[FederatedState, list[int]]:
        """Close the exchanges' pass, then have the chosen clients correct their labels with the new model."""
        correct = stage.correct
        assert correct is not None, "the stage corrects"
        job = Correct(correct.corrector, correct.rule)
        parts = dict(state.server.parts)
        for name, exchange in stage.exchange.items():
            parts[exchange_slot(name)] = exchange.close(self._slot(state, name))
        state = replace(state, server=replace(state.server, parts=parts))
        asked = job.corrector.chosen(job.rule, self._known(state), self.clients)
        tasks = [self.task(state, client, stage, self.method.exchange) for client in asked]
        corrections = [r for block in self.executor.map(job, tasks, as_list) for r in block.results]
        kept = {}
        for found in corrections:
            was = state.client(found.client)
            kept[found.client] = replace(
                was, labels=found.labels, weight=found.weight, extras=was.extras.including(*found.keeps)
            )
        state = state.keeping(kept).counted(
            bytes_down=sum(map(_sent, tasks)),
            bytes_up=sum(size_in_bytes(c.reports) for c in corrections),
        )
        return self._fold(state, {c.client: c.reports for c in corrections}), asked

    # ----------------------------------------------------------------------------------------------------- exchanges

    def task(self, state: FederatedState, client: int, stage: Stage, exchanges: Mapping[str, Any]) -> ClientTask:
        """What ``client`` is given to do with the current model."""
        sent = [v for name, exchange in exchanges.items() for v in exchange.send(self._slot(state, name), client)]
        samples = self.federation.samples(client)
        own = state.client(client)
        if own.labels is not None:
            samples = Samples(samples.images, samples.index, own.labels)
        lengths = tuple(each.length(len(self.clients)) for each in self.method.stages)
        broadcast = Broadcast(state.round, stage.number, state.server.params, Payload(*sent), lengths)
        return ClientTask(client, samples, broadcast, own, self.settings.seed)

    def _slot(self, state: FederatedState, name: str) -> Any:
        return self.method.exchange_state(name, state, self.federation.num_clients)

    def _known(self, state: FederatedState) -> Payload:
        return self.method.known(state, self.federation.num_clients)

    def _fold(self, state: FederatedState, reports: Mapping[int, Payload]) -> FederatedState:
        if not self.method.exchange:
            return state
        parts = dict(state.server.parts)
        for name, exchange in self.method.exchange.items():
            folded = exchange.fold(self._slot(state, name), reports, self.settings.seed)
            if folded is not None:
                parts[exchange_slot(name)] = folded
        return replace(state, server=replace(state.server, parts=parts))
