"""The federated loop: one round after another, state in and state out.

A round is one aggregation. Between rounds the loop holds only the state it yields: a run resumes from a stored state.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

from flnl.core import checked
from flnl.core.execution import BLOCK, Block, ClientJob, Executor, as_list
from flnl.core.fault import Fault
from flnl.core.messages import (
    Answered,
    Broadcast,
    ClientResult,
    ClientState,
    ClientTask,
    Clock,
    Gathered,
    Observation,
)
from flnl.core.method import Method
from flnl.core.parts import Exchange, Sampling, Wants
from flnl.core.payload import Params, Payload, all_finite, size_in_bytes
from flnl.core.stage import Stage, messages
from flnl.core.state import FederatedState, RoundResult, ServerState
from flnl.core.training import Training
from flnl.data.federation.build import Federation
from flnl.engine.entering import entering
from flnl.engine.jobs import Correct, Faulty, Open, Reduce
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.planned import Evaluations

log = logging.getLogger(__name__)


class NonFiniteError(Exception):
    """Parameters are NaN or infinite: a client's under ``on_nonfinite=stop``, or those of the global model."""


class Evaluate(Protocol):
    """Scores models and corrections; the only part of a run that sees the true labels."""

    def model(self, params: Params, after: FederatedState) -> Mapping[str, float]:
        """Scores of a global model; ``after`` is the state after whose round it is evaluated."""
        ...

    def cohort(self, seen: Mapping[int, Observation]) -> Mapping[str, float]:
        """Metrics of a round's client models; ``seen`` maps each client to its observation."""
        ...

    def correction(self, before: FederatedState, after: FederatedState, asked: Sequence[int]) -> Mapping[str, Any]:
        """Metrics of a correction by the clients ``asked``, as far as the true labels are known."""
        ...

    def aid(self, kinds: Collection[type]) -> Payload:
        """Aid of these kinds for a method: the only way in which it can obtain ground truth."""
        ...


@dataclass(frozen=True)
class Settings:
    """Settings of the loop."""

    seed: int
    training: Training
    eval_every: int | None  # participations between evaluations; None for one cohort of the last stage
    on_nonfinite: Literal["drop", "stop"]
    observe: bool = False  # record an observation of each client's trained model
    initial: Params | None = None  # the run's initial model, for stages that restart from it
    fault: Fault = field(default_factory=Fault)  # which clients send faulty updates


@dataclass(frozen=True)
class Federated:
    """A federated run: everything the loop needs besides the state."""

    method: Method
    federation: Federation
    executor: Executor
    evaluator: Evaluate
    settings: Settings

    @cached_property
    def clients(self) -> tuple[int, ...]:
        """The clients that hold data."""
        return self.federation.with_data

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """Number of rounds of each stage."""
        return tuple(stage.length(len(self.clients)) for stage in self.method.stages)

    @cached_property
    def faulty(self) -> frozenset[int]:
        """The clients that send faulty updates."""
        return self.settings.fault.clients(self.settings.seed, self.clients)

    @cached_property
    def evaluations(self) -> Evaluations:
        """When the global model is evaluated."""
        return Evaluations.of(self.method, len(self.clients), self.settings.eval_every)


def initial_state(params: Params) -> FederatedState:
    """The state before the first round."""
    return FederatedState(0, ServerState(params))


def shown(method: Method, state: FederatedState, clients: int) -> Params:
    """The model to evaluate and save, as the server update of the last round's stage defines it."""
    return method.at(max(state.round - 1, 0), clients)[0].shown(state.server)


def next_tasks(run: Federated, state: FederatedState, clients: Sequence[int]) -> list[ClientTask]:
    """The tasks of these clients after ``state``, in the stage of its last round."""
    stage = run.method.at(max(state.round - 1, 0), len(run.clients))[0]
    return _Round(run, stage, Clock(state.round, stage.number, run.lengths), Payload()).tasks(state, clients)


