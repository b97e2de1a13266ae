"""FedELC: loss and soft labels against the vectors, autograd and a loop of their own, and rounds of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.findings import SuspectedSamples
from flnl.core.messages import ClientState, ClientTask
from flnl.core.payload import Payload
from flnl.core.step import Mixing, Step
from flnl.core.streams import OfEngine
from flnl.core.training import Training
from flnl.engine.local.sgd import LocalTraining
from flnl.methods.fedelc.labels import LearnedLabels, label_gradient
from flnl.methods.fedelc.loss import FedELC, Visit
from flnl.parts.batches import Plain
from flnl.parts.messages import ClientTag
from tests.properties.runs import assembled, difference
from tests.registry import TINY
from tests.toys import federation, fitted, mlp, network, random_federation, step, task
from tests.vectors.vectors import federated

TERM = FedELC(alpha=0.5, beta=0.2, scale=10.0, label_lr=1000.0, label_batch=None, compatible=1.0)


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def at(logits: Tensor, labels: Tensor, tag: Any = True) -> Step:
    """A step of a client that got ``tag`` (None: nothing)."""
    extras = Payload() if tag is None else Payload(ClientTag(tag))
    return replace(step(logits=logits, targets=labels, extras=extras), labels=labels)


def visit(values: Tensor, prior: Tensor | None = None) -> Visit:
    even = torch.full((values.shape[1],), 1 / values.shape[1], dtype=values.dtype).log()
    return Visit(even if prior is None else prior, LearnedLabels(values, values.argmax(1)))


def graded(term: FedELC, made: Step, state: Visit) -> tuple[Tensor, Tensor, Visit]:
    """The losses [B], the gradient of their mean by the logits, and the state afterwards."""
    logits = made.inputs.clone().requires_grad_()
    loss, after = term(replace(made, computed={"logits": logits}), state)
    (gradient,) = torch.autograd.grad(loss.mean(), logits)
    return loss.detach(), gradient, after


def by_definition(logits: Tensor, values: Tensor, labels: Tensor, alpha: float, beta: float) -> Tensor:
    """PENCIL's loss, a mean over the batch, in torch's own words."""
    p, C = logits.softmax(1), logits.shape[1]
    kl = F.kl_div(values.log_softmax(1), p, reduction="batchmean") / C
    return kl + alpha * F.cross_entropy(values, labels) - beta * (p * p.log()).sum(1).mean() / C


# -------------------------------------------------------------------------------------------------------- vectors


def test_the_loss_and_the_step_of_the_labels() -> None:
    entry = federated("fedelc.pencil")
    inputs = entry.inputs
    values, labels = f64(inputs["y_tilde"]), torch.tensor(inputs["labels"])
    term = replace(TERM, alpha=inputs["alpha"], beta=inputs["beta"], label_lr=inputs["lam"])
    loss, gradient, after = graded(term, at(f64(inputs["logits"]), labels), visit(values))
    assert float(loss.mean()) == entry.approx("loss")
    assert gradient.tolist() == [entry.near(row) for row in entry.expected["grad_logits"]]
    assert after.labels is not None
    found = after.labels.values
    assert ((values - found) / inputs["lam"]).tolist() == [entry.near(row) for row in entry.expected["grad_y"]]
    np.testing.assert_allclose(found, entry.expected["y_tilde_after"], atol=5e-5)
    assert found.softmax(1).tolist() == [entry.near(row) for row in entry.expected["y_d_after"]]


def test_the_merge_after_a_visit() -> None:
    """``K (softmax(ỹ) + p) / 2``, by hand: softmax(ln 3, 0) is (3/4, 1/4)."""
    merged = LearnedLabels(f64([[np.log(3), 0.0]]), torch.tensor([0])).merged(f64([[0.25, 0.75]]), 10.0)
    assert merged.values.tolist() == [pytest.approx([5.0, 5.0])]


# ------------------------------------------------------------------------------------------------------- the loss


@pytest.mark.parametrize("classes", [2, 5])
def test_loss_and_both_gradients_are_autograds(classes: int) -> None:
    logits, values = normal(6, classes).requires_grad_(), (3 * normal(6, classes, seed=1)).requires_grad_()
    labels = torch.arange(6) % classes
    wanted = by_definition(logits, values, labels, 0.7, 0.3)
    by_logits, by_values = torch.autograd.grad(wanted, [logits, values])
    term = replace(TERM, alpha=0.7, beta=0.3, label_lr=2.0)
    loss, gradient, after = graded(term, at(logits.detach(), labels), visit(values.detach()))
    torch.testing.assert_close(loss.mean(), wanted.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, by_logits, rtol=1e-10, atol=1e-14)
    assert after.labels is not None
    torch.testing.assert_close(after.labels.values, (values - 2 * by_values).detach(), rtol=1e-12, atol=1e-14)


def test_a_step_does_not_depend_on_the_batch_where_the_rate_is_for_one() -> None:
    """For batches of 64: sixteen samples move as in a batch of 64 copies; a weight counts relative to the mean."""
    logits, values, labels = normal(16, 3), 4 * normal(16, 3, seed=1), torch.arange(16) % 3
    own, many = replace(TERM, label_batch=64), (logits.repeat(4, 1), values.repeat(4, 1), labels.repeat(4))
    _, _, one = graded(own, at(logits, labels), visit(values))
    _, _, four = graded(TERM, at(many[0], many[2]), visit(many[1]))
    assert one.labels is not None
    assert four.labels is not None
    torch.testing.assert_close(one.labels.values, four.labels.values[:16], rtol=1e-12, atol=1e-12)
    weight = f64([0.0, 4.0] + [1.0] * 14)
    _, _, weighed = graded(own, replace(at(logits, labels), weight=weight), visit(values))
    assert weighed.labels is not None
    moved, plain = weighed.labels.values - values, one.labels.values - values
    torch.testing.assert_close(moved, plain * weight[:, None] * 16 / 18, rtol=1e-12, atol=1e-12)
    none = replace(at(logits, labels), weight=torch.zeros(16, dtype=torch.float64))
    assert difference(graded(own, none, visit(values))[2], visit(values)) is None


def test_only_the_batchs_samples_move() -> None:
    made = replace(at(normal(2, 3), torch.tensor([0, 1])), positions=torch.tensor([3, 1]))
    before = visit(normal(5, 3, seed=1))
    _, _, after = graded(TERM, made, before)
    assert before.labels is not None
    assert after.labels is not None
    moved = (after.labels.values != before.labels.values).any(1)
    assert moved.tolist() == [False, True, False, True, False]
    rows = by_definition(made.inputs, before.labels.values[[3, 1]], made.labels, 0.5, 0.2)
    assert float(graded(TERM, made, before)[0].mean()) == pytest.approx(float(rows))


def test_clean_clients_learn_adjusted_logits() -> None:
    logits, labels, prior = normal(4, 3), torch.tensor([0, 1, 2, 0]), f64([0.5, 0.25, 0.25]).log()
    for tag in (None, False):
        state = visit(normal(4, 3), prior)
        loss, _, after = graded(TERM, at(logits, labels, tag), state)
        torch.testing.assert_close(loss, F.cross_entropy(logits + prior, labels, reduction="none"), rtol=1e-12, atol=0)
        assert after is state


def test_clients_that_are_trained_together_may_differ_in_their_tags() -> None:
    """Then a tag is a tensor."""
    logits, labels, state = normal(4, 3), torch.tensor([0, 1, 2, 0]), visit(normal(4, 3, seed=1))
    for tag in (True, False):
        one, other = (graded(TERM, at(logits, labels, t), state) for t in (tag, torch.tensor(tag)))
        for a, b in zip(one[:2], other[:2], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-15)


def test_mixed_batches_have_mixed_losses_and_labels_move_by_the_images_themselves() -> None:
    logits, unmixed, partner = normal(3, 2), normal(3, 2, seed=2), torch.tensor([2, 0, 1])
    labels, values = torch.tensor([0, 1, 1]), 3 * normal(3, 2, seed=1)
    mixed = replace(at(logits, labels), mixing=Mixing(0.7, partner))
    mixed.__dict__["unmixed_logits"] = unmixed
    loss, after = TERM(mixed, visit(values))
    pair = [by_definition(logits[i : i + 1], values[j : j + 1], labels[j : j + 1], 0.5, 0.2)
            for i in range(3) for j in (i, int(partner[i]))]  # fmt: skip
    wanted = torch.stack([0.7 * a + 0.3 * b for a, b in zip(pair[::2], pair[1::2], strict=True)])
    torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=1e-14)
    gradient = label_gradient(values, unmixed.softmax(1), labels, 0.5)
    assert after.labels is not None
    torch.testing.assert_close(after.labels.values, values - 1000 / 3 * gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_and_predictions_that_are_certain_and_wrong_are_finite(dtype: torch.dtype) -> None:
    logits = 1000 * torch.eye(3, dtype=dtype)
    loss, gradient, after = graded(TERM, at(logits, torch.tensor([1, 1, 0])), visit(-logits))
    assert after.labels is not None
    for found in (loss, gradient, after.labels.values):
        assert bool(found.isfinite().all())


# -------------------------------------------------------------------------------------------------- a client's visits

TRAINING = Training(lr=0.3, momentum=0.5, weight_decay=0.0, batch_size=3, epochs=3, lr_decay=1.0)
SLOW = replace(TERM, label_lr=5.0)


def asked(work: ClientTask, round: int, tag: bool | None, state: ClientState) -> ClientTask:
    extras = Payload() if tag is None else Payload(ClientTag(tag))
    return replace(work, state=state, broadcast=replace(work.broadcast, round=round, extras=extras))


def visited(work: ClientTask, round: int, *, tag: bool | None = True, state: ClientState | None = None) -> Any:
    given = asked(work, round, tag, state or ClientState())
    return LocalTraining(TRAINING, Plain(), {"mine": SLOW}, None, {})(network(mlp(4, 3, norm=True)), given)


def by_hand(work: ClientTask, visits: list[int]) -> tuple[Tensor, dict[str, Tensor]]:
    """Their loop: gradients of an epoch are gathered, and change ỹ when it ends; a visit ends with the merge."""
    values = 10 * F.one_hot(work.labels, 3).double()
    images = work.samples.read().double()
    for round in visits:
        module = mlp(4, 3, norm=True).double()
        module.load_state_dict(work.broadcast.params)
        optimizer = torch.optim.SGD(module.parameters(), TRAINING.lr, TRAINING.momentum)
        orders = asked(work, round, True, ClientState()).engine_stream(OfEngine.BATCHES)
        for _ in range(TRAINING.epochs):
            order, gathered = torch.from_numpy(orders.permutation(len(values))), torch.zeros_like(values)
            for batch in order.split(TRAINING.batch_size):
                variable = values[batch].requires_grad_()
                optimizer.zero_grad()
                by_definition(module(images[batch]), variable, work.labels[batch], 0.5, 0.2).backward()
                assert variable.grad is not None
                gathered[batch] = variable.grad
                optimizer.step()
            values = values - 5 * gathered
        module.eval()
        with torch.no_grad():
            values = 10 * (values.softmax(1) + module(images).softmax(1)) / 2
    return values, module.state_dict()


def test_visits_are_the_programs_loop_and_labels_persist() -> None:
    work = task(network(mlp(4, 3, norm=True)).module, random_federation([9]).samples(0))
    state = ClientState()
    for number, round in enumerate((2, 3, 7), 1):
        found = visited(work, round, state=state)
        state = found.state
        values, model = by_hand(work, [2, 3, 7][:number])
        np.testing.assert_allclose(state.terms["mine"].values, values, rtol=1e-8, atol=1e-10)
        for name, value in model.items():
            torch.testing.assert_close(found.params[name], value, rtol=1e-8, atol=1e-10)
    assert torch.equal(state.terms["mine"].held, work.labels)


@pytest.mark.parametrize("tag", [None, False])
def test_clean_clients_keep_nothing(tag: bool | None) -> None:
    work = task(network(mlp(4, 3, norm=True)).module, random_federation([9]).samples(0))
    assert visited(work, 1, tag=tag).state.empty


def test_a_label_that_is_corrected_starts_again() -> None:
    dealt = federation([torch.randn(3, 1, 2, 2)], [torch.tensor([0, 1, 2])])
    net = network(mlp(4, 3))
    work = asked(task(net.module, dealt.samples(0)), 2, True, ClientState(labels=torch.tensor([0, 2, 2])))
    kept = LearnedLabels(normal(3, 3), torch.tensor([0, 1, 2]))
    begun = TERM.begin(net, work, kept).labels
    assert begun is not None
    assert torch.equal(begun.values[[0, 2]], kept.values[[0, 2]])
    assert begun.values[1].tolist() == [0, 0, 10]
    assert TERM.begin(net, asked(work, 0, None, ClientState()), None).labels is None
    fresh = TERM.begin(net, work, None)
    assert TERM.finish(net, asked(work, 2, False, ClientState()), fitted({}), fresh) is None


def test_samples_of_another_class_are_suspected() -> None:
    values = f64([[np.log(3), 0.0], [0.0, np.log(4)], [0.0, 1.0]])
    (found,) = TERM.findings({3: LearnedLabels(values, torch.tensor([0, 0, 1]))}, {}, Payload())
    assert isinstance(found, SuspectedSamples)
    assert (found.client, found.mask.tolist()) == (3, [False, True, False])
    assert found.score is not None
    assert found.score[:2].tolist() == pytest.approx([0.25, 0.8])
    assert found.proposed is not None
    assert found.proposed.tolist() == [0, 1, 1]


# ---------------------------------------------------------------------------------------------------------- a run

RUN = (
    *(w for w in TINY if "fraction" not in w),
    *("fraction=1.0", "precision=64", "method=fedelc", "method.s1=2", "method.T=2", "noise=fedcorr", "noise.rho=0.5"),
)


def test_noisy_clients_alone_keep_labels_from_the_comparison_on(tmp_path: Path) -> None:
    with assembled(RUN, tmp_path / "run") as parts:
        results = parts.results()
        noisy = results[-1].state.server.exchanges["class_losses"].noisy
        assert 0 < int(noisy.sum()) < 8
        keeping = [{c for c, own in r.state.clients.items() if "fedelc" in own.terms} for r in results]
        assert keeping == [set(), set(), *[{*noisy.nonzero()[:, 0].tolist()}] * 2]
    assert results[1].metrics["aggregation/largest_distance"] == 0
    assert results[2].metrics["aggregation/largest_distance"] > 0


def test_it_begins_as_fednoro(tmp_path: Path) -> None:
    """The same stage and comparison, of the same models."""
    theirs = [w.replace("fedelc", "fednoro") for w in RUN]
    with assembled(RUN, tmp_path / "a") as ours, assembled([*theirs, "method.ramp_end=3"], tmp_path / "b") as others:
        pairs = list(zip(ours.results(), others.results(), strict=True))
    same = [difference(a.state.server.params, b.state.server.params) is None for a, b in pairs]
    assert same == [True, True, False, False]
    states = [[r.state.server.exchanges["class_losses"] for r in pair] for pair in pairs]
    assert all(difference(a, b) is None for a, b in states)


def test_a_run_measures_its_labels_against_the_truth(tmp_path: Path) -> None:
    """Those of noisy clients, which alone have soft labels."""
    words = [*(w for w in RUN if not w.startswith("method.T=")), "method.T=4", "train.lr=0.3"]
    with assembled(words, tmp_path / "run") as parts:
        last = parts.results()[-1]
        truth, right, changed = parts.federation.truth, list[bool](), 0
        assert truth is not None
        for client, own in last.state.clients.items():
            samples, soft = parts.federation.samples(client), own.terms["fedelc"].values
            right += (soft.argmax(1) == truth[samples.index]).tolist()
            changed += int((soft.argmax(1) != samples.given).sum())
        found = parts.evaluator.estimates(last.state)
    assert found["label_accuracy"] == pytest.approx(np.mean(right))
    assert found["suspected"] == changed > 0
