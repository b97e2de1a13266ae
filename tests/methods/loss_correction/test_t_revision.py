"""T-revision: reweighting against its vector, the slack's gradients and steps against torch's autograd and Adam."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.config import compose
from flnl.core.findings import EstimatedNoise, Scalar
from flnl.core.messages import ClientState
from flnl.core.parts import LossTerm
from flnl.core.payload import Payload
from flnl.core.step import Step
from flnl.core.training import Training
from flnl.engine.local.sgd import LocalTraining
from flnl.methods.loss_correction.exchange import TransitionEstimate
from flnl.methods.loss_correction.loss import reweighted_loss
from flnl.methods.loss_correction.revision import Learning, Revision
from flnl.methods.loss_correction.transition import Slack, TransitionMatrix, revised
from flnl.parts.batches import Plain
from tests.methods.loss_correction.test_forward_correction import deviation, f64, normal, stochastic
from tests.properties.runs import rounds, run
from tests.registry import TINY
from tests.toys import fitted, mlp, network, random_federation, step, task
from tests.vectors.vectors import label_noise

FORWARD = Revision("forward", lr=5e-7, weight_decay=1e-4)
REWEIGHT = replace(FORWARD, form="reweight")


def kept(matrix: Tensor) -> Payload:
    return Payload(TransitionMatrix(matrix, torch.full((len(matrix),), 1 / len(matrix), dtype=torch.float64)))


def start(slack: Tensor) -> Learning:
    zero = torch.zeros_like(slack)
    return Learning(slack, zero, zero, zero[0, 0])


def revised_step(term: Revision, state: Learning, logits: Tensor, targets: Tensor, matrix: Tensor, **more: Any) -> Any:
    """The loss, its gradient by the logits, and the next state."""
    logits = logits.clone().requires_grad_()
    loss, after = term(replace(step(logits=logits, targets=targets), kept=kept(matrix), **more), state)
    (gradient,) = torch.autograd.grad(loss.mean(), logits)
    return loss.detach(), gradient, after


def by_hand(form: str, logits: Tensor, labels: Tensor, matrix: Tensor, slack: Tensor) -> Tensor:
    """The losses [B] as they are defined, in float64 and without logarithms of sums."""
    p = logits.softmax(1)
    entries = matrix + slack
    if form == "forward":
        rows = entries / entries.sum(1, keepdim=True)
        return -torch.stack([(p[i] @ rows[:, y]).log() for i, y in enumerate(labels.tolist())])
    return torch.stack([-p[i, y] / (p[i] @ entries[:, y]) * p[i, y].log() for i, y in enumerate(labels.tolist())])


def test_reweighting_treats_the_importance_as_a_constant() -> None:
    entry = label_noise("t_revision_reweight")
    logits, labels, matrix = f64(entry.inputs["logits"]), torch.tensor(entry.inputs["labels"]), f64(entry.inputs["T"])
    beta = reweighted_loss(logits, labels, matrix, constant=True) / F.cross_entropy(logits, labels, reduction="none")
    np.testing.assert_allclose(beta, entry.expected["beta"], atol=entry.absolute, rtol=entry.relative)
    wrong = deviation("t_revision_reweight")["grad_if_beta_not_detached"]
    for constant, wanted in ((True, entry.expected["grad"]), (False, wrong)):
        z = logits.clone().requires_grad_()
        loss = reweighted_loss(z, labels, matrix, constant=constant).mean()
        assert float(loss.detach()) == entry.approx("mean")
        (gradient,) = torch.autograd.grad(loss, z)
        np.testing.assert_allclose(gradient, wanted, atol=entry.absolute, rtol=entry.relative)


def test_the_importance_is_bounded() -> None:
    """A label that T hardly explains would otherwise outweigh all others."""
    logits, labels = torch.zeros(1, 2).double(), torch.tensor([0])
    for matrix in (f64([[0.001, 0.999], [0.001, 0.999]]), f64([[-0.5, 1.5], [-0.5, 1.5]])):
        loss = reweighted_loss(logits, labels, matrix, constant=False)
        assert float(loss) == pytest.approx(10 * np.log(2))


@pytest.mark.parametrize("term", [FORWARD, REWEIGHT], ids=lambda term: term.form)
def test_loss_and_gradients_are_those_of_both_the_network_and_the_slack(term: Revision) -> None:
    logits, labels, matrix = normal(6, 3), torch.tensor([0, 1, 2, 0, 2, 2]), stochastic(3, seed=1)
    slack = 0.02 * normal(3, 3, seed=2)
    loss, gradient, after = revised_step(term, start(slack), logits, labels, matrix)
    z, d = logits.clone().requires_grad_(), slack.clone().requires_grad_()
    wanted = by_hand(term.form, z, labels, matrix, d)
    of_logits, of_slack = torch.autograd.grad(wanted.mean(), (z, d))
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, of_logits, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(after.mean, 0.1 * (of_slack + 1e-4 * slack), rtol=1e-10, atol=1e-12)
    assert float(of_slack.abs().min()) > 1e-4


def test_weights_and_mixed_labels_count_in_the_gradient_of_the_slack() -> None:
    logits, matrix, slack = normal(4, 3), stochastic(3), torch.zeros(3, 3).double()
    weight = f64([1.0, 0.0, 2.0, 0.5])
    hot = torch.eye(3).double()
    targets = 0.3 * hot[[0, 1, 2, 0]] + 0.7 * hot[[1, 1, 0, 2]]
    _, _, after = revised_step(FORWARD, start(slack), logits, targets, matrix, weight=weight)
    d = slack.clone().requires_grad_()
    one, other = (by_hand("forward", logits, torch.tensor(y), matrix, d) for y in ([0, 1, 2, 0], [1, 1, 0, 2]))
    wanted = (weight * (0.3 * one + 0.7 * other)).sum() / weight.sum()
    torch.testing.assert_close(after.mean, 0.1 * torch.autograd.grad(wanted, d)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_steps_are_torchs_adam(weight_decay: float) -> None:
    slack = 0.1 * normal(3, 3)
    reference = torch.nn.Parameter(slack.clone())
    adam = torch.optim.Adam([reference], lr=0.01, weight_decay=weight_decay)
    state = start(slack)
    for number in range(5):
        gradient = normal(3, 3, seed=number)
        reference.grad = gradient
        adam.step()
        state = state.stepped(gradient, 0.01, weight_decay)
        torch.testing.assert_close(state.slack, reference.detach(), rtol=1e-12, atol=1e-14)
    first = start(torch.zeros(3, 3).double()).stepped(normal(3, 3), 5e-7, 0.0).slack
    torch.testing.assert_close(first, -5e-7 * normal(3, 3).sign(), rtol=1e-6, atol=0)


def test_entries_stay_probabilities_and_zeros_can_grow() -> None:
    matrix = f64([[1.0, 0.0], [0.5, 0.5]])
    rows = revised(matrix, f64([[-2.0, 0.5], [0.0, 0.0]]))
    torch.testing.assert_close(rows, f64([[1e-6 / 0.500001, 0.5 / 0.500001], [0.5, 0.5]]), rtol=1e-12, atol=0)
    quick = replace(FORWARD, lr=0.01)
    logits, labels = f64([[9.0, 0.0]]), torch.tensor([1])  # certainly of class 0, but labelled 1
    _, _, after = revised_step(quick, start(torch.zeros(2, 2).double()), logits, labels, matrix)
    assert float(after.slack[0, 1]) == pytest.approx(0.01, rel=1e-6)
    labels = torch.tensor([0])
    _, _, after = revised_step(quick, start(torch.zeros(2, 2).double()), logits, labels, matrix)
    assert float(after.slack[0, 1]) == 0.0, "it does not fall where T is below the bound"
    assert float(after.slack[0, 0]) == pytest.approx(0.01, rel=0.02)
    still = replace(FORWARD, lr=0.0)
    _, _, after = revised_step(still, start(torch.zeros(2, 2).double()), logits, labels, matrix)
    assert float(after.slack.abs().sum()) == 0.0, "the bound is of what is used, not of what is learned"


@pytest.mark.parametrize("gap", [100.0, 1000.0])
@pytest.mark.parametrize("term", [FORWARD, REWEIGHT], ids=lambda term: term.form)
def test_certain_and_wrong_predictions_have_finite_gradients(term: Revision, gap: float) -> None:
    logits, labels, matrix = torch.tensor([[gap, 0.0, -gap]] * 3), torch.tensor([0, 1, 2]), torch.eye(3).double()
    loss, gradient, after = revised_step(term, start(torch.zeros(3, 3)), logits, labels, matrix)
    for found in (loss, gradient, after.slack):
        assert bool(found.isfinite().all())


def test_without_an_estimate_it_is_cross_entropy_and_nothing_is_learned() -> None:
    logits, labels, state = normal(4, 3), torch.tensor([0, 1, 2, 0]), start(torch.zeros(3, 3).double())
    loss, after = FORWARD(step(logits=logits, targets=labels), state)
    assert torch.equal(loss, F.cross_entropy(logits, labels, reduction="none"))
    assert after is state
    module = mlp(4, 3)
    visited = task(module, random_federation([4]).samples(0))
    assert FORWARD.finish(network(module), visited, fitted({}), after) is None


def test_the_slack_stays_with_the_client_and_its_moments_do_not() -> None:
    module, data = mlp(4, 3), random_federation([4])
    net, matrix = network(module), stochastic(3)
    visited = task(module, data.samples(0), state=ClientState(extras=kept(matrix)))
    state = FORWARD.begin(net, visited, None)
    assert (state.slack.dtype, float(state.slack.abs().sum()), float(state.steps)) == (torch.float64, 0.0, 0.0)
    _, _, after = revised_step(FORWARD, state, normal(4, 3), torch.tensor([0, 1, 2, 0]), matrix)
    assert float(after.steps) == 1
    slack = FORWARD.finish(net, visited, fitted({}), after)
    assert isinstance(slack, Slack)
    again = FORWARD.begin(net, visited, slack)
    assert torch.equal(again.slack, after.slack)
    assert float(again.steps) == float(again.mean.abs().sum()) == float(again.square.sum()) == 0


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("keeps", [False, True])
def test_adam_on_the_slack_goes_on_where_the_networks_optimiser_does(momentum: float, keeps: bool) -> None:
    """Of three visits, of two steps each; also where the network's optimiser, without momentum, has nothing to keep."""
    quick = replace(FORWARD, lr=0.01)
    net, data, matrix = network(mlp(4, 3)), random_federation([8]), stochastic(3)
    training = Training(0.1, momentum, 0.0, batch_size=4, epochs=1, lr_decay=1.0, keep_momentum=keeps)
    work = LocalTraining(training, Plain(), {"t": Recording(quick)}, None, {})
    visited = task(net.module, data.samples(0), state=ClientState(extras=kept(matrix)))
    reference = torch.nn.Parameter(torch.zeros(3, 3).double())
    adam = torch.optim.Adam([reference], lr=0.01, weight_decay=1e-4)
    for visit in range(3):
        Recording.seen.clear()
        result = work(net, visited)
        if not keeps:
            adam = torch.optim.Adam([reference], lr=0.01, weight_decay=1e-4)
        for logits, labels in Recording.seen:
            adam.zero_grad()
            by_hand("forward", logits, labels, matrix, reference).mean().backward()
            adam.step()
        slack = result.state.terms["t"]
        torch.testing.assert_close(slack.values, reference.detach(), rtol=1e-9, atol=1e-12)
        assert len(Recording.seen) == 2
        assert (None if slack.moments is None else float(slack.moments[2])) == (2 * (visit + 1) if keeps else None)
        visited = task(net.module, data.samples(0), state=result.state, round=visit + 1)
    dropped = replace(visited, state=replace(visited.state, momentum=None))  # as where a stage restarts
    assert float(quick.begin(net, dropped, dropped.state.terms["t"]).steps) == 0