def rounds(run: Federated, state: FederatedState) -> Iterator[RoundResult]:
    """Run rounds from ``state`` to the method's end.

    Raises:
        NonFiniteError: if a client diverges under ``on_nonfinite=stop``.
    """
    aid = run.evaluator.aid(run.method.aid)
    while state.round < sum(run.lengths):
        stage = run.method.at(state.round, len(run.clients))[0]
        result = _Round(run, stage, Clock(state.round, stage.number, run.lengths), aid).result(state)
        yield result
        state = result.state


@dataclass(frozen=True)
class _Round:
    """The server's side of a round: each step takes a state and returns the next."""

    run: Federated
    stage: Stage
    clock: Clock
    aid: Payload

    def result(self, state: FederatedState) -> RoundResult:
        """The round: local training between what comes before it and what comes after it."""
        before = state
        self.run.executor.pop_tally()  # what was scored between rounds is not the method's
        state = self._entered(self._opened(self._initialised(state)))
        state, cohort = self._sample(state)
        state, metrics = self._train(state, cohort)
        state, correction = self._correct(state)
        state = self._passed(state)
        return RoundResult(state, self.stage.name, tuple(cohort), metrics, self._evaluate(before, state), correction)

    def _train(self, state: FederatedState, cohort: Sequence[int]) -> tuple[FederatedState, dict[str, float]]:
        """Train and combine the cohort's models, which no one holds afterwards; return the round's metrics, too."""
        tasks = self._relayed(state, self.tasks(state, cohort))
        blocks, results = self._visit(state, tasks)
        gathered = self._gathered(state, results)
        state, blocks = self._judge(state, blocks, gathered)
        gathered = self._combine(state, blocks, gathered)
        state = self._update(self._count(state, tasks, results), gathered)
        state = self._receive(state, gathered)
        return state, self._metrics(results, gathered)

    # -------------------------------------------------------------------------------------------- before local training

    def _initialised(self, state: FederatedState) -> FederatedState:
        """The state with one for each exchange that has one: what begins with the initial model begins now."""
        new = [name for name in self.run.method.exchange if name not in state.server.exchanges]
        return _with(state, self._of_exchanges(state, new))

    def _opened(self, state: FederatedState) -> FederatedState:
        """Run the exchanges' ``before_round`` jobs, one exchange after another."""
        for name, exchange in self.stage.exchange.items():
            job = exchange.before_round(self._of_exchanges(state, [name])[name], self.clock)
            if job is not None:
                tasks = self.tasks(state, self.run.clients)
                state = self._take_in(state, tasks, self._ask(Open(name, job), tasks))
        return state

    def _entered(self, state: FederatedState) -> FederatedState:
        """Before the first round of a stage, the state without what does not go on into it; else ``state``.

        That is the model and what belongs to it if the stage restarts from the initial model, and the optimiser's
        buffers if the stage does not continue with them.
        """
        if self.clock.stage_round:
            return state
        if self.stage.restart:
            state = self._restarted(state)
        change = entering(self.run.method, self.stage, self.clock.lengths, self.run.settings.training)
        return state if change is None else _with_clients(state, change)  # None: without reading every client's state

    def _restarted(self, state: FederatedState) -> FederatedState:
        """The state with the initial model, and without what server updates keep of the path that the model left."""
        initial = self.run.settings.initial
        assert initial is not None, "the initial model is known"
        left = {one.update for one in self.run.method.stages[: self.stage.number - 1] if one.server.restarts}
        kept = {name: value for name, value in state.server.updates.items() if name not in left}
        return replace(state, server=replace(state.server, params=initial, updates=kept))

    def _sample(self, state: FederatedState) -> tuple[FederatedState, list[int]]:
        """Sample the cohort; count the traffic of the sampler's own queries."""
        traffic = {"bytes_down": 0, "bytes_up": 0}

        def ask(job: ClientJob[Any], clients: Sequence[int]) -> list[Any]:
            tasks = self.tasks(state, clients)
            answers = self._ask(job, tasks)
            traffic["bytes_down"] += _bytes_sent(tasks)
            traffic["bytes_up"] += size_in_bytes(answers)
            return answers

        sizes, known = self.run.federation.sizes, self._known(state)
        sampling = Sampling(self.run.settings.seed, self.clock, self.run.clients, sizes, known, ask)
        cohort = self.stage.sample(sampling)
        return state.counted(**traffic), cohort

    def tasks(
        self, state: FederatedState, clients: Sequence[int], exchanges: Mapping[str, Exchange] | None = None
    ) -> list[ClientTask]:
        """The tasks for ``clients`` with the current model, and with what the stage's exchanges, or these, send."""
        exchanges = self.stage.exchange if exchanges is None else exchanges
        sent = messages(exchanges, self._of_exchanges(state, exchanges), self.clock)
        return [
            ClientTask(
                client,
                self.run.federation.samples(client),
                self._broadcast(state, sent(client)),
                state.client(client),
                self.run.settings.seed,
            )
            for client in clients
        ]

    def _broadcast(self, state: FederatedState, extras: Payload) -> Broadcast:
        return Broadcast(self.clock.round, self.clock.stage, state.server.params, extras, self.clock.lengths)

    def _relayed(self, state: FederatedState, tasks: Sequence[ClientTask]) -> list[ClientTask]:
        """The tasks with what exchanges relay of other clients."""
        states = self._of_exchanges(state, self.stage.exchange)

        def relayed(task: ClientTask) -> ClientTask:
            if not (sent := self.stage.relayed(states, task.client, self.clock, state.clients)):
                return task
            return replace(task, broadcast=replace(task.broadcast, extras=task.broadcast.extras.including(*sent)))

        return [relayed(task) for task in tasks]

    # --------------------------------------------------------------------------------------- local training, aggregated

    @cached_property
    def _wants(self) -> dict[str, Wants]:
        return self.stage.wants(self.clock)

    def _visit(self, state: FederatedState, tasks: Sequence[ClientTask]) -> tuple[list[Any], list[ClientResult]]:
        """Local training: the aggregator's values by block, and every client's result in order of client.

        Workers aggregate their blocks, unless an exchange wants the models on the server before.
        """
        stage, settings, received = self.stage, self.run.settings, state.server.params
        training = stage.training_at(settings.training, self.clock)
        job = LocalTraining(training, stage.batch, stage.local, stage.gradient, stage.exchange, settings.observe)
        wanted = self._wants.values()
        reduce: Callable[[list[ClientResult]], Block[Any, ClientResult]] = as_list
        if "before" not in wanted:
            reduce = Reduce(stage.aggregator, received, self._known(state), "after" in wanted)
        if self.run.faulty:
            reduce = Faulty(reduce, settings.fault, self.run.faulty, received, settings.seed, state.round)
        blocks = list(self.run.executor.map(job, tasks, reduce))
        return [block.value for block in blocks], [result for block in blocks for result in block.results]

    def _gathered(self, state: FederatedState, results: Sequence[ClientResult]) -> Gathered:
        """The round's finite results; logs the first occurrence of a diverged client.

        Raises:
            NonFiniteError: if a client diverged under ``on_nonfinite=stop``.
        """
        missing = [f"client {r.client} {r.missing}" for r in results if r.missing]
        diverged = [r.client for r in results if not r.finite and not r.missing]
        if (diverged or missing) and self.run.settings.on_nonfinite == "stop":
            returned = f"client {', '.join(map(str, diverged))} returned non-finite parameters"
            what = "; ".join([*([returned] if diverged else []), *missing])
            raise NonFiniteError(f"round {state.round + 1}: {what} (on_nonfinite=stop)")
        if diverged and state.counters.left_out == state.counters.unanswered:
            log.warning(
                "round %d: client %d returned non-finite parameters and is left out. Further cases are counted but not "
                "logged. A smaller train.lr may help",
                state.round + 1,
                diverged[0],
            )
        return Gathered(
            self._broadcast(state, Payload()),
            [r for r in results if r.finite],
            None,
            self.aid,
            self.run.settings.seed,
            self._corrects,
            {client: self.run.federation.sizes[client] for client in self.run.clients},
        )

    def _judge(self, state: FederatedState, blocks: list[Any], gathered: Gathered) -> tuple[FederatedState, list[Any]]:
        """Let exchanges judge the models that they want, then aggregate these; ``blocks`` if none wants them before."""
        before = {name: exchange for name, exchange in self.stage.exchange.items() if self._wants[name] == "before"}
        if not before:
            return state, blocks
        if gathered.results:
            state = self._exchanged(state, before, "gathered", gathered)
        received, known, results = state.server.params, self._known(state), gathered.results
        of_block = [results[first : first + BLOCK] for first in range(0, len(results), BLOCK)]
        return state, [self.stage.aggregator.block(received, block, known) for block in of_block]

    def _combine(self, state: FederatedState, blocks: Sequence[Any], gathered: Gathered) -> Gathered:
        """What was gathered with the combined model; without one if no result is finite."""
        if not gathered.results:
            return gathered
        return replace(gathered, combined=self.stage.combine(state.server.params, blocks, self._known(state)))

    def _update(self, state: FederatedState, gathered: Gathered) -> FederatedState:
        """Apply the server update to the combined model; without a combined model, return ``state`` as it is.

        Raises:
            NonFiniteError: if the updated model is not finite: no client could train on it.
        """
        if gathered.combined is None:
            return state
        combined, cohort = gathered.combined.params, [r.client for r in gathered.results]
        server = self.stage.updated(state.server, combined, cohort, len(self.run.clients))
        if not all_finite(server.params):
            part = self.stage.named("server" if all_finite(combined) else "aggregator")
            raise NonFiniteError(
                f"round {state.round + 1}: {part} made non-finite parameters of the clients' finite ones; if theirs "
                "are huge, a smaller train.lr may help"
            )
        return replace(state, server=server)

    def _count(
        self, state: FederatedState, tasks: Sequence[ClientTask], results: Sequence[ClientResult]
    ) -> FederatedState:
        model = size_in_bytes(tasks[0].broadcast.params) if tasks else 0
        return state.counted(
            participations=len(results),
            bytes_down=_bytes_sent(tasks),
            bytes_up=sum(model + size_in_bytes(r.reports) for r in results if not r.missing),
            left_out=sum(not r.finite for r in results),
            unanswered=sum(bool(r.missing) for r in results),
            optimizer_steps=sum(r.steps for r in results),
        )

    def _receive(self, state: FederatedState, gathered: Gathered) -> FederatedState:
        """Store what clients keep; pass their reports, and the combined model, to the exchanges."""
        state = state.keeping({r.client: r.state for r in gathered.results})
        state = self._reported(state, {r.client: r.reports for r in gathered.results})
        after = {name: exchange for name, exchange in self.stage.exchange.items() if self._wants[name] != "before"}
        return self._exchanged(state, after, "gathered", gathered)

    # --------------------------------------------------------------------------------------------- after local training

    def _metrics(self, results: Sequence[ClientResult], gathered: Gathered) -> dict[str, float]:
        """The round's metrics of training and aggregation and, if observed, of client models.

        The loss is the mean over the clients that took a step, 0 if none did, and NaN if no client is left.
        """
        finite, combined = gathered.results, gathered.combined
        losses = [r.loss for r in finite if r.steps]
        metrics = {
            "loss": sum(losses) / max(len(losses), 1) if finite else float("nan"),
            "left_out": float(len(results) - len(finite)),
            "idle": float(sum(not r.steps for r in finite)),
        }
        if self.run.faulty:
            metrics["faulty"] = float(sum(r.client in self.run.faulty for r in results))
        if combined is not None:
            metrics |= {f"aggregation/{name}": value for name, value in combined.facts.items()}
            if total := sum(combined.weights.values()):
                squares = sum(weight**2 for weight in combined.weights.values())
                metrics["aggregation/effective_clients"] = total**2 / squares
        if self.run.settings.observe:
            observed = {r.client: r.observation for r in finite if r.observation is not None}
            metrics |= self.run.evaluator.cohort(observed)
        return metrics

    @property
    def _corrects(self) -> bool:
        """Whether clients correct their labels after local training."""
        return self.stage.corrects_after(self.clock.stage_round, len(self.run.clients))

    def _correct(self, state: FederatedState) -> tuple[FederatedState, Mapping[str, Any] | None]:
        """Let the chosen clients correct their labels with the new model, if it is time; compare with the truth."""
        if not self._corrects:
            return state, None
        assert self.stage.correct is not None, "the stage corrects"
        asked = self.stage.chosen(self._known(state), self.run.clients)
        tasks = self.tasks(state, asked, self.run.method.exchange)
        job = Correct(self.stage.correct.corrector, self.stage.correct.rule)
        corrected = self._take_in(state, tasks, self._ask(job, tasks))
        return corrected, self.run.evaluator.correction(state, corrected, asked)

    def _passed(self, state: FederatedState) -> FederatedState:
        """The state after the round, with the samples that have passed networks in it."""
        passed = self.run.executor.pop_tally()
        state = state.counted(training_passes=passed.trained, forward_passes=passed.scored)
        return replace(state, round=state.round + 1)

    def _evaluate(self, before: FederatedState, state: FederatedState) -> Mapping[str, float] | None:
        """Scores of the global model if an evaluation is due."""
        participations = before.counters.participations, state.counters.participations
        if not self.run.evaluations.due(*participations, last_of_stage=self.clock.last_of_stage):
            return None
        return self.run.evaluator.model(self.stage.shown(state.server), state)

    # -------------------------------------------------------------------------------------------- clients and exchanges

    def _ask(self, job: ClientJob[Any], tasks: Sequence[ClientTask]) -> list[Any]:
        return [r for block in self.run.executor.map(job, tasks, as_list) for r in block.results]

    def _take_in(
        self, state: FederatedState, tasks: Sequence[ClientTask], answers: Sequence[Answered]
    ) -> FederatedState:
        """Count the traffic of these tasks, store what clients keep, and pass their reports to the exchanges."""
        kept = {answer.client: answer.state for answer in answers}
        uploaded = sum(size_in_bytes(answer.reports) for answer in answers)
        state = state.counted(bytes_down=_bytes_sent(tasks), bytes_up=uploaded).keeping(kept)
        return self._reported(state, {answer.client: answer.reports for answer in answers})

    def _reported(self, state: FederatedState, reports: Mapping[int, Payload]) -> FederatedState:
        """Pass the clients' reports to every exchange, including those inactive in this stage."""
        return self._exchanged(state, self.run.method.exchange, "receive", reports, self.run.settings.seed)

    def _known(self, state: FederatedState) -> Payload:
        return self.run.method.known(state, self.run.federation.num_clients)

    def _of_exchanges(self, state: FederatedState, names: Iterable[str]) -> dict[str, Any]:
        """The states of these exchanges, by name."""
        clients = self.run.federation.num_clients
        return {name: self.run.method.exchange_state(name, state, clients) for name in names}

    def _exchanged(
        self, state: FederatedState, exchanges: Mapping[str, Exchange], method: str, *given: Any
    ) -> FederatedState:
        """The state with what a ``method`` of the exchanges makes of theirs."""
        states = self._of_exchanges(state, exchanges)
        for name, exchange in exchanges.items():
            returned = getattr(exchange, method)(states[name], *given)
            states[name] = checked.state(name, method, returned, states[name])
        return _with(state, states)


def _bytes_sent(tasks: Sequence[ClientTask]) -> int:
    """Bytes sent to clients for these tasks: the model and the exchanges' messages."""
    return sum(size_in_bytes(t.broadcast.params) + size_in_bytes(t.broadcast.extras) for t in tasks)


def _with(state: FederatedState, states: Mapping[str, Any]) -> FederatedState:
    """The state with these of exchanges; one without state has no entry."""
    kept = {name: value for name, value in states.items() if value is not None}
    if not kept:
        return state
    return replace(state, server=replace(state.server, exchanges={**state.server.exchanges, **kept}))


def _with_clients(state: FederatedState, change: Callable[[ClientState], ClientState]) -> FederatedState:
    """The state in which each client keeps what ``change`` makes of what it kept; reads one client at a time."""
    for client in state.clients:
        before = state.client(client)
        if (after := change(before)) is not before:
            state = state.keeping({client: after})
    return state
