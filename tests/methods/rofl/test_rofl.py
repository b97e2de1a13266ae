"""RoFL: a batch and the server's centroids against the vectors and against loops, a visit's two ends, and a run."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.config import compose
from flnl.core.errors import UserError
from flnl.core.findings import SuspectedSamples
from flnl.core.messages import Broadcast, ClientState
from flnl.core.parts import Setting
from flnl.core.payload import Payload, size_in_bytes
from flnl.core.step import FEATURES, LOGITS, Mixing, Step
from flnl.methods.rofl.centroids import GlobalCentroids, class_means, combined, cosine, moved, nearest_class
from flnl.methods.rofl.exchange import CentroidState, ClassCentroids, ClientCentroids, DoubtedSamples
from flnl.methods.rofl.loss import RoFL, Visit
from flnl.models.layers import Classifier
from tests.properties.runs import assembled, difference, run
from tests.registry import TINY
from tests.toys import ONE_STEP, START, federation, fitted, mlp, network, step, task
from tests.vectors.vectors import federated

TERM = RoFL(
    forget_rate=0.3,
    num_gradual=4,
    schedule="paper",
    T_pl=10,
    lambda_cen=1.0,
    lambda_e=0.8,
    cen_reduction="mean",
    detach_features=False,
)
EXCHANGE = ClassCentroids()


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def visit(centroids: Tensor, predicted: Tensor) -> Visit:
    """A visit before its first step."""
    losses = torch.zeros(len(predicted), dtype=centroids.dtype)
    return Visit(centroids, predicted, losses, torch.zeros_like(losses, dtype=torch.bool))


def batch(logits: Tensor, features: Tensor, targets: Tensor, round: int, **others: Any) -> Step:
    """A step with these outputs, in this round."""
    made = step(logits=logits, targets=targets)
    sent = Broadcast(round, 1, {})
    return replace(made, computed={LOGITS: logits, FEATURES: features}, broadcast=sent, **others)


def graded(term: RoFL, made: Step, before: Visit) -> tuple[Tensor, Tensor, Tensor, Visit]:
    """The batch's loss, its gradients by logits and features (0 without one), and the visit after it."""
    logits, features = (made.output(name).detach().clone().requires_grad_() for name in (LOGITS, FEATURES))
    losses, after = term(replace(made, computed={LOGITS: logits, FEATURES: features}), before)
    assert losses.shape == logits.shape[:1]
    loss = losses.mean() if made.weight is None else (made.weight * losses).sum() / made.weight.sum()
    by_logits, by_features = torch.autograd.grad(loss, (logits, features), allow_unused=True)
    return loss.detach(), by_logits, torch.zeros_like(features) if by_features is None else by_features, after


# -------------------------------------------------------------------------------------------------------- vectors


def test_a_batch() -> None:
    entry = federated("rofl.client_batch")
    given = entry.inputs
    made = batch(f64(given["logits"]), f64(given["features"]), torch.tensor(given["labels"]), given["round"])
    before = visit(f64(given["centroids"]), torch.tensor(given["global_pseudo_labels"]))
    released = replace(
        TERM, forget_rate=given["forget_rate"], num_gradual=1, T_pl=given["T_pl"], cen_reduction="sum"
    )  # of the kept samples all agree with their centroids, so no label is replaced
    loss, by_logits, by_features, after = graded(released, made, before)
    assert float(loss) == entry.approx("total")
    kept, left_out = entry.expected["small_loss_idx"], 2
    assert after.doubted.nonzero().flatten().tolist() == [left_out]
    np_mask = [float(i in kept and not bool(after.doubted[i])) for i in range(4)]
    assert np_mask == entry.expected["mask"]
    assert after.centroids.tolist() == [entry.near(row) for row in entry.expected["updated_centroids"]]
    assert by_logits[left_out].tolist() == [0, 0, 0]
    assert by_features[left_out].tolist() == [0, 0]

    def part(**values: Any) -> float:
        return float(graded(replace(released, **values), made, before)[0])

    fitted_alone = part(lambda_cen=0.0, lambda_e=0.0)
    assert fitted_alone == entry.approx("L_c")
    assert part(lambda_cen=2.5, lambda_e=0.0) - fitted_alone == entry.approx("L_cen")  # 2.5 · 4 / 10 = 1
    assert part(lambda_cen=0.0, lambda_e=1.0) - fitted_alone == entry.approx("L_e")
    mean = part(cen_reduction="mean")
    assert mean == pytest.approx(0.9102, abs=5e-5)
    assert mean != entry.approx("total")
    assert part(cen_reduction="mean", lambda_cen=2.5, lambda_e=0.0) - fitted_alone == pytest.approx(0.08 / 3, abs=1e-7)


