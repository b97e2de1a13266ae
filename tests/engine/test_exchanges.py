"""What the loop asks of exchanges in a round, by an exchange that writes down what it is asked."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from flnl.core.execution import ClientJob, Executor
from flnl.core.messages import ClientState, ClientTask, Clock, Combined, Fit, Gathered, Opened
from flnl.core.model import Model
from flnl.core.parts import Exchange, LossTerm, Wants
from flnl.core.payload import Params, Payload
from flnl.core.state import FederatedState, RoundResult
from flnl.core.step import Step
from flnl.engine import loop
from flnl.engine.executors import dispatch
from flnl.engine.executors.processes import Processes
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.serialization import Shared, encode
from flnl.engine.executors.stacked import Stacked
from flnl.engine.network import Network
from flnl.parts.aggregators.mean import Mean
from flnl.parts.losses.cross_entropy import CrossEntropy
from tests.toys import (
    ONE_STEP,
    NoEvaluation,
    Point,
    Toward,
    equal,
    federation,
    method,
    mlp,
    network,
    random_federation,
    rounds,
    stage,
)

CLIENTS = 3
LENGTHS = (2, 3)
TIMES = [Clock(0, 1, LENGTHS), Clock(1, 1, LENGTHS), *(Clock(round, 2, LENGTHS) for round in (2, 3, 4))]


@dataclass(frozen=True)
class Told:
    """Sent to a client: its number, and when."""

    client: int
    at: Clock


@dataclass(frozen=True)
class Relayed:
    """Relayed to a client: when, and of whom."""

    at: Clock
    of: tuple[int, ...]


@dataclass(frozen=True)
class Received:
    """What a client received: w before the round, or in it."""

    w: float
    told: Told
    relayed: Relayed | None


def received(network: Model, task: ClientTask) -> Payload:
    """What the client reports."""
    sent = task.broadcast.extras
    return Payload(Received(float(task.broadcast.params["w"]), sent.one(Told), sent.get(Relayed)))


class Look:
    """Job: report what was received."""

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        return Opened(task.client, received(network, task), Payload(task.broadcast.round))


@dataclass(frozen=True)
class Diary(Exchange):
    """Its state is all that it was told. ``when`` are the rounds before which it asks all clients."""

    when: tuple[int, ...]
    sends: ClassVar[tuple[type, ...]] = (Told, Relayed)

    def init(self, clients: int, params: Params) -> tuple[Any, ...]:
        return ()

    def before_round(self, state: tuple[Any, ...], clock: Clock) -> ClientJob[Opened] | None:
        assert len(state) == clock.round + sum(round < clock.round for round in self.when)
        return Look() if clock.round in self.when else None

    def send(self, state: tuple[Any, ...], client: int, clock: Clock) -> tuple[Any, ...]:
        return (Told(client, clock),)

    def relay(
        self, state: tuple[Any, ...], client: int, clock: Clock, clients: Mapping[int, ClientState]
    ) -> tuple[Any, ...]:
        return (Relayed(clock, tuple(clients)),)

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        return received(network, task), Payload()

    def receive(self, state: tuple[Any, ...], reports: Mapping[int, Payload], seed: int) -> tuple[Any, ...]:
        return (*state, {client: sent.one(Received) for client, sent in reports.items()})


def _run(exchange: Exchange, start: FederatedState | None = None, *, restart: bool = False) -> list[RoundResult]:
    """Two rounds and three, in each of which w moves half of the way from 8 to 0."""
    net = network(Point(8.0), classes=2)
    given: dict[str, Any] = {"exchange": {"mine": exchange}, "local": {"toward": Toward()}}
    two = method(
        stage(**given, rounds=LENGTHS[0]),
        stage(**given, rounds=LENGTHS[1], restart=restart),
        exchange=given["exchange"],
    )
    clients = federation([torch.zeros(2, 1, 2, 2)] * CLIENTS, [torch.tensor([0, 1])] * CLIENTS, classes=2)
    settings = loop.Settings(1, ONE_STEP, None, "drop", initial=net.params())
    run = loop.Federated(two, clients, Sequential(net), NoEvaluation(), settings)
    return list(loop.rounds(run, start or loop.initial_state(net.params())))


def _seen(state: FederatedState) -> tuple[Any, ...]:
    kept = [state.client(client).extras.get(int) for client in range(CLIENTS)]
    return state.round, float(state.server.params["w"]), state.server.exchanges["mine"], state.counters, kept


def _diary(results: list[RoundResult]) -> list[dict[int, Received]]:
    return list(results[-1].state.server.exchanges["mine"])


@pytest.mark.parametrize("restart", [False, True])
def test_clients_are_asked_before_a_round_with_the_model_that_the_round_before_left(restart: bool) -> None:
    """Also where a stage restarts from the initial model, which its first round then trains."""
    entries = _diary(_run(Diary((2, 4)), restart=restart))
    trained = [8.0, 4.0, *((8.0, 4.0, 2.0) if restart else (2.0, 1.0, 0.5))]
    asked = {2: 2.0, 4: trained[4]}
    expected = [w for round in range(5) for w in ([asked[round]] if round in asked else []) + [trained[round]]]
    assert [{sent.w for sent in entry.values()} for entry in entries] == [{w} for w in expected]


def test_the_clock_tells_each_message_the_same_time() -> None:
    entries = _diary(_run(Diary((2,))))
    job, trained = entries.pop(2), entries
    assert {sent.told.at for sent in job.values()} == {TIMES[2]}
    assert all(sent.relayed is None for sent in job.values()), "what is relayed goes with training"
    for time, entry in zip(TIMES, trained, strict=True):
        assert entry.keys() == set(range(CLIENTS))
        for client, sent in entry.items():
            assert sent.told == Told(client, time)
            assert sent.relayed is not None
            assert sent.relayed == Relayed(time, tuple(range(CLIENTS)) if time.round >= 2 else ())
    assert [(time.stage_round, time.last_of_stage, time.since(2)) for time in TIMES] == [
        (0, False, -2),
        (1, True, -1),
        (0, False, 0),
        (1, False, 1),
        (2, True, 2),
    ]


@pytest.mark.parametrize("restart", [False, True])
def test_a_run_that_goes_on_after_any_round_asks_before_the_same_rounds(restart: bool) -> None:
    """A run stopped between the job and the end of its round begins that round again, with the job."""
    exchange = Diary((0, 2, 4))
    whole = _run(exchange, restart=restart)
    for done in range(len(whole)):
        start = whole[done - 1].state if done else None
        rest = _run(exchange, start, restart=restart)
        assert [_seen(result.state) for result in rest] == [_seen(result.state) for result in whole[done:]]


def test_what_is_asked_before_a_round_is_counted_in_it() -> None:
    """Down: the model and ``Told``, with lengths of 2 numbers; up: what was received. Each number has 8 bytes.

    From then on, clients keep something, so that their numbers are relayed to each of them, who reports them.
    """
    quiet, asking = _run(Diary(())), _run(Diary((3,)))
    counts = [(r.state.counters.bytes_down, r.state.counters.bytes_up) for r in (*quiet, *asking)]
    more = [(down - before, up - sent) for (before, sent), (down, up) in zip(counts[:5], counts[5:], strict=True)]
    told = 8 * (1 + 2 + len(LENGTHS))
    each = CLIENTS * (8 + told)
    relayed = 8 * CLIENTS * CLIENTS
    assert more == [(0, 0)] * 3 + [(each + rounds * relayed,) * 2 for rounds in (1, 2)]
    for results, kept in ((quiet, None), (asking, 3)):
        assert {results[-1].state.client(client).extras.get(int) for client in range(CLIENTS)} == {kept}


@dataclass(frozen=True)
class Gathers(Exchange):
    """Its state is what it was told of each round: w of the clients' models, None of one not sent, and combined."""

    wants: tuple[Wants, ...]
    tells: bool

    def init(self, clients: int, params: Params) -> tuple[Any, ...]:
        return ()

    def wants_models(self, clock: Clock) -> Wants:
        return self.wants[clock.round]

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        return Payload("received"), Payload()

    def receive(self, state: tuple[Any, ...], reports: Mapping[int, Payload], seed: int) -> tuple[Any, ...]:
        return (*state, *{sent.one(str) for sent in reports.values()})

    def gathered(self, state: tuple[Any, ...], gathered: Gathered) -> tuple[Any, ...]:
        models = [None if result.params is None else float(result.params["w"]) for result in gathered.results]
        return (*state, (models, None if gathered.combined is None else float(gathered.combined.params["w"])))

    def known(self, state: tuple[Any, ...]) -> tuple[Any, ...]:
        return (len(state),) if self.tells else ()


