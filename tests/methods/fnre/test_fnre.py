"""FNRE: rates, their errors, classes' shares and the rounds that count, from the vectors and by simulation."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flnl.core.findings import EstimatedNoise, Scalar
from flnl.core.messages import Broadcast, ClientResult, ClientState, Gathered, ServerSamples
from flnl.core.payload import Payload
from flnl.methods.fnre.exchange import Agreement, NoiseRates
from flnl.methods.fnre.rate import class_shares, covariance, destinations, expectations, rates, variances
from tests.toys import Logits, federation, fitted, network, task
from tests.vectors.vectors import MORE, Entry, entries

EXCHANGE = NoiseRates(prior="shared", wrong="uniform", rounds="peak")


def more(name: str) -> Entry:
    return entries(MORE)[name]


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def closed(right: float, agreement: Any, classes: int) -> Tensor:
    g = tensor(agreement)
    a = torch.full_like(g, right)
    return rates(g, a, (1 - a) / (classes - 1))


def test_rates_of_symmetric_noise() -> None:
    vector = more("fnre.symmetric")
    ours = closed(vector.inputs["a"], vector.inputs["agreement"], vector.inputs["C"])
    theirs = vector.expected["per_client"]
    assert ours.tolist() == vector.near([client["rate"] for client in theirs])
    assert (ours * 10 / 9).tolist() == vector.near([client["drawn_from_all"] for client in theirs])


def test_forms_that_forget_agreement_by_chance_differ() -> None:
    wrong = more("fnre.WRONG")
    ours = float(closed(wrong.inputs["a"], [wrong.inputs["agreement"]], wrong.inputs["C"]))
    assert ours == wrong.approx("correct")
    for name in ("difference", "relative", "one_minus_agreement", "chance_one_over_C"):
        assert ours != pytest.approx(wrong.expected[name], abs=1e-3), name


def test_where_there_is_no_estimate() -> None:
    vector = more("fnre.edges")
    for case, expected in zip(vector.inputs["cases"], vector.expected["results"], strict=True):
        g = math.nan if case["g"] is None else case["g"]
        ours = float(closed(case["a"], [g], case["C"]))
        theirs = float(expected["rate"])
        assert math.isnan(ours) if math.isnan(theirs) else ours == pytest.approx(theirs, abs=1e-9)


def test_errors_and_what_clients_share() -> None:
    vector = more("fnre.variance")
    v, theirs = vector.inputs, vector.expected["per_client"]
    g = tensor([client["agreement"] for client in v["clients"]])
    samples = tensor([float(client["n"]) for client in v["clients"]])
    right = torch.full_like(g, v["a"])
    rate = closed(v["a"], g.tolist(), v["C"])
    found = variances(rate, g, right, (1 - right) / (v["C"] - 1), "uniform", v["C"], samples, v["m"])
    assert found.tolist() == vector.near([client["variance"] for client in theirs])
    assert float(covariance(rate[0], rate[1], right[0], v["C"], v["m"])) == vector.approx("covariance")


@pytest.mark.parametrize("wrong", ["uniform", "next"])
def test_an_error_follows_from_how_the_clean_samples_are_drawn(wrong: Any) -> None:
    """By the gradient of ρ and the covariance of all cells of the confusion matrix, which are multinomial."""
    rng, clean, n, g = np.random.default_rng(2), 120, 70.0, 0.55
    confusion, prior = rng.dirichlet(np.ones(4), 4) * 0.4 + 0.6 * np.eye(4), np.array([0.4, 0.3, 0.2, 0.1])

    def rate(cells: Tensor) -> Tensor:
        shares = cells.sum(1)
        right, chance = expectations(cells / shares[:, None], shares[None], wrong)
        return rates(tensor([g]), right, chance)[0]

    cells = tensor(prior[:, None] * confusion)
    slope = torch.func.grad(rate)(cells).flatten()
    flat = cells.flatten()
    shared = (slope.square() @ flat - (slope @ flat) ** 2) / clean
    right, chance = expectations(tensor(confusion), tensor(prior[None]), wrong)
    expected = shared + g * (1 - g) / n / (right - chance) ** 2
    found = variances(rate(cells)[None], tensor([g]), right, chance, wrong, 4, tensor([n]), clean)
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-9)


def test_wrong_labels_of_the_next_class() -> None:
    vector = more("fnre.general")
    v = vector.inputs
    confusion, prior = tensor(v["confusion"]), tensor([v["prior"]])
    for wrong, name in (("next", "pair"), ("uniform", "symmetric")):
        assert destinations(3, wrong).tolist() == v[name]  # type: ignore[arg-type]
        right, chance = expectations(confusion, prior, wrong)  # type: ignore[arg-type]
        theirs = vector.expected[name]
        assert (float(right), float(chance)) == (vector.near(theirs["a_k"]), vector.near(theirs["floor"]))
        assert float(rates(tensor([v["agreement"]]), right, chance)) == vector.near(theirs["rate"])
    assert float(closed(0.79, [0.6], 3)) == vector.approx("closed_form_symmetric")


def test_a_clients_classes() -> None:
    vector = more("fnre.prior_shift")
    confusion, predicted = tensor(vector.inputs["confusion"]), tensor([vector.inputs["predicted_shares"]])
    shares = class_shares(confusion, predicted)
    assert shares[0].tolist() == vector.approx("prior")
    assert float(expectations(confusion, shares, "uniform")[0]) == vector.approx("a_k")
    impossible = class_shares(confusion, tensor([[1.0, 0.0, 0.0]]))
    assert bool((impossible >= 0).all())
    assert float(impossible.sum()) == pytest.approx(1)


def test_on_labels_that_were_drawn() -> None:
    """A model that confuses classes in its own way: the rate is found within three standard errors."""
    rng = np.random.default_rng(4)
    classes, n, rate = 5, 4000, 0.35
    confusion = rng.dirichlet(np.ones(classes), classes) * 0.4 + 0.6 * np.eye(classes)
    truth = rng.integers(0, classes, n)
    predicted = np.array([rng.choice(classes, p=confusion[y]) for y in truth])
    shift = rng.integers(1, classes, n) * (rng.random(n) < rate)
    given = (truth + shift) % classes
    right = float((predicted == truth).mean())
    found = closed(right, [float((predicted == given).mean())], classes)
    chance = tensor([(1 - right) / (classes - 1)])
    error = variances(found, tensor([0.5]), tensor([right]), chance, "uniform", classes, tensor([float(n)]), n).sqrt()
    assert abs(float(found) - float((shift > 0).mean())) < 3 * float(error)


# ------------------------------------------------------------------------------------------------- in a federation


def counts(right: int, of: int = 100) -> Tensor:
    """A model that is right on ``right`` of each class's samples, and wrong ones are the next class's."""
    return right * torch.eye(3, dtype=torch.int64) + (of - right) * torch.eye(3, dtype=torch.int64).roll(1, 1)


def gathered(round: int, confusion: Tensor, sent: dict[int, float], predicted: Tensor | None = None) -> Gathered:
    results = [
        ClientResult(k, 50, None, ClientState(), Payload(Agreement(g, predicted)), 0.0, 1, True)
        for k, g in sent.items()
    ]
    aid = Payload(ServerSamples(lambda params: (0.0, 0.0), lambda params: confusion))
    return Gathered(Broadcast(round, 1, {}), results, None, aid, 1, num_samples=dict.fromkeys(range(3), 50))


def test_rounds_in_which_the_model_is_at_its_best_count() -> None:
    state = EXCHANGE.init(3, {})
    assert EXCHANGE.findings(state, {}, Payload()) == ()
    for round, (right, sent) in enumerate(
        [(60, {0: 0.1}), (80, {0: 0.5, 1: 0.8}), (79, {0: 0.6}), (70, {0: 0.9, 2: 0.9})]
    ):
        state = EXCHANGE.gathered(state, gathered(round, counts(right), sent))
    assert [row.round for row in state.rounds] == [1, 2], "0.8 has a standard error of 0.023"
    levels, rounds, mean = EXCHANGE.findings(state, {}, Payload())
    assert isinstance(levels, EstimatedNoise)
    g, a = (0.5 + 0.6) / 2, (0.8 + 0.79) / 2
    expected = (a - g) / (a - (1 - a) / 2)
    assert float(levels.values[0]) == pytest.approx(expected)
    assert float(levels.values[1]) == pytest.approx(0)
    assert bool(levels.values[2].isnan()), "it has taken part in none of these"
    assert rounds == Scalar("fnre_rounds", 2.0)
    assert isinstance(mean, Scalar)
    assert mean.value == pytest.approx(expected / 2)
    assert float(levels.scores["fnre_se"][0]) > 0


def test_rounds_of_a_list_and_all_rounds() -> None:
    for which, expected in (([2], [1]), ("all", [0, 1, 2])):
        exchange = replace(EXCHANGE, rounds=which)  # type: ignore[arg-type]
        state = exchange.init(3, {})
        for round, right in enumerate((60, 80, 70)):
            state = exchange.gathered(state, gathered(round, counts(right), {0: 0.4}))
        assert [row.round for row in state.rounds] == expected


def test_rates_are_clipped_only_where_others_use_them() -> None:
    state = EXCHANGE.gathered(EXCHANGE.init(3, {}), gathered(0, counts(80), {0: 0.9, 1: 0.8}))
    levels, _, mean = EXCHANGE.findings(state, {}, Payload())
    assert isinstance(levels, EstimatedNoise)
    assert float(levels.values[0]) == 0.0
    assert float(levels.scores["fnre_rate"][0]) < -0.1
    assert isinstance(mean, Scalar)
    assert mean.value == pytest.approx(float(levels.scores["fnre_rate"][:2].mean()))


@pytest.mark.parametrize("rounds", ["peak", "all", [1, 3]])
def test_that_there_is_no_estimate_is_said_once(rounds: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Of three classes, the model is right on 0.36 of the clean samples: a - q is 0.04."""
    for right, said in ((36, 1), (80, 0)):
        caplog.clear()
        exchange = replace(EXCHANGE, rounds=rounds)
        state = exchange.init(3, {})
        for round in range(3):
            one = gathered(round, counts(right), {0: 0.4})
            state = exchange.gathered(state, replace(one, broadcast=Broadcast(round, 1, {}, lengths=(3,))))
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == said
        assert all("the model is right on 0.36 of the clean samples, hardly more than chance" in m for m in messages)
        assert bool(exchange.estimates(state)[0].isnan().all()) == bool(said)