def test_features_are_detached_on_demand_only() -> None:
    """The code that others ran detaches them, so that the distance has a value but no gradient."""
    given = federated("rofl.client_batch").inputs
    made = batch(f64(given["logits"]), f64(given["features"]), torch.tensor(given["labels"]), given["round"])
    before = visit(f64(given["centroids"]), torch.tensor(given["global_pseudo_labels"]))
    trained, detached = (graded(replace(TERM, detach_features=d), made, before) for d in (False, True))
    assert trained[0] == detached[0]
    assert detached[2].abs().sum() == 0
    away = f64(given["features"]) - f64(given["centroids"])[torch.tensor(given["labels"])]
    wanted = 0.4 * 2 / 2 * away * f64([1, 0, 0, 1])[:, None]  # ⌊0.7 · 4⌋ = 2 are kept: 0 and 3
    torch.testing.assert_close(trained[2], wanted, rtol=1e-12, atol=1e-15)


def test_centroids_of_opposite_clients_stay_between_them() -> None:
    """Cosines of both signs divided by their sum, close to 0, gave a centroid far from all clients'."""
    entry = federated("rofl.round0_blowup")
    before, clients = f64(entry.inputs["f_G"]), f64(entry.inputs["client_centroids"])
    cosines = cosine(before, clients)[:, 0]
    assert cosines.tolist() == entry.approx("cosines")
    ours = combined(before, clients, torch.tensor([[3], [1]]))
    assert ours.tolist() == clients[0].tolist()  # the only one that agrees
    assert ours[0].tolist() != entry.near(entry.expected["combination"][0])
    first = combined(torch.zeros(1, 2, dtype=torch.float64), clients, torch.tensor([[3], [1]]))
    torch.testing.assert_close(first, (3 * clients[0] + clients[1]) / 4, rtol=1e-12, atol=0)


# ------------------------------------------------------------------------------------------------ a batch, by loops