@dataclass(frozen=True)
class Plus(Mean):
    """The mean, plus what the server knows."""

    def combine(self, params: Params, values: Iterable[Any], known: Payload) -> Combined:
        combined = super().combine(params, values, known)
        return replace(combined, params={name: p + known.one(int) for name, p in combined.params.items()})


@pytest.mark.parametrize("beside", ["no", "before", "after"])
def test_an_exchange_gets_the_models_that_it_wants_when_it_wants_them(beside: Wants) -> None:
    """By hand: each client halves w; what the exchange knows, its entries, is added to the mean of them.

    What another one wants changes nothing, but that models are on the server that this one did not ask for.
    """
    exchange = {"mine": Gathers(("no", "before", "after"), True), "other": Gathers((beside,) * 3, False)}
    toy = method(
        stage(exchange=exchange, local={"toward": Toward()}, rounds=3, aggregator=Plus("samples")), exchange=exchange
    )
    clients = federation([torch.zeros(2, 1, 2, 2)] * CLIENTS, [torch.tensor([0, 1])] * CLIENTS, classes=2)
    results = rounds(toy, clients, Point(8.0))
    unsent = [None if beside == "no" else 4.0] * CLIENTS
    assert results[-1].state.server.exchanges["mine"] == (
        *("received", (unsent, 4.0)),  # nothing was known
        *(([2.0] * CLIENTS, None), "received"),  # three entries were known
        *("received", ([2.5] * CLIENTS, 2.5 + 4)),  # four entries
    )
    assert float(results[-1].state.server.params["w"]) == 2.5 + 4


