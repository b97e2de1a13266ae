"""SCAFFOLD: the vectors, a loop by hand, the mean of all control variates, its fixed point, and what it refuses."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.config import compose
from flnl.core.errors import UserError
from flnl.core.messages import ClientTask
from flnl.core.method import Method, assemble
from flnl.core.optimizer import Adam
from flnl.core.parts import ClientSampler, LossTerm, Sampling, Setting
from flnl.core.payload import Params, Payload
from flnl.core.state import FederatedState
from flnl.core.step import Step
from flnl.core.training import Training
from flnl.data.federation.build import Federation
from flnl.engine.network import Network
from flnl.methods.scaffold.control_variates import full_gradient, gain
from flnl.methods.scaffold.exchange import (
    ControlVariate,
    ControlVariateChange,
    ControlVariates,
    Drift,
    OwnControlVariate,
)
from flnl.methods.scaffold.gradient import DriftCorrection
from flnl.parts.aggregators.mean import Mean
from flnl.parts.batches import Mixup
from flnl.parts.losses.label_smoothing import LabelSmoothing
from flnl.parts.servers import Scaled
from tests.toys import (
    ONE_STEP,
    equal,
    federation,
    fitted,
    method,
    mlp,
    network,
    random_federation,
    rounds,
    stage,
    step,
    task,
)
from tests.vectors.vectors import FIELD, entries, federated, field

PRINTED = 5e-9
"""Control variates of ``scaffold.client`` are printed with nine digits."""


def variates(**values: Any) -> ControlVariates:
    """The exchange, as by default."""
    return ControlVariates(**{"option": "II", "weights": "uniform", "normaliser": "gain", "momentum": 0.0, **values})


# --------------------------------------------------------------------------------------------------- quadratic bowls


class Bowl(nn.Module):
    """``Σ_j a_j (w_j − x_j)² / 2`` as half the squares of its outputs; a sample is x beside 10 a."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, 2]."""
        centre, tenfold = inputs.flatten(1).chunk(2, 1)
        return (tenfold / 10).sqrt() * (self.w - centre)


class HalfSquares(LossTerm):
    """The bowl's depth."""

    fits_labels = True

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """[B]."""
        return half_squares(step.logits, step.labels), state


def half_squares(outputs: Tensor, labels: Tensor) -> Tensor:
    """[B]."""
    return outputs.square().sum(1) / 2


def bowls(a: Sequence[Sequence[float]], centers: Sequence[Sequence[float]], sizes: Sequence[int] = ()) -> Federation:
    """Clients with a bowl each, as so many equal samples."""
    of_clients = [torch.tensor([*x, *(10 * v for v in curved)]) for curved, x in zip(a, centers, strict=True)]
    counts = sizes or [1] * len(of_clients)
    pixels = [one.view(1, 1, 1, 4).repeat(n, 1, 1, 1) for one, n in zip(of_clients, counts, strict=True)]
    return federation(pixels, [torch.zeros(n) for n in counts], classes=2)


@dataclass(frozen=True)
class Listed(ClientSampler):
    """The cohorts of a list, round by round."""

    cohorts: Sequence[Sequence[int]]

    def __call__(self, sampling: Sampling) -> list[int]:
        return list(self.cohorts[sampling.clock.round])

    def size(self, clients: int) -> int:
        return max(map(len, self.cohorts))


def scaffold(cohorts: Sequence[Sequence[int]], rate: float = 1.0, **values: Any) -> Method:
    """The method on bowls."""
    exchange = {"control_variates": variates(**values)}
    parts = {
        "sampler": Listed(cohorts),
        "local": {"bowl": HalfSquares()},
        "gradient": DriftCorrection(),
        "aggregator": Mean(values.get("weights", "uniform")),
        "server": Scaled(rate),
    }
    return method(stage(rounds=len(cohorts), exchange=exchange, **parts), exchange=exchange)


def server_variate(state: FederatedState) -> Params:
    """The server's control variate."""
    values: Params = state.server.exchanges["control_variates"].variate.values
    return values


