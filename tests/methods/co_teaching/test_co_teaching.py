"""Co-teaching: its schedule and selections against the vectors, its gradients against loops, its reports in a run."""

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
from flnl.config.check import check_config
from flnl.core.errors import UserError
from flnl.core.findings import Scalar, SuspectedSamples
from flnl.core.messages import Broadcast
from flnl.core.method import assemble
from flnl.core.optimizer import Adam
from flnl.core.parts import Setting
from flnl.core.payload import Payload
from flnl.core.step import FIRST, LOGITS, SECOND, Mixing, Step
from flnl.methods.co_teaching.exchange import LeftOutSamples, SmallLoss
from flnl.methods.co_teaching.loss import CoTeaching, Visit, disagreement, selection
from flnl.numerics.small_loss import forget_rate
from flnl.run.overrides import check_arguments
from tests.properties.runs import rounds, run
from tests.registry import NORMED, TINY
from tests.toys import ONE_STEP, fitted, mlp, network, random_federation, task
from tests.vectors.vectors import label_noise

TERM = CoTeaching(0.25, num_gradual=1, exponent=1.0, schedule="paper", disagree_from=None)
PLUS = replace(TERM, disagree_from=0)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def visit(n: int) -> Visit:
    zero = torch.zeros((), dtype=torch.float64)
    return Visit(torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.bool), zero, zero)


def batch(first: Tensor, second: Tensor, labels: Tensor, *, round: int = 5, **others: Any) -> Step:
    """A step in which both networks' logits are given."""
    data: dict[str, Any] = {"targets": labels, "weight": None, "mixing": None, **others}
    positions = torch.arange(len(labels))
    return Step(
        inputs=first,
        labels=labels,
        positions=positions,
        draws={},
        number=0,
        unmixed=first,
        passes=network(torch.nn.Identity()).passes(Broadcast(0, 1, {})),
        params={},
        broadcast=Broadcast(round, 1, {}),
        kept=Payload(),
        computed={LOGITS: (first + second) / 2, FIRST: first, SECOND: second},
        **data,
    )


def taught(term: CoTeaching, step: Step) -> tuple[float, Tensor, Tensor, Visit]:
    """The loss, its gradients by both networks' logits, and the visit after it."""
    logits = [step.output(name).detach().requires_grad_() for name in (FIRST, SECOND)]
    step = replace(step, computed=dict(zip((FIRST, SECOND), logits, strict=True)))
    loss, after = term(step, visit(len(step.labels)))
    assert loss.dim() == 0
    first, second = torch.autograd.grad(loss, logits)
    return float(loss.detach()), first, second, after


def given(name: str) -> tuple[Tensor, Tensor, Tensor]:
    inputs = label_noise(name).inputs
    first, second = (torch.tensor(inputs[key], dtype=torch.float64) for key in ("logits1", "logits2"))
    return first, second, torch.tensor(inputs["labels"])


