"""FedCorr against an independent reading of its algorithm: who trains when, what is estimated, which labels change."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from torch import Tensor

from flnl.config import compose
from flnl.config.check import check_config
from flnl.core.messages import ClientState, Clock, Correction
from flnl.core.method import Method, assemble
from flnl.core.parts import Sampling
from flnl.core.payload import Payload
from flnl.core.state import RoundResult, Spilled
from flnl.data.noise.client import FedCorr as FedCorrNoise
from flnl.methods.fedcorr.corrector import FedCorr, Suspects
from flnl.methods.fedcorr.exchange import Lid, LidScore, LidState, NoiseDirective, NoiseLevel, NoiseLevels, SampleLosses
from flnl.methods.fedcorr.lid import lid_score
from flnl.methods.fedcorr.loss import AdaptiveProximal
from flnl.methods.fedcorr.sampler import CleanOnly
from flnl.numerics.losses import sample_losses
from flnl.numerics.mixture import two_gaussians
from flnl.parts.samplers.uniform import OnePass, Uniform
from tests.toys import (
    ONE_STEP,
    START,
    Composed,
    Logits,
    Point,
    Toward,
    composed,
    equal,
    federation,
    fitted,
    method,
    mlp,
    network,
    random_federation,
    rounds,
    stage,
    task,
    vector,
)

Array = NDArray[np.float64]
TOWARD = {"pull": Toward()}


def at(level: Sequence[float], noisy: Sequence[bool] | None = None) -> Payload:
    """What the server knows."""
    flags = [value > 0 for value in level] if noisy is None else noisy
    return Payload(NoiseLevels(torch.tensor(level, dtype=torch.float64), torch.tensor(flags)))


def sampling(clients: Sequence[int], known: Payload | None = None, *, seed: int = 1, round: int = 0) -> Sampling:
    def ask(job: Any, ids: Sequence[int]) -> list[Any]:
        raise AssertionError("nobody needs to be asked")

    return Sampling(seed, Clock(round, 1), tuple(clients), dict.fromkeys(clients, 1), known or Payload(), ask)


# ------------------------------------------------------------------------------------------- stage 1: who and from what


def pulled(targets: Sequence[float], **sampler: Any) -> list[RoundResult]:
    """One pass over clients that each pull ``Point`` half the way to their target; the seed gives the order."""
    seed = sampler.pop("seed", 1)
    passes = sampler.pop("passes", 1)
    pixels = [torch.full((1, 1, 1, 1), t) for t in targets]
    dealt = federation(pixels, [torch.zeros(1, dtype=torch.int64)] * len(targets))
    part = OnePass(**{"fraction": None, "start": "chain", "cohorts": "partition", **sampler})
    toy = method(stage(local=TOWARD, rounds=None, passes=passes, sampler=part))
    return rounds(toy, dealt, Point(0.0), ONE_STEP, seed=seed)


def test_first_stage_is_a_chain():
    """Each client starts from the model that the client before it has just trained."""
    v = vector("fedcorr.stage1.chain")
    order = [(k,) for k in v.inputs["order"]]
    runs = (pulled(v.inputs["targets"], seed=seed) for seed in range(1, 200))
    found = next(run for run in runs if [r.cohort for r in run] == order)
    assert v.inputs["w0"] == 0
    assert [r.state.server.params["w"].item() for r in found] == v.approx("after_each_client")
    assert found[-1].state.server.params["w"].item() == v.approx("end_of_iteration")
    assert [r.state.counters.participations for r in found] == [1, 2, 3]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_chain_goes_through_all_passes(seed: int):
    targets, w = [1.0, -2.0, 4.0, 7.0], 0.0
    found = pulled(targets, seed=seed, passes=3)
    assert len(found) == 12
    for result in found:
        (client,) = result.cohort
        w += 0.5 * (targets[client] - w)
        assert result.state.server.params["w"].item() == pytest.approx(w, rel=1e-12)


def test_first_stage_read_as_a_parallel_average():
    """All clients of a pass start from the same model, and their models are averaged at its end."""
    v = vector("fedcorr.stage1.chain")
    (found,) = pulled(v.inputs["targets"], start="parallel_average")
    assert found.cohort == (0, 1, 2)
    assert found.state.server.params["w"].item() == v.approx("parallel_average_would_be")


@pytest.mark.parametrize(("clients", "fraction", "group"), [(4, None, 1), (10, 0.1, 1), (25, 0.1, 2), (30, 0.1, 3)])
def test_a_pass_visits_every_client_once(clients: int, fraction: float | None, group: int):
    """In groups of ⌊γ₁ N⌋ without replacement, in a fresh order each pass; the last group may be smaller."""
    passes = 3
    found = pulled([float(k) for k in range(clients)], fraction=fraction, passes=passes)
    each = math.ceil(clients / group)
    assert len(found) == passes * each
    orders = []
    for first in range(0, len(found), each):
        cohorts = [r.cohort for r in found[first : first + each]]
        assert [len(c) for c in cohorts] == [min(group, clients - i * group) for i in range(each)]
        assert sorted(k for c in cohorts for k in c) == list(range(clients))
        orders.append(cohorts)
    assert orders[0] != orders[1] != orders[2] != orders[0]
    assert found[-1].state.counters.participations == passes * clients
    again = pulled([0.0] * clients, fraction=fraction, seed=2)
    assert [r.cohort for r in again] != orders[0]


def test_cohorts_can_be_drawn_anew_in_each_round_of_a_pass():
    """As many rounds, no partition: some clients are visited twice, others not at all."""
    found = [r.cohort for r in pulled([0.0] * 10, fraction=0.3, passes=50, cohorts="independent")]
    assert len(found) == 50 * 4
    assert {len(set(cohort)) for cohort in found} == {3}  # the last group of a pass is no smaller
    first = sorted(k for cohort in found[:4] for k in cohort)
    assert first != sorted(set(first))
    visits = np.bincount([k for cohort in found for k in cohort], minlength=10)
    assert visits.sum() == 600
    assert visits.min() > 35  # 60 on average, standard deviation 6.5
    assert len(set(found)) > 60  # of 120 cohorts, so they are no repeated ones


def test_a_group_is_averaged_and_handed_on():
    targets, w = [float(k * k) for k in range(20)], 0.0
    for result in pulled(targets, fraction=0.1, passes=2):
        w = float(np.mean([w + 0.5 * (targets[k] - w) for k in result.cohort]))
        assert result.state.server.params["w"].item() == pytest.approx(w, rel=1e-12)


def test_every_client_is_as_likely_to_be_first():
    firsts = np.bincount([pulled([0.0] * 4, seed=seed)[0].cohort[0] for seed in range(1, 201)], minlength=4)
    assert firsts.sum() == 200
    assert firsts.min() > 25


def test_clients_without_data_are_no_part_of_a_pass():
    order = [OnePass(None, "chain", "partition")(sampling([0, 2, 5], round=r))[0] for r in range(3)]
    assert sorted(order) == [0, 2, 5]


# ---------------------------------------------------------------------------------------------------- the exchange


LID = Lid(k=3, guard=True, loss="ce", inference_augment=False, gmm_tol=1e-3)


def folded(scores: Sequence[Mapping[int, float]], clients: int) -> LidState:
    """The server's state after reports arrived in this order."""
    state = LID.init(clients, {})
    for reported in scores:
        state = LID.receive(state, {k: Payload(LidScore(v)) for k, v in reported.items()}, 1)
    return state