def own_variates(state: FederatedState) -> dict[int, Params]:
    """c_k of the clients that have one."""
    kept = {k: client.extras.get(OwnControlVariate) for k, client in state.clients.items()}
    return {k: own.values for k, own in kept.items() if own is not None}


def trained(steps: int, rate: float, **values: Any) -> Training:
    """Steps of gradient descent."""
    return replace(ONE_STEP, lr=rate, epochs=steps, **values)


# ------------------------------------------------------------------------------------------------------------ vectors


def test_two_rounds_with_cohorts_of_some():
    v = entries(FIELD)["scaffold.two_rounds"]
    given = v.inputs
    toy = scaffold(given["cohorts"])
    found = rounds(toy, bowls(given["a"], given["centers"]), Bowl(given["w0"]), trained(given["K"], given["lr"]))
    for one, expected in zip(found, v.expected["rounds"], strict=True):
        assert one.state.server.params["w"].tolist() == v.near(expected["w"])
        assert server_variate(one.state)["w"].tolist() == v.near(expected["c"])
        own = own_variates(one.state)
        for k, c_k in enumerate(expected["c_k"]):
            assert (own[k]["w"].tolist() if k in own else [0.0, 0.0]) == v.near(c_k)
    assert 3 not in own_variates(found[-1].state)


def visit(net: Network, dealt: Federation, own: Params, variate: Params, exchange: ControlVariates) -> ClientTask:
    """A visit of client 0, begun."""
    begun = task(net.module, dealt.samples(0), extras=Payload(ControlVariate(variate)))
    begun = replace(begun, state=begun.state.keeping(OwnControlVariate(own)))
    read, kept = exchange.begin(net, begun)
    assert not len(kept)
    return replace(begun, visit=read)


def test_the_steps_and_the_new_control_variate_of_a_client():
    v = federated("scaffold.client")
    given = {name: torch.tensor(value, dtype=torch.float64) for name, value in v.inputs.items()}
    net, exchange = network(Bowl(v.inputs["x"])), variates()
    begun = visit(net, bowls([[1, 2]], [[1, -1]]), {"w": given["c_i"]}, {"w": given["c"]}, exchange)
    y = given["x"].clone()
    for _ in range(v.inputs["K"]):
        here = replace(step(), visit=begun.visit)
        y = y - v.inputs["lr"] * DriftCorrection()({"w": given["a"] * (y - given["center"])}, here)["w"]
    assert y.tolist() == v.approx("y")
    assert (y - given["x"]).tolist() == v.approx("delta_y")
    sent, kept = exchange.report(net, begun, fitted({"w": y}, steps=v.inputs["K"], lr=v.inputs["lr"]))
    change = sent.one(ControlVariateChange)
    assert change.values["w"].tolist() == pytest.approx(v.expected["delta_c"], rel=PRINTED)
    assert kept.one(OwnControlVariate).values["w"].tolist() == pytest.approx(v.expected["c_i_new"], rel=PRINTED)
    assert change.distance == pytest.approx(math.dist(v.expected["c_i_new"], v.inputs["c"]))


def test_gradient_steps_with_the_linear_term_of_the_authors_of_feddyn():
    v = federated("scaffold.sgd_steps")
    x, labels = torch.tensor(v.inputs["X"]), torch.tensor(v.inputs["y"])
    weight, bias = torch.tensor(v.inputs["W"]), torch.tensor(v.inputs["b"])
    flat = -torch.tensor(v.inputs["c_minus_ci"])
    here = replace(step(), visit=Payload(Drift({"W": flat[:4].view(2, 2), "b": flat[4:]})))
    for _ in range(v.inputs["steps"]):
        live = {"W": weight.requires_grad_(), "b": bias.requires_grad_()}
        gradients = torch.autograd.grad(F.cross_entropy(F.linear(x, *live.values()), labels), list(live.values()))
        new = DriftCorrection()(dict(zip(live, gradients, strict=True)), here)
        weight, bias = (p.detach() - v.inputs["lr"] * new[name] for name, p in live.items())
    assert torch.cat([weight.flatten(), bias]).tolist() == v.approx("params_after")