def test_a_class_of_which_the_server_has_nothing_is_no_ground_for_a_shift() -> None:
    """A client of the first class, which the model knows better: with its own a, the rate is another one."""
    confusion = torch.tensor([[90, 10, 0], [20, 60, 20], [10, 10, 80]])
    shift, predicted = replace(EXCHANGE, prior="shift"), tensor([0.9, 0.1, 0.0])
    found = []
    for counted in (confusion, confusion * torch.tensor([[1], [1], [0]])):
        state = shift.gathered(shift.init(3, {}), gathered(0, counted, {0: 0.6}, predicted))
        found.append(float(shift.estimates(state)[0][0]))
    assert found[0] == pytest.approx((0.9 - 0.6) / (0.9 - 0.1 / 2))
    a = 150 / 200
    assert found[1] == pytest.approx((a - 0.6) / (0.5 * 0.9 + 0.5 * 0.6 - 0.25 * (0.1 + 0.4)), abs=1e-6)


def test_a_client_reports_the_received_model() -> None:
    pixels = tensor([[3.0, 0.1, -1.0], [0.2, 0.1, 0.0], [0.0, 2.0, 1.0]]).reshape(3, 1, 1, 3)
    toy, module = federation([pixels], [torch.tensor([0, 2, 1])]), Logits()
    net, work = network(module, transform=toy.dataset.transform), task(module, toy.samples(0))
    with torch.no_grad():
        module.scale.fill_(-1.0)
    sent, kept = EXCHANGE.report(net, work, fitted(net.params()))
    assert not kept
    assert sent.one(Agreement).value == pytest.approx(2 / 3)
    assert sent.one(Agreement).predicted is None
    more_sent, _ = replace(EXCHANGE, prior="shift").report(net, work, fitted(net.params()))
    shares = more_sent.one(Agreement).predicted
    assert shares is not None
    assert shares.tolist() == pytest.approx([2 / 3, 1 / 3, 0])
