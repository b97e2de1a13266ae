"""The federated loop: one round after another, state in and state out.

A round is one aggregation. Between rounds the loop holds only the state it yields: a run resumes from a stored state.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
    Combined,
    Gathered,
    Observation,
)
from flnl.core.method import Method, Stage
from flnl.core.parts import Exchange, Sampling, ServerUpdate, Wants
from flnl.core.payload import Params, Payload, all_finite, size_in_bytes
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


def initial_state(params: Params) -> FederatedState:
    """The state before the first round."""
    return FederatedState(0, ServerState(params))


def shown(method: Method, state: FederatedState, clients: int) -> Params:
    """The model to evaluate and save, as the server update of the last round's stage defines it."""
    update = method.at(max(state.round - 1, 0), clients)[0].server
    kept = state.server.updates.get(_name_of(update))
    return state.server.params if kept is None else update.shown(state.server.params, kept)


def _name_of(update: ServerUpdate) -> str:
    return type(update).__name__


def next_tasks(run: Federated, state: FederatedState, clients: Sequence[int]) -> list[ClientTask]:
    """The tasks of these clients after ``state``, in the stage of its last round."""
    stage = run.method.at(max(state.round - 1, 0), len(run.federation.with_data))[0]
    server = _Server(run, Payload())
    return server.tasks(state, clients, stage, stage.exchange)


def rounds(run: Federated, state: FederatedState) -> Iterator[RoundResult]:
    """Run rounds from ``state`` to the method's end.

    Raises:
        NonFiniteError: if a client diverges under ``on_nonfinite=stop``.
    """
    server = _Server(run, run.evaluator.aid(run.method.aid))
    end = run.method.length(len(server.clients))
    while state.round < end:
        result = server.round(state)
        yield result
        state = result.state


def _bytes_sent(tasks: Sequence[ClientTask]) -> int:
    """Bytes sent to clients for these tasks: the model and the exchanges' messages."""
    return sum(size_in_bytes(t.broadcast.params) + size_in_bytes(t.broadcast.extras) for t in tasks)


