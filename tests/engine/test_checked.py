"""What a part of a user's own returns is checked where it is used, and the message names the part."""

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flnl.core.errors import PartError
from flnl.core.findings import EstimatedNoise, EstimatedQuality, LabelShares, NoisyClients, Scalar, SuspectedSamples
from flnl.core.messages import ClientResult, ClientTask, Clock, Combined, Correction, Fit, Opened
from flnl.core.model import Model
from flnl.core.parts import (
    Aggregator,
    BatchRule,
    ClientSampler,
    Exchange,
    GradientTransform,
    LabelCorrector,
    LossTerm,
    Sampling,
    ServerUpdate,
)
from flnl.core.payload import Params, Payload
from flnl.core.stage import Correcting
from flnl.core.state import RoundResult
from flnl.core.step import WHOLE, Mixing, Phase, Step
from flnl.data.federation.build import Federation
from flnl.engine import loop
from flnl.engine.executors.stacked import Stacked
from tests.toys import ONE_STEP, NoEvaluation, method, mlp, network, random_federation, rounds, stage

Returned = Callable[..., Any]
STATES = ("gathered", "receive")


class LengthHint(NamedTuple):
    """A message, which is a tuple as well."""

    length: int


@dataclass(frozen=True)
class Term(LossTerm):
    returned: Returned

    def __call__(self, step: Step, state: Any) -> Any:
        return self.returned(step.logits.square(), state)


@dataclass(frozen=True)
class Sampler(ClientSampler):
    returned: Returned

    def __call__(self, sampling: Sampling) -> Any:
        return self.returned(sampling.clients)

    def size(self, clients: int) -> int:
        return clients


@dataclass(frozen=True)
class Sized(ClientSampler):
    limit: Any

    def __call__(self, sampling: Sampling) -> list[int]:
        return list(sampling.clients)

    def size(self, clients: int) -> Any:
        return self.limit


@dataclass(frozen=True)
class Combining(Aggregator[list[Params]]):
    returned: Returned

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> list[Params]:
        return [r.params for r in results if r.params is not None]

    def combine(self, params: Params, values: Iterable[list[Params]], known: Payload) -> Any:
        return self.returned(params)


@dataclass(frozen=True)
class Server(ServerUpdate):
    returned: Returned

    def __call__(self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Any) -> Any:
        return self.returned(combined)


@dataclass(frozen=True)
class Reporting(Exchange):
    returned: Returned

    def report(self, network: Model, task: ClientTask, fit: Fit) -> Any:
        return self.returned()


@dataclass(frozen=True)
class Sending(Exchange):
    returned: Returned

    def send(self, state: Any, client: int, clock: Clock) -> Any:
        return self.returned()


@dataclass(frozen=True)
class Relaying(Exchange):
    returned: Returned

    def relay(self, state: Any, client: int, clock: Clock, clients: Any) -> Any:
        return self.returned()


@dataclass(frozen=True)
class Knowing(Exchange):
    returned: Returned

    def known(self, state: Any) -> Any:
        return self.returned()


@dataclass(frozen=True)
class Finding(Exchange):
    returned: Returned

    def findings(self, state: Any, clients: Any, known: Payload) -> Any:
        return self.returned()


@dataclass(frozen=True)
class Beginning(Exchange):
    returned: Returned

    def begin(self, network: Model, task: ClientTask) -> Any:
        return self.returned()


@dataclass(frozen=True)
class Asks:
    returned: Returned

    def __call__(self, network: Model, task: ClientTask) -> Any:
        return self.returned(task)


@dataclass(frozen=True)
class Asking(Exchange):
    returned: Returned

    def before_round(self, state: Any, clock: Clock) -> Any:
        return Asks(self.returned)


@dataclass(frozen=True)
class Wanting(Exchange):
    returned: Returned

    def wants_models(self, clock: Clock) -> Any:
        return self.returned()


