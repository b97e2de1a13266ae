"""JointOpt: the objective and the labels against the vectors and a loop of their own, the stages in a run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.config import compose
from flnl.core.findings import SuspectedSamples
from flnl.core.messages import ClientState, ClientTask
from flnl.core.parts import Setting
from flnl.core.payload import Payload
from flnl.core.state import Spilled
from flnl.core.step import Mixing
from flnl.core.streams import OfEngine
from flnl.core.training import Training
from flnl.engine.local.sgd import LocalTraining
from flnl.instruments.tables import load
from flnl.methods.joint_opt.exchange import SoftLabelRecord
from flnl.methods.joint_opt.labels import SoftLabels
from flnl.methods.joint_opt.loss import JointOpt, Visit, classification_and_entropy, prior_loss
from flnl.parts.batches import Mixup, Plain
from tests.properties.runs import assembled, difference, rounds, run
from tests.registry import TINY
from tests.toys import ONE_STEP, federation, mlp, network, random_federation, step, task
from tests.vectors.vectors import label_noise

TERM = JointOpt(alpha=1.2, beta=0.8, prior="uniform", update_from=0, window=10, incomplete="wait", first_stage=1)


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def visit(values: Tensor, *, window: int = 10, updates: bool = False, prior: Tensor | None = None) -> Visit:
    """Soft labels [n, K] of samples that were never seen."""
    classes = values.shape[1]
    start = SoftLabels.of(values.argmax(1), classes, window, values.dtype)
    even = torch.full((classes,), 1 / classes, dtype=values.dtype)
    return Visit(replace(start, values=values), even if prior is None else prior, updates)


def total(logits: Tensor, soft: Tensor, term: JointOpt = TERM, **more: Any) -> tuple[Tensor, Tensor]:
    """The mean loss of a batch, and its gradient by the logits."""
    logits = logits.clone().requires_grad_()
    weight = more.pop("weight", None)
    loss, _ = term(replace(step(logits=logits), weight=weight), visit(soft, **more))
    loss = loss.mean() if loss.dim() else loss
    (gradient,) = torch.autograd.grad(loss, logits)
    return loss.detach(), gradient


# ------------------------------------------------------------------------------------------------------ the objective


def test_the_objective_and_its_gradient() -> None:
    entry = label_noise("jointopt_loss")
    logits, soft = f64(entry.inputs["logits"]), f64(entry.inputs["soft_targets"])
    assert (entry.params["alpha"], entry.params["beta"]) == (TERM.alpha, TERM.beta)
    even = torch.full((10,), 0.1, dtype=torch.float64)
    assert float(classification_and_entropy(logits, soft, 0.0).mean()) == entry.approx("L_c")
    assert float(prior_loss(logits, even)) == entry.approx("L_p")
    assert float(prior_loss(logits, even)) - np.log(10) == entry.approx("kl_prior")
    entropy = classification_and_entropy(logits, soft, 1.0) - classification_and_entropy(logits, soft, 0.0)
    assert float(entropy.mean()) == entry.approx("L_e")
    loss, gradient = total(logits, soft)
    assert float(loss) == entry.approx("total")
    np.testing.assert_allclose(gradient, entry.expected["grad"], atol=entry.absolute, rtol=entry.relative)


def test_any_prior_and_weights() -> None:
    logits, prior, weight = normal(5, 3), f64([0.5, 0.3, 0.2]), f64([1.0, 0.0, 2.0, 0.5, 0.0])
    p = logits.softmax(1).numpy()
    mean = (weight.numpy()[:, None] * p).sum(0) / 3.5
    assert float(prior_loss(logits, prior, weight)) == pytest.approx(-(prior.numpy() * np.log(mean)).sum(), rel=1e-12)
    soft = normal(5, 3, seed=1).softmax(1)
    rows = -(soft.numpy() * np.log(p)).sum(1) - 0.8 * (p * np.log(p)).sum(1)
    wanted = (weight.numpy() * rows).sum() / 3.5 + 1.2 * -(prior.numpy() * np.log(mean)).sum()
    assert float(total(logits, soft, weight=weight, prior=prior)[0]) == pytest.approx(wanted, rel=1e-12)


def test_gradients_sum_to_zero_over_classes() -> None:
    _, gradient = total(normal(6, 4), normal(6, 4, seed=1).softmax(1))
    np.testing.assert_allclose(gradient.sum(1), 0, atol=1e-15)


def test_without_its_regularisers_it_is_the_cross_entropy_of_the_soft_labels() -> None:
    logits, soft = normal(6, 4), normal(6, 4, seed=1).softmax(1)
    plain = replace(TERM, alpha=0.0, beta=0.0)
    loss, _ = plain(step(logits=logits), visit(soft))
    torch.testing.assert_close(loss, F.cross_entropy(logits, soft, reduction="none"), rtol=1e-12, atol=0)
    hard = F.one_hot(torch.tensor([0, 1, 2, 3, 0, 1]), 4).double()
    given, _ = plain(step(logits=logits), visit(hard))
    assert torch.equal(given, F.cross_entropy(logits, hard.argmax(1), reduction="none"))


@pytest.mark.parametrize("size", [100.0, 1000.0])
def test_saturated_predictions_have_a_finite_loss_and_gradient(size: float) -> None:
    logits = torch.tensor([[size, -size, 0.0], [-size, size, -size]])
    loss, gradient = total(logits, torch.eye(3)[[2, 0]])
    assert bool(loss.isfinite())
    assert bool(gradient.isfinite().all())
    none = total(logits, torch.eye(3)[[2, 0]], weight=torch.zeros(2))
    assert float(none[0]) == 0
    assert not none[1].any()


# --------------------------------------------------------------------------------------------------------- the labels


def test_labels_are_the_mean_of_ten_predictions() -> None:
    entry = label_noise("jointopt_label_update")
    history = f64(entry.inputs["history"])
    labels, at = SoftLabels.of(torch.tensor([0, 3]), 10, 10, torch.float64), torch.tensor([0, 1])
    for epoch in range(10):
        labels = labels.recorded(at, history[:, epoch]).updated(at, "wait")
        one_hot = torch.equal(labels.values, F.one_hot(torch.tensor([0, 3]), 10).double())
        assert one_hot == (epoch < 9), "a label waits until its history is full"
    np.testing.assert_allclose(labels.values, entry.expected["soft"], atol=entry.absolute, rtol=entry.relative)
    assert labels.classes.tolist() == entry.expected["hard"]


def test_the_oldest_prediction_leaves_first() -> None:
    labels, at = SoftLabels.of(torch.tensor([0, 1]), 2, 3, torch.float64), torch.tensor([1])
    made = [f64([[share, 1 - share]]) for share in (0.1, 0.2, 0.3, 0.5, 0.8)]
    for prediction in made:
        labels = labels.recorded(at, prediction)
    found = labels.updated(at, "wait")
    np.testing.assert_allclose(found.values, [[1.0, 0.0], [1.6 / 3, 1.4 / 3]], rtol=1e-12)
    assert found.seen.tolist() == [0, 5]


def test_a_short_history_may_count_as_far_as_it_goes() -> None:
    """No mass is lost: with two of ten predictions, the mean is of two."""
    labels, at = SoftLabels.of(torch.tensor([0, 1]), 2, 10, torch.float64), torch.tensor([0])
    labels = labels.recorded(at, f64([[0.2, 0.8]])).recorded(at, f64([[0.4, 0.6]]))
    np.testing.assert_allclose(labels.updated(at, "average").values, [[0.3, 0.7], [0.0, 1.0]], rtol=1e-12)
    assert torch.equal(labels.updated(at, "wait").values, labels.values)
    unseen = SoftLabels.of(torch.tensor([1]), 2, 10, torch.float64).updated(torch.tensor([0]), "average")
    assert unseen.values.tolist() == [[0, 1]]


def test_a_label_that_is_corrected_starts_again() -> None:
    labels, at = SoftLabels.of(torch.tensor([0, 1]), 2, 2, torch.float64), torch.tensor([0, 1])
    for _ in range(2):
        labels = labels.recorded(at, f64([[0.3, 0.7], [0.4, 0.6]])).updated(at, "wait")
    after = labels.following(torch.tensor([1, 1]))
    np.testing.assert_allclose(after.values, [[0.0, 1.0], [0.4, 0.6]])
    assert after.seen.tolist() == [0, 2]
    assert not after.history[0].any()
    assert bool(after.history[1].all())
    assert difference(labels.following(torch.tensor([0, 1])), labels) is None


# -------------------------------------------------------------------------------------------------- a client's visits

TRAINING = Training(lr=0.3, momentum=0.5, weight_decay=0.0, batch_size=3, epochs=2, lr_decay=1.0)
SHORT = replace(TERM, window=3, update_from=1)


def visited(work: ClientTask, term: JointOpt, state: ClientState, round: int) -> Any:
    net = network(mlp(4, 3))
    asked = replace(work, state=state, broadcast=replace(work.broadcast, round=round, lengths=(9,)))
    return LocalTraining(TRAINING, Plain(), {"mine": term}, None, {})(net, asked)


def by_hand(work: ClientTask, visits: list[int]) -> tuple[np.ndarray[Any, Any], Mapping[str, Tensor]]:
    """Tanaka et al.'s loop: after each epoch from ``update_from`` on, labels are the mean of the last W epochs'."""
    soft, epochs = F.one_hot(work.labels, 3).double(), list[Tensor]()
    for round in visits:
        module = mlp(4, 3).double()
        module.load_state_dict(work.broadcast.params)
        optimizer = torch.optim.SGD(module.parameters(), TRAINING.lr, TRAINING.momentum)
        orders = replace(work, broadcast=replace(work.broadcast, round=round)).engine_stream(OfEngine.BATCHES)
        for _ in range(TRAINING.epochs):
            order, predictions = torch.from_numpy(orders.permutation(len(soft))), torch.zeros_like(soft)
            for batch in order.split(TRAINING.batch_size):
                p = module(work.samples.read()[batch].double()).softmax(1)
                predictions[batch] = p.detach()
                loss = -(soft[batch] * p.log()).sum(1).mean() - 0.8 * (p * p.log()).sum(1).mean()
                loss = loss - 1.2 * (p.mean(0).log() / 3).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            epochs.append(predictions)
            if round >= 1 and len(epochs) >= 3:
                soft = torch.stack(epochs[-3:]).mean(0)
    return soft.numpy(), module.state_dict()


def test_visits_are_the_official_loop() -> None:
    """Epochs of several visits fill one history; labels persist between visits."""
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([8]).samples(0))
    state = ClientState()
    for number, round in enumerate((0, 1, 4), 1):
        found = visited(work, SHORT, state, round)
        state = found.state
        soft, model = by_hand(work, [0, 1, 4][:number])
        np.testing.assert_allclose(state.terms["mine"].values, soft, rtol=1e-9, atol=1e-12)
        for name, value in model.items():
            torch.testing.assert_close(found.params[name], value, rtol=1e-9, atol=1e-12)
    assert not np.allclose(soft, F.one_hot(work.labels, 3))


def test_labels_are_not_updated_before_their_round_but_predictions_are_kept() -> None:
    work = task(network(mlp(4, 3)).module, random_federation([8]).samples(0))
    early = visited(work, replace(SHORT, update_from=2, window=2), ClientState(), 1).state.terms["mine"]
    assert torch.equal(early.values, F.one_hot(work.labels, 3).double())
    assert early.seen.tolist() == [2] * 8
    later = visited(work, replace(SHORT, update_from=2, window=2), ClientState(), 2).state.terms["mine"]
    np.testing.assert_allclose(later.values, later.history.mean(1), rtol=1e-12)


def test_without_updates_nothing_is_recorded_and_kept_labels_stay() -> None:
    work = task(network(mlp(4, 3)).module, random_federation([8]).samples(0))
    term = replace(SHORT, update_from=None)
    assert visited(work, term, ClientState(), 3).state.empty
    kept = visited(work, SHORT, ClientState(), 3).state
    assert difference(visited(work, term, kept, 4).state, kept) is None


def test_the_prior_may_be_the_shares_of_the_clients_labels() -> None:
    dealt = federation([torch.randn(4, 1, 2, 2)], [torch.tensor([0, 2, 2, 2])])
    net = network(mlp(4, 3))
    work = task(net.module, dealt.samples(0))
    own = replace(TERM, prior="labels").begin(net, work, None)
    assert own.prior.tolist() == [0.25, 0, 0.75]
    np.testing.assert_allclose(TERM.begin(net, work, None).prior, [1 / 3] * 3)


def test_mixed_batches_have_mixed_labels_and_predictions_on_the_images_themselves() -> None:
    logits, partner = normal(3, 2), torch.tensor([2, 0, 1])
    soft, unmixed = normal(3, 2, seed=1).softmax(1), normal(3, 2, seed=2)
    mixed = replace(step(logits=logits), mixing=Mixing(0.7, partner))
    mixed.__dict__["unmixed_logits"] = unmixed
    plain = replace(TERM, alpha=0.0, beta=0.0)
    loss, after = plain(mixed, visit(soft, window=1, updates=True))
    wanted = F.cross_entropy(logits, 0.7 * soft + 0.3 * soft[partner], reduction="none")
    torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(after.labels.values, unmixed.softmax(1), rtol=1e-12, atol=0)
    work = task(network(mlp(4, 3)).module, random_federation([8]).samples(0))
    trained = LocalTraining(TRAINING, Mixup(1.0, True, None), {"mine": TERM}, None, {})(network(mlp(4, 3)), work)
    assert trained.finite


def test_updates_that_never_come_are_told_of() -> None:
    term = replace(TERM, update_from=5, first_stage=2)
    said = term.caution(Setting({0: 9}, (9, 3, 2), ONE_STEP, "method.local.joint_opt"))
    assert said is not None
    assert said.startswith("method.local.joint_opt.update_from=5: 5 rounds follow from the start of stage 2")
    assert replace(term, update_from=4).caution(Setting({0: 9}, (9, 3, 2), ONE_STEP)) is None
    assert replace(term, update_from=None).caution(Setting({0: 9}, (9, 3, 2), ONE_STEP)) is None


def test_what_is_recorded_are_the_samples_whose_class_has_changed() -> None:
    soft = replace(
        SoftLabels.of(torch.tensor([0, 1, 1]), 2, 2, torch.float64), values=f64([[1, 0], [0.6, 0.4], [0, 1]])
    )
    states = {3: ClientState(terms={"mine": soft}), 5: ClientState(terms={"other": 1})}
    (found,) = SoftLabelRecord().findings(None, states, Payload())
    assert isinstance(found, SuspectedSamples)
    assert (found.client, found.mask.tolist()) == (3, [False, True, False])
    assert found.score is not None
    assert found.score.tolist() == pytest.approx([0, 0.6, 0])
    assert found.proposed is not None
    assert found.proposed.tolist() == [0, 0, 1]


# -------------------------------------------------------------------------------------------------------------- a run

RUN = (
    *TINY,
    *("method=joint_opt", "method.T_wu=1", "method.T=3", "method.window=3", "method.epochs=4", "train.lr=0.2"),
    *("noise=symmetric", "noise.eta=0.4", "precision=64"),
)


def test_the_warm_up_is_fedavg_with_the_runs_epochs_and_then_labels_change(tmp_path: Path) -> None:
    ours = rounds(RUN, tmp_path / "ours")
    other = (*TINY, "method=fedavg", "rounds=4", *RUN[-4:])
    theirs = rounds(other, tmp_path / "theirs")
    same = [difference(a.state.server.params, b.state.server.params) is None for a, b in zip(ours, theirs, strict=True)]
    assert same == [True, False, False, False]
    assert not ours[0].state.clients
    labels = [own.terms["joint_opt"] for own in ours[-1].state.clients.values()]
    assert all(isinstance(each, SoftLabels) and set(each.seen.tolist()) <= {4, 8, 12} for each in labels)
    for each in labels:
        np.testing.assert_allclose(each.values, each.history.mean(1), rtol=1e-12)


def test_the_last_stage_is_a_new_network_on_the_final_labels(tmp_path: Path) -> None:
    words = [*RUN, "method.T_final=2", "method.final_milestones=[1]", "method.final_lr=0.4"]
    with assembled(words, tmp_path / "run") as parts:
        results, initial = parts.results(), parts.settings.initial
        assert initial is not None
        before, method = results[3].state, parts.method
        train = method.stages[2].train
        lr = [parts.settings.training.at(4 + r, train, r).lr for r in (0, 1)]
        assert lr == [0.4, pytest.approx(0.04)]
        going_on = replace(method, stages=(*method.stages[:2], replace(method.stages[2], restart=False)))
        anew = replace(before, server=replace(before.server, params=initial))
        same = list(parts.rounds(anew, method=going_on))
        other = list(parts.rounds(replace(anew, clients=Spilled()), method=going_on))
    for result, wanted, given in zip(results[4:], same, other, strict=True):
        assert difference(result.state, wanted.state) is None
        assert difference(dict(result.state.clients), dict(before.clients)) is None, "labels stay"
        assert difference(result.state.server.params, given.state.server.params) is not None, "as were given"


def test_a_run_says_which_labels_it_changed(tmp_path: Path) -> None:
    words = [w for w in RUN if not w.startswith(("method.T=", "train.lr", "precision"))]
    done = run([*words, "method.T=6", "train.lr=0.3", "method.epochs=10"], tmp_path / "run")
    assert {"filter_accuracy", "filter_auc", "detection_precision", "detection_recall"} <= done.record["metrics"].keys()
    assert 0 < done.record["metrics"]["detection_recall"] <= 1
    assert "given" not in done.record


def test_centralized_a_second_network_follows(tmp_path: Path) -> None:
    """The protocol's constants for centralized training; one client."""
    values = {"T": 200, "T_wu": 0, "T_final": 120, "epochs": 1, "update_from": 69, "final_milestones": [40, 80]}
    plain = compose.resolved(compose.load(["method=joint_opt", "protocol=cifar10", "centralized=true"]))
    assert {key: plain["method"][key] for key in values} == values
    assert plain["method"]["final_lr"] == 0.2
    sgd = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4, "batch_size": 128, "epochs": 1}
    assert {key: plain["train"][key] for key in sgd} == sgd
    inside = compose.resolved(compose.load(["method=joint_opt", "protocol=cifar10"]))
    federated = {"T": 80, "T_wu": 20, "T_final": 0, "epochs": 20, "update_from": 0}
    assert {key: inside["method"][key] for key in federated} == federated
    assert (inside["train"]["lr"], inside["train"]["epochs"], inside["train"]["batch_size"]) == (0.01, 5, 10)
    few = ["method.T=2", "method.T_final=1", "method.update_from=0", "method.window=2", "centralized=true"]
    last = rounds([*TINY, "method=joint_opt", "fraction=1.0", *few], tmp_path / "run")[-1]
    assert list(last.state.clients) == [0]
    assert last.state.client(0).terms["joint_opt"].seen.tolist() == [2] * 170, "an epoch a round"