def of_both(first: Tensor, second: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(first, labels, reduction="none"), F.cross_entropy(second, labels, reduction="none")


def chosen(mask: Tensor) -> list[int]:
    return mask.nonzero()[:, 0].tolist()


# -------------------------------------------------------------------------------------------------------- vectors


def test_schedules() -> None:
    entry = label_noise("coteaching_schedule")
    tau, T_k, c, n = (entry.inputs[key] for key in ("tau", "T_k", "c", "n"))
    assert [forget_rate(t, tau, T_k, c, "paper") for t in range(n)] == entry.approx("paper")
    assert [forget_rate(t, tau, T_k, c, "released") for t in range(n)] == entry.approx("official")


@pytest.mark.parametrize("c", [0.5, 1.0, 2.0])
def test_exponents_act_on_time_in_the_paper_and_on_the_rate_in_the_released_code(c: float) -> None:
    tau, T_k = 0.3, 8
    released = np.full(12, tau)
    released[:T_k] = np.linspace(0, tau**c, T_k)
    paper = [tau * min(t**c / T_k, 1) for t in range(12)]
    np.testing.assert_allclose([forget_rate(t, tau, T_k, c, "released") for t in range(12)], released, rtol=1e-12)
    np.testing.assert_allclose([forget_rate(t, tau, T_k, c, "paper") for t in range(12)], paper, rtol=1e-12)


@pytest.mark.parametrize("schedule", ["paper", "released"])
def test_a_schedule_of_one_round_starts_at_zero(schedule: Any) -> None:
    assert [forget_rate(t, 0.4, 1, 1.0, schedule) for t in range(3)] == [0.0, 0.4, 0.4]


@pytest.mark.parametrize(("schedule", "name", "begins"), [("paper", "paper", 0), ("released", "official", 1)])
def test_the_released_program_numbers_its_epochs_from_one(schedule: Any, name: str, begins: int) -> None:
    """Its table of rates is read from the second entry on: the first epoch already leaves samples out."""
    entry = label_noise("coteaching_schedule")
    tau, T_k, n = (entry.inputs[key] for key in ("tau", "T_k", "n"))
    term = replace(TERM, forget_rate=tau, num_gradual=T_k, schedule=schedule)
    first, second, labels = normal(90, 3), normal(90, 3, seed=1), torch.arange(90) % 3
    for round in range(n - 1):
        _, of_first, _, _ = taught(term, batch(first, second, labels, round=round))
        kept = (1 - entry.expected[name][round + begins]) * 90
        assert int((of_first.abs().sum(1) > 0).sum()) == int(kept + 1e-6), round


HAN = (
    *("method=co_teaching", "centralized=true", "noise=symmetric", "noise.eta=0.4", "method.num_gradual=10"),
    *("rounds=80", "method/stages=two", "method.stages.late.rounds=120", "train.epochs=1", "train.keep_momentum=true"),
    *("train/optimizer=adam", "train/schedule=linear", "train.linear_from=80", "train.batch_size=128"),
    *("+train/optimizer@method.stages.late.train=adam", "method.stages.late.train.optimizer.beta1=0.1"),
)
"""The optimiser of the authors' program, as the card has it."""


def test_the_optimiser_of_its_authors_can_be_set() -> None:
    """From epoch 80 of 200 on, their rate falls by a line to 0, and β₁ is 0.1; Adam's averages go on."""
    check_arguments([*HAN])
    cfg = compose.load([*HAN])
    check_config(cfg)
    stages, train = assemble(compose.build(cfg.method)).stages, compose.training(cfg)
    early, late = (train.at(r, s.train) for r, s in zip((0, 80), stages, strict=True))
    assert [s.rounds for s in stages] == [80, 120]
    assert late.continues(early)
    for epoch in range(200):
        stage = stages[epoch >= 80]
        here = train.at(epoch, stage.train, epoch - 80 * (epoch >= 80), rounds=200, stage_rounds=stage.rounds)
        assert here.lr == pytest.approx(0.001 if epoch < 80 else 0.001 * (200 - epoch) / (200 - 80))
        assert here.optimizer == Adam(0.9 if epoch < 80 else 0.1, 0.999, 1e-8)


def test_small_losses_are_exchanged() -> None:
    entry = label_noise("coteaching_f0.25")
    first, second, labels = given("coteaching_f0.25")
    losses = of_both(first, second, labels)
    assert losses[0].tolist() == entry.approx("per_sample_loss1")
    assert losses[1].tolist() == entry.approx("per_sample_loss2")
    both = selection(*losses, torch.ones(8, dtype=torch.bool), 0.25)
    assert chosen(both.by_first) == sorted(entry.expected["selected_by_net1_sorted"])
    assert chosen(both.by_second) == sorted(entry.expected["selected_by_net2_sorted"])
    assert int(both.by_first.sum()) == int(both.by_second.sum()) == entry.expected["k"]

    loss, of_first, of_second, _ = taught(TERM, batch(first, second, labels))
    assert loss == entry.near(entry.expected["loss1"] + entry.expected["loss2"])
    for gradient, name in ((of_first, "grad1"), (of_second, "grad2")):
        np.testing.assert_allclose(gradient, entry.expected[name], atol=entry.absolute, rtol=entry.relative)


def test_disagreements_are_exchanged() -> None:
    entry = label_noise("coteaching_plus")
    first, second, labels = given("coteaching_plus")
    assert first.argmax(1).tolist() == entry.expected["pred1"]
    assert second.argmax(1).tolist() == entry.expected["pred2"]
    differ = disagreement(first, second)
    assert chosen(differ) == entry.expected["disagree"]
    losses = of_both(first, second, labels)
    both = selection(*losses, differ, 0.25)
    assert chosen(both.by_first) == sorted(entry.expected["selected_by_net1"])
    assert chosen(both.by_second) == sorted(entry.expected["selected_by_net2"])
    assert int(both.by_first.sum()) == entry.expected["k"]

    loss, of_first, of_second, _ = taught(PLUS, batch(first, second, labels))
    assert loss == entry.near(entry.expected["loss1"] + entry.expected["loss2"])
    wanted = [sum(float(losses[j][i]) for i in entry.expected[f"selected_by_net{2 - j}"]) / 4 for j in (0, 1)]
    assert wanted == [entry.approx("loss1"), entry.approx("loss2")]
    assert chosen(of_first.abs().sum(1) > 0) == sorted(entry.expected["selected_by_net2"])
    assert chosen(of_second.abs().sum(1) > 0) == sorted(entry.expected["selected_by_net1"])


def test_equal_networks_choose_for_themselves_and_never_disagree() -> None:
    entry = label_noise("coteaching_identical_networks")
    first, second, labels = given("coteaching_identical_networks")
    assert chosen(disagreement(first, second)) == entry.expected["disagree"]
    losses = of_both(first, second, labels)
    both = selection(*losses, torch.ones(8, dtype=torch.bool), 0.25)
    assert chosen(both.by_first) == sorted(entry.expected["selected_by_net1"])
    assert chosen(both.by_second) == sorted(entry.expected["selected_by_net2"])
    loss = taught(PLUS, batch(first, second.clone(), labels))[0]
    assert loss == pytest.approx(float(2 * losses[0].mean()))  # both learn the whole batch, whatever the rate


# ----------------------------------------------------------------------------------------------------- edge cases


def test_the_number_of_chosen_samples_is_exact() -> None:
    entry = label_noise("coteaching_floor_hazard")
    for (forget, size, truncated, _), required in zip(entry.expected["cases"], entry.expected["required"], strict=True):
        losses, everything = normal(size), torch.ones(size, dtype=torch.bool)
        assert int((1 - forget) * size) == truncated != required
        assert int(selection(losses, losses, everything, forget).by_first.sum()) == required


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("term", [TERM, PLUS])
def test_the_number_is_exact_for_every_rate_and_size(term: CoTeaching, dtype: torch.dtype) -> None:
    for size in (1, 3, 7, 10, 50):
        first = torch.eye(2, dtype=dtype)[torch.zeros(size, dtype=torch.int64)] + normal(size, 2).to(dtype) / 10
        second, labels = first.flip(1), torch.zeros(size, dtype=torch.int64)
        for tenths in range(11):
            step = batch(first.clone(), second.clone(), labels)
            _, of_first, _, _ = taught(replace(term, forget_rate=tenths / 10), step)
            assert int((of_first.abs().sum(1) > 0).sum()) == max(1, (10 - tenths) * size // 10), (size, tenths)


def test_equal_losses_are_chosen_in_order() -> None:
    losses = torch.tensor([1.0, 0.0, 1.0, 1.0])
    both = selection(losses, losses, torch.ones(4, dtype=torch.bool), 0.5)
    assert chosen(both.by_first) == [0, 1]


def test_nothing_is_chosen_among_no_candidates_and_the_loss_is_zero() -> None:
    first, second, labels = normal(4, 3), normal(4, 3, seed=1), torch.tensor([0, 1, 2, 0])
    for term in (TERM, PLUS):
        step = batch(first.clone(), second.clone(), labels, weight=torch.zeros(4, dtype=torch.float64))
        loss, of_first, of_second, after = taught(term, step)
        assert loss == 0
        assert not of_first.any()
        assert not of_second.any()
        assert not after.left_out.any()


def test_samples_of_weight_zero_are_no_candidates_and_others_count_by_weight() -> None:
    first, second, labels = normal(6, 3), normal(6, 3, seed=1), torch.tensor([0, 1, 2, 0, 1, 2])
    weight = torch.tensor([1.0, 0.0, 2.0, 0.5, 0.0, 3.0], dtype=torch.float64)
    ones, twos = (F.cross_entropy(z, labels, reduction="none").numpy() for z in (first, second))
    valid = [0, 2, 3, 5]
    wanted = 0.0
    for learnt, by in ((ones, twos), (twos, ones)):
        best = [valid[i] for i in np.argsort(by[valid])[:2]]  # floor(0.6 * 4)
        wanted += sum(float(weight[i]) * learnt[i] for i in best) / sum(float(weight[i]) for i in best)
    step = batch(first, second, labels, weight=weight)
    assert taught(replace(TERM, forget_rate=0.4), step)[0] == pytest.approx(wanted, rel=1e-12)


def test_the_loss_of_mixed_targets() -> None:
    first, second, labels = normal(6, 3), normal(6, 3, seed=1), torch.tensor([0, 1, 2, 0, 1, 2])
    partner = torch.tensor([5, 4, 3, 2, 1, 0])
    hot = torch.eye(3, dtype=torch.float64)
    targets = 0.7 * hot[labels] + 0.3 * hot[labels[partner]]
    ones, twos = (-(targets * z.log_softmax(1)).sum(1).numpy() for z in (first, second))
    k = 4  # floor(0.75 * 6)
    wanted = ones[np.argsort(twos)[:k]].mean() + twos[np.argsort(ones)[:k]].mean()
    step = batch(first, second, labels, targets=targets, mixing=Mixing(0.7, partner))
    assert taught(TERM, step)[0] == pytest.approx(wanted, rel=1e-12)


def test_without_forgetting_it_is_two_cross_entropies() -> None:
    first, second, labels = normal(7, 4), normal(7, 4, seed=1), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    loss, of_first, of_second, after = taught(replace(TERM, forget_rate=0.0), batch(first, second, labels))
    assert loss == pytest.approx(float(F.cross_entropy(first, labels) + F.cross_entropy(second, labels)), rel=1e-12)
    hot = torch.eye(4, dtype=torch.float64)[labels]
    for gradient, z in ((of_first, first), (of_second, second)):
        torch.testing.assert_close(gradient, (z.detach().softmax(1) - hot) / 7, rtol=1e-12, atol=1e-12)
    assert not after.left_out.any()


@pytest.mark.parametrize("scale", [100.0, 1000.0])
def test_certain_and_wrong_predictions_have_finite_gradients(scale: float) -> None:
    logits = scale * torch.eye(3)
    for term in (TERM, PLUS):
        step = batch(logits.clone(), logits.roll(1, 0).clone(), torch.tensor([0, 0, 1]))
        loss, *gradients, _ = taught(term, step)
        assert math.isfinite(loss)
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_disagreements_count_from_their_round_on() -> None:
    first, second, labels = given("coteaching_plus")
    term = replace(TERM, disagree_from=3)
    plain, plus = (taught(t, batch(first.clone(), second.clone(), labels, round=7))[0] for t in (TERM, PLUS))
    at = {t: taught(term, batch(first.clone(), second.clone(), labels, round=t))[0] for t in (2, 3)}
    assert at == {2: plain, 3: plus}
    assert plain != plus


# -------------------------------------------------------------------------------------------------------- reports


def test_a_visit_records_who_was_left_out() -> None:
    entry = label_noise("coteaching_f0.25")
    first, second, labels = given("coteaching_f0.25")
    after = taught(replace(TERM, forget_rate=0.75), batch(first, second, labels))[3]
    losses = np.array([entry.expected["per_sample_loss1"], entry.expected["per_sample_loss2"]])
    assert chosen(~after.left_out) == sorted({*np.argsort(losses[0])[:2].tolist(), *np.argsort(losses[1])[:2].tolist()})
    np.testing.assert_allclose(after.loss, losses.mean(0), atol=1e-6)
    assert (float(after.differing), float(after.predictions)) == (6, 8)


def test_samples_that_both_predict_alike_are_not_suspected() -> None:
    entry = label_noise("coteaching_plus")
    first, second, labels = given("coteaching_plus")
    after = taught(replace(PLUS, forget_rate=1.0), batch(first, second, labels))[3]
    easiest = {entry.expected["selected_by_net1"][0], entry.expected["selected_by_net2"][0]}
    assert set(chosen(after.left_out)) == {*entry.expected["disagree"]} - easiest


def test_an_exchange_reports_the_last_visits() -> None:
    module, data = mlp(4, 3), random_federation([4, 3])
    exchange = SmallLoss()
    kept = {}
    for client, (round, differing) in {0: (2, 1.0), 1: (6, 6.0)}.items():
        visited = task(module, data.samples(client), client=client, round=round)
        n = len(visited.samples)
        state = Visit(torch.arange(n).double(), torch.arange(n) == n - 1, torch.tensor(differing), torch.tensor(12.0))
        up, keep = exchange.report(network(module), visited, replace(fitted({}), states={"other": None, "any": state}))
        assert len(up) == 0
        kept[client] = visited.state.keeping(*keep)
    assert kept[1].extras.one(LeftOutSamples).disagreement == 0.5
    *samples, number = exchange.findings(None, kept, Payload())
    assert number == Scalar("disagreement", 0.5)  # of client 1 alone: it is the last round's cohort
    assert all(isinstance(finding, SuspectedSamples) for finding in samples)
    assert [(s.client, s.mask.tolist(), s.score.tolist()) for s in samples] == [  # type: ignore[union-attr]
        (0, [False, False, False, True], [0.0, 1.0, 2.0, 3.0]),
        (1, [False, False, True], [0.0, 1.0, 2.0]),
    ]
    assert exchange.findings(None, {}, Payload()) == ()


RUN = (*TINY, "method=co_teaching", "noise=symmetric", "noise.eta=0.4", "rounds=3", "method.num_gradual=1")


def test_a_run_measures_what_is_left_out_and_both_networks(tmp_path: Path) -> None:
    done = run([*RUN], tmp_path / "run")
    assert done.record["given"] == {"method.local.co_teaching.forget_rate": 0.4}
    last = next(row for row in reversed(done.lines) if row["kind"] == "evaluation")
    assert {"accuracy_first", "accuracy_second", "disagreement", "filter_accuracy"} <= last.keys()
    assert last["accuracy_first"] != last["accuracy_second"]
    assert 0 < last["disagreement"] < 1


def test_it_needs_two_networks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"local/co_teaching .*needs method\.networks=2, but it is 1"):
        rounds([*RUN, "method.networks=1", "method/exchange=[]"], tmp_path / "run")


@pytest.mark.parametrize("model", [(), NORMED], ids=["mlp", "batch_norm"])
def test_without_forgetting_each_network_is_trained_and_averaged_alone(model: Sequence[str], tmp_path: Path) -> None:
    """The first network is the one of FedAvg, which starts from the same weights; two networks send twice as much."""
    gone = {word[1:] for word in model if word.startswith("~")}
    words = [w for w in (*TINY, *model) if w[0] != "~" and w.split("=")[0] not in gone]
    words += ["rounds=3", "precision=64", "noise=symmetric", "noise.eta=0.4", "method.local.co_teaching.forget_rate=0"]
    pair = run([*words, "method=co_teaching"], tmp_path / "pair")
    one = run([*words[:-1], "method=fedavg"], tmp_path / "one")
    ours, theirs = pair.state.server.params, one.state.server.params
    assert len(ours) == 2 * len(theirs)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[f"first.{name}"], tensor, rtol=1e-9, atol=1e-11)
        if tensor.is_floating_point() and tensor.dim() > 1:
            assert not torch.allclose(ours[f"second.{name}"], tensor, atol=1e-3)
    assert [pair.record[key] for key in ("bytes_up", "bytes_down")] == [
        2 * one.record[key] for key in ("bytes_up", "bytes_down")
    ]
    scores = [next(r for r in reversed(ran.lines) if r["kind"] == "evaluation") for ran in (pair, one)]
    assert scores[0]["accuracy_first"] == scores[1]["accuracy"]


def test_disagreement_that_never_acts_is_a_caution() -> None:
    setting = Setting({0: 10}, (4, 6), ONE_STEP)
    assert TERM.caution(setting) is None
    assert replace(TERM, disagree_from=9).caution(setting) is None
    caution = replace(TERM, disagree_from=10).caution(setting)
    assert caution is not None
    assert "disagree_from=10: the run has 10 rounds" in caution


def test_unknown_noise_asks_for_an_estimate() -> None:
    with pytest.raises(UserError, match=r"method\.forget_rate is the noise rate.* set it to an estimate"):
        compose.resolved(compose.load(["method=co_teaching", "noise=none"]))
