"""FedReDA against the vectors, and what passes between clients and server."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.findings import SuspectedSamples
from flnl.core.messages import ClientResult, ClientState, Clock
from flnl.core.parts import Setting
from flnl.core.payload import Payload
from flnl.methods.fedreda.aggregator import TrustedMean
from flnl.methods.fedreda.exchange import LeaveOneOut, Teacher, TrustedShare
from flnl.methods.fedreda.loss import FedReDA, Visit
from flnl.methods.fedreda.trust import SampleTrust, agreeing, log_prior, trusted_loss, updated, verdicts
from flnl.models.mlp import MLP
from flnl.numerics.mixture import two_gaussians
from flnl.parts.losses.proximal import Proximal
from flnl.parts.messages import LastModel
from tests.toys import ONE_STEP, federation, fitted, network, step, task
from tests.vectors.vectors import NEWER, entries

TERM, EXCHANGE = FedReDA(every=2), LeaveOneOut(plain_rounds=3, stage=2)
LENGTHS = (1, 6)


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def visit(teacher: Tensor | None, prior: Tensor, trust: SampleTrust) -> Visit:
    zero = torch.zeros((), dtype=torch.int64)
    return Visit(prior, teacher, trust.clean >= 0.6, trust, trust.losses.double(), zero, zero)


# ------------------------------------------------------------------------------------------------------------ trust


def test_three_verdicts_undo_a_clean_label_and_two_make_it_clean_again() -> None:
    vector = entries(NEWER)["fedreda.clean_probability"]
    p, seen = f64([1.0]), []
    for _ in range(vector.inputs["verdicts_noisy_in_a_row"]):
        p = updated(p, torch.tensor([False]))
        seen.append(p.item())
    assert seen == vector.approx("p_after_noisy")
    assert sum(value >= 0.6 for value in seen) + 1 == vector.expected["first_below_threshold_after"]
    p, back = f64([seen[vector.inputs["then_clean_after_4_noisy"] - 1]]), []
    for _ in vector.expected["p_after_clean"]:
        p = updated(p, torch.tensor([True]))
        back.append(p.item())
    assert back == vector.approx("p_after_clean")


def test_the_loss_with_its_pull() -> None:
    vector = entries(NEWER)["fedreda.loss"]
    counts, labels = vector.inputs["class_counts"], torch.tensor(vector.inputs["labels"])
    prior = log_prior(torch.repeat_interleave(torch.arange(3), torch.tensor(counts)), 3)
    student, teacher = (f64(vector.inputs[name]) for name in ("student_logits", "teacher_logits"))
    assert agreeing(student + prior, teacher + prior).tolist() == vector.expected["agree"]
    clean = torch.tensor(vector.expected["clean"])
    only_ce = trusted_loss((student + prior)[clean], (teacher + prior)[clean], labels[clean], clean[clean])
    assert float(only_ce) == vector.approx("ce")
    trust = SampleTrust(f64(vector.inputs["p_clean"]), torch.full((3,), torch.nan), labels)
    batch = replace(step(logits=student, targets=labels), labels=labels, computed={"logits": student})
    loss, after = TERM(batch, visit(teacher, prior, trust))
    assert float(loss) == pytest.approx(vector.expected["ce"] + vector.expected["kd"], abs=1e-6)
    assert (int(after.clean), int(after.seen), after.share) == (2, 3, 2 / 3)
    moved = f64(vector.inputs["adapter_minus_global"])
    pull, _ = Proximal(0.001, "squared_half")(step(params={"w": moved}, received={"w": torch.zeros(2)}), None)
    assert float(pull) == vector.approx("prox")
    assert float(loss + pull) == vector.approx("loss")
    assert float(trusted_loss(student, student, labels, ~clean & clean)) == 0


def test_losses_are_averaged_over_every_step_with_a_teacher() -> None:
    student, labels = normal(3, 4), torch.tensor([0, 1, 3])
    prior = log_prior(torch.tensor([0, 1, 1, 3]), 4)
    np.testing.assert_allclose(prior, 0.5 * np.log([0.25, 0.5, 0.25, 0.25]), rtol=1e-12)
    trust = SampleTrust(f64([1.0] * 4), torch.tensor([torch.nan, 2.0, 5.0, 6.0]), torch.tensor([0, 1, 1, 3]))
    batch = replace(
        step(logits=student, targets=labels),
        labels=labels,
        positions=torch.tensor([0, 1, 3]),
        computed={"logits": student},
    )
    loss, before = TERM(batch, visit(None, prior, trust))
    own = F.cross_entropy(student + prior, labels, reduction="none")
    np.testing.assert_allclose(loss, own, rtol=1e-9)
    assert before.losses[1:].tolist() == [2.0, 5.0, 6.0]
    assert bool(before.losses[0].isnan()), "in the warm-up losses fall for wrong labels, too: none counts"
    _, after = TERM(batch, visit(normal(4, 4), prior, trust))
    expected = [float(own[0]), 1.8 + 0.1 * float(own[1]), 5.0, 5.4 + 0.1 * float(own[2])]
    np.testing.assert_allclose(after.losses, expected, rtol=1e-6)


def test_classes_with_twenty_samples_are_split() -> None:
    rng = np.random.default_rng(0)
    losses, labels = torch.from_numpy(rng.normal(1, 0.1, 50)), torch.tensor([0] * 30 + [1] * 20)
    losses[::3] += 4
    labels[-1] = 2
    found = verdicts(losses, labels)
    assert torch.equal(found[:30], torch.from_numpy(~two_gaussians(losses[:30].numpy()).upper))
    assert bool(found[30:].all()), "19 samples and one"
    assert not bool(found[:30].all())


# ----------------------------------------------------------------------------------------------------------- visits


def test_a_visit_has_its_teacher_and_ends_with_a_verdict_every_second_round() -> None:
    module = MLP([5], 0.0)((1, 2, 2), 3).double()
    labels = torch.arange(60) % 2
    toy = federation([normal(60, 1, 2, 2).float()], [labels])
    net, samples = network(module, transform=toy.dataset.transform), toy.samples(0)
    params = {name: p + 0.1 for name, p in net.params().items()}
    work = task(module, samples, round=1, stage=2, extras=Payload(Teacher(params)))
    work = replace(work, broadcast=replace(work.broadcast, lengths=LENGTHS))
    state = TERM.begin(net, work, None)
    assert state.teacher is not None
    assert torch.equal(state.teacher, net.at(params).outputs(samples)["logits"])
    assert bool(state.trusted.all())
    assert bool(state.losses.isnan().all())
    assert TERM.begin(net, task(module, samples), None).teacher is None
    ended = replace(state, losses=torch.linspace(0, 1, 60).double().square().square())
    kept = TERM.finish(net, work, fitted({}), ended)
    assert torch.equal(kept.clean, updated(torch.ones(60).double(), verdicts(ended.losses, labels)))
    odd = replace(work, broadcast=replace(work.broadcast, round=2))
    assert bool((TERM.finish(net, odd, fitted({}), ended).clean == 1).all())
    alone = replace(ended, teacher=None)
    assert bool((TERM.finish(net, work, fitted({}), alone).clean == 1).all()), "nobody judges before there are teachers"
    below = replace(kept, clean=torch.where(kept.clean < 1, 0.5, 1.0).double())
    (found,) = TERM.findings({0: below}, {}, Payload())
    assert isinstance(found, SuspectedSamples)
    assert torch.equal(found.mask, below.clean < 0.6)
    assert torch.equal(TERM.begin(net, work, below).trusted, ~found.mask)


def test_a_teacher_is_the_mean_of_all_others() -> None:
    kept = {k: ClientState(extras=Payload(LastModel({"w": f64([v])}))) for k, v in ((0, 1.0), (1, 4.0), (2, 7.0))}
    (teacher,) = EXCHANGE.relay(None, 0, Clock(1, 2, LENGTHS), kept)
    assert teacher.params["w"].item() == 5.5
    (new,) = EXCHANGE.relay(None, 9, Clock(1, 2, LENGTHS), kept)
    assert new.params["w"].item() == 4.0
    assert EXCHANGE.relay(None, 0, Clock(0, 1, LENGTHS), kept) == ()
    assert EXCHANGE.relay(None, 0, Clock(1, 2, LENGTHS), {0: kept[0]}) == ()


def test_shares_go_up_after_the_plain_rounds_and_weigh() -> None:
    module = MLP([5], 0.0)((1, 2, 2), 3).double()
    toy = federation([normal(4, 1, 2, 2).float()], [torch.arange(4) % 3])
    net, samples = network(module, transform=toy.dataset.transform), toy.samples(0)
    trust = SampleTrust.of(samples.given)
    state = replace(visit(None, f64([0.0] * 3), trust), clean=torch.tensor(3), seen=torch.tensor(4))
    fit = replace(fitted(net.params()), states={"fedreda": state})

    def sent(round: int, stage: int) -> TrustedShare | None:
        work = task(module, samples, round=round, stage=stage)
        report, keep = EXCHANGE.report(net, replace(work, broadcast=replace(work.broadcast, lengths=LENGTHS)), fit)
        assert keep.one(LastModel).params is fit.params
        return report.get(TrustedShare)

    assert sent(0, 1) is None
    assert [sent(round, 2) for round in (1, 3, 4)] == [TrustedShare(1.0), TrustedShare(1.0), TrustedShare(0.75)]
    shares = (0.5, 0.25)
    results = [
        ClientResult(k, 100**k, {"w": f64([float(k)])}, ClientState(), Payload(TrustedShare(s)), 0.0, 1, True)
        for k, s in enumerate(shares)
    ]
    mean, start = TrustedMean(), {"w": f64([9.0])}
    assert not mean.by_samples
    assert mean.combine(start, [mean.block(start, results, Payload())], Payload()).params["w"].item() == pytest.approx(
        1 / 3
    )
    plain = [replace(r, reports=Payload()) for r in results]
    assert mean.combine(start, [mean.block(start, plain, Payload())], Payload()).params["w"].item() == 0.5
    none = [replace(r, reports=Payload(TrustedShare(0.0))) for r in results]
    assert mean.combine(start, [mean.block(start, none, Payload())], Payload()).params["w"].item() == 9.0


def test_what_it_is_not_meant_for_is_said() -> None:
    setting = Setting({0: 5, 1: 5}, LENGTHS, ONE_STEP, "method.local.fedreda", "vector")
    assert TERM.caution(setting) is None
    assert "dataset=features" in (TERM.caution(replace(setting, kind="image")) or "")
    assert "no teacher" in (TERM.caution(replace(setting, sizes={0: 5})) or "")