def test_option_one_is_the_gradient_at_the_received_model():
    v = entries(FIELD)["scaffold.option_I"]
    net = network(Bowl(v.inputs["w"]))
    client = task(net.module, bowls([v.inputs["a"]], [v.inputs["center"]], [3]).samples(0))
    net.load({"w": torch.tensor([5.0, 6.0])})
    assert full_gradient(net, client, half_squares)["w"].tolist() == v.approx("c_k")
    assert net.params()["w"].tolist() == [5.0, 6.0]


# --------------------------------------------------------------------------------------------------- the loop by hand

A: list[list[float]] = [[1, 2], [0.5, 1], [2, 0.3], [1, 1], [3, 1]]
X: list[list[float]] = [[1, -1], [-2, 3], [0, 0], [1, 1], [4, -4]]
COHORTS = [[0, 2], [1, 2, 4], [0, 1], [2, 4]]
SIZES = [3, 1, 2, 0, 5]
"""Client 3 holds nothing, so that there are four, all of which train."""

BY_HAND: dict[str, dict[str, Any]] = {
    "as the paper": {},
    "a larger step of the server": {"rate": 1.5},
    "by samples": {"weights": "samples"},
    "a rate that falls": {"lr_decay": 0.5},
    "weight decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.6},
    "momentum, counted by steps": {"momentum": 0.6, "normaliser": "steps"},
}


@pytest.mark.parametrize("case", BY_HAND)
def test_every_model_and_control_variate_by_hand(case: str):
    own = BY_HAND[case]
    rho, decay = own.get("momentum", 0.0), own.get("weight_decay", 0.0)
    rate, fall = own.get("rate", 1.0), own.get("lr_decay", 1.0)
    by_samples, counted = own.get("weights") == "samples", own.get("normaliser") == "steps"
    values = {name: own[name] for name in ("weights", "normaliser", "momentum") if name in own}
    training = trained(4, 0.1, momentum=rho, weight_decay=decay, lr_decay=fall)
    found = rounds(scaffold(COHORTS, rate, **values), bowls(A, X, SIZES), Bowl([0.5, 1.0]), training)
    for j in range(2):
        w, c = [0.5, 1.0][j], 0.0
        c_k = [0.0] * 5
        for t, (cohort, one) in enumerate(zip(COHORTS, found, strict=True)):
            ends, changes = {}, {}
            lr = 0.1 * fall**t
            for k in cohort:
                y, velocity, length = w, 0.0, 0.0
                for s in range(4):
                    velocity = rho * velocity + (A[k][j] * (y - X[k][j]) - c_k[k] + c) + decay * y
                    y -= lr * velocity
                    length += lr * (1 if counted else sum(rho**i for i in range(s + 1)))
                ends[k], changes[k] = y, -c + (w - y) / length
            total = sum(SIZES[k] for k in cohort)
            p = {k: SIZES[k] / total if by_samples else 1 / len(cohort) for k in cohort}
            w += rate * sum(p[k] * (ends[k] - w) for k in cohort)
            for k in cohort:
                c_k[k] += changes[k]
                c += changes[k] * (SIZES[k] / sum(SIZES) if by_samples else 1 / 4)
            assert one.state.server.params["w"][j].item() == pytest.approx(w, rel=1e-9)
            assert server_variate(one.state)["w"][j].item() == pytest.approx(c, rel=1e-9)
            for k, kept in own_variates(one.state).items():
                assert kept["w"][j].item() == pytest.approx(c_k[k], rel=1e-9)
            mean = sum((SIZES[k] / 11 if by_samples else (SIZES[k] > 0) / 4) * c_k[k] for k in range(5))
            assert server_variate(one.state)["w"][j].item() == pytest.approx(mean, rel=1e-9)