@dataclass(frozen=True)
class Counting(Exchange):
    """One of its methods has a state returned; the others keep it."""

    method: str
    returned: Returned

    def init(self, clients: int, params: Params) -> int:
        return 1

    def gathered(self, state: Any, gathered: Any) -> Any:
        return self.returned(state) if self.method == "gathered" else state

    def receive(self, state: Any, reports: Any, seed: int) -> Any:
        return self.returned(state) if self.method == "receive" else state


@dataclass(frozen=True)
class Corrector(LabelCorrector):
    returned: Returned

    def correct(self, network: Model, task: ClientTask, rule: str) -> Any:
        return self.returned(task)


@dataclass(frozen=True)
class Choosing(LabelCorrector):
    returned: Returned

    def chosen(self, rule: str, known: Payload, clients: Sequence[int]) -> Any:
        return self.returned(clients)

    def correct(self, network: Model, task: ClientTask, rule: str) -> Correction:
        return Correction(task.client, task.labels, None, Payload(), Payload())


@dataclass(frozen=True)
class Mixes(BatchRule):
    returned: Returned

    def mixing(self, rng: np.random.Generator, size: int, stage: int) -> Any:
        return self.returned(size)


@dataclass(frozen=True)
class Plans(BatchRule):
    returned: Returned

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Any:
        return self.returned()


@dataclass(frozen=True)
class Relabels(BatchRule):
    returned: Returned

    def relabels(self, network: Model, task: ClientTask) -> Any:
        return self.returned(task.labels)


@dataclass(frozen=True)
class Transform(GradientTransform):
    returned: Returned

    def __call__(self, gradients: Mapping[str, Tensor], step: Step) -> Any:
        return self.returned(gradients)


@dataclass(frozen=True)
class Updating(GradientTransform):
    returned: Returned

    def update(
        self,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        step: Step,
    ) -> Any:
        return self.returned(after)


PLACES = {
    Term: "local",
    Sampler: "sampler",
    Combining: "aggregator",
    Server: "server",
    Corrector: "correct",
    Choosing: "correct",
    Mixes: "batch",
    Plans: "batch",
    Relabels: "batch",
    Transform: "gradient",
    Updating: "gradient",
}


def _run(part: Any, clients: Federation | None = None) -> list[RoundResult]:
    """A round of clients of 6 samples, 2, none and 4; client 2 holds nothing. Then one with weights of the samples."""
    place = PLACES.get(type(part), "exchange")
    exchange = {"mine": part} if place == "exchange" else {}
    wrapped = {"local": {"mine": part}, "correct": Correcting(part, "rule", "end")}.get(place, part)
    parts = {"correct": Correcting(Corrector(_correction(weight=torch.ones_like)), "rule", "end")}
    toy = method(
        stage(**{**parts, place: exchange or wrapped}), stage(**{place: exchange or wrapped}), exchange=exchange
    )
    return rounds(toy, clients or random_federation([6, 2, 0, 4]), mlp(4, 3).double())


NOTHING = Payload()


def _model(change: Callable[[Params], Any]) -> Returned:
    """A combined model, changed."""
    return lambda params: Combined(change(dict(params)))


def _correction(
    labels: Callable[[Tensor], Any] = lambda held: held,
    weight: Callable[[Tensor], Any] = lambda held: None,
    shift: int = 0,
    keeps: Any = NOTHING,
) -> Returned:
    """A client's correction of the labels that it holds."""
    return lambda task: Correction(
        task.client + shift, labels(task.labels), weight(task.labels.double()), keeps, Payload()
    )