def test_the_second_networks_rate_fits_networks_without_batch_norm() -> None:
    """Measured on them, centralized (the card); 0.2 is for the authors' ResNet, and harmless on digits."""
    rates = {
        name: compose.load(["method=joint_opt", f"protocol={name}", "centralized=true"]).method.final_lr
        for name in ("cifar10", "cifar100", "fedes", "cifar_short", "digits", "mnist", "lenet", "own", "svhn")
    }
    assert {name for name, rate in rates.items() if rate == 0.05} == {"mnist", "lenet", "own", "svhn"}
    assert set(rates.values()) == {0.05, 0.2}


@pytest.mark.parametrize("name", ["fedcorr_2", "fedcorr_3"])
def test_centralized_rows_have_the_constants_of_low_and_high_noise(name: str) -> None:
    """FedCorr, App. B: low noise up to (0.6, 0), high from (0.6, 0.5) on."""
    table, scaling = load.table(name), load.scaling("paper")
    row = next(row for row in table.rows if row.label == "JointOpt (centralized)")
    for column in table.columns:
        words = scaling.resolve(row, column)
        noise = {w.split("=")[0]: float(w.split("=")[1]) for w in words if w.startswith("noise.")}
        high = (noise["noise.rho"], noise["noise.tau"]) in {(0.6, 0.5), (0.8, 0.0), (0.8, 0.5)}
        plain = compose.resolved(compose.load(words))
        term = plain["method"]["local"]["joint_opt"]
        assert (term["alpha"], term["beta"], plain["train"]["lr"]) == ((1.2, 0.8, 0.2) if high else (1.2, 1.5, 0.1))
        assert "train.lr=0.2" not in load.scaling("small").resolve(row, column)