@dataclass(frozen=True)
class Recording(LossTerm):
    """The term, and the logits and labels of its steps."""

    seen: ClassVar[list[tuple[Tensor, Tensor]]] = []
    fits_labels: ClassVar[bool] = True
    term: Revision

    def begin(self, *given: Any) -> Any:
        """Of the term."""
        return self.term.begin(*given)

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """Of the term."""
        self.seen.append((step.logits.detach(), step.labels))
        return self.term(step, state)

    def finish(self, *given: Any) -> Any:
        """Of the term."""
        return self.term.finish(*given)


def test_what_is_found_is_of_the_revised_matrix() -> None:
    exchange = TransitionEstimate("anchor", threshold=0.95, min_count=1, percentile=97, stage=2)
    extras = kept(f64([[0.75, 0.25], [0.5, 0.5]]))
    moved = Slack(f64([[0.25, -0.25], [0.25, -0.25]]))
    clients = {0: ClientState(extras=extras), 1: ClientState(terms={"any": moved}, extras=extras)}
    noise, size = exchange.findings(2, clients, Payload())
    assert isinstance(noise, EstimatedNoise)
    np.testing.assert_allclose(noise.values, [0.375, 0.375], atol=2e-6)
    assert size == Scalar("slack_l1", 1.0)
    lower = replace(moved, values=f64([[0.25, -0.25], [0.0, 0.0]]))
    (noise, _) = exchange.findings(2, {1: ClientState(terms={"any": lower}, extras=extras)}, Payload())
    assert isinstance(noise, EstimatedNoise)
    np.testing.assert_allclose(noise.values, [np.nan, 0.25], atol=2e-6)