def test_split_of_clients():
    v = vector("fedcorr.gmm.clients")
    scores = v.inputs["cumulative_lid"]
    state = LID.split(folded([{k: s} for k, s in enumerate(scores)], len(scores)))
    assert state.noisy.nonzero()[:, 0].tolist() == v.expected["noisy_clients"]
    assert list(state.mixture[:2]) == v.approx("means_sorted")
    assert [LID.send(state, k, START)[0].noisy for k in range(len(scores))] == [
        k in v.expected["noisy_clients"] for k in range(len(scores))
    ]


def test_scores_add_up_and_the_split_is_of_their_sums():
    """The last scores alone would split otherwise."""
    state = folded([{0: 1.0, 1: 1.1, 2: 9.0, 3: 9.1}, {0: 2.0, 1: 2.1}, {2: 1.0, 3: 1.1}], 4)
    assert state.cumulative.tolist() == pytest.approx([3.0, 3.2, 10.0, 10.2])
    assert state.latest.tolist() == pytest.approx([2.0, 2.1, 1.0, 1.1])
    assert LID.split(state).noisy.tolist() == [False, False, True, True]


def test_clients_that_never_reported_are_outside_the_split():
    """A sum of nothing is no small dimensionality: as the clean component it would call all the others noisy."""
    v = vector("fedcorr.gmm.clients")
    scores = v.inputs["cumulative_lid"]
    state = LID.split(folded([dict(enumerate(scores))], len(scores) + 4))
    assert state.noisy.nonzero()[:, 0].tolist() == v.expected["noisy_clients"]
    assert list(state.mixture[:2]) == v.approx("means_sorted")


def test_before_the_first_split_nobody_is_noisy():
    state = LID.init(3, {})
    assert LID.send(state, 1, START) == (NoiseDirective(noisy=False, level=0.0),)
    (known,) = LID.known(state)
    assert known.level.tolist() == [0.0] * 3
    assert known.noisy.tolist() == [False] * 3
    nobody = LID.split(state)
    assert not nobody.noisy.any()
    alone = LID.split(folded([{1: 3.0}], 3))
    assert not alone.noisy.any()


def test_levels_are_reported_replaced_and_zero_for_the_clean():
    state = LID.split(folded([{0: 1.0, 1: 1.1, 2: 9.0, 3: 9.1}], 4))
    state = LID.receive(state, {2: Payload(NoiseLevel(0.5)), 3: Payload(NoiseLevel(0.25))}, 1)
    assert state.level.tolist() == [0.0, 0.0, 0.5, 0.25]
    assert LID.send(state, 2, START) == (NoiseDirective(noisy=True, level=0.5),)
    assert state.cumulative.tolist() == [1.0, 1.1, 9.0, 9.1]
    # Client 2 turns out clean after the next pass, client 1 noisy: its level is not that of an earlier pass.
    later = LID.receive(state, {k: Payload(LidScore(v)) for k, v in enumerate([1.0, 60.0, 1.0, 61.0])}, 1)
    later = LID.split(later)
    assert later.noisy.tolist() == [False, True, False, True]
    assert later.level.tolist() == [0.0, 0.0, 0.0, 0.25]
    later = LID.receive(later, {1: Payload(NoiseLevel(0.75))}, 1)
    assert later.level.tolist() == [0.0, 0.75, 0.0, 0.25]


def test_a_model_whose_logits_overflow_makes_no_client_look_clean() -> None:
    """Its parameters are finite, so the client is not left out; the score of NaN predictions would be 0, the lowest."""
    module = mlp(4, 3).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(1e200)
    net = network(module)
    up, kept = LID.report(net, task(net.module, random_federation([12]).samples(0)), fitted(net.params()))
    assert (len(up), len(kept)) == (0, 0)
    state = LID.receive(LID.init(2, {}), {0: up}, 1)
    assert LID.split(state) is state, "nobody has reported"
    later = LID.split(LID.receive(state, {1: Payload(LidScore(3.0))}, 1))
    assert later.noisy.tolist() == [False, False]
    assert state.visits.tolist() == [0, 0]