@dataclass(frozen=True)
class _Server:
    """The server's side of a round; stateless: each step takes a state and returns the next."""

    run: Federated
    aid: Payload

    @cached_property
    def clients(self) -> tuple[int, ...]:
        """The clients that hold data."""
        return self.run.federation.with_data

    @cached_property
    def faulty(self) -> frozenset[int]:
        """The clients that send faulty updates."""
        return self.run.settings.fault.clients(self.run.settings.seed, self.clients)

    # -------------------------------------------------------------------------------------------------------- a round

    def round(self, state: FederatedState) -> RoundResult:
        """One round, in the order in which it happens."""
        before, method, count = state, self.run.method, len(self.clients)
        self.run.executor.passed()  # what was scored between rounds is not the method's
        stage, stage_round = method.at(state.round, count)
        state = self._initialised(state)
        state = self._opened(state, stage)
        if stage_round == 0:
            state = self._begun(state, stage)
        state, cohort = self._sample(state, stage)
        corrects = stage.corrects_after(stage_round, count)
        state, metrics = self._train(state, stage, sorted(cohort), corrects=corrects)
        correction = None
        if corrects:
            uncorrected = state
            state, asked = self._correct(state, stage)
            correction = self.run.evaluator.correction(uncorrected, state, asked)
        passed = self.run.executor.passed()
        state = state.counted(training_passes=passed.trained, forward_passes=passed.scored)
        state = replace(state, round=state.round + 1)
        scores = self._evaluate(before, state, last_of_stage=stage_round + 1 == stage.length(count))
        return RoundResult(state, stage.name, tuple(sorted(cohort)), metrics, scores, correction)

    def _train(
        self, state: FederatedState, stage: Stage, cohort: Sequence[int], *, corrects: bool
    ) -> tuple[FederatedState, dict[str, float]]:
        """Train and combine the cohort's models, which no one holds afterwards; return the round's metrics, too."""
        tasks = self._relayed(state, stage, self.tasks(state, cohort, stage, stage.exchange))
        wants = self._wants(state, stage)
        values, results = self._visit(state, stage, tasks, wants)
        finite = self._finite(state, results)
        gathered = Gathered(
            Broadcast(state.round, stage.number, state.server.params, lengths=self._lengths),
            finite,
            None,
            self.aid,
            self.run.settings.seed,
            corrects,
            {client: self.run.federation.sizes[client] for client in self.clients},
        )
        state, values = self._judge(state, stage, gathered, values, wants)
        combined = self._combined(state, stage, values) if finite else None
        state = self._update(state, stage, combined, finite)
        state = self._count(state, tasks, results).keeping({r.client: r.state for r in finite})
        state = self._receive(state, {r.client: r.reports for r in finite})
        after = {name: exchange for name, exchange in stage.exchange.items() if wants[name] != "before"}
        state = self._exchanged(state, after, "gathered", replace(gathered, combined=combined))
        return state, self._metrics(results, finite, combined)

    # ----------------------------------------------------------------------------------------------- a round's parts

    def _opened(self, state: FederatedState, stage: Stage) -> FederatedState:
        """Run the exchanges' ``before_round`` jobs, one exchange after another."""
        for name, exchange in stage.exchange.items():
            job = exchange.before_round(self._of(state, name), self._clock(state, stage))
            if job is None:
                continue
            tasks = self.tasks(state, self.clients, stage, stage.exchange)
            state = self._take_in(state, tasks, self._ask(Open(name, job), tasks))
        return state

    def _begun(self, state: FederatedState, stage: Stage) -> FederatedState:
        """The state before the first round of a stage, without what does not go on into it.

        That is the model and what belongs to it if the stage restarts from the initial model, and the optimiser's
        buffers if the stage does not continue with them.
        """
        if stage.restart:
            state = self._restarted(state, stage)
        change = entering(self.run.method, stage, self._lengths, self.run.settings.training)
        return state if change is None else _with_clients(state, change)  # None: without reading every client's state

    def _restarted(self, state: FederatedState, stage: Stage) -> FederatedState:
        """The state with the initial model, and without what server updates keep of the path that the model left."""
        initial = self.run.settings.initial
        assert initial is not None, "the initial model is known"
        updates = {_name_of(s.server) for s in self.run.method.stages[: stage.number - 1] if s.server.restarts}
        kept = {name: value for name, value in state.server.updates.items() if name not in updates}
        return replace(state, server=replace(state.server, params=initial, updates=kept))

    def _training(self, state: FederatedState, stage: Stage) -> Training:
        """The settings of local training in this round."""
        clock = self._clock(state, stage)
        return self.run.settings.training.at(
            clock.round,
            stage.train,
            clock.stage_round,
            rounds=sum(clock.lengths),
            stage_rounds=clock.lengths[stage.number - 1],
        )

    def _sample(self, state: FederatedState, stage: Stage) -> tuple[FederatedState, list[int]]:
        """Sample the cohort; count the traffic of the sampler's own queries."""
        traffic = {"bytes_down": 0, "bytes_up": 0}

        def ask(job: ClientJob[Any], clients: Sequence[int]) -> list[Any]:
            tasks = self.tasks(state, clients, stage, stage.exchange)
            answers = self._ask(job, tasks)
            traffic["bytes_down"] += _bytes_sent(tasks)
            traffic["bytes_up"] += size_in_bytes(answers)
            return answers

        cohort = stage.sampler(
            Sampling(
                seed=self.run.settings.seed,
                clock=self._clock(state, stage),
                clients=self.clients,
                num_samples=self.run.federation.sizes,
                known=self._known(state),
                ask=ask,
            )
        )
        most = stage.size(len(self.clients))
        return state.counted(**traffic), checked.cohort(stage.named("sampler"), cohort, self.clients, most)

    def _visit(
        self, state: FederatedState, stage: Stage, tasks: Sequence[ClientTask], wants: Mapping[str, Wants]
    ) -> tuple[list[Any], list[ClientResult]]:
        """Local training: the aggregator's values by block, and every client's result in order of client.

        Workers aggregate their blocks, unless an exchange wants the models on the server before.
        """
        settings = self.run.settings
        job = LocalTraining(
            self._training(state, stage),
            stage.batch,
            stage.local,
            stage.gradient,
            stage.exchange,
            settings.observe,
        )
        reduce: Callable[[list[ClientResult]], Block[Any, ClientResult]] = as_list
        if "before" not in wants.values():
            reduce = Reduce(stage.aggregator, state.server.params, self._known(state), "after" in wants.values())
        if self.faulty:
            received = state.server.params
            reduce = Faulty(reduce, settings.fault, self.faulty, received, settings.seed, state.round)
        blocks = list(self.run.executor.map(job, tasks, reduce))
        return [block.value for block in blocks], [result for block in blocks for result in block.results]

    def _finite(self, state: FederatedState, results: Sequence[ClientResult]) -> list[ClientResult]:
        """The results with finite parameters; logs the first occurrence of a diverged client.

        Raises:
            NonFiniteError: if a client diverged under ``on_nonfinite=stop``.
        """
        diverged = [r.client for r in results if not r.finite]
        if diverged and self.run.settings.on_nonfinite == "stop":
            raise NonFiniteError(
                f"round {state.round + 1}: client {', '.join(map(str, diverged))} returned non-finite parameters "
                "(on_nonfinite=stop)"
            )
        if diverged and not state.counters.left_out:
            log.warning(
                "round %d: client %d returned non-finite parameters and is left out. Further cases are counted but not "
                "logged. A smaller train.lr may help",
                state.round + 1,
                diverged[0],
            )
        return [r for r in results if r.finite]

    def _judge(
        self, state: FederatedState, stage: Stage, gathered: Gathered, values: list[Any], wants: Mapping[str, Wants]
    ) -> tuple[FederatedState, list[Any]]:
        """Let exchanges judge the models that they want, then aggregate these; ``values`` if none wants them before."""
        before = {name: exchange for name, exchange in stage.exchange.items() if wants[name] == "before"}
        if not before:
            return state, values
        if gathered.results:
            state = self._exchanged(state, before, "gathered", gathered)
        received, known, results = state.server.params, self._known(state), gathered.results
        blocks = [results[first : first + BLOCK] for first in range(0, len(results), BLOCK)]
        return state, [stage.aggregator.block(received, block, known) for block in blocks]

    def _combined(self, state: FederatedState, stage: Stage, values: Sequence[Any]) -> Combined:
        """The cohort's combined model, of the aggregator's values by block."""
        received = state.server.params
        combined = stage.aggregator.combine(received, values, self._known(state))
        return checked.combined(stage.named("aggregator"), combined, received)

    def _update(
        self, state: FederatedState, stage: Stage, combined: Combined | None, finite: Sequence[ClientResult]
    ) -> FederatedState:
        """Apply the server update to the combined model; without a combined model, return ``state`` as it is.

        Raises:
            NonFiniteError: if the updated model is not finite: no client could train on it.
        """
        if combined is None:
            return state
        received, updates = state.server.params, state.server.updates
        name = _name_of(stage.server)
        kept = updates[name] if name in updates else stage.server.init(received)
        cohort = [r.client for r in finite]
        returned = stage.server(received, combined.params, cohort, len(self.clients), kept)
        params, kept = checked.updated(stage.named("server"), returned, received)
        if not all_finite(params):
            part = stage.named("server" if all_finite(combined.params) else "aggregator")
            raise NonFiniteError(
                f"round {state.round + 1}: {part} made non-finite parameters of the clients' finite ones; if theirs "
                "are huge, a smaller train.lr may help"
            )
        updates = updates if kept is None else {**updates, name: kept}
        return replace(state, server=replace(state.server, params=params, updates=updates))

    def _count(
        self, state: FederatedState, tasks: Sequence[ClientTask], results: Sequence[ClientResult]
    ) -> FederatedState:
        model = size_in_bytes(tasks[0].broadcast.params) if tasks else 0
        return state.counted(
            participations=len(results),
            bytes_down=_bytes_sent(tasks),
            bytes_up=sum(model + size_in_bytes(r.reports) for r in results),
            left_out=sum(not r.finite for r in results),
            optimizer_steps=sum(r.steps for r in results),
        )

    def _metrics(
        self, results: Sequence[ClientResult], finite: Sequence[ClientResult], combined: Combined | None
    ) -> dict[str, float]:
        """The round's metrics of training and aggregation and, if observed, of client models.

        The loss is the mean over the clients that took a step, 0 if none did, and NaN if no client is left.
        """
        losses = [r.loss for r in finite if r.steps]
        metrics = {
            "loss": sum(losses) / max(len(losses), 1) if finite else float("nan"),
            "left_out": float(len(results) - len(finite)),
            "idle": float(sum(not r.steps for r in finite)),
        }
        if self.faulty:
            metrics["faulty"] = float(sum(r.client in self.faulty for r in results))
        if combined is not None:
            metrics |= {f"aggregation/{name}": value for name, value in combined.facts.items()}
            if total := sum(combined.weights.values()):
                squares = sum(weight**2 for weight in combined.weights.values())
                metrics["aggregation/effective_clients"] = total**2 / squares
        if self.run.settings.observe:
            observed = {r.client: r.observation for r in finite if r.observation is not None}
            metrics |= self.run.evaluator.cohort(observed)
        return metrics

    def _correct(self, state: FederatedState, stage: Stage) -> tuple[FederatedState, list[int]]:
        """Let the chosen clients correct their labels with the new model; return the state and those clients."""
        assert stage.correct is not None, "the stage corrects"
        job = Correct(stage.correct.corrector, stage.correct.rule)
        chosen = job.corrector.chosen(job.rule, self._known(state), self.clients)
        asked = checked.cohort(f"{type(job.corrector).__name__}.chosen", chosen, self.clients)
        tasks = self.tasks(state, asked, stage, self.run.method.exchange)
        return self._take_in(state, tasks, self._ask(job, tasks)), asked

    def _evaluate(
        self, before: FederatedState, state: FederatedState, *, last_of_stage: bool
    ) -> Mapping[str, float] | None:
        """Scores of the global model if an evaluation is due."""
        participations = before.counters.participations, state.counters.participations
        if not self._evaluations.due(*participations, last_of_stage=last_of_stage):
            return None
        return self.run.evaluator.model(shown(self.run.method, state, len(self.clients)), state)

    @cached_property
    def _evaluations(self) -> Evaluations:
        return Evaluations.of(self.run.method, len(self.clients), self.run.settings.eval_every)

    # ---------------------------------------------------------------------------------------------------- exchanges

    def tasks(
        self, state: FederatedState, clients: Sequence[int], stage: Stage, exchanges: Mapping[str, Exchange]
    ) -> list[ClientTask]:
        """The tasks for ``clients`` with the current model, and with what exchanges send to all and to each."""
        clock, states = self._clock(state, stage), {name: self._of(state, name) for name in exchanges}
        to_all = [
            message
            for name, exchange in exchanges.items()
            for message in checked.messages(name, "broadcast", exchange.broadcast(states[name], clock))
        ]

        def sent(client: int) -> Payload:
            to_each = (
                checked.messages(name, "send", exchange.send(states[name], client, clock))
                for name, exchange in exchanges.items()
            )
            return Payload(*to_all, *(message for messages in to_each for message in messages))

        return [
            ClientTask(
                client,
                self.run.federation.samples(client),
                Broadcast(clock.round, clock.stage, state.server.params, sent(client), clock.lengths),
                state.client(client),
                self.run.settings.seed,
            )
            for client in clients
        ]

    def _relayed(self, state: FederatedState, stage: Stage, tasks: Sequence[ClientTask]) -> list[ClientTask]:
        """The tasks with what exchanges relay of other clients."""
        clock = self._clock(state, stage)

        def relayed(task: ClientTask) -> ClientTask:
            messages = [
                message
                for name, exchange in stage.exchange.items()
                for message in checked.messages(
                    name, "relay", exchange.relay(self._of(state, name), task.client, clock, state.clients)
                )
            ]
            if not messages:
                return task
            return replace(task, broadcast=replace(task.broadcast, extras=task.broadcast.extras.including(*messages)))

        return [relayed(task) for task in tasks]

    def _clock(self, state: FederatedState, stage: Stage) -> Clock:
        """The time of the round after ``state``, which is of this ``stage``."""
        return Clock(state.round, stage.number, self._lengths)

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        """Number of rounds of each stage."""
        return tuple(stage.length(len(self.clients)) for stage in self.run.method.stages)

    def _ask(self, job: ClientJob[Any], tasks: Sequence[ClientTask]) -> list[Any]:
        return [r for block in self.run.executor.map(job, tasks, as_list) for r in block.results]

    def _take_in(
        self, state: FederatedState, tasks: Sequence[ClientTask], answers: Sequence[Answered]
    ) -> FederatedState:
        """Count the traffic of these tasks, store what clients keep, and pass their reports to the exchanges."""
        kept = {answer.client: answer.state for answer in answers}
        uploaded = sum(size_in_bytes(answer.reports) for answer in answers)
        state = state.counted(bytes_down=_bytes_sent(tasks), bytes_up=uploaded).keeping(kept)
        return self._receive(state, {answer.client: answer.reports for answer in answers})

    def _initialised(self, state: FederatedState) -> FederatedState:
        """The state with one for each exchange that has one: what begins with the initial model begins now."""
        new = {name: self._of(state, name) for name in self.run.method.exchange if name not in state.server.exchanges}
        return self._with(state, new)

    def _of(self, state: FederatedState, name: str) -> Any:
        """The state of the exchange ``name``."""
        return self.run.method.exchange_state(name, state, self.run.federation.num_clients)

    def _known(self, state: FederatedState) -> Payload:
        return self.run.method.known(state, self.run.federation.num_clients)

    def _receive(self, state: FederatedState, reports: Mapping[int, Payload]) -> FederatedState:
        """Pass the clients' reports to every exchange, including those inactive in this stage."""
        return self._exchanged(state, self.run.method.exchange, "receive", reports, self.run.settings.seed)

    def _wants(self, state: FederatedState, stage: Stage) -> dict[str, Wants]:
        """Whether each exchange wants the clients' models of this round."""
        clock = self._clock(state, stage)
        return {name: checked.wants(name, exchange.wants_models(clock)) for name, exchange in stage.exchange.items()}

    def _exchanged(
        self, state: FederatedState, exchanges: Mapping[str, Exchange], method: str, *given: Any
    ) -> FederatedState:
        """The state with what a ``method`` of the exchanges makes of theirs."""
        states = {}
        for name, exchange in exchanges.items():
            before = self._of(state, name)
            states[name] = checked.state(name, method, getattr(exchange, method)(before, *given), before)
        return self._with(state, states)

    def _with(self, state: FederatedState, states: Mapping[str, Any]) -> FederatedState:
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