RUN = (
    *(*TINY, "method=t_revision", "method.T_wu=2", "method.T_lc=1", "method.T=2", "method.percentile=null"),
    *("noise=symmetric", "noise.eta=0.4", "precision=64"),
)


def test_clients_estimate_once_and_learn_their_slacks_in_the_last_stage(tmp_path: Path) -> None:
    results = rounds(RUN, tmp_path / "run")
    states = [result.state.clients for result in results]
    matrices = [{k: own.extras.get(TransitionMatrix) for k, own in clients.items()} for clients in states]
    assert matrices[1] == {}
    assert len(matrices[2]) == 8
    for later in matrices[3:]:
        assert all(np.array_equal(later[k].values, m.values) for k, m in matrices[2].items())  # type: ignore[union-attr]
    slacks = [{k: own.terms["t_revision"].values for k, own in clients.items() if own.terms} for clients in states]
    assert [len(s) for s in slacks[:3]] == [0, 0, 0]
    assert sorted(slacks[3]) == sorted(results[3].cohort)
    steps = 2 * 4  # epochs of 21 or 22 samples in batches of 7
    for slack in slacks[3].values():
        assert 5e-7 < float(slack.abs().max()) < 5e-7 * steps * 1.01
    assert all("slack" not in name and p.shape != (10, 10) for name, p in results[-1].state.server.params.items())
    away = set(slacks[3]) - set(results[4].cohort)
    assert all(np.array_equal(slacks[4][k], slacks[3][k]) for k in away)
    assert any(not np.array_equal(slacks[4][k], slacks[3][k]) for k in set(slacks[3]) & set(results[4].cohort))


def test_a_run_records_how_far_matrices_were_revised(tmp_path: Path) -> None:
    done = run(RUN, tmp_path / "run")
    slacks = [own.terms["t_revision"].values for own in done.state.clients.values() if own.terms]
    assert done.record["metrics"]["slack_l1"] == pytest.approx(np.mean([float(s.abs().sum()) for s in slacks]))
    assert 0 < done.record["metrics"]["slack_l1"] < 100 * 16 * 5e-7
    assert "noise_level_error" in done.record["metrics"]


def test_in_another_method_matrices_are_estimated_before_the_stage_of_the_term() -> None:
    more = ("method/local=[t_revision]", "method/exchange=[fedcorr_lid,loss_correction_transition_matrix]")
    cfg = compose.load(["method=fedcorr", *more])
    assert cfg.method.exchange.transition_matrix.stage == 3
    assert compose.load(["method=t_revision"]).method.exchange.transition_matrix.stage == 2
    assert compose.load(["method=t_revision", "method.T_lc=0"]).method.exchange.transition_matrix.stage == 3