@pytest.mark.parametrize("loss", ["ce", "ce_of_softmax"])
def test_what_a_client_reports(loss: Literal["ce", "ce_of_softmax"]):
    """One number goes up, the LID of its softmax vectors; the losses, of the labels it holds, stay."""
    net = network(mlp(4, 3))
    samples = random_federation([12]).samples(0)
    work = task(net.module, samples, state=ClientState(labels=(samples.given + 1) % 3))
    up, kept = replace(LID, loss=loss).report(net, work, fitted(net.params()))
    logits = net.module.eval()(samples.read().double()).detach()
    assert up.one(LidScore).value == pytest.approx(lid_score(torch.softmax(logits, 1), 3), rel=1e-9)
    expected = sample_losses(logits, work.labels, of_softmax=loss == "ce_of_softmax")
    torch.testing.assert_close(kept.one(SampleLosses).values, expected, rtol=1e-9, atol=1e-12)
    assert [type(v) for v in up] == [LidScore]
    assert [type(v) for v in kept] == [SampleLosses]


# ------------------------------------------------------------------------------------------------------ correction


def relabelled(
    labels: Sequence[int], rank: Array, among: NDArray[np.bool_], probabilities: Array, theta: float, pi: float
) -> list[int]:
    """Eqs. 6 and 7: of the suspects the ⌊π |D^n|⌋ of largest loss, and of those the ones predicted with at least θ."""
    suspects = sorted(np.flatnonzero(among).tolist(), key=lambda i: -rank[i])
    count = math.floor(Fraction(str(pi)) * len(suspects))
    new = list(labels)
    for i in suspects[:count]:
        if probabilities[i].max() >= theta:
            new[i] = int(probabilities[i].argmax())
    return new


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))


def cross_entropy(logits: Array, labels: Sequence[int]) -> Array:
    return np.asarray(-np.log(softmax(logits)[np.arange(len(labels)), list(labels)]))


CORRECTOR = FedCorr(
    theta=0.5,
    pi=0.5,
    kappa=0.1,
    relabel=True,
    rank_loss="local",
    relabel_set="paper",
    strict_theta=False,
    loss="ce",
    inference_augment=False,
    gmm_tol=1e-3,
)


def corrected(
    corrector: FedCorr,
    rule: str,
    logits: Array,
    labels: Sequence[int],
    losses: Sequence[float] | Array | None = None,
    extras: Payload | None = None,
) -> Correction:
    """What a client that holds ``labels`` and ``losses`` does with a model of these ``logits`` [n, C]."""
    pixels = torch.from_numpy(logits).float()[:, None, None, :]
    dealt = federation([pixels], [torch.tensor(labels)], classes=logits.shape[1])
    net = network(Logits(), classes=logits.shape[1], transform=dealt.dataset.transform)
    kept = extras or Payload()
    if losses is not None:
        kept = kept.including(SampleLosses(torch.tensor(np.asarray(losses), dtype=torch.float64)))
    return corrector.correct(net, task(net.module, dealt.samples(0), state=ClientState(extras=kept)), rule)