WRONG: list[tuple[Any, str]] = [
    (Term(lambda loss, state: loss.sum(1)), r"loss term mine returned a tensor \[\d\] of torch.float64; should be the"),
    (Term(lambda loss, state: None), "loss term mine returned nothing; should return the loss"),
    (Term(lambda loss, state: (1.0, None)), r"loss term mine returned a tuple \(float, nothing\)"),
    (Term(lambda loss, state: (loss, state)), r"loss \[\d, 3\]; should be \[\d\]"),
    (Term(lambda loss, state: (loss.sum(1)[1:], state)), r"loss \[\d\]; should be \[\d\]"),
    (Sampler(lambda clients: None), r"method.sampler \(Sampler\) returned nothing"),
    (Sampler(lambda clients: 1), r"\(Sampler\) returned a value of type int"),
    (Sampler(lambda clients: [0, 0.5]), r"\(Sampler\) returned a value of type float; should be numbers of clients"),
    (Sampler(lambda clients: [0, 2]), "returned client 2, who holds no data"),
    (Sampler(lambda clients: [-1]), "returned client -1"),
    (Sampler(lambda clients: [1, 1]), "returned a client twice"),
    (Combining(lambda params: None), r"method.aggregator \(Combining\).combine returned nothing"),
    (Combining(lambda params: params), r"combine returned a value of type dict; should be Combined"),
    (Combining(_model(list)), r"combine returned a list \(str, str, str, ...\); should be a model"),
    (Combining(_model(lambda p: {"1.weight": p["1.weight"]})), "a model without 1.bias"),
    (Combining(_model(lambda p: p | {"extra": torch.ones(1)})), "a model with extra"),
    (Combining(_model(lambda p: {n: t[None] for n, t in p.items()})), r"1.weight.* \[1, 5, 4\] .*; .*\[5, 4\]"),
    (
        Combining(lambda params: Combined(params, facts={"norm": typing.cast(Any, torch.ones(()))})),
        r"combine, for the fact norm, returned a tensor \[\] of torch.float32; should be a number, as `float\(value\)`",
    ),
    (Knowing(lambda: None), "exchange mine.known returned nothing; should return a tuple of messages"),
    (Knowing(lambda: LengthHint(1)), "exchange mine.known returned a value of type LengthHint; should be a tuple"),
    (Server(lambda combined: combined), r"method.server \(Server\) returned a value of type dict"),
    (Server(lambda combined: (None, 1)), r"method.server \(Server\) returned nothing; should return a model"),
    (Server(lambda combined: ({}, None)), r"method.server \(Server\) returned a model without"),
    (Reporting(lambda: Payload()), "exchange mine.report returned a value of type Payload; should be two"),
    (Reporting(lambda: (1, 2)), r"exchange mine.report returned a tuple \(int, int\)"),
    (Sending(lambda: 3.0), "exchange mine.send returned a value of type float; should be a tuple"),
    (Sending(lambda: LengthHint(1)), "exchange mine.send returned a value of type LengthHint; should be a tuple"),
    (Relaying(lambda: "text"), "exchange mine.relay returned a value of type str"),
    (
        Beginning(lambda: None),
        "exchange mine.begin returned nothing; should return two payloads: what the visit reads, and what the",
    ),
    (Asking(lambda task: Payload()), "Asks returned a value of type Payload; should be Opened"),
    (Asking(lambda task: Opened(0, Payload())), "Asks returned an answer of client 0 for client 1"),
    (Asking(lambda task: Opened(task.client, typing.cast(Any, 1))), "Asks, for reports, returned a value of type int"),
    (Wanting(lambda: True), "mine.wants_models returned a value of type bool; should be one of no, before, after"),
    (Wanting(lambda: None), "mine.wants_models returned nothing; should return one of no, before, after"),
    *((Counting(name, lambda state: None), f"mine.{name} returned nothing") for name in STATES),
    (Mixes(lambda size: 0.5), r"Mixes.mixing returned a value of type float; should be Mixing.*int64 \[6\]"),
    (
        Mixes(lambda size: Mixing(0.5, torch.arange(size - 1))),
        r"Mixes.mixing, for partner, returned a tensor \[5\] .*; should be a tensor \[6\]",
    ),
    (Mixes(lambda size: Mixing(0.5, torch.arange(size) + 1)), "returned partners that are not from 0 to 5"),
    (Plans(lambda: None), "Plans.phases returned nothing; should return phases"),
    (Plans(lambda: (torch.arange(2),)), r"Plans.phases returned a tensor \[2\] of torch.int64; should be phases"),
    (
        Plans(lambda: [Phase(positions=torch.ones(6, dtype=torch.bool))]),
        r"Plans.phases, for positions, returned a tensor \[6\] of torch.bool; should be .*`mask.nonzero\(\).flatten",
    ),
    (Plans(lambda: [Phase(positions=torch.arange(7))]), "for positions, returned positions that are not from 0 to 5"),
    (Plans(lambda: [Phase(beside=torch.arange(-1, 2))]), "for beside, returned positions that are not from 0 to 5"),
    (
        Plans(lambda: [Phase(labels=torch.ones(3, dtype=torch.int64))]),
        r"for labels, returned a tensor \[3\] .*; .*\[6\]",
    ),
    (Plans(lambda: [Phase(labels=torch.full((6,), 3))]), "Plans.phases returned labels that are not from 0 to 2"),
    (Relabels(lambda held: held + 3), "Relabels.relabels returned labels that are not from 0"),
    (Relabels(lambda held: held[:-1]), r"Relabels.relabels, for labels, returned a tensor \[5\] of torch.int64"),
    (Relabels(lambda held: held.tolist()), r"Relabels.relabels, for labels, returned a list \(int, int, int, ...\)"),
    (Transform(lambda gradients: None), "Transform.__call__ returned nothing; should return tensors"),
    (Transform(lambda gradients: {"w": torch.ones(1)}), "Transform.__call__ returned w; the network"),
    (Transform(lambda g: {n: t.sum() for n, t in g.items()}), r"for 1.weight, returned a tensor \[\] .*; should be a"),
    (Transform(lambda g: dict.fromkeys(g, 1.0)), "for 1.weight, returned a value of type float"),
    (Updating(lambda after: None), "Updating.update returned nothing"),
    (Choosing(lambda clients: [5]), "Choosing.chosen returned client 5, who holds no data"),
    (Corrector(lambda task: task.labels), r"Corrector.correct returned a tensor .*; should be a Correction"),
    (Corrector(_correction(shift=1)), "Corrector.correct returned an answer of client 1 for client 0"),
    (Corrector(_correction(lambda held: held[:1])), r"for labels, returned a tensor \[1\] .*; .*\[6\] of torch.int64"),
    (Corrector(_correction(lambda held: held.double())), r"for labels, returned a tensor \[6\] of torch.float64"),
    (Corrector(_correction(lambda held: held * 0 + 3)), "labels that are not from 0 to 2"),
    (Corrector(_correction(lambda held: held - 5)), "labels that are not from 0 to 2"),
    (Corrector(_correction(weight=lambda held: held[:1])), r"for weight, returned a tensor \[1\] .*; .* \[6\]"),
    (
        Corrector(_correction(keeps=3)),
        "Corrector.correct, for keeps, returned a value of type int; should be a Payload",
    ),
]