def by_definition(
    term: RoFL, logits: Tensor, features: Tensor, labels: Tensor, before: Visit, round: int
) -> tuple[Tensor, Tensor, set[int]]:
    """Loss, centroids and doubted samples, sample by sample; gradients flow to logits and features."""
    size, classes = logits.shape
    losses = [-logits[i].log_softmax(0)[labels[i]] for i in range(size)]
    forget = term.forget_rate * min(round / term.num_gradual, 1.0)
    kept = sorted(range(size), key=lambda i: float(losses[i].detach()))[: max(1, int((1 - forget) * size + 1e-9))]
    total, agreeing = torch.zeros((), dtype=torch.float64), set()
    strength = term.lambda_cen * min(1.0, round / term.T_pl)
    for i in kept:
        cosines = [float(F.cosine_similarity(before.centroids[j], features[i].detach(), dim=0)) for j in range(classes)]
        agrees = cosines.index(max(cosines)) == int(labels[i])
        target = labels[i] if agrees or round < term.T_pl else before.predicted[i]
        p = logits[i].softmax(0)
        loss = -p[target].log() - term.lambda_e * (p * p.log()).sum()
        if agrees:
            agreeing.add(i)
            far = (features[i] - before.centroids[labels[i]]).square().sum()
            loss = loss + strength * far * (len(kept) if term.cen_reduction == "sum" else 1)
        total = total + loss / len(kept)
    after = []
    for j in range(classes):
        mine = [features[i].detach() for i in kept if labels[i] == j]
        centroid = before.centroids[j]
        if mine:
            mean = torch.stack(mine).mean(0)
            share = float(F.cosine_similarity(centroid, mean, dim=0)) ** 2
            centroid = (1 - share) * centroid + share * mean
        after.append(centroid)
    return total, torch.stack(after), set(range(size)) - agreeing


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("round", [0, 2, 9, 10, 40])
def test_a_batch_is_as_defined(round: int, reduction: Any) -> None:
    term = replace(TERM, cen_reduction=reduction)
    labels, predicted = torch.arange(9) % 3, (torch.arange(9) + 1) % 3
    features = normal(9, 5, seed=1).abs() + 2 * F.one_hot(labels, 5) * (torch.arange(9) < 6)[:, None]
    before = visit(class_means(features, labels, 4), predicted)
    before.centroids[3] = 0.0  # a class without a centroid
    logits = 0.5 * normal(9, 4, seed=2) + F.one_hot(labels, 4)
    loss, by_logits, by_features, after = graded(term, batch(logits, features, labels, round), before)
    z, f = logits.clone().requires_grad_(), features.clone().requires_grad_()
    wanted, centroids, doubted = by_definition(term, z, f, labels, before, round)
    assert 0 < len(doubted) < 9
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-12, atol=1e-14)
    gradients = torch.autograd.grad(wanted, (z, f), allow_unused=True)
    torch.testing.assert_close(by_logits, gradients[0], rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(by_features, torch.zeros_like(f) if round == 0 else gradients[1], rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(after.centroids, centroids, rtol=1e-12, atol=1e-14)
    assert {*after.doubted.nonzero().flatten().tolist()} == doubted
    torch.testing.assert_close(after.loss, F.cross_entropy(logits, labels, reduction="none"), rtol=1e-12, atol=1e-14)
    assert after.predicted is before.predicted


def test_doubtful_labels_are_replaced_from_their_round_on() -> None:
    logits, labels, predicted = normal(4, 3), torch.tensor([0, 1, 2, 0]), torch.tensor([2, 2, 2, 2])
    features = f64([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.1], [0.0, 1.0, 0.1]])  # the last two disagree
    before = visit(torch.eye(3, dtype=torch.float64), predicted)
    term = replace(TERM, forget_rate=0.0, lambda_cen=0.0, lambda_e=0.0)
    early, late = (graded(term, batch(logits, features, labels, round), before)[0] for round in (9, 10))
    torch.testing.assert_close(early, F.cross_entropy(logits, labels), rtol=1e-12, atol=0)
    torch.testing.assert_close(late, F.cross_entropy(logits, torch.tensor([0, 1, 2, 2])), rtol=1e-12, atol=0)
    at_once = graded(replace(term, T_pl=0), batch(logits, features, labels, 0), before)[0]
    assert at_once == late


@pytest.mark.parametrize(("schedule", "kept"), [("paper", [10, 8, 7, 5, 4, 4]), ("released", [10, 8, 6, 4, 4, 4])])
def test_samples_are_left_out_by_the_schedule(schedule: Any, kept: list[int]) -> None:
    """Of 10 samples, up to 60 % over 4 rounds."""
    term = replace(TERM, forget_rate=0.6, schedule=schedule)
    logits, features = normal(10, 3), normal(10, 2, seed=1)
    left = []
    for round in range(6):
        made = batch(logits, features, torch.arange(10) % 3, round)
        _, by_logits, _, _ = graded(term, made, visit(normal(3, 2, seed=2), torch.zeros(10, dtype=torch.int64)))
        left.append(int((by_logits.abs().sum(1) > 0).sum()))
    assert left == kept


def test_at_least_one_sample_is_kept() -> None:
    logits = normal(3, 3)
    made = batch(logits, normal(3, 2), torch.arange(3), 8)
    loss, *_ = graded(
        replace(TERM, forget_rate=1.0, lambda_cen=0.0, lambda_e=0.0), made, visit(normal(3, 2), torch.arange(3))
    )
    torch.testing.assert_close(loss, F.cross_entropy(logits, torch.arange(3), reduction="none").min())


def test_samples_of_weight_zero_are_no_candidates_and_others_count_by_weight() -> None:
    logits, labels = normal(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    features = 3.0 * F.one_hot(labels, 3) + normal(6, 3, seed=1).abs()
    before = visit(torch.eye(3, dtype=torch.float64), labels)
    weight = f64([1.0, 0.0, 2.0, 0.5, 0.0, 3.0])
    term = replace(TERM, forget_rate=0.4, lambda_cen=0.0, lambda_e=0.0)
    loss, _, _, after = graded(term, batch(logits, features, labels, 8, weight=weight), before)
    losses = F.cross_entropy(logits, labels, reduction="none")
    kept = sorted([0, 2, 3, 5], key=lambda i: float(losses[i]))[:2]  # floor(0.6 * 4)
    wanted = sum(weight[i] * losses[i] for i in kept) / sum(weight[i] for i in kept)
    torch.testing.assert_close(loss, torch.as_tensor(wanted), rtol=1e-12, atol=0)
    assert {*after.doubted.nonzero().flatten().tolist()} == {0, 2, 3, 5} - {*kept}
    none, by_logits, _, after = graded(term, batch(logits, features, labels, 8, weight=weight * 0 + 1e-300), before)
    assert bool(none.isfinite() & by_logits.isfinite().all())
    losses, after = term(batch(logits, features, labels, 8, weight=torch.zeros(6)), before)
    assert losses.tolist() == [0.0] * 6
    assert torch.equal(after.centroids, before.centroids)


def test_mixed_targets_are_judged_by_the_label_of_the_larger_share() -> None:
    labels, partner, share = torch.tensor([0, 1, 2, 0]), torch.tensor([1, 2, 3, 0]), 0.7
    hot = torch.eye(3, dtype=torch.float64)
    targets = share * hot[labels] + (1 - share) * hot[labels[partner]]
    predicted = torch.tensor([1, 1, 0, 2])
    features = f64([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.1], [0.0, 1.0, 0.1]])  # the last two disagree
    logits, before = normal(4, 3), visit(hot.clone(), predicted)
    term = replace(TERM, forget_rate=0.0, lambda_cen=0.0, lambda_e=0.0)
    soft = share * hot[predicted] + (1 - share) * hot[predicted[partner]]
    for round, wanted in ((3, targets), (12, torch.cat([targets[:2], soft[2:]]))):
        made = batch(logits, features, targets, round, labels=labels, mixing=Mixing(share, partner))
        loss, _, _, after = graded(term, made, before)
        torch.testing.assert_close(loss, -(wanted * logits.log_softmax(1)).sum(1).mean(), rtol=1e-12, atol=0)
        assert after.doubted.tolist() == [False, False, True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [100.0, 1000.0])
def test_certain_predictions_and_features_of_zero_have_finite_gradients(gap: float, dtype: torch.dtype) -> None:
    logits = gap * torch.eye(3, dtype=dtype)
    features = torch.zeros(3, 2, dtype=dtype)
    before = visit(torch.zeros(3, 2, dtype=dtype), torch.tensor([1, 1, 0]))
    loss, by_logits, by_features, after = graded(TERM, batch(logits, features, torch.tensor([1, 1, 0]), 20), before)
    assert bool(loss.isfinite() & by_logits.isfinite().all() & by_features.isfinite().all())
    assert bool((after.centroids == 0).all())


def test_only_a_difference_in_direction_slows_a_centroid() -> None:
    centroids = f64([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    means = f64([[3.0, 0.0], [0.0, 3.0], [0.0, 0.0], [2.0, 2.0]])
    assert moved(centroids, means).tolist() == [[3, 0], [1, 0], [1, 0], [0, 0]]
    assert nearest_class(f64([[2.0, 0.1], [0.0, 5.0]]), f64([[0.1, 0.0], [0.0, 9.0]])).tolist() == [0, 1]


# ------------------------------------------------------------------------------------------------------ the server


def test_the_server_weights_clients_by_agreement_class_by_class() -> None:
    before, clients = normal(3, 4), normal(3, 4) + 0.5 * normal(5, 3, 4, seed=1)
    before[2], clients[3, 1] = -clients[:, 2].mean(0), 0.0  # nearly nobody agrees on class 2; client 3 has no class 1
    counts = torch.randint(1, 9, (5, 3), generator=torch.Generator().manual_seed(0))
    ours = combined(before, clients, counts)
    for j in range(3):
        weights = [max(0.0, float(F.cosine_similarity(before[j], clients[k, j], dim=0))) for k in range(5)]
        if sum(weights) == 0:
            weights = counts[:, j].tolist()
        wanted = sum(w * clients[k, j] for k, w in enumerate(weights)) / sum(weights)
        torch.testing.assert_close(ours[j], wanted, rtol=1e-12, atol=1e-14)


def test_without_agreement_samples_count_and_without_samples_nothing_changes() -> None:
    before = f64([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    clients = f64([[[-1.0, 1.0], [0.0, 0.0], [0.0, 0.0]], [[-3.0, 0.0], [0.0, 0.0], [2.0, 2.0]]])
    counts = torch.tensor([[3, 0, 0], [1, 0, 5]])
    assert combined(before, clients, counts).tolist() == [[-1.5, 0.75], [1, 0], [2, 2]]


def test_reports_are_combined_in_the_order_of_clients_without_those_that_are_not_finite() -> None:
    start = EXCHANGE.init(9, {})
    assert EXCHANGE.broadcast(start, START) == ()
    assert EXCHANGE.receive(start, {0: Payload(), 4: Payload(2)}, 1) is start
    values = {k: normal(3, 2, seed=k).float() for k in (4, 1, 7)}
    values[7][0, 0] = math.nan
    reports = {k: Payload(ClientCentroids(v, torch.full((3,), k))) for k, v in values.items()}
    state = EXCHANGE.receive(start, reports, 1)
    assert state.values is not None
    assert state.values.dtype == torch.float32
    torch.testing.assert_close(state.values, (values[1] + 4 * values[4]) / 5)
    assert difference(EXCHANGE.receive(start, dict(reversed(reports.items())), 1), state) is None
    (sent,) = EXCHANGE.broadcast(state, START)
    assert sent.values is state.values
    assert EXCHANGE.receive(state, {7: reports[7]}, 1) is state
    again = EXCHANGE.receive(state, {1: reports[1]}, 1)
    assert again.values is not None
    agrees = cosine(state.values, values[1]) > 0
    torch.testing.assert_close(again.values[agrees], values[1][agrees])


# --------------------------------------------------------------------------------------------------------- a visit


def visited(**others: Any) -> tuple[Any, Any, Tensor]:
    """A network, the task of a client with classes 0 and 2 alone, and the features of its samples."""
    pixels, labels = normal(6, 1, 2, 2).float(), torch.tensor([0, 0, 2, 2, 2, 0])
    data = federation([pixels], [labels])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(4, 5)), nn.Linear(5, 3)).double()
    net = network(module, transform=data.dataset.transform)
    with torch.no_grad():
        features = module.features(pixels.double())
    return net, task(module, data.samples(0), **others), features


def test_a_first_visit_begins_with_the_means_of_the_clients_classes() -> None:
    net, one, features = visited()
    state = TERM.begin(net, one, None)
    wanted = torch.stack([features[[0, 1, 5]].mean(0), torch.zeros(5), features[[2, 3, 4]].mean(0)])
    torch.testing.assert_close(state.centroids, wanted)
    assert torch.equal(state.predicted, one.labels)
    assert TERM.finish(net, one, fitted({}), state) is None
    net, mended, features = visited(state=ClientState(labels=torch.tensor([1, 1, 1, 1, 1, 0])))
    wanted = torch.stack([features[5], features[:5].mean(0), torch.zeros(5)])
    torch.testing.assert_close(TERM.begin(net, mended, None).centroids, wanted)


def test_a_later_visit_begins_with_what_the_server_sent() -> None:
    sent = normal(3, 5, seed=3)
    net, one, _ = visited(extras=Payload(GlobalCentroids(sent)), round=4)
    assert torch.equal(TERM.begin(net, one, None).centroids, sent)
    sent[1] = 0  # a class that this client does not have either
    assert torch.equal(TERM.begin(net, one, None).centroids, sent)
    sent[0] = 0  # a class that nobody has had before
    net, one, features = visited(extras=Payload(GlobalCentroids(sent)), round=4)
    begun = TERM.begin(net, one, None).centroids
    torch.testing.assert_close(begun, torch.stack([features[[0, 1, 5]].mean(0), sent[1], sent[2]]))


def test_pseudo_labels_are_predictions_of_the_received_model_in_eval_mode() -> None:
    net, one, features = visited(round=10)
    with torch.no_grad():
        predicted = net.module.head(features).argmax(1)
        net.module.head.weight.zero_()  # training has changed the network
    assert torch.equal(TERM.begin(net, one, None).predicted, predicted)
    assert not torch.equal(predicted, one.labels)


def test_a_network_without_features_is_refused() -> None:
    _, one, _ = visited()
    bare = mlp(4, 3).double()
    with pytest.raises(UserError, match=r"method/local=\[rofl\] compares features, but the network has no output"):
        TERM.begin(network(bare), task(bare, one.samples), None)


def test_a_client_reports_its_centroids_and_keeps_what_it_doubts() -> None:
    net, one, _ = visited(state=ClientState(labels=torch.tensor([1, 1, 1, 1, 1, 0])))
    assert [len(p) for p in EXCHANGE.report(net, one, replace(fitted({}), states={"cross_entropy": None}))] == [0, 0]
    doubted = torch.arange(6) > 3
    state = Visit(normal(3, 5), torch.arange(6), normal(6), doubted)
    up, keep = EXCHANGE.report(net, one, replace(fitted({}), states={"other": None, "any": state}))
    sent = up.one(ClientCentroids)
    assert torch.equal(sent.values, state.centroids)
    assert sent.counts.tolist() == [1, 5, 0]  # of the labels that it holds
    (found,) = EXCHANGE.findings(CentroidState(), {4: one.state.keeping(*keep), 5: ClientState()}, Payload())
    assert isinstance(found, SuspectedSamples)
    assert (found.client, found.judged) == (4, one.state.labels)
    assert torch.equal(found.mask, doubted)
    assert found.score is state.loss


def test_a_correction_that_never_begins_is_a_caution() -> None:
    setting = Setting({0: 10}, (4, 7), ONE_STEP, "method.local.rofl")
    assert TERM.caution(setting) is None
    caution = TERM.caution(replace(setting, lengths=(4, 6)))
    assert caution is not None
    assert caution.startswith("method.local.rofl.T_pl=10: the run has 10 rounds")
    assert EXCHANGE.lacks([EXCHANGE]) == ("method/local=[rofl]",)
    assert EXCHANGE.lacks([TERM, EXCHANGE]) == ()


# ---------------------------------------------------------------------------------------------------------- a run

RUN = (
    *(w for w in TINY if "fraction" not in w),
    *("method=rofl", "method.num_gradual=2", "method.T_pl=2", "rounds=3", "noise=symmetric", "noise.eta=0.4"),
    *("fraction=1.0", "precision=64"),
)


def test_a_run_shares_centroids_and_uses_those_of_the_round_before(tmp_path: Path) -> None:
    with assembled(RUN, tmp_path / "run") as parts:
        start, results = parts.state.server.params, parts.results()
        net, dealt = parts.evaluator.network, parts.federation
        states = [result.state.server.exchanges["class_centroids"] for result in results]
        net.load(start)
        counts = torch.zeros(10)
        for client in range(8):
            counts += torch.bincount(dealt.samples(client).given, minlength=10)
        assert counts.min() > 0
        assert all(bool(state.values.any(1).all()) for state in states)
    width, model = 8, size_in_bytes(start)
    down, up = ([getattr(r.state.counters, name) for r in results] for name in ("bytes_down", "bytes_up"))
    centroids, classes = 8 * 10 * width, 8 * 10
    sent = [b - a for a, b in zip([0, *down], down, strict=False)]
    assert sent == [8 * model, 8 * (model + centroids), 8 * (model + centroids)]
    assert [b - a for a, b in zip([0, *up], up, strict=False)] == [8 * (model + centroids + classes)] * 3
    assert difference(states[0], states[1]) is not None


def test_a_run_says_that_it_is_given_the_rate_and_measures_what_it_doubts(tmp_path: Path) -> None:
    done = run(RUN, tmp_path / "run")
    assert done.record["given"] == {"method.local.rofl.forget_rate": 0.4}
    last = next(row for row in reversed(done.lines) if row["kind"] == "evaluation")
    assert {"filter_accuracy", "filter_auc"} <= last.keys()
    doubted = done.state.clients[0].extras.one(DoubtedSamples)
    assert 0 < int(doubted.mask.sum()) < len(doubted.mask)


def test_unknown_noise_asks_for_an_estimate() -> None:
    with pytest.raises(UserError, match=r"method\.forget_rate is the noise rate.* set it to an estimate"):
        compose.resolved(compose.load(["method=rofl", "noise=none"]))
    assert compose.load(["method=rofl", "noise=none", "method.forget_rate=0.2"]).method.local.rofl.forget_rate == 0.2