def case(seed: int, n: int = 40, classes: int = 4) -> tuple[Array, list[int], Array, NDArray[np.bool_]]:
    """Logits, labels, losses and which of them are in the upper component, plainly."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (n, classes)).astype(np.float32).astype(np.float64)
    noisy = rng.random(n) < 0.4
    losses = np.where(noisy, rng.normal(6, 0.5, n), rng.normal(0.5, 0.1, n))
    return logits, rng.integers(0, classes, n).tolist(), losses, noisy


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("theta", "pi"), [(0.5, 0.5), (0.0, 1.0), (0.7, 0.8), (0.9, 0.3), (0.5, 0.0)])
def test_relabelling_after_a_pass(seed: int, theta: float, pi: float):
    logits, labels, losses, noisy = case(seed)
    found = corrected(replace(CORRECTOR, theta=theta, pi=pi), "top_losses", logits, labels, losses)
    expected = relabelled(labels, losses, noisy, softmax(logits), theta, pi)
    assert found.labels.tolist() == expected
    assert found.labels.dtype == torch.int64
    assert found.reports.one(NoiseLevel).value == noisy.mean()
    assert found.keeps.one(Suspects).mask.tolist() == noisy.tolist()
    np.testing.assert_allclose(found.keeps.one(Suspects).confidence.numpy(), softmax(logits).max(1), rtol=1e-12)
    assert found.weight is None
    if theta < 0.6 and pi > 0:
        assert expected != labels


@pytest.mark.parametrize(
    ("suspects", "pi", "count"), [(5, 0.5, 2), (4, 0.5, 2), (100, 0.29, 29), (100, 0.57, 57), (3, 0.3, 0), (3, 1.0, 3)]
)
def test_number_of_relabelled_samples_is_rounded_down(suspects: int, pi: float, count: int):
    """0.29 · 100 is 28.999… in binary, and still 29. The largest losses are taken, wherever they stand."""
    rng = np.random.default_rng(suspects)
    losses = np.append(rng.uniform(0, 0.1, 2 * suspects), rng.uniform(5, 6, suspects))
    order = rng.permutation(len(losses))
    losses = losses[order]
    logits = np.tile([4.0, 0.0], (len(losses), 1))
    found = corrected(replace(CORRECTOR, pi=pi), "top_losses", logits, [1] * len(losses), losses)
    changed = np.flatnonzero(found.labels.numpy() == 0)
    assert len(changed) == count
    assert set(changed) == set(np.argsort(-losses)[:count])


@pytest.mark.parametrize("seed", range(3))
def test_suspects_after_fine_tuning_are_those_of_that_moment(seed: int):
    """Samples that were suspected after an earlier pass had another label then."""
    logits, labels, _, _ = case(seed)
    earlier = Payload(Suspects(torch.ones(len(labels), dtype=torch.bool), torch.ones(len(labels)).double()))
    found = corrected(CORRECTOR, "all_confident", logits, labels, None, earlier)
    probabilities = softmax(logits)
    expected = (probabilities.argmax(1) != np.array(labels)) & (probabilities.max(1) >= 0.5)
    assert found.keeps.one(Suspects).mask.tolist() == expected.tolist()
    assert 0 < expected.sum() < len(labels)


@pytest.mark.parametrize("rule", ["top_losses", "all_confident"])
def test_confidence_of_exactly_theta_suffices(rule: str):
    """θ as the paper has it, ≥; the released code asks for more."""
    logits = np.array([[0.0, 0.0]] * 4 + [[3.0, 0.0]] * 2)  # probability 0.5 exactly, class 0 first
    losses = [0.1, 0.11, 5.0, 5.1, 5.2, 0.1]
    everything = replace(CORRECTOR, pi=1.0)
    inclusive = corrected(everything, rule, logits, [1] * 6, losses)
    strict = corrected(replace(everything, strict_theta=True), rule, logits, [1] * 6, losses)
    if rule == "top_losses":
        assert inclusive.labels.tolist() == [1, 1, 0, 0, 0, 1]
        assert strict.labels.tolist() == [1, 1, 1, 1, 0, 1]
    else:
        assert inclusive.labels.tolist() == [0] * 6
        assert strict.labels.tolist() == [1, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("loss", ["ce", "ce_of_softmax"])
def test_ranking_by_the_received_model(loss: Literal["ce", "ce_of_softmax"]):
    """Eq. 6 to the letter: who is a suspect follows from the local losses, who of them comes first from the global."""
    logits, labels, losses, noisy = case(7)
    everywhere = replace(CORRECTOR, theta=0.0, rank_loss="global", loss=loss)
    found = corrected(everywhere, "top_losses", logits, labels, losses)
    received = cross_entropy(logits if loss == "ce" else softmax(logits), labels)
    expected = relabelled(labels, received, noisy, softmax(logits), 0.0, 0.5)
    assert found.labels.tolist() == expected
    assert expected != relabelled(labels, losses, noisy, softmax(logits), 0.0, 0.5)
    assert found.reports.one(NoiseLevel).value == noisy.mean()


def test_without_correction_levels_are_estimated_and_labels_stay():
    logits, labels, losses, noisy = case(3)
    found = corrected(replace(CORRECTOR, relabel=False), "top_losses", logits, labels, losses)
    assert found.labels.tolist() == labels
    assert found.reports.one(NoiseLevel).value == noisy.mean() > 0
    assert replace(CORRECTOR, relabel=False).chosen("top_losses", at([0.0, 0.5]), [0, 1]) == [1]
    assert replace(CORRECTOR, relabel=False).chosen("all_confident", at([0.0, 0.5]), [0, 1]) == []


def test_a_client_without_suspects_changes_nothing():
    """All its losses are the same, so there are no two kinds of sample."""
    logits, labels, _, _ = case(3)
    found = corrected(replace(CORRECTOR, theta=0.0, pi=1.0), "top_losses", logits, labels, np.full(len(labels), 0.3))
    assert found.labels.tolist() == labels
    assert found.reports.one(NoiseLevel).value == 0


def test_a_loss_that_is_not_finite_is_the_most_suspicious():
    logits, labels, losses, noisy = case(5)
    losses[np.flatnonzero(noisy)[-1]] = math.inf
    found = corrected(replace(CORRECTOR, theta=0.0, pi=0.1), "top_losses", logits, labels, losses)
    assert found.labels.tolist() == relabelled(labels, losses, noisy, softmax(logits), 0.0, 0.1)


@pytest.mark.parametrize("theta", [0.0, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("pi", [0.0, 0.5])
def test_relabelling_after_finetuning(theta: float, pi: float):
    """All samples, whatever their loss: neither suspicion nor π counts here."""
    logits, labels, losses, _ = case(11)
    found = corrected(replace(CORRECTOR, theta=theta, pi=pi), "all_confident", logits, labels, losses)
    probabilities = softmax(logits)
    expected = np.where(probabilities.max(1) >= theta, probabilities.argmax(1), labels)
    assert found.labels.tolist() == expected.tolist()
    assert found.reports.get(NoiseLevel) is None  # the level is that of the first stage


def test_who_finetunes_and_who_is_relabelled_after_it():
    v = vector("fedcorr.stage2.sets")
    level, kappa = v.inputs["mu_hat"], v.inputs["kappa"]
    clients = list(range(len(level)))
    known = at(level, [k in v.inputs["lid_noisy"] for k in clients])
    chosen = CleanOnly(1.0, kappa)(sampling(clients, known))
    assert sorted(chosen) == v.expected["finetune_clients"]
    paper, released = (replace(CORRECTOR, kappa=kappa, relabel_set=kind) for kind in ("paper", "lid_noisy"))
    assert paper.chosen("all_confident", known, clients) == v.expected["relabel_paper"]
    assert released.chosen("all_confident", known, clients) == v.expected["relabel_official"]
    for corrector in (paper, released):
        assert corrector.chosen("top_losses", known, clients) == v.inputs["lid_noisy"]


def test_the_clean_set_is_what_is_not_relabelled_at_any_level():
    """κ belongs to the clean side, also where the level is a quotient: 3 of 30, 7 of 70."""
    for n in range(10, 400, 10):
        mask = torch.arange(n) < n // 10
        level = [float(mask.double().mean()), 0.0, 0.9]
        assert sorted(CleanOnly(1.0, 0.1)(sampling(range(3), at(level)))) == [0, 1]
        assert CORRECTOR.chosen("all_confident", at(level), range(3)) == [2]


# ----------------------------------------------------------------------------------------------- stage 2: who trains


def test_finetuning_draws_the_usual_number_of_the_clean():
    """⌊γN⌋ of N, not of the clean ones; at most all of these; each as likely, without replacement."""
    level = [0.0] * 12 + [0.5] * 8
    seen = np.zeros(20)
    for round in range(400):
        chosen = CleanOnly(0.3, 0.1)(sampling(range(20), at(level), round=round))
        assert len(chosen) == len(set(chosen)) == 6
        seen[chosen] += 1
    assert (seen[12:] == 0).all()
    assert np.abs(seen[:12] / 400 - 0.5).max() < 0.1
    few = [0.0, 0.05] + [0.5] * 18
    assert sorted(CleanOnly(0.3, 0.1)(sampling(range(20), at(few)))) == [0, 1]


def test_finetuning_with_all_clean_draws_as_fedavg():
    for round in range(5):
        draws = sampling(range(10), at([0.0] * 10), round=round)
        assert CleanOnly(0.3, 0.1)(draws) == Uniform(0.3)(draws)


def test_finetuning_without_a_clean_client_takes_the_cleanest(caplog: pytest.LogCaptureFixture):
    """And says so: the paper divides by zero here."""
    level = [0.9, 0.4, 0.8, 0.2, 0.7, 0.3]
    with caplog.at_level(logging.WARNING):
        chosen = CleanOnly(0.5, 0.1)(sampling(range(6), at(level)))
    assert sorted(chosen) == [1, 3, 5]
    assert any(record.levelno == logging.WARNING for record in caplog.records)


def test_finetuning_never_asks_clients_without_data():
    level = [0.0, 0.0, 0.9, 0.8, 0.0]
    assert sorted(CleanOnly(1.0, 0.1)(sampling([1, 2, 3], at(level)))) == [1]
    assert CleanOnly(0.4, 0.1)(sampling([2, 3], at(level))) == [3]


# ------------------------------------------------------------------------------------------------ the whole algorithm

NOISY = ("method=fedcorr", "noise.rho=0.6", "noise.tau=0.5", "train.lr=0.1", "train.epochs=3", "method.theta=0.4")


def lid_of(probabilities: Array, k: int) -> float:
    """Mean of Eq. 2 over a client's samples."""
    nearest = np.sort(cdist(probabilities, probabilities), axis=1)[:, 1 : k + 1]
    nearest[nearest == 0] = 1e-12
    return float(np.mean(-1 / np.mean(np.log(nearest / nearest[:, -1:]), axis=1)))