@pytest.mark.parametrize(("part", "message"), WRONG, ids=[f"{type(p).__name__}-{n}" for n, (p, _) in enumerate(WRONG)])
def test_a_wrong_return_ends_the_run_with_the_name_of_the_part(part: Any, message: str) -> None:
    with pytest.raises(PartError, match=message):
        _run(part)


SIZES = {0: 6, 1: 2, 2: 0, 3: 4}


def _found(returned: Any) -> Any:
    toy = method(stage(), exchange={"mine": Finding(lambda: returned)})
    return toy.findings(loop.initial_state({}), SIZES)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "exchange mine.findings returned nothing; should return a tuple of findings"),
        (Scalar("x", 1.0), "returned a value of type Scalar; should be a tuple of findings"),
        ((1.0,), r"returned a value of type float; should be findings, such as Scalar\(name, value\)"),
        (
            (Scalar("x", typing.cast(Any, torch.ones(()))),),
            r"for the Scalar x, returned a tensor \[\] .*; should be a number",
        ),
        ((Scalar("test/accuracy", 1.0),), "a Scalar called 'test/accuracy'; should be a word"),
        *(
            ((Scalar(name, 1.0),), f"a Scalar called {name}, a name for metrics of runs")
            for name in ("accuracy", "best")
        ),
        ((SuspectedSamples(4, torch.ones(4, dtype=torch.bool)),), "suspected samples of client 4; there is none"),
        (
            (SuspectedSamples(1, torch.ones(3, dtype=torch.bool)),),
            r"for client 1, returned a tensor \[3\] .*; .* \[2\]",
        ),
        ((SuspectedSamples(1, torch.ones(2)),), r"returned a tensor \[2\] of torch.float32; .* \[2\] of torch.bool"),
        (
            (SuspectedSamples(1, torch.ones(2) > 0, torch.ones(3)),),
            r"returned a tensor \[3\] of torch.float32; .* \[2\]",
        ),
        (
            (SuspectedSamples(1, torch.ones(2) > 0, proposed=torch.ones(4, dtype=torch.int64)),),
            r"for client 1, returned a tensor \[4\] of torch.int64; .* \[2\]",
        ),
        (
            (NoisyClients(torch.ones(3) > 0),),
            r"for noisy, returned a tensor \[3\] of torch.bool; .* \[4\] of torch.bool",
        ),
        ((NoisyClients(torch.ones(4)),), r"for noisy, returned a tensor \[4\] of torch.float32"),
        ((NoisyClients(torch.ones(4) > 0, {"s": torch.ones(1)}),), r"for the score s, returned a tensor \[1\]"),
        ((EstimatedNoise(torch.ones(5)),), r"for EstimatedNoise, returned a tensor \[5\] .*; .* \[4\] of numbers"),
        ((EstimatedQuality(typing.cast(Any, [1.0] * 4)),), r"for EstimatedQuality, returned a list"),
    ],
)
def test_wrong_findings_are_named(returned: Any, message: str) -> None:
    with pytest.raises(PartError, match=message):
        _found(returned)