def test_it_finds_the_minimum_that_fedavg_misses():
    """Of the mean of all bowls, with many steps a visit and a constant rate."""
    full = [[0, 1, 2, 3, 4]] * 200
    training = trained(10, 0.1)
    a, x = torch.tensor(A, dtype=torch.float64), torch.tensor(X, dtype=torch.float64)
    minimum = ((a * x).sum(0) / a.sum(0)).tolist()
    ours = rounds(scaffold(full), bowls(A, X), Bowl([0, 0]), training)[-1].state
    assert ours.server.params["w"].tolist() == pytest.approx(minimum, abs=1e-9)
    gradients = a * (ours.server.params["w"] - x)
    for k, own in own_variates(ours).items():
        assert own["w"].tolist() == pytest.approx(gradients[k].tolist(), abs=1e-8)
    plain = method(stage(rounds=200, local={"bowl": HalfSquares()}, aggregator=Mean("uniform")))
    missed = rounds(plain, bowls(A, X), Bowl([0, 0]), training)[-1].state.server.params["w"]
    assert math.dist(missed.tolist(), minimum) > 0.1


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_gain_is_how_far_torch_goes_along_a_constant_gradient(rho: float, steps: int):
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.25, momentum=rho)
    for _ in range(steps):
        w.grad = torch.ones_like(w)
        optimizer.step()
    assert gain(steps, rho) == pytest.approx(-w.item() / 0.25, rel=1e-12)


def test_a_visit_that_begins_without_momentum_has_a_part_of_its_gain():
    v = field("momentum.reset_gain")
    rho, counts = v.inputs["rho"], v.inputs["K"]
    gains = [gain(steps, rho) for steps in counts]
    assert gains == pytest.approx(v.expected["a"], rel=1e-11)  # 12 digits are printed, of 1910 eight decimals
    assert [found * (1 - rho) / steps for found, steps in zip(gains, counts, strict=True)] == v.approx(
        "fraction_of_full"
    )


def test_who_diverges_or_makes_no_step_changes_nothing():
    found = rounds(scaffold([[0, 1, 2]]), bowls(A[:3], [[1, 1], [math.nan, 0], [2, 2]]), Bowl([0, 0]), trained(2, 0.1))
    own = own_variates(found[0].state)
    assert sorted(own) == [0, 2]
    total = own[0]["w"] + own[2]["w"]
    assert server_variate(found[0].state)["w"].tolist() == pytest.approx((total / 3).tolist())
    net = network(Bowl([0, 0]))
    zeros = {"w": torch.zeros(2, dtype=torch.float64)}
    begun = visit(net, bowls(A[:1], X[:1]), zeros, zeros, variates())
    assert [len(payload) for payload in variates().report(net, begun, fitted(zeros, steps=0))] == [0, 0]


# -------------------------------------------------------------------------------------------------- option I, buffers


def test_the_full_gradient_is_that_of_all_samples_without_dropout_or_augmentation():
    module = mlp(4, 3, dropout=0.5).double()
    net = network(module)
    client = task(module, random_federation([7]).samples(0))
    inputs, labels = client.samples.read().double(), client.labels
    weight = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.5, 3.0, 1.0])
    for weights in (None, weight):
        module.eval()
        losses = F.cross_entropy(module(inputs), labels, reduction="none")
        mean = losses.mean() if weights is None else (losses * weights).sum() / weights.sum()
        expected = torch.autograd.grad(mean, list(module.parameters()))
        module.train()
        found = full_gradient(net, replace(client, state=replace(client.state, weight=weights)))
        assert module.training
        for value, gradient in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(value, gradient)


def test_batch_norm_sees_all_samples_of_the_full_gradient_and_keeps_its_running_statistics():
    module = mlp(4, 3, norm=True).double()
    net, dealt = network(module), random_federation([7, 1])
    before = net.params()
    for k in (0, 1):  # a single sample has no statistics
        client = task(module, dealt.samples(k))
        again = mlp(4, 3, norm=True).double().train(k == 0)
        loss = F.cross_entropy(again(client.samples.read().double()), client.labels)
        expected = torch.autograd.grad(loss, list(again.parameters()))
        found = full_gradient(net, client)
        assert list(found) == [name for name, _ in module.named_parameters()]
        for value, gradient in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(value, gradient)
    assert equal(net.params(), before)