class Reading:
    """FedCorr from Algorithm 1 and Sections 3.2 and 3.3, given only the global models and who trained."""

    def __init__(
        self,
        run: Composed,
        *,
        kappa: float = 0.1,
        rank_loss: str = "local",
        relabel_set: str = "paper",
        loss: str = "ce",
    ) -> None:
        self.run, self.kappa, self.rank_loss, self.relabel_set, self.loss = run, kappa, rank_loss, relabel_set, loss
        dealt = run.federation
        count = dealt.num_clients
        self.inputs = [run.network.prepare(dealt.samples(k).read()) for k in range(count)]
        self.labels = [dealt.samples(k).given.tolist() for k in range(count)]
        self.losses: list[Array] = [np.zeros(0)] * count
        self.cumulative, self.level = np.zeros(count), np.zeros(count)
        self.noisy = np.zeros(count, bool)

    def logits(self, params: dict[str, Tensor], client: int) -> Array:
        with torch.no_grad():
            module = self.run.network.module.eval()
            found: Tensor = torch.func.functional_call(module, params, (self.inputs[client],))
        return found.numpy()

    def loss_of(self, logits: Array, client: int) -> Array:
        return cross_entropy(logits if self.loss == "ce" else softmax(logits), self.labels[client])

    def visited(self, result: RoundResult) -> None:
        """The client of a chain's step has just trained the global model of that step."""
        (client,) = result.cohort
        logits = self.logits(result.state.server.params, client)
        self.cumulative[client] += lid_of(softmax(logits), 20)
        self.losses[client] = self.loss_of(logits, client)

    def end_of_pass(self, result: RoundResult) -> None:
        """Split the clients, then the samples of the noisy ones, and relabel."""
        self.noisy = two_gaussians(self.cumulative).upper
        for k in range(len(self.labels)):
            suspects = two_gaussians(self.losses[k]).upper if self.noisy[k] else np.zeros(len(self.labels[k]), bool)
            self.level[k] = suspects.mean()
            logits = self.logits(result.state.server.params, k)
            rank = self.losses[k] if self.rank_loss == "local" else self.loss_of(logits, k)
            self.labels[k] = relabelled(self.labels[k], rank, suspects, softmax(logits), 0.4, 0.5)

    def end_of_finetuning(self, result: RoundResult) -> None:
        """Everyone outside S_c relabels what the model is confident of."""
        asked = self.level > self.kappa if self.relabel_set == "paper" else self.noisy
        for k in np.flatnonzero(asked).tolist():
            sure = softmax(self.logits(result.state.server.params, k))
            everything = np.ones(len(self.labels[k]), bool)
            self.labels[k] = relabelled(self.labels[k], np.zeros(len(everything)), everything, sure, 0.4, 1.0)

    def check(self, result: RoundResult) -> None:
        """Whether the run stands where this reading does."""
        state = result.state.server.exchanges["lid"]
        np.testing.assert_allclose(state.cumulative.numpy(), self.cumulative, rtol=1e-6)
        np.testing.assert_allclose(state.level.numpy(), self.level)
        assert (state.level[~state.noisy] == 0).all()
        assert state.noisy.tolist() == self.noisy.tolist()
        assert held(self.run, result) == self.labels


def held(run: Composed, result: RoundResult) -> list[list[int]]:
    """The labels that each client learns from."""
    own = [result.state.client(k).labels for k in range(run.federation.num_clients)]
    return [(run.federation.samples(k).given if o is None else o).tolist() for k, o in enumerate(own)]


VARIANTS: list[dict[str, Any]] = [
    {},
    {"kappa": 0.4},
    {"rank_loss": "global"},
    {"relabel_set": "lid_noisy", "kappa": 0.4},
    {"loss": "ce_of_softmax"},
]