def test_every_kind_of_finding_may_be_returned() -> None:
    found = (
        Scalar("mine", 1),
        SuspectedSamples(2, torch.ones(0, dtype=torch.bool)),
        SuspectedSamples(0, torch.ones(6) > 0, torch.ones(6), torch.ones(6, dtype=torch.int64)),
        NoisyClients(torch.ones(4) > 0, {"s": torch.ones(4)}),
        EstimatedNoise(torch.ones(4)),
        EstimatedQuality(torch.ones(4), {"s": torch.ones(4, dtype=torch.float64)}),
        LabelShares(torch.ones(3), 0.1, 1.0),
    )
    assert _found(found) == {"exchange/mine": found}
    assert _found([]) == {"exchange/mine": ()}


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (None, r"method.sampler \(Sized\), for size, returned nothing; should return the largest number of clients"),
        (1.5, r"method.sampler \(Sized\), for size, returned a value of type float"),
        (2, r"method.sampler \(Sized\) returned 3 clients; its size says 2 at most"),
    ],
)
def test_a_sampler_says_how_many_clients_it_chooses(size: Any, message: str) -> None:
    with pytest.raises(PartError, match=message):
        rounds(method(stage(sampler=Sized(size))), random_federation([6, 2, 0, 4]), mlp(4, 3).double())
    (result,) = rounds(method(stage(sampler=Sized(np.int64(3)))), random_federation([6, 2, 4]), mlp(4, 3).double())
    assert result.cohort == (0, 1, 2)