def test_rounds_of_option_one_by_hand():
    """A client's control variate, used from its second visit on, is the gradient at the model of the visit before."""
    dealt, module, exchange = random_federation([5, 8, 3]), mlp(4, 3).double(), {"cv": variates(option="I")}
    cohorts = [[0, 1], [0, 2], [0, 1, 2]]
    parts = {"gradient": DriftCorrection(), "exchange": exchange, "aggregator": Mean("uniform")}
    toy = method(stage(rounds=3, sampler=Listed(cohorts), **parts), exchange=exchange)
    x = torch.cat([p.detach().flatten() for p in module.parameters()])
    found = rounds(toy, dealt, module, trained(3, 0.2))
    samples = [dealt.samples(k) for k in range(3)]

    def gradient(k: int, at: Tensor) -> Tensor:
        live = at.clone().requires_grad_()
        w1, b1, w2, b2 = (p.view(shape) for p, shape in zip(live.split([20, 5, 15, 3]), SHAPES, strict=True))
        hidden = F.linear(samples[k].read().double().flatten(1), w1, b1).relu()
        loss = F.cross_entropy(F.linear(hidden, w2, b2), samples[k].given)
        return torch.autograd.grad(loss, live)[0]

    c, c_k = torch.zeros_like(x), [torch.zeros_like(x)] * 3
    for cohort, one in zip(cohorts, found, strict=True):
        ends, new = [], {}
        for k in cohort:
            y = x
            for _ in range(3):
                y = y - 0.2 * (gradient(k, y) - c_k[k] + c)
            ends.append(y)
            new[k] = gradient(k, x)
        x = torch.stack(ends).mean(0)
        c = c + torch.stack([value - c_k[k] for k, value in new.items()]).sum(0) / 3
        c_k = [new.get(k, before) for k, before in enumerate(c_k)]
        torch.testing.assert_close(torch.cat([p.flatten() for p in one.state.server.params.values()]), x)


SHAPES = ((5, 4), (5,), (3, 5), (3,))
"""Of the parameters of ``mlp(4, 3)``."""


@pytest.mark.parametrize("option", ["I", "II"])
def test_running_statistics_are_averaged_and_have_no_control_variates(option: str):
    dealt, exchange = random_federation([8, 12, 9]), {"control_variates": variates(option=option)}
    parts = {"gradient": DriftCorrection(), "exchange": exchange, "aggregator": Mean("uniform"), "rounds": 2}
    module = mlp(4, 3, norm=True).double()
    names = {name for name, _ in module.named_parameters()}
    floats = {name for name, t in module.state_dict().items() if t.is_floating_point()}
    once, doubled = (
        rounds(method(stage(**parts, server=Scaled(r)), exchange=exchange), dealt, mlp(4, 3, norm=True).double())
        for r in (1.0, 2.0)
    )
    assert set(server_variate(once[-1].state)) == names
    assert all(set(own) == names for own in own_variates(once[-1].state).values())
    start = module.state_dict()
    for name in floats:
        one, other = (found[0].state.server.params[name] for found in (once, doubled))
        torch.testing.assert_close(other, start[name] + 2 * (one - start[name]) if name in names else one)


# ------------------------------------------------------------------------------------------------------------ refused

