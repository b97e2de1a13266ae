"""What a part of a user's own returns is checked where it is used, and the message names the part."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.messages import ClientResult, ClientTask, Combined, Correction, Fit
from flnl.core.method import Correcting
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
from flnl.core.step import WHOLE, Mixing, Phase, Step
from flnl.engine import loop
from flnl.engine.executors.stacked import Stacked
from tests.toys import ONE_STEP, NoEvaluation, method, mlp, network, random_federation, rounds, stage

Returned = Callable[..., Any]


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

    def send(self, state: Any, client: int) -> Any:
        return self.returned()


@dataclass(frozen=True)
class Relaying(Exchange):
    returned: Returned

    def relay(self, state: Any, client: int, stage: int, clients: Any) -> Any:
        return self.returned()


@dataclass(frozen=True)
class Corrector(LabelCorrector):
    returned: Returned

    def correct(self, network: Model, task: ClientTask, rule: str) -> Any:
        return self.returned(task.labels)


@dataclass(frozen=True)
class Mixes(BatchRule):
    returned: Returned

    def draw(self, rng: np.random.Generator, size: int, stage: int) -> Mixing:
        return Mixing(0.5, torch.arange(size))

    def mix(self, inputs: Tensor, labels: Tensor, num_classes: int, draw: Mixing | None) -> Any:
        return self.returned(inputs, labels)


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
    Mixes: "batch",
    Plans: "batch",
    Relabels: "batch",
    Transform: "gradient",
    Updating: "gradient",
}


def _run(part: Any) -> list[Any]:
    """A round of clients of 6 samples, 2, none and 4; client 2 holds nothing."""
    place = PLACES.get(type(part), "exchange")
    exchange = {"mine": part} if place == "exchange" else {}
    wrapped = {"local": {"mine": part}, "correct": Correcting(part, "rule", "end")}.get(place, part)
    parts = {place: exchange or wrapped}
    return rounds(method(stage(**parts), exchange=exchange), random_federation([6, 2, 0, 4]), mlp(4, 3).double())


def _model(change: Callable[[Params], Any]) -> Returned:
    """A combined model, changed."""
    return lambda params: Combined(change(dict(params)))


def _correction(labels: Callable[[Tensor], Tensor]) -> Returned:
    return lambda held: Correction(0, labels(held), None, Payload(), Payload())


WRONG = {
    "a loss without a state": (Term(lambda loss, state: loss.sum(1)), "loss term mine returned a value of type Tensor"),
    "a forgotten return": (Term(lambda loss, state: None), "loss term mine returned nothing"),
    "a number as loss": (Term(lambda loss, state: (1.0, state)), "loss term mine returned a tuple"),
    "a loss of each class": (Term(lambda loss, state: (loss, state)), r"loss \[\d, 3\]; should be \[\d\]"),
    "a loss of fewer rows": (Term(lambda loss, state: (loss.sum(1)[1:], state)), r"loss \[\d\]; should be \[\d\]"),
    "no cohort": (Sampler(lambda clients: None), r"method.sampler \(Sampler\) returned nothing"),
    "one client": (Sampler(lambda clients: 1), r"\(Sampler\) returned a value of type int"),
    "fractions": (Sampler(lambda clients: [0.5]), r"\(Sampler\) returned a value of type list"),
    "a client without data": (Sampler(lambda clients: [0, 2]), "returned client 2, who holds no data"),
    "an unknown client": (Sampler(lambda clients: [-1]), "returned client -1"),
    "a client twice": (Sampler(lambda clients: [1, 1]), "returned a client twice"),
    "no combined model": (Combining(lambda params: None), r"method.aggregator \(Combining\).combine returned nothing"),
    "a bare model": (Combining(lambda params: params), r"combine returned a value of type dict; should be Combined"),
    "no entries": (Combining(_model(list)), "combine returned a value of type list; should be a model"),
    "an entry less": (Combining(_model(lambda p: {"1.weight": p["1.weight"]})), "a model without 1.bias"),
    "an entry more": (Combining(_model(lambda p: p | {"extra": torch.ones(1)})), "a model with extra"),
    "other shapes": (
        Combining(_model(lambda p: {n: t[None] for n, t in p.items()})),
        r"1.weight \[1, 5, 4\]; .*\[5, 4\]",
    ),
    "a model without a state": (
        Server(lambda combined: combined),
        r"method.server \(Server\) returned a value of type dict",
    ),
    "no next model": (Server(lambda combined: (None, None)), r"method.server \(Server\) returned nothing"),
    "a part of a model": (Server(lambda combined: ({}, None)), r"method.server \(Server\) returned a model without"),
    "one payload": (
        Reporting(lambda: Payload()),
        "exchange mine.report returned a value of type Payload; should be two",
    ),
    "two values": (Reporting(lambda: (1, 2)), "exchange mine.report returned a tuple"),
    "a bare message": (Sending(lambda: 3.0), "exchange mine.send returned a value of type float"),
    "a bare message of others": (Relaying(lambda: "text"), "exchange mine.relay returned a value of type str"),
    "inputs alone": (
        Mixes(lambda inputs, labels: inputs),
        "Mixes.mix returned a value of type Tensor; should be inputs",
    ),
    "fewer rows": (
        Mixes(lambda inputs, labels: (inputs, labels[1:])),
        r"Mixes.mix returned a tuple; .* of \d rows each",
    ),
    "no phases": (Plans(lambda: None), "Plans.phases returned nothing; should return phases"),
    "positions": (Plans(lambda: (torch.arange(2),)), "Plans.phases returned a value of type Tensor; should be phases"),
    "labels that are none": (Relabels(lambda held: held + 3), "Relabels.relabels returned labels that are not from 0"),
    "labels of a few": (Relabels(lambda held: held[:-1]), r"Relabels.relabels returned labels, torch.int64 \[5\]"),
    "a list of labels": (Relabels(lambda held: held.tolist()), "Relabels.relabels returned labels, a list"),
    "no gradients": (Transform(lambda gradients: None), "Transform.__call__ returned nothing; should return tensors"),
    "of another network": (
        Transform(lambda gradients: {"w": torch.ones(1)}),
        "Transform.__call__ returned w; the network",
    ),
    "a sum of gradients": (
        Transform(lambda g: {n: t.sum() for n, t in g.items()}),
        r"returned 1.weight \[\]; should be",
    ),
    "sizes of gradients": (Transform(lambda g: dict.fromkeys(g, 1.0)), "for 1.weight, returned a value of type float"),
    "no update": (Updating(lambda after: None), "Updating.update returned nothing"),
    "bare labels": (
        Corrector(lambda held: held),
        "Corrector.correct returned a value of type Tensor; should be a Correction",
    ),
    "labels of others": (Corrector(_correction(lambda held: held[:1])), r"labels, torch.int64 \[1\]; .*int64 \[6\]"),
    "labels as shares": (Corrector(_correction(lambda held: held.double())), r"labels, torch.float64 \[6\]"),
    "a class too many": (Corrector(_correction(lambda held: held * 0 + 3)), "labels that are not from 0 to 2"),
    "a negative class": (Corrector(_correction(lambda held: held - 5)), "labels that are not from 0 to 2"),
}


@pytest.mark.parametrize(("part", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_return_ends_the_run_with_the_name_of_the_part(part: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        _run(part)


RIGHT = {
    "a loss a sample": Term(lambda loss, state: (loss.sum(1), state)),
    "a scalar": Term(lambda loss, state: (loss.sum(), state)),
    "numpy's numbers": Sampler(lambda clients: np.array(clients)),
    "nobody": Sampler(lambda clients: []),
    "a model": Combining(_model(lambda params: params)),
    "a model and a state": Server(lambda combined: (combined, 1)),
    "payloads": Reporting(lambda: (Payload(1), Payload(2))),
    "messages": Sending(lambda: (1.0, 2)),
    "a list of messages": Relaying(lambda: [1.0]),
    "nothing to say": Sending(lambda: ()),
    "shares as targets": Mixes(lambda inputs, labels: (inputs, F.one_hot(labels, 3).double())),
    "phases one after the other": Plans(lambda: iter([Phase(positions=torch.arange(2)), WHOLE])),
    "nothing to train on": Plans(lambda: ()),
    "other labels": Relabels(lambda held: (held + 1) % 3),
    "labels as they are": Relabels(lambda held: None),
    "some gradients": Transform(lambda gradients: {"1.bias": -gradients["1.bias"]}),
    "some parameters": Updating(lambda after: {"1.bias": after["1.bias"] * 0}),
}


@pytest.mark.parametrize("part", RIGHT.values(), ids=RIGHT)
def test_what_the_protocols_allow_runs(part: Any) -> None:
    (result,) = _run(part)
    assert all(type(client) is int for client in result.cohort)


def test_a_correction_of_every_client_is_taken() -> None:
    corrector = Corrector(_correction(lambda held: (held + 1) % 3))
    (result,) = _run(corrector)
    assert result.correction == {"asked": [0, 1, 3]}


STACKED: dict[str, tuple[dict[str, Any], str]] = {
    "loss": (
        {"local": {"mine": Term(lambda loss, state: loss.sum(1))}},
        "loss term mine returned a value of type Tensor",
    ),
    "mixing": ({"batch": Mixes(lambda inputs, labels: inputs)}, "Mixes.mix returned a value of type Tensor"),
    "phases": ({"batch": Plans(lambda: None)}, "Plans.phases returned nothing"),
    "gradients": ({"gradient": Transform(lambda gradients: None)}, "Transform.__call__ returned nothing"),
    "update": ({"gradient": Updating(lambda after: {"w": 1})}, "Updating.update returned w"),
}


@pytest.mark.parametrize(("parts", "message"), STACKED.values(), ids=STACKED)
def test_clients_that_train_as_one_network_are_told_the_same_without_a_word_of_stacks(
    parts: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    net = network(mlp(4, 3))
    settings = loop.Settings(1, ONE_STEP, None, "drop")
    executor = Stacked(net, 2, 1.0)
    run = loop.Federated(method(stage(**parts)), random_federation([4, 4]), executor, NoEvaluation(), settings)
    with pytest.raises(UserError, match=message):
        list(loop.rounds(run, loop.initial_state(net.params())))
    assert not caplog.records