@dataclass(frozen=True)
class Anchor:
    """Sent to clients: the initial model, and something large that nobody reads."""

    params: Params
    large: Tensor


@dataclass(frozen=True)
class Anchors(Exchange):
    """Tells clients the initial model: one message for all, or one for each."""

    one: bool
    sends: ClassVar[tuple[type, ...]] = (Anchor,)

    def init(self, clients: int, params: Params) -> Anchor:
        return Anchor({name: p.clone() for name, p in params.items()}, torch.zeros(100_000))

    def broadcast(self, state: Anchor, clock: Clock) -> tuple[Any, ...]:
        return (state,) if self.one else ()

    def send(self, state: Anchor, client: int, clock: Clock) -> tuple[Any, ...]:
        return () if self.one else (replace(state, large=state.large.clone()),)


@dataclass(frozen=True)
class Pulled(LossTerm):
    """``|w - a|²/2`` with a the model of ``Anchor``, in a network whose last entry is w."""

    def begin(self, network: Model, task: ClientTask, state: Any) -> Tensor:
        return list(task.broadcast.extras.one(Anchor).params.values())[-1]

    def __call__(self, step: Step, state: Tensor) -> tuple[Tensor, Tensor]:
        return (list(step.params.values())[-1] - state).square().sum() / 2, state

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Tensor) -> None:
        return None


@pytest.mark.parametrize("executor", ["sequential", "processes", "stacked"])
def test_one_message_for_all_is_what_each_would_get_and_goes_to_each_worker_once(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    executors: dict[str, Callable[[Network], Executor]] = {
        "sequential": Sequential,
        "processes": lambda net: Processes(net, Sequential, 2, "fork"),
        "stacked": lambda net: Stacked(net, 5, 1.0),
    }
    sizes: list[int] = []

    def encoded(value: Any, shared: Shared) -> bytes:
        message = encode(value, shared)
        if isinstance(value[0], list):  # tasks, not the start of a call
            sizes.append(len(message))
        return message

    monkeypatch.setattr(dispatch, "encode", encoded)

    def run(one: bool) -> list[RoundResult]:
        exchange = {"anchors": Anchors(one)}
        parts: dict[str, Any] = {"exchange": exchange, "local": {"cross_entropy": CrossEntropy(), "pull": Pulled()}}
        net = network(mlp(4, 3).double())
        start = net.params()
        toy = method(stage(**parts, rounds=2), stage(**parts, restart=True), exchange=exchange)
        made = executors[executor](net)
        settings = loop.Settings(1, ONE_STEP, None, "drop", initial=start)
        whole = loop.Federated(toy, random_federation([4] * 12), made, NoEvaluation(), settings)
        try:
            results = list(loop.rounds(whole, loop.initial_state(start)))
        finally:
            made.close()
        assert equal(results[-1].state.server.exchanges["anchors"].params, start)
        return results

    each, sent_each = run(one=False), sizes.copy()
    sizes.clear()
    all_alike, sent_once = run(one=True), sizes.copy()
    for a, b in zip(each, all_alike, strict=True):
        assert equal(a.state.server.params, b.state.server.params)
        assert a.state.counters == b.state.counters, "traffic is counted for each client"
    assert not equal(each[0].state.server.params, each[1].state.server.params)
    if executor == "processes":
        assert min(sent_each) > 400_000
        assert 0 < max(sent_once) < 20_000
