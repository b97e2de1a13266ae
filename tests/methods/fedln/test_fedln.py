"""FedLN: energies, shares, weights and labels of neighbours, from the definition and the vectors."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from flnl.core.findings import EstimatedNoise, NoisyClients, SuspectedSamples
from flnl.core.messages import Broadcast, ClientResult, ClientState, Clock, Gathered
from flnl.core.parts import Setting
from flnl.core.payload import Payload
from flnl.core.step import WHOLE
from flnl.data.preparations import Rows
from flnl.methods.fedln.aggregator import NoiseAwareMean
from flnl.methods.fedln.batch import NeighboursLabels
from flnl.methods.fedln.energy import Energies, energies, noisy_shares, weights
from flnl.methods.fedln.exchange import (
    FindNearest,
    NearestLabels,
    NearestNeighbours,
    NoiseAware,
    NoiseAwareWeights,
    nearest_labels,
)
from tests.toys import ONE_STEP, Logits, federation, fitted, network, task
from tests.vectors.vectors import MORE, Entry, entries

EXCHANGE = NoiseAware(
    percentile=75.0,
    threshold=0.15,
    keep=0.1,
    suspects="above",
    effect="min",
    apply="same",
    inference_augment=False,
    stage=2,
)
HERE = Clock(4, 2, (4, 1, 3))


def more(name: str) -> Entry:
    return entries(MORE)[name]


def of(client: dict[str, list[float]]) -> Energies:
    return Energies(*(torch.tensor(client[when], dtype=torch.float64) for when in ("before", "after")))


SENT = {k: of(client) for k, client in enumerate(more("fedln.na_weights").inputs["clients"])}


def test_energies() -> None:
    vector = more("fedln.energy")
    logits = torch.tensor(vector.inputs["logits"])
    for temperature, name in zip(vector.inputs["T"], ("T1", "T2"), strict=True):
        np.testing.assert_allclose(energies(logits, temperature), vector.expected[name], rtol=1e-6)
    exact = torch.tensor(vector.inputs["logits"], dtype=torch.float64)
    assert energies(exact).tolist() == vector.approx("T1")


def test_shares_and_weights() -> None:
    vector = more("fedln.na_weights")
    shares = noisy_shares(SENT, vector.inputs["percentile"])
    theirs = vector.expected["clients"]
    assert list(shares.values()) == vector.near([client["share"] for client in theirs])
    below = noisy_shares(SENT, vector.inputs["percentile"], "below")
    assert list(below.values()) == pytest.approx([1 - share for share in shares.values()])
    given = np.array(list(shares.values())), np.array([len(one.trained) for one in SENT.values()], float)
    least = weights(*given, threshold=0.15, keep=0.1, effect="min")
    assert least.tolist() == vector.near([client["weight"] for client in theirs])
    most = weights(*given, threshold=0.15, keep=0.1, effect="max")
    assert most.tolist() == vector.approx("weights_if_max")


def test_the_reference_is_of_all_clients_before_the_visit() -> None:
    """Other references, or a minus sign, give other shares."""
    vector = more("fedln.WRONG_reference")
    ours = noisy_shares(SENT, 75.0)
    assert ours[0] == 3 / 8, "of energies 1.5, 2.0, 2.1, 1.6, 2.2, 1.8, 1.4, 1.9, three reach 1.975"
    for wrong in ("after", "negative"):
        share = float((SENT[0].trained >= vector.expected[wrong]).double().mean())
        assert share != pytest.approx(ours[0], abs=0.01), wrong
    own = {k: noisy_shares({k: one}, 75.0)[k] for k, one in SENT.items()}
    assert list(own.values()) == vector.approx("shares_own")
    assert own[0] == ours[0], "the others differ in the reference alone"
    assert float(np.percentile(SENT[0].received, 75)) == pytest.approx(vector.expected["own"][0])


def test_a_share_below_is_as_exact_as_one_above() -> None:
    """1 - 0.9 is below 0.1, from which on a client would be noisy."""
    one = Energies(torch.zeros(10, dtype=torch.float64), torch.tensor([-1.0] + [1.0] * 9))
    assert noisy_shares({0: one}, 75.0, "below") == {0: 0.1}


@pytest.mark.parametrize(
    ("share", "effect", "expected"),
    [
        *((0.0, "min", 20.0), (0.1, "min", 20.0), (0.15, "min", 2.0), (0.5, "min", 2.0), (0.95, "min", 1.0)),
        *((0.15, "max", 17.0), (0.95, "max", 2.0), (1.0, "max", 2.0)),
    ],
)
def test_a_weight(share: float, effect: str, expected: float) -> None:
    """Beside a client whose share is 0, of 20 samples each."""
    found = weights(np.array([0.0, share]), np.full(2, 20.0), threshold=0.15, keep=0.1, effect=effect)  # type: ignore[arg-type]
    assert found.tolist() == [20.0, pytest.approx(expected)]


def test_without_a_noisy_sample_all_count_whatever_the_threshold() -> None:
    found = weights(np.array([0.0, 0.1]), np.full(2, 20.0), threshold=0.0, keep=0.1, effect="min")
    assert found.tolist() == [20.0, 2.0]


def test_if_nobody_had_a_weight_samples_count() -> None:
    all_noisy = weights(np.ones(2), np.array([3.0, 7.0]), threshold=0.15, keep=0.1, effect="min")
    assert all_noisy.tolist() == [3.0, 7.0]


# ------------------------------------------------------------------------------------------------- in a federation


def result(client: int, value: float, samples: int, *reports: object) -> ClientResult:
    params = {"w": torch.tensor([value], dtype=torch.float64)}
    return ClientResult(client, samples, params, ClientState(), Payload(*reports), 0.0, 1, True)


def test_a_judgement_and_the_means_that_follow() -> None:
    params = {"w": torch.zeros(1, dtype=torch.float64)}
    results = [result(k, value, len(SENT[k].trained), SENT[k]) for k, value in enumerate((1.0, 5.0, 2.0))]
    broadcast = Broadcast(4, 2, params, lengths=HERE.lengths)
    before = EXCHANGE.init(4, params)
    assert EXCHANGE.wants_models(HERE) == "before"
    assert EXCHANGE.wants_models(Clock(5, 3, HERE.lengths)) == "no"
    assert replace(EXCHANGE, apply="next").wants_models(HERE) == "no"
    assert EXCHANGE.findings(before, {}, Payload()) == ()
    state = EXCHANGE.gathered(before, Gathered(broadcast, results, None, Payload(), 1))
    known = Payload(*EXCHANGE.known(state))
    expected = [client["weight"] for client in more("fedln.na_weights").expected["clients"]]
    assert known.one(NoiseAwareWeights).value[:3].tolist() == pytest.approx(expected)
    assert math.isnan(known.one(NoiseAwareWeights).value[3])
    mean = NoiseAwareMean()
    found = mean.combine(params, [mean.block(params, [*results, result(3, 10.0, 1)], known)], known).params["w"]
    assert float(found) == pytest.approx((0.8 * 1 + 0.6 * 2 + 1 * 10) / (0.8 + 0.6 + 1))
    assert mean.combine(params, [mean.block(params, results[1:2], known)], known).params is params
    (clients,) = EXCHANGE.findings(state, {}, known)
    assert isinstance(clients, NoisyClients)
    assert clients.noisy.tolist() == [True, True, True, False]
    silent = Gathered(broadcast, [result(0, 1.0, 2)], None, Payload(), 1)
    assert EXCHANGE.gathered(state, silent) is state


def test_a_client_reports_energies_before_and_after_its_visit_once() -> None:
    pixels = torch.tensor([[3.0, 0.1, -1.0], [0.2, 0.1, 0.0]]).reshape(2, 1, 1, 3)
    toy, module = federation([pixels], [torch.tensor([0, 1])]), Logits()
    net, work = network(module, transform=toy.dataset.transform), task(module, toy.samples(0), round=4, stage=2)
    work = replace(work, broadcast=replace(work.broadcast, lengths=HERE.lengths))
    with torch.no_grad():
        module.scale.fill_(2.0)
    sent, kept = EXCHANGE.report(net, work, fitted(net.params()))
    assert not kept
    np.testing.assert_allclose(sent.one(Energies).received, energies(pixels.flatten(1)), rtol=1e-6)
    np.testing.assert_allclose(sent.one(Energies).trained, energies(2 * pixels.flatten(1)), rtol=1e-6)
    later = replace(work, broadcast=replace(work.broadcast, round=5, stage=3))
    assert not EXCHANGE.report(net, later, fitted(net.params()))[0]


def test_a_warning_without_training_before() -> None:
    assert EXCHANGE.caution(Setting({0: 10}, (4, 1, 3), ONE_STEP, "method.exchange.energies")) is None
    said = EXCHANGE.caution(Setting({0: 10}, (0, 1, 3), ONE_STEP, "method.exchange.energies"))
    assert "method.exchange.energies judges clients in the first round" in str(said)
    never = EXCHANGE.caution(Setting({0: 10}, (4, 0, 3), ONE_STEP, "method.exchange.energies"))
    assert "stage 2, which has no rounds" in str(never)


# ------------------------------------------------------------------------------------------------- nearest neighbours

NNC = more("fedln.nnc")
FEATURES, LABELS = torch.tensor(NNC.inputs["features"], dtype=torch.float64), torch.tensor(NNC.inputs["labels"])


def by_hand(features: Tensor, labels: Tensor, k: int, classes: int) -> list[int]:
    found = []
    for point in features.tolist():
        away = [math.dist(point, other) for other in features.tolist()]
        near = sorted(range(len(away)), key=lambda i: away[i])[:k]
        votes = [sum(int(labels[i]) == c for i in near) for c in range(classes)]
        found.append(votes.index(max(votes)))
    return found


def test_labels_of_neighbours() -> None:
    ours = nearest_labels(FEATURES, LABELS, NNC.inputs["k"], NNC.inputs["classes"]).tolist()
    assert ours == NNC.expected["predicted"]
    wrong = more("fedln.WRONG_missing_class")
    assert ours == wrong.expected["correct"] != wrong.expected["released"]


@pytest.mark.parametrize("k", [1, 2, 4, 9, 50])
def test_labels_of_any_number_of_neighbours(k: int) -> None:
    """More than there are samples: all of them. Of a tie of labels, the lowest."""
    rng = np.random.default_rng(k)
    features, labels = torch.tensor(rng.normal(size=(30, 2))), torch.tensor(rng.integers(0, 4, 30))
    assert nearest_labels(features, labels, k, 4).tolist() == by_hand(features, labels, k, 4)


@pytest.mark.parametrize(("threshold", "adopted"), [(2 / 9, True), (0.23, False)])
def test_a_client_adopts_all_labels_or_none(threshold: float, adopted: bool) -> None:
    toy, module = federation([FEATURES.reshape(9, 1, 1, 2)], [LABELS], classes=4), Logits()
    net, work = network(module, classes=4, transform=toy.dataset.transform), task(module, toy.samples(0))
    exchange = NearestNeighbours(neighbours=3, threshold=threshold)
    job = exchange.before_round(1, Clock(0, 1))
    assert job is not None
    assert exchange.before_round(1, Clock(1, 1)) is None
    answer = job(net, work)
    assert not answer.reports
    assert answer.keeps.one(NearestLabels).adopted is adopted
    state = ClientState(extras=answer.keeps)
    work, rule = replace(work, state=state), NeighboursLabels()
    (phase,) = rule.phases(net, work, 0, 1)
    labels = rule.relabels(net, work)
    level, *suspects = exchange.findings(2, {1: state}, Payload())
    assert isinstance(level, EstimatedNoise)
    assert level.values[1] == NNC.approx("disagreement")
    if not adopted:
        assert (phase, labels, suspects) == (WHOLE, None, [])
        return
    assert labels is not None
    assert phase.labels is not None
    assert labels.tolist() == phase.labels.tolist() == NNC.expected["labels"]
    (suspected,) = suspects
    assert isinstance(suspected, SuspectedSamples)
    assert suspected.mask.tolist() == [False] * 3 + [True] + [False] * 4 + [True]


def test_rows_are_compared_as_the_network_gets_them() -> None:
    """Of two columns the first tells the classes apart; the second has numbers a thousand times as large."""
    rng, labels = np.random.default_rng(0), torch.arange(20) % 2
    rows = torch.stack([labels.double(), torch.tensor(1000 * rng.normal(size=20))], 1).float()
    prepared = Rows(2, tuple(rows.double().mean(0).tolist()), tuple(rows.double().std(0, correction=0).tolist()))
    toy = federation([rows], [labels], classes=2, transform=prepared)
    net, work = network(Logits(), classes=2, transform=prepared), task(Logits(), toy.samples(0))
    found = FindNearest(4, 0.0)(net, work).keeps.one(NearestLabels).labels.tolist()
    assert found == by_hand(prepared.normalize(rows).double(), labels, 4, 2)
    assert found != by_hand(rows.double(), labels, 4, 2)


def test_words_have_no_neighbours() -> None:
    setting = Setting({0: 10}, (1,), ONE_STEP, "method.exchange.nearest_labels")
    exchange = NearestNeighbours(neighbours=3, threshold=0.15)
    assert exchange.refuses(Logits(), (), setting) is None
    assert "words" in str(exchange.refuses(Logits(), (), replace(setting, kind="tokens")))