REFUSED: Mapping[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "Adam": ({}, {}, {"optimizer": Adam(0.9, 0.999, 1e-8)}, "needs train/optimizer=sgd: the steps of Adam are no sum"),
    "rates": ({}, {}, {"visit_cosine": True}, "needs train.visit_cosine=false: the mean gradient is the move divided"),
    "clipping": ({}, {}, {"clip": 2.0}, "needs train.clip=null: steps clipped to 2 are no sum of gradients"),
    "kept momentum": (
        {"momentum": 0.5},
        {},
        {"momentum": 0.5, "keep_momentum": True},
        "needs train.keep_momentum=false or train.momentum=0",
    ),
    "another momentum": ({}, {}, {"momentum": 0.5}, "momentum=0 must be that of the stage's training, 0.5"),
    "another loss": (
        {"option": "I"},
        {"local": {"label_smoothing": LabelSmoothing(0.1, 1)}},
        {},
        "option=I computes the gradient of cross_entropy alone",
    ),
    "mixed samples": (
        {"option": "I"},
        {"batch": Mixup(1.0, True, None)},
        {},
        "option=I computes the gradient of unmixed samples",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_control_variates_no_gradients_is_refused(case: str):
    values, parts, training, reason = REFUSED[case]
    for exchange in ({"it": variates(**values)}, {"it": variates(**{**values, "option": "II"})}):
        toy = method(stage(gradient=DriftCorrection(), exchange=exchange, **parts), exchange=exchange)
        if parts and exchange["it"].option == "II":
            toy.check_network(nn.Linear(2, 2), {0: 5}, ONE_STEP)
            continue
        with pytest.raises(UserError, match=f"^method.exchange.it: {re.escape(reason)}"):
            toy.check_network(nn.Linear(2, 2), {0: 5}, replace(ONE_STEP, **training))
    toy = method(stage(gradient=DriftCorrection(), exchange={"it": variates(option="I")}))
    toy.check_network(nn.Linear(2, 2), {0: 5}, replace(ONE_STEP, keep_momentum=True, weight_decay=0.1))


def test_momentum_is_said_and_what_it_does_to_a_count_of_steps():
    setting = Setting({0: 5}, (1,), replace(ONE_STEP, momentum=0.75), "method.exchange.it")
    said = "SCAFFOLD is for plain SGD; it runs with train.momentum=0.75"
    assert variates(momentum=0.75).caution(setting) == said
    assert variates(momentum=0.75, normaliser="steps").caution(setting) == (
        f"{said}, and method.exchange.it.normaliser=steps makes control variates up to 4 times too large"
    )
    assert variates(momentum=0.75, normaliser="steps", option="I").caution(setting) == said
    assert variates().caution(replace(setting, training=ONE_STEP)) is None


def test_what_belongs_together_is_named():
    exchange, uniform, by_samples = variates(), Mean("uniform"), Mean("samples")
    assert exchange.lacks([DriftCorrection(), uniform]) == ()
    assert exchange.lacks([DriftCorrection(), by_samples]) == ("method/aggregator=uniform_mean",)
    assert variates(weights="samples").lacks([uniform]) == ("method/aggregator=mean",)
    parts = {"exchange": {"it": exchange}}
    toy = method(stage(gradient=DriftCorrection(), **parts), stage(name="last", **parts), **parts)
    with pytest.raises(UserError, match=r"^method.exchange.it: needs method/gradient=scaffold_drift_correction in"):
        toy.check_network(nn.Linear(2, 2), {0: 5}, ONE_STEP)
    silent = replace(toy, stages=(toy.stages[0], replace(toy.stages[1], exchange={})))
    silent.check_network(nn.Linear(2, 2), {0: 5}, ONE_STEP)


# ------------------------------------------------------------------------------------------------- configuration, cost


def test_clients_train_by_plain_sgd_unless_momentum_is_chosen():
    for protocol in ("cifar10", "digits"):
        words = ["method=scaffold", f"protocol={protocol}"]
        assert compose.resolved(compose.load(words))["train"]["momentum"] == 0
        assert compose.resolved(compose.load(["method=fedavg", *words[1:]]))["train"]["momentum"] > 0
    chosen = assemble(compose.build(compose.load(["method=scaffold", "train.momentum=0.5"]).method))
    assert chosen.exchange["control_variates"] == variates(momentum=0.5)


def test_it_sends_twice_what_fedavg_sends():
    dealt, module = random_federation([8, 12, 9]), mlp(4, 3).double()
    exchange = {"control_variates": variates()}
    toy = method(stage(gradient=DriftCorrection(), exchange=exchange), exchange=exchange)
    plain, ours = (rounds(m, dealt, module)[-1].state.counters for m in (method(stage()), toy))
    assert (ours.bytes_down, ours.bytes_up - 3 * 8) == (2 * plain.bytes_down, 2 * plain.bytes_up)