RIGHT = [
    Term(lambda loss, state: (loss.sum(1), state)),
    Term(lambda loss, state: (loss.sum(), state)),
    Sampler(np.array),
    Sampler(lambda clients: (client for client in clients)),
    Sampler(lambda clients: []),
    Combining(_model(lambda params: params)),
    Server(lambda combined: (combined, 1)),
    Reporting(lambda: (Payload(1), Payload(2))),
    Sending(lambda: (1.0, 2)),
    Sending(lambda: ()),
    Relaying(lambda: [1.0]),
    Beginning(lambda: (Payload(2.0), Payload(1))),
    Asking(lambda task: Opened(task.client, Payload(1))),
    *(Counting(name, lambda state: state + 1) for name in STATES),
    Mixes(lambda size: Mixing(0.5, torch.arange(size).flip(0))),
    Mixes(lambda size: None),
    Plans(lambda: iter([Phase(positions=torch.arange(2)), WHOLE])),
    Plans(lambda: ()),
    Relabels(lambda held: (held + 1) % 3),
    Relabels(lambda held: None),
    Transform(lambda gradients: {"1.bias": -gradients["1.bias"]}),
    Updating(lambda after: {"1.bias": after["1.bias"] * 0}),
    Choosing(lambda clients: np.array([1])),
]


@pytest.mark.parametrize("part", RIGHT, ids=[f"{type(p).__name__}-{n}" for n, p in enumerate(RIGHT)])
def test_what_the_protocols_allow_runs(part: Any) -> None:
    for result in _run(part):
        assert all(type(client) is int for client in result.cohort)


def test_every_client_holds_its_own_corrected_labels() -> None:
    clients = random_federation([6, 2, 0, 4])
    first, _ = _run(Corrector(_correction(lambda held: (held + 1) % 3)), clients)
    assert first.correction == {"asked": [0, 1, 3]}
    for client in (0, 1, 3):
        held = first.state.client(client).labels
        assert held is not None
        assert held.tolist() == ((clients.samples(client).given + 1) % 3).tolist()


@dataclass(frozen=True)
class Rowwise(Term):
    """A term that may be called once with the rows of all clients."""

    rowwise: ClassVar[bool] = True


def _stacked(module: nn.Module, **parts: Any) -> list[RoundResult]:
    net = network(module)
    settings = loop.Settings(1, ONE_STEP, None, "drop")
    executor = Stacked(net, 2, 1.0)
    run = loop.Federated(method(stage(**parts)), random_federation([4, 4]), executor, NoEvaluation(), settings)
    return list(loop.rounds(run, loop.initial_state(net.params())))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"local": {"mine": Term(lambda loss, state: loss.sum(1))}}, "loss term mine returned a tensor"),
        ({"local": {"mine": Rowwise(lambda loss, state: loss.sum(1))}}, "loss term mine returned a tensor"),
        ({"batch": Mixes(lambda size: size)}, "Mixes.mixing returned a value of type int"),
        ({"batch": Plans(lambda: None)}, "Plans.phases returned nothing"),
        ({"gradient": Transform(lambda gradients: None)}, "Transform.__call__ returned nothing"),
        ({"gradient": Updating(lambda after: {"w": 1})}, "Updating.update returned w"),
    ],
)
def test_clients_that_train_as_one_network_are_told_the_same_without_a_word_of_stacks(
    parts: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(PartError, match=message):
        _stacked(mlp(4, 3), **parts)
    assert not caplog.records


class Spare(nn.Sequential):
    """A network with a parameter that the loss does not depend on, so that it has no gradient."""

    def __init__(self) -> None:
        super().__init__(*mlp(4, 3).children())
        self.spare = nn.Linear(2, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        for name, layer in self.named_children():
            inputs = inputs if name == "spare" else layer(inputs)
        return inputs


@dataclass(frozen=True)
class Decay(GradientTransform):
    """Gives every parameter a gradient."""

    def __call__(self, gradients: Mapping[str, Tensor], step: Step) -> Mapping[str, Tensor]:
        return {name: gradients.get(name, torch.zeros_like(p)) + 0.5 * p for name, p in step.params.items()}


def test_a_gradient_of_a_parameter_that_has_none_may_be_returned(caplog: pytest.LogCaptureFixture) -> None:
    (alone,) = rounds(method(stage(gradient=Decay())), random_federation([4, 4]), Spare().double())
    (together,) = _stacked(Spare(), gradient=Decay())
    assert not caplog.records
    assert alone.state.server.params.keys() == together.state.server.params.keys()
