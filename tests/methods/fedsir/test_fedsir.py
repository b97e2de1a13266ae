"""FedSIR against the vectors, its formulas in numpy, and rounds of a run."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.mixture import GaussianMixture
from torch import Tensor

from flnl.core.findings import NoisyClients, SuspectedSamples
from flnl.core.messages import Broadcast, ClientResult, ClientState, Clock, Gathered
from flnl.core.parts import Setting
from flnl.core.payload import Payload
from flnl.methods.fedsir.aggregator import CleanMean
from flnl.methods.fedsir.exchange import (
    Alikeness,
    MeasureSubspaces,
    ReferenceModel,
    RelabelledSamples,
    Subspaces,
    SubspaceState,
)
from flnl.methods.fedsir.loss import FedSIR
from flnl.methods.fedsir.subspaces import (
    ClassConsensus,
    ClassSubspaces,
    alikeness,
    consensus,
    noisy_by_alikeness,
    relabelled,
    scores,
)
from flnl.models.mlp import MLP
from flnl.numerics.ramp import exponential_ramp
from flnl.parts.messages import ClientTag, ClientTags
from tests.toys import ONE_STEP, Logits, federation, fitted, network, step, task
from tests.vectors.vectors import NEWER, entries

EXCHANGE = Subspaces(fewest=20, every=2, residuals=2, fewest_shared=1, strength=0.03, inference_augment=False, stage=2)
TERM = FedSIR(temperature=0.8, distillation=0.2, ramp_begin=2, ramp_end=49, stage=2)
LENGTHS = (1, 6)


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clock(round: int) -> Clock:
    return Clock(round, 1 if round == 0 else 2, LENGTHS)


# -------------------------------------------------------------------------------------------------------- subspaces


def test_the_ramp() -> None:
    vector = entries(NEWER)["fedsir.kd_weight"]
    a, begin, end = (vector.inputs[name] for name in ("a", "begin", "end"))
    assert [exponential_ramp(r, begin, end, a) for r in vector.inputs["r"]] == vector.approx("w")
    assert [exponential_ramp(r, 2, 2, 0.2) for r in (0, 1, 2)] == pytest.approx([0.2 * math.exp(-5)] * 2 + [0.2])


def test_clients_with_less_alike_classes_are_clean() -> None:
    vector = entries(NEWER)["fedsir.client_split"]
    noisy = noisy_by_alikeness(vector.inputs["statistics"], 42)
    assert (~noisy).nonzero()[0].tolist() == vector.expected["clean"]
    assert noisy.nonzero()[0].tolist() == vector.expected["noisy"]
    with_nan = noisy_by_alikeness([*vector.inputs["statistics"], (math.nan, math.nan)], 42)
    assert with_nan.tolist() == [*noisy.tolist(), False], "nothing is known of a client with a single class"
    assert not noisy_by_alikeness([(0.5, 0.3)] * 4, 1).any()
    assert not noisy_by_alikeness([(0.5, 0.3)], 1).any()


def test_all_clients_are_clean_if_none_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GaussianMixture, "predict_proba", lambda self, points: np.full((len(points), 2), 0.49))
    assert not noisy_by_alikeness([(0.1, 0.1), (0.2, 0.3), (0.9, 0.8), (math.nan, math.nan)], 1).any()


def test_alikeness_is_of_the_first_right_singular_vectors() -> None:
    features, labels = normal(90, 5), torch.arange(90) % 3
    labels[:25] = 3
    rows = [np.linalg.svd(features[labels == c].numpy())[2][0] for c in range(4)]
    apart = [abs(float(a @ b)) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    mean, energy = alikeness(features, labels, fewest=20)
    assert mean == pytest.approx(np.mean(apart), abs=1e-9)
    assert energy == pytest.approx(np.mean(np.square(apart)), abs=1e-9)
    few = [abs(float(a @ b)) for i, a in enumerate(rows[3:]) for j, b in enumerate(rows[3:]) if i != j]
    assert few == [], "only class 3 has 25 samples"
    assert alikeness(features, labels, fewest=25) == (mean, energy), "with fewer than two such classes all count"
    assert all(map(math.isnan, alikeness(features, torch.zeros(90, dtype=torch.int64), 20)))
    two = torch.where(labels == 3, 0, 1)
    assert alikeness(features, two, 20)[1] == pytest.approx(alikeness(features, two, 20)[0] ** 2, abs=1e-12)


def test_a_class_is_described_by_its_singular_vectors() -> None:
    features, labels = normal(60, 6) * f64([20, 5, 1, 0.5, 0.2, 0.1]), torch.arange(60) % 2
    made = ClassSubspaces.of(features, labels, 3, residuals=4)
    assert made.counts.tolist() == [30, 30, 0]
    for c in (0, 1):
        _, s, v = np.linalg.svd(features[labels == c].numpy(), full_matrices=False)
        k = next(k for k in range(1, 7) if s[:k].sum() >= 10 * s[k:].sum())
        assert k < 6
        assert abs(float(made.directions[c] @ torch.from_numpy(v[0]))) == pytest.approx(1, abs=1e-9)
        left = min(4, 6 - k)
        product = made.residuals[c, :left] @ torch.from_numpy(v[k : k + 4]).T
        np.testing.assert_allclose(product.abs(), np.eye(left), atol=1e-9)
        assert not made.residuals[c, left:].any()
        assert float(made.gaps[c]) == pytest.approx((s[0] - s[1]) / s[0])
        assert float(made.shares[c]) == pytest.approx(s[0] / s.sum())
    assert not made.directions[2].any()
    one = ClassSubspaces.of(normal(1, 6), torch.tensor([1]), 2, 4)
    assert (float(one.gaps[1]), float(one.shares[1]), bool(one.residuals.any())) == (1.0, 1.0, False)


def of_vector(inputs: dict[str, Any]) -> dict[int, ClassSubspaces]:
    def one(classes: dict[str, Any]) -> ClassSubspaces:
        return ClassSubspaces(
            torch.tensor([c["n"] for c in classes.values()]),
            f64([c["Vr"] for c in classes.values()]),
            f64([c["Vn"] for c in classes.values()]),
            f64([c["gap"] for c in classes.values()]),
            f64([c["s1_ratio"] for c in classes.values()]),
        )

    return {int(client): one(classes) for client, classes in inputs["clean_clients"].items()}


def test_both_scores_must_agree_on_a_new_label() -> None:
    vector = entries(NEWER)["fedsir.relabel"]
    agreed = consensus(of_vector(vector.inputs), vector.inputs["min_class_n"], 0.03)
    for c in range(3):
        assert agreed.directions[c].abs().tolist() == vector.near(vector.expected["abs_consensus_v_r"][str(c)])
        assert float(agreed.strength[c]) == vector.near(vector.expected["strength"][str(c)])
    features, given = f64(vector.inputs["features"]), torch.tensor(vector.inputs["given"])
    along, beside = scores(features, agreed)
    np.testing.assert_allclose(along, vector.expected["S_r"], atol=vector.absolute)
    np.testing.assert_allclose(beside, vector.expected["S_n"], atol=vector.absolute)
    labels, same = relabelled(features, given, agreed)
    assert (labels.tolist(), same.tolist()) == (vector.expected["labels_after"], vector.expected["agree"])


def test_weights_of_the_consensus_and_what_takes_its_place() -> None:
    vector = entries(NEWER)["fedsir.relabel"]
    sent = of_vector(vector.inputs)
    of_sums = [
        sum(float(s.counts[c] * s.gaps[c] * s.shares[c]) for s in sent.values() if s.counts[c] >= 100) for c in range(3)
    ]
    assert of_sums == vector.near([*vector.expected["weight_sum"].values()])
    alone = consensus(sent, 1000, 0.03)
    assert alone.strength.tolist() == [0, 0, 0], "nobody has so many samples: the largest holder counts"
    assert torch.equal(alone.directions[1], sent[1].directions[1])
    assert torch.equal(alone.residuals[0], sent[0].residuals[0])
    weak = consensus(sent, 100, 0.99)
    assert torch.equal(weak.directions[0], sent[0].directions[0]), "0.98 is too weak, and client 0 has most samples"
    assert not torch.equal(weak.directions[1], sent[1].directions[1])
    nobody = {c: replace(s, counts=s.counts.clone().index_fill(0, torch.tensor([0]), 0)) for c, s in sent.items()}
    missing = consensus(nobody, 100, 0.03)
    assert missing.known.tolist() == [False, True, True]
    labels, same = relabelled(f64(vector.inputs["features"]), torch.tensor(vector.inputs["given"]), missing)
    assert not (labels[same] == 0).any(), "a class that nobody knows is never proposed"
    flat = {0: replace(sent[0], residuals=torch.zeros_like(sent[0].residuals))}
    assert not consensus(flat, 100, 0.03).known.any(), "without residual directions nothing tells classes apart"
    assert not relabelled(f64(vector.inputs["features"]), labels, consensus(flat, 100, 0.03))[1].any()


# ------------------------------------------------------------------------------------------------------------- loss


def test_noisy_clients_distil_what_is_in_dispute() -> None:
    vector = entries(NEWER)["fedsir.kd_weight"]
    logits, taught = normal(4, 3), normal(4, 3, seed=1)

    class Taught(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logits = torch.nn.Parameter(taught)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.logits[: len(inputs)] + 0.0

    received = network(Taught())
    params = {name: p.detach() for name, p in received.module.state_dict().items()}
    sent = Broadcast(1 + 10, 2, params, Payload(ClientTag(True)), LENGTHS)
    own = RelabelledSamples(
        torch.tensor([2, 1, 0, 0]), torch.tensor([True, False, True, False]), torch.tensor([0, 1, 0, 2])
    )
    labels = torch.tensor([0, 1, 0, 2])
    batch = replace(
        step(logits=logits, targets=labels),
        labels=labels,
        broadcast=sent,
        visit=Payload(own),
        passes=received.passes(sent),
        computed={"logits": logits},
    )
    prior = f64([0.5, 0.3, 0.2])
    got = TERM(batch, prior.log())[0].detach().numpy()
    q = np.exp(logits.numpy()) * prior.numpy()
    q /= q.sum(1, keepdims=True)
    t = np.exp(taught.numpy() / 0.8)
    t /= t.sum(1, keepdims=True)
    w = vector.expected["w"][vector.inputs["r"].index(10)]
    ce = -np.log(q[np.arange(4), [2, 1, 0, 0]])
    kl = (t * np.log(t / q)).sum(1)
    share = np.array([0, w, 0, w])
    np.testing.assert_allclose(got, (1 - share) * ce + share * kl, rtol=1e-8)
    clean = replace(batch, broadcast=replace(sent, extras=Payload(ClientTag(False))))
    np.testing.assert_allclose(TERM(clean, prior.log())[0], -np.log(q[np.arange(4), labels]), rtol=1e-12)


def test_every_class_counts_at_least_once_in_the_prior() -> None:
    samples = federation([torch.zeros(5, 1, 2, 2)], [torch.tensor([0, 0, 0, 1, 1])]).samples(0)
    log_prior = TERM.begin(network(Logits()), task(Logits(), samples), None)
    np.testing.assert_allclose(log_prior, np.log([3 / 6, 2 / 6, 1 / 6]), rtol=1e-12)


# --------------------------------------------------------------------------------------------------------- exchange


def result(client: int, value: float, samples: int = 10, reports: Payload | None = None) -> ClientResult:
    return ClientResult(client, samples, {"w": f64([value])}, ClientState(), reports or Payload(), 0.0, 1, True)


def gathered(round: int, *results: ClientResult) -> Gathered:
    stage = 1 if round == 0 else 2
    return Gathered(Broadcast(round, stage, {"w": f64([0.0])}, lengths=LENGTHS), results, None, Payload(), 42)


def test_clients_are_split_before_their_models_are_combined_and_the_clean_ones_alone_count() -> None:
    statistics = entries(NEWER)["fedsir.client_split"].inputs["statistics"]
    results = [result(k, float(k), 10 + k, Payload(Alikeness(*two))) for k, two in enumerate(statistics)]
    assert EXCHANGE.wants_models(clock(0)) == "before"
    state = EXCHANGE.gathered(EXCHANGE.init(9, {}), gathered(0, *results))
    assert state.noisy.tolist() == [False] * 3 + [True] * 5 + [False]
    known = Payload(*EXCHANGE.known(state))
    mean = CleanMean()
    assert mean.by_samples
    combined = mean.combine({"w": f64([9.0])}, [mean.block({"w": f64([9.0])}, results, known)], known)
    assert combined.params["w"].item() == pytest.approx((0 * 10 + 1 * 11 + 2 * 12) / 33)
    nobody = Payload(ClientTags(torch.ones(9, dtype=torch.bool)))
    assert mean.combine({"w": f64([9.0])}, [mean.block({}, [], nobody)], nobody).params["w"].item() == 9.0
    (found,) = EXCHANGE.findings(state, {}, known)
    assert isinstance(found, NoisyClients)
    assert found.scores["off_mean"][0] == statistics[0][0]


def test_labels_are_renewed_from_the_mean_of_the_clean_models_of_the_round_before() -> None:
    noisy = torch.tensor([False, True, False])
    state = SubspaceState(noisy, torch.zeros(3, 2, dtype=torch.float64))
    assert [EXCHANGE.wants_models(clock(r)) for r in (1, 2, 3, 4)] == ["no", "after", "no", "after"]
    after = EXCHANGE.gathered(state, gathered(2, result(0, 1.0, 10), result(1, 9.0), result(2, 4.0, 20)))
    assert after.reference is not None
    assert after.reference["w"].item() == pytest.approx(3.0)
    assert EXCHANGE.before_round(after, clock(2)) is None
    job = EXCHANGE.before_round(after, clock(3))
    assert isinstance(job, MeasureSubspaces)
    first = [EXCHANGE.send(after, k, clock(3)) for k in range(3)]
    assert [len(sent) for sent in first] == [2, 1, 2], "the reference goes to clean clients"
    own = ClassSubspaces.of(normal(40, 3).float(), torch.arange(40) % 2, 3, 2)
    ready = EXCHANGE.receive(after, {0: Payload(own), 1: Payload()}, 1)
    assert isinstance(ready.agreed, ClassConsensus)
    then = [EXCHANGE.send(ready, k, clock(3)) for k in range(3)]
    assert [[type(one) for one in sent] for sent in then] == [
        [ClientTag],
        [ClientTag, ReferenceModel, ClassConsensus],
        [ClientTag],
    ]
    over = EXCHANGE.gathered(ready, gathered(3, result(0, 1.0)))
    assert (over.reference, over.agreed) == (None, None)
    assert EXCHANGE.gathered(state, gathered(2, result(1, 9.0))).reference is None, "no clean client was there"
    assert EXCHANGE.gathered(replace(state, noisy=~noisy | True), gathered(2, result(1, 9.0))).reference is None


def test_a_noisy_client_relabels_by_the_reference_and_starts_from_the_labels_that_it_holds() -> None:
    module = MLP([5], 0.0)((1, 2, 2), 3).double()
    pixels = normal(30, 1, 2, 2)
    samples = federation([pixels], [torch.arange(30) % 3]).samples(0)
    net = network(module, transform=federation([pixels], [torch.arange(30) % 3]).dataset.transform)
    reference = {name: 1.5 * p for name, p in net.params().items()}
    features = net.at(reference).outputs(samples, names=("features",))["features"]
    own = ClassSubspaces.of(features, samples.given, 3, 2)
    opened = MeasureSubspaces(2)(net, task(module, samples, extras=Payload(ReferenceModel(reference))))
    sent = opened.reports.one(ClassSubspaces)
    np.testing.assert_allclose(sent.directions.abs(), own.directions.abs(), atol=1e-5)
    assert not len(MeasureSubspaces(2)(net, task(module, samples)).reports)
    agreed = consensus({0: own}, 1, 0.0)
    expected, same = relabelled(features, samples.given, agreed)
    work = task(module, samples, stage=2, extras=Payload(ClientTag(True), ReferenceModel(reference), agreed))
    visit, kept = EXCHANGE.begin(net, work)
    found = visit.one(RelabelledSamples)
    assert torch.equal(found.labels, expected)
    assert torch.equal(found.agreed, same)
    assert kept.one(RelabelledSamples) is found
    later = task(module, samples, stage=2, extras=Payload(ClientTag(True)), state=ClientState(extras=kept))
    assert EXCHANGE.begin(net, later)[0].one(RelabelledSamples) is found
    plain = EXCHANGE.begin(net, task(module, samples))[0].one(RelabelledSamples)
    assert torch.equal(plain.labels, samples.given)
    assert not plain.agreed.any(), "before labels are renewed all samples are in dispute"
    state = SubspaceState(torch.tensor([True]), torch.zeros(1, 2, dtype=torch.float64))
    _, suspected = EXCHANGE.findings(state, {0: ClientState(extras=kept)}, Payload())
    assert isinstance(suspected, SuspectedSamples)
    assert torch.equal(suspected.mask, expected != samples.given)


def test_what_is_reported_is_of_the_trained_model_in_the_round_of_the_comparison() -> None:
    module = MLP([5], 0.0)((1, 2, 2), 3).double()
    pixels, labels = normal(60, 1, 2, 2), torch.arange(60) % 3
    samples = federation([pixels], [labels]).samples(0)
    net = network(module, transform=federation([pixels], [labels]).dataset.transform)
    work = task(module, samples)
    now = replace(work, broadcast=replace(work.broadcast, lengths=LENGTHS))
    sent = EXCHANGE.report(net, now, fitted({}))[0].one(Alikeness)
    assert (sent.mean, sent.energy) == alikeness(net.logits(samples, output="features"), labels, 20)
    late = replace(now, broadcast=replace(now.broadcast, round=1, stage=2))
    assert not len(EXCHANGE.report(net, late, fitted({}))[0])


def test_what_does_nothing_is_warned_of_and_networks_without_features_are_refused() -> None:
    def said(part: Any, *lengths: int) -> str | None:
        text: str | None = part.caution(Setting({}, lengths, ONE_STEP, "method.x"))
        return text

    assert said(EXCHANGE, 1, 6) is None
    assert "the first" in (said(EXCHANGE, 0, 6) or "")
    assert "ever renewed" in (said(replace(EXCHANGE, every=6), 1, 6) or "")
    assert said(replace(EXCHANGE, every=0), 1, 6) is None
    assert "ramp_end" in (said(TERM, 1, 20) or "")
    assert said(TERM, 1, 50) is None
    setting = Setting({}, LENGTHS, ONE_STEP)
    assert "head" in (EXCHANGE.refuses(torch.nn.Linear(2, 2), [], setting) or "")
    assert EXCHANGE.refuses(MLP([5], 0.0)((1, 2, 2), 3), [], setting) is None