@pytest.mark.parametrize("seed", [1, 3, 4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_follows_the_algorithm(seed: int, variant: dict[str, Any]):
    """After every round, all sums, levels, verdicts and labels are those of the reading."""
    run = composed(
        *NOISY,
        f"seed={seed}",
        *("method.T1=3", "method.T2=3", "method.T3=2"),
        *(f"method.{key}={value}" for key, value in variant.items()),
    )
    reading = Reading(run, **variant)
    labels = [[list(own) for own in reading.labels]]
    assert [r.stage for r in run.rounds] == ["preprocess"] * 12 + ["finetune"] * 3 + ["usual"] * 2
    for number, result in enumerate(run.rounds, start=1):
        if result.stage == "preprocess":
            reading.visited(result)
            if number % 4 == 0:
                assert {k for r in run.rounds[number - 4 : number] for k in r.cohort} == {0, 1, 2, 3}
                reading.end_of_pass(result)
        elif result.stage == "finetune":
            clean = set(np.flatnonzero(reading.level <= reading.kappa).tolist())
            assert set(result.cohort) <= clean
            assert len(result.cohort) == min(2, len(clean))
            if number == 15:
                reading.end_of_finetuning(result)
        reading.check(result)
        assert (result.correction is not None) == (number in (4, 8, 12, 15))
        labels.append([list(own) for own in reading.labels])
    assert labels[12] != labels[0]
    last = run.rounds[14].correction
    assert last is not None
    assert (labels[15] != labels[14]) == (last["asked"] > 0)


def test_cumulative_scores_never_fall():
    run = composed(*NOISY, "method.T1=4", "method.T2=0", "method.T3=0")
    sums = torch.stack([r.state.server.exchanges["lid"].cumulative for r in run.rounds])
    assert (sums.diff(dim=0) >= 0).all()
    assert (sums[-1] > 0).all()


def test_clean_clients_keep_their_labels_in_the_first_stage():
    run = composed(*NOISY, "method.T1=3", "method.T2=0", "method.T3=0", "method.theta=0.0", "method.pi=1.0")
    before = held(run, replace(run.rounds[0], state=replace(run.rounds[0].state, clients=Spilled())))
    ever = torch.zeros(4, dtype=torch.bool)
    for result in run.rounds:
        ever |= result.state.server.exchanges["lid"].noisy
    assert ever.any()
    assert not ever.all()
    after = held(run, run.rounds[-1])
    assert [a == b for a, b in zip(before, after, strict=True)] == (~ever).tolist()


def test_levels_hold_a_client_back_from_the_next_pass_on():
    """μ̂ is zero in the first pass, so β does nothing; then it does, from the first client with a level on."""
    lengths = ("method.T1=2", "method.T2=0", "method.T3=0")
    free, tied = (composed(*NOISY, *lengths, f"method.beta={beta}").rounds for beta in (0.0, 5.0))
    level = tied[3].state.server.exchanges["lid"].level
    assert (level > 0).any()
    first = next(i for i, r in enumerate(tied[4:], start=4) if level[r.cohort[0]] > 0)
    for i, (a, b) in enumerate(zip(free, tied, strict=True)):
        assert a.cohort == b.cohort
        assert equal(a.state.server.params, b.state.server.params) == (i < first)


def test_without_correction_a_run_keeps_the_given_labels():
    """Levels are estimated all the same, and decide who finetunes."""
    run = composed(*NOISY, "method.correction=false", "method.T1=2", "method.T2=3", "method.T3=1")
    given = [run.federation.samples(k).given.tolist() for k in range(4)]
    for result in run.rounds:
        assert held(run, result) == given
    level = run.rounds[-1].state.server.exchanges["lid"].level
    assert (level > 0.1).any()
    assert (level <= 0.1).any()
    for result in run.rounds[8:11]:
        assert all(level[k] <= 0.1 for k in result.cohort)


def test_without_finetuning_its_relabelling_falls_away():
    """Labels are those of the end of the first stage, and nothing of the first stage is another."""
    lengths = ("method.T1=2", "method.T3=2", "method.theta=0.0")
    without = composed(*NOISY, *lengths, "method.T2=0")
    with_it = composed(*NOISY, *lengths, "method.T2=1")
    assert [r.stage for r in without.rounds] == ["preprocess"] * 8 + ["usual"] * 2
    assert all(
        equal(a.state.server.params, b.state.server.params)
        for a, b in zip(without.rounds[:8], with_it.rounds[:8], strict=True)
    )
    assert held(without, without.rounds[-1]) == held(without, without.rounds[7])
    assert held(with_it, with_it.rounds[-1]) != held(with_it, with_it.rounds[7])


def test_nothing_is_reported_or_corrected_after_the_first_two_stages():
    run = composed(*NOISY, "method.T1=1", "method.T2=1", "method.T3=3")
    kept = [r.state.server.exchanges["lid"] for r in run.rounds[4:]]
    assert all(torch.equal(k.cumulative, kept[0].cumulative) for k in kept)
    labels = [held(run, r) for r in run.rounds[4:]]
    assert all(found == labels[0] for found in labels)


# -------------------------------------------------------------------------------------------------------- neutrality


NEUTRAL = (
    "method=fedcorr",
    "method.beta=0",
    "method.correction=false",
    "method.T1=0",
    "method.T2=5",
    "method.T3=0",
    "method.kappa=1",
    "method.mixup=false",
)


@pytest.mark.parametrize("setting", [(), ("seed=7", "train.momentum=0.9", "precision=32", "model.dropout=0.2")])
def test_neutral_fedcorr_is_fedavg_to_the_bit(setting: tuple[str, ...]):
    ours = composed(*NEUTRAL, *setting)
    fedavg = composed("method=fedavg", "rounds=5", *setting)
    assert equal(ours.start, fedavg.start)
    assert len(ours.rounds) == len(fedavg.rounds) == 5
    for a, b in zip(ours.rounds, fedavg.rounds, strict=True):
        assert a.cohort == b.cohort
        assert equal(a.state.server.params, b.state.server.params)
        assert a.metrics == b.metrics
        assert a.evaluation == b.evaluation
        assert a.state.counters.participations == b.state.counters.participations


@pytest.mark.parametrize(
    "key", ["method.correction=true", "method.mixup=true", "method.T3=1", "method.T1=1", "method.beta=5"]
)
def test_each_part_of_fedcorr_does_something(key: str):
    """The neutral run is neutral by its values, not because a part is never reached. β needs a level above 0."""
    lengths = ("method.T1=1", "method.T2=3", "method.T3=1", "method.kappa=0.1", "method.theta=0.0", "method.pi=1.0")
    name = key.split("=")[0]
    off = {"method.T3": "method.T3=0", "method.T1": "method.T1=0", "method.beta": "method.beta=0"}.get(
        name, f"{name}=false"
    )
    more = ("method.T1=2",) if name == "method.beta" else ()
    runs = [composed(*NOISY, *lengths, *more, value).rounds[-1].state.server.params for value in (key, off)]
    assert not equal(*runs)


def test_fedprox_without_a_pull_is_fedavg_to_the_bit():
    ours = composed("method=fedprox", "method.mu=0", "rounds=4")
    fedavg = composed("method=fedavg", "rounds=4")
    for a, b in zip(ours.rounds, fedavg.rounds, strict=True):
        assert equal(a.state.server.params, b.state.server.params)
    pulled = composed("method=fedprox", "method.mu=1", "rounds=1")
    assert not equal(pulled.rounds[0].state.server.params, fedavg.rounds[0].state.server.params)


# -------------------------------------------------------------------------------------------------------------- cost


@pytest.mark.parametrize("setting", ["method.gamma1=null", "method.gamma1=0.5", "method.stage1=parallel_average"])
def test_participations_and_bytes_by_hand(setting: str):
    """A model is 8·(64·8+8 + 8·10+10) bytes. What else travels: a verdict down (a flag and a number), a score up."""
    run = composed(*NOISY, "method.T1=2", "method.T2=3", "method.T3=2", setting)
    model = 8 * (64 * 8 + 8 + 8 * 10 + 10)
    participations = down = up = 0
    for result in run.rounds:
        size = len(result.cohort)
        participations += size
        first = result.stage == "preprocess"
        down += size * (model + (9 if first else 0))
        up += size * (model + (8 if first else 0))
        if result.correction is not None:  # the clients asked are sent the new model; their level goes up
            asked = result.correction["asked"]
            down += asked * (model + 9)
            up += asked * (8 if first else 0)
        counters = result.state.counters
        assert (counters.participations, counters.bytes_down, counters.bytes_up) == (participations, down, up)
    clean = int((run.rounds[-1].state.server.exchanges["lid"].level <= 0.1).sum()) or 2
    assert participations == 4 * 2 + min(2, clean) * 3 + 2 * 2


@pytest.mark.parametrize(("every", "evaluated"), [("null", [2, 4, 5, 6, 7]), ("3", [3, 4, 5, 7]), ("100", [4, 5, 7])])
def test_evaluations_fall_due_by_participations_and_at_borders(every: str, evaluated: list[int]):
    """Participations after each round are 1, 2, 3, 4 | 6 | 8, 10; by default one cohort of the last stage apart."""
    run = composed(
        "method=fedcorr", "method.T1=1", "method.T2=1", "method.T3=2", f"eval.every={every}", "method.kappa=1"
    )
    assert [r.state.counters.participations for r in run.rounds] == [1, 2, 3, 4, 6, 8, 10]
    assert [r.state.round for r in run.rounds if r.evaluation is not None] == evaluated


def test_fedavg_sends_models_only():
    run = composed("method=fedavg", "rounds=3")
    model = 8 * (64 * 8 + 8 + 8 * 10 + 10)
    counters = run.rounds[-1].state.counters
    assert (counters.participations, counters.bytes_down, counters.bytes_up) == (6, 6 * model, 6 * model)
    assert not run.rounds[-1].state.clients


def told(*words: str) -> tuple[Method, dict[str, Any]]:
    """A method as a command line has it, and the configuration it came from."""
    cfg = compose.load(words)
    check_config(cfg)
    return assemble(compose.build(cfg.method)), compose.resolved(cfg)


def trainings(made: Method, clients: int) -> int:
    """Participations if every cohort is as large as it can be."""
    return sum(
        s.rounds * s.sampler.size(clients) if s.rounds is not None else (s.passes or 0) * clients for s in made.stages
    )


SETTINGS = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "Clothing1M": "clothing1m"}


@pytest.mark.parametrize("data", SETTINGS)
def test_budget(data: str):
    """N T1 + γN (T2 + T3) trainings: what FedAvg's rounds cost."""
    v = vector("fedcorr.budget")
    inputs = v.inputs[data]
    made, cfg = told(f"dataset={SETTINGS[data]}", "method=fedcorr")
    clients = cfg["partition"]["num_clients"]
    assert clients == inputs["N"]
    assert cfg["fraction"] == inputs["gamma"]
    assert [s.passes if s.rounds is None else s.rounds for s in made.stages] == inputs["T"]
    assert [s.rounds_in_pass(clients) for s in made.stages[:1]] == [clients]
    assert trainings(made, clients) == v.expected[data]
    fedavg, _ = told(f"dataset={SETTINGS[data]}", "method=fedavg")
    assert trainings(fedavg, clients) == v.expected[data]


def test_budget_without_finetuning():
    v = vector("fedcorr.budget")
    made, _ = told("dataset=cifar10", "method=fedcorr", "method.T2=0")
    assert trainings(made, v.inputs["CIFAR-10"]["N"]) == v.expected["no_finetuning_CIFAR-10"]


@pytest.mark.parametrize("dataset", ["digits", "mnist", "svhn"])
def test_other_protocols_have_equal_budgets(dataset: str):
    (fedcorr, cfg), (fedavg, _) = (told(f"dataset={dataset}", f"method={name}") for name in ("fedcorr", "fedavg"))
    clients = cfg["partition"]["num_clients"]
    assert trainings(fedcorr, clients) == trainings(fedavg, clients)


# ----------------------------------------------------------------------------------------------------------- settings


def correcting(made: Method) -> list[tuple[str, str]]:
    """Rule and time of each stage that has labels corrected."""
    return [(s.correct.rule, s.correct.when) for s in made.stages if s.correct is not None]


def corrector(made: Method) -> Any:
    """The one corrector of all stages."""
    (found,) = {s.correct.corrector for s in made.stages if s.correct is not None}
    return found


@pytest.mark.parametrize(
    ("dataset", "lr", "theta", "pi", "batch_size"),
    [("cifar10", 0.03, 0.5, 0.5, 10), ("cifar100", 0.01, 0.5, 0.5, 10), ("clothing1m", 0.001, 0.9, 0.8, 16)],
)
def test_hyperparameters_of_the_paper(dataset: str, lr: float, theta: float, pi: float, batch_size: int):
    """Table 7 and Appendix B."""
    made, cfg = told(f"dataset={dataset}", "method=fedcorr")
    always = {"lr_decay": 1.0, "momentum": 0.5, "weight_decay": 0.0, "epochs": 5}
    schedule = {"milestones": [], "milestone_decay": 0.1, "keep_momentum": False}
    assert cfg["train"] == {**cfg["train"], **always, **schedule, "lr": lr, "batch_size": batch_size}
    assert cfg["train"]["optimizer"] == {"_target_": "flnl.core.optimizer.SGD"}
    assert correcting(made) == [("top_losses", "pass"), ("all_confident", "end")]
    assert corrector(made) == replace(CORRECTOR, theta=theta, pi=pi)
    assert made.exchange["lid"] == Lid(k=20, guard=True, loss="ce", inference_augment=False, gmm_tol=1e-3)
    first, second, third = made.stages
    assert first.sampler == OnePass(None, "chain", "partition")
    assert first.local["adaptive_proximal"] == AdaptiveProximal(5.0, "squared")
    assert second.sampler == CleanOnly(cfg["fraction"], 0.1)
    assert third.sampler == Uniform(cfg["fraction"])
    assert [set(s.local) for s in made.stages] == [{"cross_entropy", "adaptive_proximal"}, *[{"cross_entropy"}] * 2]
    batches = [compose.build(cfg["method"]["batch"])] * 3
    assert [s.batch for s in made.stages] == batches
    assert (batches[0].alpha, batches[0].enabled) == (1.0, True)
    assert all(batches[0].mixing(np.random.default_rng(0), 4, n) is not None for n in (1, 2, 3))


@pytest.mark.parametrize(("dataset", "lr"), [("cifar10", 0.01), ("cifar100", 0.01), ("clothing1m", 0.003)])
def test_hyperparameters_of_fedprox_in_the_paper(dataset: str, lr: float):
    made, cfg = told(f"dataset={dataset}", "method=fedprox")
    assert cfg["method"]["mu"] == 1.0
    assert cfg["train"]["lr"] == lr
    assert set(made.stages[0].local) == {"cross_entropy", "fedprox"}


def test_what_the_released_program_does():
    made, _ = told("dataset=cifar10", "method=fedcorr_released")
    assert made.stages[0].local["adaptive_proximal"] == AdaptiveProximal(5.0, "norm")
    assert made.exchange["lid"] == Lid(k=20, guard=False, loss="ce_of_softmax", inference_augment=True, gmm_tol=1e-3)
    assert corrector(made) == replace(
        CORRECTOR, relabel_set="lid_noisy", strict_theta=True, loss="ce_of_softmax", inference_augment=True
    )


# -------------------------------------------------------------------------------------------------------------- noise


def noisy(labels: NDArray[np.int64], rho: float, tau: float, classes: int, space: Any = "all") -> NDArray[np.int64]:
    """Given labels of many clients with 100 samples each."""
    model = FedCorrNoise(rho, tau, "bernoulli", space)
    clients = labels.reshape(-1, 100)
    data = replace(random_federation([1]).dataset, classes=tuple(map(str, range(classes))))
    rates = np.asarray(model.rates(len(clients), 1))
    given = [
        model(own, rate, data, np.random.default_rng(k))
        for k, (own, rate) in enumerate(zip(clients, rates, strict=True))
    ]
    return np.concatenate(given)


@pytest.mark.parametrize("classes", [10, 100])
def test_share_of_wrong_labels(classes: int):
    """``ρ (1+τ)/2 (M-1)/M``: one in M draws the label it had."""
    v = vector("fedcorr.noise.expectation")
    labels = np.random.default_rng(0).integers(0, classes, 200_000)
    for (rho, tau), expected in zip(v.inputs["rho_tau"], v.expected[f"M{classes}"], strict=True):
        wrong = (noisy(labels, rho, tau, classes) != labels).mean()
        # 2,000 clients; a client's level has at most variance 1/4.
        assert wrong == pytest.approx(expected, abs=0.0 if rho == 0 else 4 * 0.5 / math.sqrt(2000))
        assert rho * (1 + tau) / 2 * (classes - 1) / classes == v.near(expected)


@pytest.mark.parametrize(("space", "key"), [("all", "paper"), ("first10", "released_code")])
def test_wrong_labels_hit_all_classes(space: str, key: str):
    """The released program's share of wrong labels is the paper's, and where they land is not."""
    v = vector("fedcorr.noise.c100_bug")
    classes = v.inputs["M"]
    labels = np.random.default_rng(0).integers(0, classes, 200_000)
    given = noisy(labels, 1.0, 1.0, classes, space)
    wrong = given != labels
    assert wrong.mean() == pytest.approx(v.expected["p_wrong_both"], abs=2e-3)
    # Among wrong labels, those of the first ten classes: a tenth, or all of them.
    assert (given[wrong] < 10).mean() == pytest.approx(v.expected[f"share_in_first10_{key}"], abs=5e-3)
    assert len(np.unique(given[wrong])) == (classes if space == "all" else 10)
