"""FedGR against the vectors, and visits of clients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flnl.core.findings import EstimatedNoise, SuspectedSamples
from flnl.core.messages import ClientState, Clock
from flnl.core.parts import Setting
from flnl.core.payload import Payload, size_in_bytes
from flnl.methods.fedgr.exchange import LabelSieve, MeanLosses, RefinedLabels, RightLabels, SampleLosses
from flnl.methods.fedgr.loss import FedGR, Visit, divergence
from flnl.methods.fedgr.sieve import NO_LABEL, Sieve, lower_posterior, pseudo_labels
from flnl.methods.fedgr.teacher import AveragedTeacher, released_decay
from flnl.models.mlp import MLP
from flnl.numerics.mixture import two_gaussians
from flnl.parts.batches import Mixup, Plain
from flnl.parts.strong_view import strong_view
from tests.toys import ONE_STEP, Logits, federation, fitted, network, step, task
from tests.vectors.vectors import NEWER, entries

SIEVE = Sieve(tolerance=0.01, min_variance=0.0005, iterations=50)
EXCHANGE = LabelSieve(beta=0.8, confidence=0.9, threshold=0.5, sticky=False, sieve=SIEVE, stage=2)
TERM = FedGR(
    distillation=1.0,
    representation=0.1,
    temperature=0.5,
    feature_temperature=0.5,
    decay_local=0.99,
    decay_global=0.9,
    decay="constant",
    beta=0.8,
    fewest=0.5,
    posterior="sample",
    view="plain",
    first_stage=2,
)
UNIT = (torch.zeros(1, 1, 1), torch.ones(1, 1, 1))


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def visit(teaches: Tensor | None = None, features: Tensor | None = None) -> Visit:
    return Visit(None, teaches, features, UNIT)


def refined(right: Any, labels: Any, *, high: bool = False) -> RefinedLabels:
    return RefinedLabels(f64(right), torch.tensor(labels), high, 0.0, 0.0, torch.tensor(labels))


# ------------------------------------------------------------------------------------------------------------- loss


def of_labels(inputs: dict[str, Any], term: FedGR, *, high: bool = False) -> float:
    labels = torch.tensor(inputs["labels"])
    batch = replace(
        step(logits=f64(inputs["logits"]), targets=labels),
        labels=labels,
        visit=Payload(refined(inputs["q"], inputs["pseudo"], high=high)),
    )
    return float(term(batch, visit())[0].mean())


@pytest.mark.parametrize("name", ["fedgr.WRONG_broadcast"])
def test_each_sample_meets_its_own_posterior_and_the_released_loss_is_a_switch(name: str) -> None:
    vector = entries(NEWER)[name]
    assert of_labels(vector.inputs, TERM) == vector.approx("correct")
    assert of_labels(vector.inputs, TERM) != vector.approx("loss_low_noise_as_released")
    assert of_labels(vector.inputs, replace(TERM, posterior="batch")) == vector.approx("loss_low_noise_as_released")


def test_a_client_of_high_noise_learns_from_pseudo_labels_alone() -> None:
    inputs = entries(NEWER)["fedgr.WRONG_broadcast"].inputs
    logits = np.array(inputs["logits"])
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = sum(-logs[i, y] for i, y in enumerate(inputs["pseudo"]) if y >= 0) / len(logits)
    assert of_labels(inputs, TERM, high=True) == pytest.approx(expected, abs=1e-12)


def test_the_divergence_is_not_scaled_and_not_reversed() -> None:
    vector, wrong = entries(NEWER)["fedgr.distill"], entries(NEWER)["fedgr.WRONG_distill"]
    student = f64(vector.inputs["student_logits"]).requires_grad_()
    loss = divergence(f64(vector.inputs["teacher_logits"]), student, vector.inputs["tau"])
    assert loss.tolist() == vector.approx("per_sample")
    (gradient,) = torch.autograd.grad(loss.mean(), student)
    loss = loss.detach()
    assert float(loss.mean()) == vector.approx("loss")
    np.testing.assert_allclose(gradient, vector.expected["grad_student"], atol=vector.absolute)
    assert float(loss.mean()) == wrong.approx("correct")
    assert float(loss.mean()) not in (wrong.approx("tau_squared"), wrong.approx("reversed"))


def test_the_summands_are_weighted() -> None:
    rng = torch.Generator().manual_seed(0)
    z, u, g = (torch.randn(4, 3, generator=rng, dtype=torch.float64) for _ in range(3))
    batch = step(logits=z)
    batch = replace(batch, visit=Payload(refined([1.0] * 4, [NO_LABEL] * 4)), computed={"logits": z, "features": 2 * z})
    plain = TERM(batch, visit())[0]
    np.testing.assert_allclose(plain, torch.nn.functional.cross_entropy(z, batch.labels, reduction="none"), rtol=1e-12)
    taught, held = TERM(batch, visit(teaches=u))[0] - plain, TERM(batch, visit(features=g))[0] - plain

    def kl(one: Tensor, other: Tensor) -> list[float]:
        p, q = (np.exp(2 * v.numpy()) / np.exp(2 * v.numpy()).sum(1, keepdims=True) for v in (one, other))
        return list((p * np.log(p / q)).sum(1))

    np.testing.assert_allclose(taught, kl(u, z), rtol=1e-9)
    np.testing.assert_allclose(held, 0.1 * np.array(kl(g, 2 * z)), rtol=1e-9)


# ------------------------------------------------------------------------------------------------------------ sieve


def test_mean_losses_over_visits() -> None:
    vector = entries(NEWER)["fedgr.loss_proxy"]
    labels, kept = torch.tensor(vector.inputs["labels"]), ClientState()
    module = Logits()
    for logits, losses, mean in zip(
        vector.inputs["logits_per_visit"],
        vector.expected["loss_per_visit"],
        vector.expected["proxy_after_visit"],
        strict=True,
    ):
        toy = federation([f64(logits).float()[:, None, None, :]], [labels])
        net = network(module, transform=toy.dataset.transform)
        work = task(module, toy.samples(0), state=kept)
        _, keep = EXCHANGE.begin(net, work)
        kept = kept.keeping(*keep)
        own = torch.nn.functional.cross_entropy(f64(logits), labels, reduction="none")
        assert own.tolist() == vector.near(losses)
        assert keep.one(MeanLosses).values.tolist() == pytest.approx(mean, abs=1e-6), "pixels are float32"
        sent, _ = EXCHANGE.report(net, replace(work, state=kept), fitted(net.params()))
        assert sent.one(SampleLosses).values is keep.one(MeanLosses).values
        assert size_in_bytes(sent.one(SampleLosses)) == 8 * len(labels)
    means = MeanLosses(f64(vector.expected["loss_per_visit"][0]), 1)
    for losses in vector.expected["loss_per_visit"][1:]:
        means = means.including(f64(losses))
    assert means.values.tolist() == vector.near(vector.expected["proxy_after_visit"][-1])


def test_posteriors_of_a_given_mixture() -> None:
    vector = entries(NEWER)["fedgr.sieve_posterior"]
    mixture = [np.array(vector.inputs[name]) for name in ("means", "variances", "weights")]
    for client, proxies in vector.inputs["proxies_by_client"].items():
        q = lower_posterior(np.array(proxies), *mixture)
        assert q.tolist() == vector.near(vector.expected["q"][client])
        assert (q >= 0.5).tolist() == vector.expected["clean"][client]
        assert float((q < 0.5).mean()) == vector.expected["noise_rate"][client]


def test_the_fit_of_the_vector_over_all_clients() -> None:
    vector = entries(NEWER)["fedgr.sieve_fit"]
    proxies = f64(vector.inputs["proxies"])
    found = two_gaussians(proxies.numpy(), SIEVE.tolerance, variance=SIEVE.min_variance, iterations=SIEVE.iterations)
    assert list(found.means) == vector.approx("means")
    assert list(found.variances) == vector.approx("variances")
    assert list(found.weights) == vector.approx("weights")
    right = SIEVE({3: proxies[:5], 1: proxies[5:]})
    assert [*right] == [3, 1]
    assert (torch.cat([right[3], right[1]]) >= 0.5).tolist() == vector.expected["clean"]


@pytest.mark.parametrize("losses", [[0.1, 5.0, float("nan"), 0.2], [0.7] * 9], ids=["too few", "equal"])
def test_without_a_mixture_all_labels_count_as_right(losses: list[float], caplog: pytest.LogCaptureFixture) -> None:
    assert SIEVE({0: f64(losses)})[0].tolist() == [1.0] * len(losses)
    assert "too few or equal" in caplog.text
    assert SIEVE({}) == {}


def test_pseudo_labels() -> None:
    p = f64([[0.95, 0.05], [0.05, 0.95], [0.4, 0.6], [0.4, 0.6]])
    given, noisy = torch.tensor([1, 1, 0, 0]), torch.tensor([True, False, True, False])
    assert pseudo_labels(p, given, noisy, high=False, confidence=0.9).tolist() == [0, 1, -1, 0]
    assert pseudo_labels(p, given, noisy, high=True, confidence=0.9).tolist() == [0, 1, -1, -1]


def test_a_visit_refines_labels_from_its_stage_on() -> None:
    pixels = f64([[9.0, 0, 0, 0], [0, 9, 0, 0], [1, 0, 0, 0], [0, 0, 9, 0]]).float()[:, None].reshape(4, 1, 2, 2)
    given, module = torch.tensor([0, 0, 0, 2]), Logits()
    toy = federation([pixels], [given], classes=4)
    net = network(module, classes=4, transform=toy.dataset.transform)
    right = RightLabels(f64([0.9, 0.2, 0.3, 0.8]))

    def begun(exchange: LabelSieve = EXCHANGE, **more: Any) -> RefinedLabels:
        return exchange.begin(net, task(module, toy.samples(0), **more))[0].one(RefinedLabels)

    early = begun(extras=Payload(right))
    assert (early.right.tolist(), early.labels.tolist(), early.noise) == ([1.0] * 4, [NO_LABEL] * 4, 0.5)
    first = begun(stage=2)
    assert (first.right.tolist(), first.labels.tolist(), first.high) == ([1.0] * 4, [0, 0, 0, 2], False)
    found = begun(stage=2, extras=Payload(right))
    assert (found.right.tolist(), found.labels.tolist()) == ([0.9, 0.2, 0.3, 0.8], [0, 1, NO_LABEL, 2])
    assert (found.high, found.noise, found.labelled) == (False, 0.5, 0.75)
    high = begun(replace(EXCHANGE, beta=0.5), stage=2, extras=Payload(right))
    assert (high.high, high.labels.tolist()) == (True, [0, 1, NO_LABEL, 2]), "a share equal to beta is high"
    kept = ClientState(extras=Payload(refined([1.0] * 4, [3, 3, 3, NO_LABEL])))
    assert begun(replace(EXCHANGE, sticky=True), stage=2, extras=Payload(right), state=kept).labels.tolist() == [
        0,
        1,
        3,
        2,
    ]
    assert begun(stage=2, extras=Payload(right), state=kept).labels.tolist() == [0, 1, NO_LABEL, 2]


def test_the_server_keeps_what_it_knows_of_absent_clients() -> None:
    state = EXCHANGE.init(3, {})
    assert EXCHANGE.send(state, 0, Clock(0, 1)) == ()
    losses = f64([0.1, 0.2, 0.15, 3.0, 3.2])
    state = EXCHANGE.receive(state, {0: Payload(SampleLosses(losses))}, 1)
    later = EXCHANGE.receive(state, {2: Payload(SampleLosses(losses.flip(0)))}, 1)
    assert EXCHANGE.send(later, 0, Clock(1, 1)) == EXCHANGE.send(state, 0, Clock(1, 1))
    kept = {0: ClientState(extras=Payload(refined([1.0] * 5, [0, 1, 2, 0, 1])))}
    found, level = EXCHANGE.findings(later, kept, Payload())
    assert isinstance(found, SuspectedSamples)
    assert found.mask.tolist() == [False, False, False, True, True]
    assert isinstance(level, EstimatedNoise)
    assert float(level.values[0]) == 0.4
    assert bool(level.values[1].isnan())
    assert EXCHANGE.findings(EXCHANGE.init(3, {}), {}, Payload()) == ()


def test_what_does_nothing_is_warned_of_and_mixed_batches_are_refused() -> None:
    def said(*lengths: int) -> str | None:
        return EXCHANGE.caution(Setting({}, lengths, ONE_STEP, "method.exchange.label_sieve"))

    assert said(3, 4) is None
    assert "before the first round" in (said(0, 4) or "")
    assert "never" in (said(3, 0) or "")
    assert EXCHANGE.begins((3, 4)) == 3
    setting = Setting({}, (3, 4), ONE_STEP)
    assert TERM.refuses(torch.nn.Identity(), [Plain()], setting) is None
    assert "mixed" in (TERM.refuses(torch.nn.Identity(), [Mixup(1.0, True, None)], setting) or "")
    words = replace(setting, kind="tokens")
    assert TERM.refuses(torch.nn.Identity(), [], words) is None
    assert "view=plain" in (replace(TERM, view="strong").refuses(torch.nn.Identity(), [], words) or "")


# ---------------------------------------------------------------------------------------------------------- teacher


def test_the_teacher_of_the_paper() -> None:
    vector = entries(NEWER)["fedgr.teacher"]
    given = vector.inputs
    teacher = AveragedTeacher({"w": f64(given["teacher"])}, torch.tensor(0))
    teacher = teacher.pulled({"w": f64(given["received"])}, given["gamma_g"])
    assert float(teacher.params["w"]) == vector.approx("revised")
    seen = []
    for weights in given["weights_after_step"]:
        teacher = teacher.following({"w": f64(weights)}, given["gamma_l"], "constant")
        seen.append(float(teacher.params["w"]))
    assert seen == vector.approx("after_steps")


def test_the_teacher_of_the_released_program() -> None:
    vector = entries(NEWER)["fedgr.teacher_released_decay"]
    for number, decay in vector.expected["decay_of_update"].items():
        assert float(released_decay(f64(int(number) - 1), 0.99)) == vector.near(decay)
    for before, name in ((0, "after_steps_if_first_visit"), (10, "after_steps_if_10_updates_before")):
        teacher, seen = f64(vector.inputs["teacher"]), []
        for update, weights in enumerate(vector.inputs["weights_after_step"], start=before):
            decay = released_decay(f64(update), 0.99)
            teacher = decay * teacher + (1 - decay) * weights
            seen.append(float(teacher))
        assert seen == vector.approx(name)
    one = AveragedTeacher({"w": f64(0.94)}, torch.tensor(10)).following({"w": f64(0.5)}, 0.99, "released")
    twice = 0.5 + (0.94 - 0.5) * (1 - 1 / 10) * (1 - 1 / 11)
    assert float(one.params["w"]) == pytest.approx(twice, abs=1e-12)
    assert int(one.updates) == 12


def test_how_a_visit_begins_with_its_teacher() -> None:
    module = MLP([5], 0.0)((1, 2, 2), 3).double()
    rng = torch.Generator().manual_seed(1)
    pixels = torch.randn(6, 1, 2, 2, generator=rng)
    toy = federation([pixels], [torch.zeros(6, dtype=torch.int64)])
    net = network(module, transform=toy.dataset.transform)
    received = net.params()
    kept = AveragedTeacher({name: p + 1 for name, p in received.items()}, torch.tensor(7))

    def begun(
        term: FedGR, stage: int, state: AveragedTeacher | None, noise: float = 0.0, labelled: float = 1.0
    ) -> Visit:
        work = task(module, toy.samples(0), stage=stage)
        own = replace(refined([1.0] * 6, [0] * 6), noise=noise, labelled=labelled)
        return term.begin(net, replace(work, visit=Payload(own)), state)

    early = begun(TERM, 1, kept)
    assert early.logits is None
    assert early.teacher is not None
    assert {name: torch.equal(p, received[name]) for name, p in early.teacher.params.items()} == dict.fromkeys(
        received, True
    )
    assert int(early.teacher.updates) == 7
    first = begun(TERM, 2, None)
    assert first.logits is not None
    assert first.features is not None
    torch.testing.assert_close(first.logits, net.logits(toy.samples(0)))
    torch.testing.assert_close(first.features, net.logits(toy.samples(0), output="features"))
    usual, released = begun(TERM, 2, kept), begun(replace(TERM, decay="released"), 2, kept)
    assert usual.teacher is not None
    assert released.teacher is not None
    for name, p in received.items():
        torch.testing.assert_close(usual.teacher.params[name], p + 0.9)
        torch.testing.assert_close(released.teacher.params[name], p + 0.81)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.9)
        pulled = net.logits(toy.samples(0))
        for p in module.parameters():
            p.sub_(0.9)
    assert usual.logits is not None
    torch.testing.assert_close(usual.logits, pulled)
    torch.testing.assert_close(released.logits, pulled)
    reset, not_reset = begun(TERM, 2, kept, 0.9, 0.4), begun(TERM, 2, kept, 0.8, 0.4)
    assert reset.logits is not None
    torch.testing.assert_close(reset.logits, first.logits)
    torch.testing.assert_close(not_reset.logits, usual.logits)
    stepped = TERM.stepped({name: p + 5 for name, p in received.items()}, usual)
    assert stepped.teacher is not None
    name = next(iter(received))
    torch.testing.assert_close(stepped.teacher.params[name], received[name] + 0.99 * 0.9 + 0.01 * 5)
    kept_after = TERM.finish(net, task(module, toy.samples(0)), fitted(received), stepped)
    assert kept_after is stepped.teacher
    off = begun(replace(TERM, distillation=0.0, representation=0.0), 2, None)
    assert (off.teacher, off.logits, off.features) == (None, None, None)
    assert TERM.stepped(received, off) is off


# ------------------------------------------------------------------------------------------------------ strong view


def test_the_term_trains_on_the_strong_view_of_its_draw() -> None:
    term = replace(TERM, view="strong", representation=0.0)
    assert TERM.draw(np.random.default_rng(0), 4) is None
    drawn = term.draw(np.random.default_rng(0), 4)
    assert drawn is not None
    inputs = torch.rand(4, 1, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    mean, std = f64([[[0.2]]]), f64([[[0.5]]])
    net = network(Logits(), classes=4)
    work = step()
    batch = replace(
        work,
        inputs=(inputs - mean) / std,
        labels=torch.tensor([0, 1, 2, 3]),
        positions=torch.arange(4),
        draws={"fedgr": drawn},
        passes=net.passes(work.broadcast),
        visit=Payload(refined([1.0] * 4, [NO_LABEL] * 4)),
    )
    loss, _ = batch.given_to("fedgr", term, Visit(None, None, None, (mean, std)))
    logits = ((strong_view(inputs, drawn) - mean) / std).flatten(1)
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, batch.labels, reduction="none"))
