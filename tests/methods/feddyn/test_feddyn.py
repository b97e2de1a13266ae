"""FedDyn: the vectors, its fixed points, the server's memory against the clients', and what is no parameter."""

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.config import compose
from flnl.config.folders import CONF
from flnl.core.messages import Broadcast, ClientResult, ClientState, ClientTask, Fit
from flnl.core.model import Model
from flnl.core.optimizer import Adam
from flnl.core.parts import LossTerm, Setting
from flnl.core.payload import Params, Payload, is_running_statistic
from flnl.core.step import Step
from flnl.core.training import Training
from flnl.data.federation.build import Federation
from flnl.engine import loop
from flnl.engine.executors.sequential import Sequential
from flnl.engine.model_file import ModelFile
from flnl.methods.feddyn.loss import FedDyn
from flnl.methods.feddyn.server import FedDyn as FedDynServer
from flnl.parts.aggregators.mean import Mean
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.parts.samplers.uniform import OnePass, Uniform
from tests.properties.runs import assembled, difference, run
from tests.registry import BY_NAME
from tests.toys import (
    ONE_STEP,
    NoEvaluation,
    Point,
    Toward,
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
from tests.vectors.vectors import federated

# ------------------------------------------------------------------------------------------------- quadratic clients


NET = network(mlp(4, 3))
"""Lent to the term, which does not look at it."""


def visit(received: Params, count: int = 1) -> ClientTask:
    """A visit of a client of ``count`` samples that was sent ``received``."""
    return replace(task(NET.module, random_federation([count]).samples(0)), broadcast=Broadcast(0, 1, received))


def first_state(term: FedDyn, received: Params, count: int) -> Any:
    """The term's state as the first visit begins."""
    return term.begin(NET, visit(received, count), None)


def finished(term: FedDyn, received: Params, trained: Params, state: Any) -> Any:
    """The term's state after a visit."""
    return term.finish(NET, visit(received), fitted(trained), state)


class Quadratic:
    """Clients with ``f_k(x) = Σ a_k (x − c_k)² / 2``, whose minimum is found exactly, and the server."""

    def __init__(self, inputs: dict[str, Any], *, weighted: bool = True) -> None:
        self.a, self.c = (torch.tensor(inputs[key], dtype=torch.float64) for key in ("a", "c"))
        self.n: list[int] = inputs["n"]
        mean = sum(self.n) / len(self.n) if weighted else None
        self.term = FedDyn(inputs["alpha"], mean)
        self.server = FedDynServer("server")
        self.cloud: Params = {"x": torch.zeros(self.a.shape[1], dtype=torch.float64)}
        self.states: list[Any] = [first_state(self.term, self.cloud, n) for n in self.n]
        self.memory: Any = self.server.init(self.cloud)

    def local(self, client: int) -> Tensor:
        """Newton's step from the received model: exact, since the objective is quadratic."""
        x = self.cloud["x"].clone().requires_grad_()
        penalty, _ = self.term(step(params={"x": x}, received=self.cloud), self.states[client])
        loss = (self.a[client] * (x - self.c[client]) ** 2).sum() / 2 + penalty
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        (curvature,) = torch.autograd.grad(gradient.sum(), x)
        return (x - gradient / curvature).detach()

    def round(self, cohort: Sequence[int] | None = None) -> tuple[list[Tensor], Tensor]:
        """The clients' models and their mean."""
        cohort = range(len(self.n)) if cohort is None else cohort
        models = [self.local(k) for k in cohort]
        for k, model in zip(cohort, models, strict=True):
            self.states[k] = finished(self.term, self.cloud, {"x": model}, self.states[k])
        mean = Mean("uniform")
        results = [
            ClientResult(k, self.n[k], {"x": m}, ClientState(), Payload(), 0.0, 1, True)
            for k, m in zip(cohort, models, strict=True)
        ]
        combined = mean.combine(self.cloud, [mean.block(self.cloud, results, Payload())], Payload()).params
        self.cloud, self.memory = self.server(self.cloud, combined, list(cohort), len(self.n), self.memory)
        return models, combined["x"]


def test_vector_of_three_rounds():
    v = federated("feddyn.quadratic")
    toy = Quadratic(v.inputs)
    for wanted in v.expected["rounds"]:
        models, mean = toy.round()
        for k, model in enumerate(models):
            assert model.tolist() == v.near(wanted["client"][k])
            assert toy.states[k]["h"]["x"].tolist() == v.near(wanted["h"][k])
        assert mean.tolist() == v.near(wanted["avg"])
        assert toy.cloud["x"].tolist() == v.near(wanted["cloud"])


def test_vector_of_the_wrong_sign():
    """With it the same problem diverges; ours comes to rest."""
    v = federated("feddyn.WRONG_sign")
    toy = Quadratic(v.inputs)
    largest = {}
    for number in range(1, 61):
        toy.round()
        largest[str(number)] = float(toy.cloud["x"].abs().max())
    for number, wrong in v.expected["max_abs_cloud_at_rounds"].items():
        assert largest[number] != v.near(wrong)
    assert max(largest.values()) < 2


@pytest.mark.parametrize("weighted", [True, False])
def test_it_rests_at_the_optimum(weighted: bool):
    """Of the loss weighted by samples where α_k is scaled, else of the plain mean of the clients' losses."""
    inputs = federated("feddyn.quadratic").inputs
    toy = Quadratic({**inputs, "alpha": 1.0}, weighted=weighted)
    for _ in range(120):
        models, mean = toy.round()
    weight = np.array(inputs["n"] if weighted else [1, 1, 1])[:, None] * np.array(inputs["a"])
    optimum = (weight * np.array(inputs["c"])).sum(0) / weight.sum(0)
    for found in (toy.cloud["x"], mean, *models):
        np.testing.assert_allclose(found.numpy(), optimum, atol=1e-9)
    for k in range(3):  # h_k is the gradient of the client's own loss, over -α_k
        own = toy.a[k] * (toy.cloud["x"] - toy.c[k])
        torch.testing.assert_close(-toy.states[k]["alpha"] * toy.states[k]["h"]["x"], own, atol=1e-9, rtol=0)


def test_the_servers_memory_is_the_mean_of_all_clients_whoever_came():
    toy = Quadratic(federated("feddyn.quadratic").inputs)
    for cohort in ([0], [2], [0, 2], [1, 2], [0]):
        kept = [state["h"]["x"].clone() for state in toy.states]
        _, mean = toy.round(cohort)
        everybody = torch.stack([state["h"]["x"] for state in toy.states]).mean(0)
        torch.testing.assert_close(toy.memory["x"], everybody, rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(toy.cloud["x"], mean + everybody, rtol=1e-12, atol=1e-15)
        stayed = [k for k in range(3) if k not in cohort]
        assert all(torch.equal(toy.states[k]["h"]["x"], kept[k]) for k in stayed)


# ---------------------------------------------------------------------------------------------------------- the term


def test_vector_of_a_step():
    """Weight decay is the optimiser's; h and the anchor are the vector's, in its flat order."""
    v = federated("feddyn.sgd_step")
    live = {name: torch.tensor(v.inputs[key]).requires_grad_() for name, key in (("weight", "W"), ("bias", "b"))}

    def cut(flat: list[float]) -> Params:
        return {"weight": torch.tensor(flat[:4]).view(2, 2), "bias": torch.tensor(flat[4:])}

    logits = F.linear(torch.tensor(v.inputs["X"]), live["weight"], live["bias"])
    batch = step(logits=logits, targets=torch.tensor(v.inputs["y"]), params=live, received=cut(v.inputs["theta_cloud"]))
    term = FedDyn(v.inputs["alpha_i"], None)
    state = {**first_state(term, batch.broadcast.params, 4), "h": cut(v.inputs["h_i"])}
    (CrossEntropy()(batch, None)[0].mean() + term(batch, state)[0]).backward()
    optimizer = torch.optim.SGD(list(live.values()), v.inputs["lr"], weight_decay=v.inputs["weight_decay"])
    optimizer.step()
    found = torch.cat([live["weight"].detach().flatten(), live["bias"].detach()])
    assert found.tolist() == v.approx("params_after")


def test_the_regulariser_by_hand():
    term = FedDyn(0.5, None)
    received = {"w": torch.tensor([1.0, 2.0]).double(), "b": torch.tensor([0.5]).double()}
    live = {"w": torch.tensor([2.0, 0.0]).double().requires_grad_(), "b": torch.tensor([0.5]).double().requires_grad_()}
    state = {
        **first_state(term, received, 9),
        "h": {"w": torch.tensor([3.0, -1.0]).double(), "b": torch.tensor([4.0]).double()},
    }
    value, after = term(step(params=live, received=received), state)
    assert value.item() == pytest.approx(0.5 * (1 * 3 + -2 * -1 + 0) + 0.25 * (1 + 4))
    value.backward()
    assert live["w"].grad is not None
    assert live["b"].grad is not None
    assert live["w"].grad.tolist() == pytest.approx([0.5 * (3 + 1), 0.5 * (-1 - 2)])
    assert live["b"].grad.tolist() == pytest.approx([0.5 * 4])
    left = finished(term, received, {"w": live["w"].detach(), "b": received["b"]}, after)
    assert left["h"]["w"].tolist() == [4.0, -3.0]
    assert left["h"]["b"].tolist() == [4.0]


def test_a_first_visit_has_the_proximal_term_alone():
    term, received = FedDyn(0.2, None), {"w": torch.zeros(3).double()}
    value, _ = term(step(params={"w": torch.ones(3).double()}, received=received), first_state(term, received, 5))
    assert value.item() == pytest.approx(0.1 * 3)


def test_another_optimiser_is_warned_of() -> None:
    term, setting = FedDyn(0.1, None), Setting({0: 3}, (4,), ONE_STEP, "method.local.feddyn")
    assert term.caution(setting) is None
    adam = replace(setting, training=replace(ONE_STEP, optimizer=Adam(0.9, 0.99, 1e-8)))
    assert str(term.caution(adam)).startswith("method.local.feddyn: FedDyn is for SGD; a memory of steps of Adam")


def test_alpha_of_a_client():
    params = {"w": torch.zeros(1).double()}
    assert first_state(FedDyn(0.3, None), params, 7)["alpha"].item() == pytest.approx(0.3)
    assert first_state(FedDyn(0.3, 14.0), params, 7)["alpha"].item() == pytest.approx(0.6)


# ---------------------------------------------------------------------------------------------------------- the loop


class Visits(LossTerm):
    """Nothing but the number of visits."""

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """0."""
        return step.logits.sum() * 0, state

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        """One more."""
        return (state or 0) + 1


TERMS = {"pull": Toward(), "feddyn": FedDyn(0.3, None)}


def targets(values: Sequence[float]) -> Federation:
    """Clients whose only sample pulls ``Point`` to one value."""
    return federation([torch.full((1, 1, 1, 1), v) for v in values], [torch.zeros(1).long() for _ in values])


def test_rounds_with_a_cohort_of_some():
    """Two steps a visit: one would stop where the regulariser has no gradient but h's."""
    values = [4.0, -2.0, 10.0, 1.0]
    toy = method(
        stage(local=TERMS, rounds=7, sampler=Uniform(0.5), aggregator=Mean("uniform"), server=FedDynServer("server"))
    )
    judged = replace(toy, stages=(replace(toy.stages[0], server=FedDynServer("cohort")),))
    training = Training(lr=0.5, momentum=0.0, weight_decay=0.0, batch_size=100, epochs=2, lr_decay=1.0)
    cloud, h = 2.0, [0.0] * 4
    assert loop.shown(judged, loop.initial_state({"w": torch.tensor(2.0)}), 4)["w"] == 2.0
    for found in rounds(toy, targets(values), Point(2.0), training):
        ends = []
        for k in found.cohort:
            w = cloud
            for _ in range(2):
                w -= 0.5 * ((w - values[k]) + 0.3 * h[k] + 0.3 * (w - cloud))
            ends.append(w)
        for k, w in zip(found.cohort, ends, strict=True):
            h[k] += w - cloud
        cloud = sum(ends) / len(ends) + sum(h) / 4
        assert found.state.server.params["w"].item() == pytest.approx(cloud, rel=1e-12)
        assert loop.shown(toy, found.state, 4)["w"].item() == pytest.approx(cloud, rel=1e-12)
        assert loop.shown(judged, found.state, 4)["w"].item() == pytest.approx(sum(ends) / len(ends), rel=1e-12)
        for k, own in found.state.clients.items():
            assert own.terms["feddyn"]["h"]["w"].item() == pytest.approx(h[k], rel=1e-12)


def test_who_diverges_moves_neither_memory():
    toy = method(stage(local=TERMS, rounds=2, aggregator=Mean("uniform"), server=FedDynServer("server")))
    found = rounds(toy, targets([4.0, math.nan, 10.0]), Point(2.0), ONE_STEP)
    state = found[-1].state
    assert sorted(state.clients) == [0, 2]
    total = sum(own.terms["feddyn"]["h"]["w"].item() for own in state.clients.values())
    assert state.server.updates["FedDyn"]["w"].item() == pytest.approx(total / 3, rel=1e-12)


def test_both_memories_begin_anew_where_a_stage_restarts_from_the_initial_model():
    """Two rounds from the initial model are the same two rounds again; other terms keep what they have."""
    parts = {"aggregator": Mean("uniform"), "server": FedDynServer("server")}
    terms = {**TERMS, "visits": Visits()}
    toy = method(*(stage(local=terms, rounds=2, restart=again, **parts) for again in (False, True)))
    dealt = targets([4.0, -2.0, 10.0])
    net = network(Point(2.0), classes=3, transform=dealt.dataset.transform)
    settings = loop.Settings(1, ONE_STEP, None, "drop", initial=net.params())
    run = loop.Federated(toy, dealt, Sequential(net), NoEvaluation(), settings)
    found = [result.state for result in loop.rounds(run, loop.initial_state(net.params()))]
    for first, again in ((found[0], found[2]), (found[1], found[3])):
        assert difference(again.server, first.server) is None
        for client in range(3):
            memories = (state.client(client).terms["feddyn"] for state in (first, again))
            assert difference(*memories) is None
    assert float(found[1].server.updates["FedDyn"]["w"]) != 0
    assert [state.client(0).terms["visits"] for state in found] == [1, 2, 3, 4]


def test_running_statistics_are_averaged_and_never_moved():
    dealt = random_federation([8, 12, 9])
    terms = {"cross_entropy": CrossEntropy(), "feddyn": FedDyn(0.1, None)}
    module = mlp(4, 3, norm=True).double()
    plain, ours = (
        rounds(method(stage(local=terms, aggregator=Mean("uniform"), **server)), dealt, mlp(4, 3, norm=True).double())
        for server in ({}, {"server": FedDynServer("server")})
    )
    own = ours[-1].state.clients[0].terms["feddyn"]["h"]
    names = {name for name, _ in module.named_parameters()}
    assert set(own) == set(ours[-1].state.server.updates["FedDyn"]) == names
    for name in set(module.state_dict()) - names:
        assert torch.equal(ours[-1].state.server.params[name], plain[-1].state.server.params[name])
    for name in names:  # and after one round of everybody the step is doubled
        start = module.state_dict()[name]
        step_of_fedavg = plain[-1].state.server.params[name] - start
        torch.testing.assert_close(ours[-1].state.server.params[name], start + 2 * step_of_fedavg)


MODELS = sorted(path.stem for path in (CONF / "model").glob("*.yaml"))
CHOSEN = {"module": ["model.path=torchvision.models.MobileNetV2"], "torchvision": ["model.name=mobilenet_v2"]}


@pytest.mark.parametrize("model", MODELS)
def test_what_is_measured_and_not_learned_is_known_by_its_name(model: str):
    side = {"resnet50": 64, "inception_resnet_v2": 75}.get(model, 64 if "imagenet" in model else 32)
    node = compose.load([f"model={model}", *CHOSEN.get(model, ())]).model
    with torch.device("meta"):
        module = compose.build(node)((3, side, side), 10)
    floats = {name for name, p in module.state_dict().items() if p.is_floating_point()}
    assert {name for name in floats if is_running_statistic(name)} == floats - {n for n, _ in module.named_parameters()}


# ------------------------------------------------------------------------------------------------- configuration


def test_what_is_handed_out_is_what_was_evaluated(tmp_path: Path):
    """Running statistics are the cohort's in both."""
    words = BY_NAME["feddyn_with_batch_norm"].words
    for which, is_sent in (("server", True), ("cohort", False)):
        ran = run(words, tmp_path / which, f"method.server.evaluate={which}")
        model = ModelFile.load(ran.folder)
        sent = ran.state.server.params
        assert all(torch.equal(model.weights[n], sent[n]) for n in sent if is_sent or is_running_statistic(n))
        assert is_sent or not torch.allclose(model.weights["head.weight"], sent["head.weight"], atol=1e-4)
        with assembled(words, tmp_path / f"again {which}") as parts:
            scores = parts.evaluator.model(model.weights)
            table = parts.evaluator.table(loop.initial_state(model.weights))
        assert scores["accuracy"] == ran.record["metrics"]["last"]
        with (ran.folder / "labels.csv").open() as file:
            written = [float(row["confidence"]) for row in csv.DictReader(file)]
        assert written == pytest.approx(table.confidence.tolist(), abs=1e-4)


def test_the_rate_falls_by_its_factor_from_round_to_round_over_all_stages():
    """One step of gradient descent a round: ``w ← w - lr d^t (w - c)``."""
    parts = {"rounds": 3, "local": {"toward": Toward()}}
    toy = method(stage(**parts), stage(**parts, name="second", number=2))
    training = replace(ONE_STEP, lr=0.4, lr_decay=0.7)
    w, t = 2.0, 0
    for found in rounds(toy, targets([5.0]), Point(2.0), training):
        w -= 0.4 * 0.7**t * (w - 5.0)
        t += 1
        assert found.state.server.params["w"].item() == pytest.approx(w, rel=1e-12)
    assert t == 6
    assert training.at(0) == training


def test_every_round_of_a_chain_of_single_clients_counts_for_the_rate():
    """FedCorr calls each a communication round: three in a pass over three clients, before the next stage's first."""
    chain = stage(sampler=OnePass(None, "chain", "partition"), rounds=None, passes=1, local={"toward": Toward()})
    toy = method(chain, stage(local={"toward": Toward()}, name="second"))
    w, found = 2.0, rounds(toy, targets([5.0, 5.0, 5.0]), Point(2.0), replace(ONE_STEP, lr=0.4, lr_decay=0.7))
    assert [len(r.cohort) for r in found] == [1, 1, 1, 3]
    for t, each in enumerate(found):
        w -= 0.4 * 0.7**t * (w - 5.0)
        assert each.state.server.params["w"].item() == pytest.approx(w, rel=1e-12)


@pytest.mark.parametrize("protocol", ["cifar10", "cifar100", "clothing1m"])
def test_the_papers_values_are_the_defaults(protocol: str):
    found = compose.resolved(compose.load(["method=feddyn", f"protocol={protocol}"]))
    assert found["method"]["local"]["feddyn"]["alpha"] == 0.01
    assert found["train"]["lr"] == 0.1
    assert found["train"]["lr_decay"] == 0.998
    assert found["method"]["server"]["evaluate"] == "cohort"
    assert compose.resolved(compose.load(["method=fedcorr", f"protocol={protocol}"]))["train"]["lr_decay"] == 1
    assert found["method"]["aggregator"]["weights"] == "uniform"
    other = compose.resolved(compose.load(["method=feddyn", "method.feddyn_alpha=0.2"]))
    assert other["method"]["local"]["feddyn"]["alpha"] == 0.2
