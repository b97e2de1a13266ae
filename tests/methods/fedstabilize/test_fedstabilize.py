"""FedStabilize: prototypes, losses, the split, what noisy clients train on, and the head, from the vectors."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.config import compose
from flnl.core.findings import NoisyClients, Scalar, SuspectedSamples
from flnl.core.messages import Broadcast, ClientState, ClientTask, Clock
from flnl.core.parts import Setting
from flnl.core.payload import Payload
from flnl.core.step import FEATURES, LOGITS, WHOLE, Mixing
from flnl.methods.fedstabilize import prototypes as of_seed
from flnl.methods.fedstabilize.batch import PrototypeBatches
from flnl.methods.fedstabilize.exchange import ByPrototypes, MeanLoss, PrototypeLabels
from flnl.methods.fedstabilize.loss import FedStabilize
from flnl.methods.fedstabilize.prototypes import Prototypes, attainable, cosines, frame, slerp, turned
from flnl.methods.fedstabilize.server import PrototypeHead
from flnl.models.layers import Classifier
from flnl.parts.messages import UsedSamples
from tests.toys import ONE_STEP, Logits, federation, fitted, network, step, task
from tests.vectors.vectors import MORE, Entry, entries

RELEASED = Prototypes(1, "released")
TERM = FedStabilize(1.0, 1.0, RELEASED)
EXCHANGE = ByPrototypes(threshold=0.9, relative=False, use="confident", loss="ce", prototypes=RELEASED, stage=2)
BATCH = PrototypeBatches(alpha=1.0, enabled=True, stages=None, use="confident")
LENGTHS = (1, 1, 3)


def more(name: str) -> Entry:
    return entries(MORE)[name]


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def near(vector: Entry, ours: Any, name: str) -> None:
    np.testing.assert_allclose(ours, vector.expected[name], rtol=0, atol=vector.absolute)


# ------------------------------------------------------------------------------------------------------- prototypes


def test_prototypes() -> None:
    vector = more("fedstabilize.prototypes")
    n, k = vector.inputs["n"], vector.inputs["k"]
    near(vector, frame(k, n), "frame")
    ours = turned(k, n, vector.inputs["seed"], "released")
    np.testing.assert_allclose(ours @ ours.T, frame(k, n) @ frame(k, n).T, atol=1e-12)
    near(vector, ours, "prototypes")
    near(vector, attainable(ours), "attainable_cos_of_non_negative_features")


@pytest.mark.parametrize(("classes", "width"), [(2, 1), (2, 5), (10, 9), (10, 84)])
def test_they_are_a_regular_simplex_of_any_seed(classes: int, width: int) -> None:
    for seed in (1, 2):
        gram = turned(classes, width, seed, "stream") @ turned(classes, width, seed, "stream").T
        expected = np.where(np.eye(classes), 1, -1 / (classes - 1))
        np.testing.assert_allclose(gram, expected, atol=1e-9)
    if width > 1:
        assert not torch.equal(turned(classes, width, 1, "stream"), turned(classes, width, 2, "stream"))


def test_a_class_may_be_out_of_reach() -> None:
    vector = more("fedstabilize.unreachable")
    n, k = vector.inputs["n"], vector.inputs["k"]
    ours = attainable(turned(k, n, vector.inputs["seed"], "released"))
    near(vector, ours, "attainable")
    near(vector, 0.5 * (1 - ours).square(), "alignment_loss_at_best")
    best = turned(k, n, 1, "released").clamp_min(0)
    np.testing.assert_allclose(cosines(best, turned(k, n, 1, "released")).diagonal(), ours, atol=1e-12)
    module = Classifier(nn.Identity(), nn.Linear(n, k))
    start = replace(EXCHANGE, threshold=vector.inputs["threshold"]).init(5, dict(module.named_parameters()))
    assert start.unreachable.tolist() == vector.expected["never_kept"]
    relative = replace(EXCHANGE, threshold=vector.inputs["threshold"], relative=True)
    assert not len(relative.init(5, dict(module.named_parameters())).unreachable)


def test_arcs() -> None:
    vector = more("fedstabilize.slerp")
    a, b = tensor(vector.inputs["a"]), tensor(vector.inputs["b"])
    ours = slerp(a, b, vector.inputs["lam"])
    near(vector, ours, "mixed")
    np.testing.assert_allclose(slerp(a, b, tensor([vector.inputs["lam"]] * len(a))), ours)
    up, down = (tensor(one) for one in vector.inputs["antipodal"])
    found = [slerp(up, down, share)[0].tolist() for share in vector.inputs["lam_antipodal"]]
    near(vector, found, "antipodal")
    wrong = more("fedstabilize.WRONG_slerp").expected
    for name in ("swapped", "straight", "straight_normalised"):
        assert not np.allclose(ours, wrong[name], atol=1e-3), name


# ------------------------------------------------------------------------------------------------------------- loss

VECTOR = more("fedstabilize.loss")
LABELS, PARTNER, LAM = tensor(VECTOR.inputs["labels"]).long(), tensor(VECTOR.inputs["partner"]).long(), 0.35
PROTOTYPES = tensor(VECTOR.inputs["prototypes"])


def batch(z: Tensor, f: Tensor) -> Any:
    one = step(logits=z, targets=Mixing(LAM, PARTNER).targets(LABELS, 4, torch.float64))
    return replace(one, labels=LABELS, mixing=Mixing(LAM, PARTNER), computed={LOGITS: z, FEATURES: f})


def test_the_loss_and_its_gradients() -> None:
    z, f = tensor(VECTOR.inputs["logits"]).requires_grad_(), tensor(VECTOR.inputs["features"]).requires_grad_()
    one = batch(z, f)
    ours = TERM(one, PROTOTYPES)[0]
    assert ours.shape == (3,)
    ce = F.cross_entropy(z, one.targets)
    loss = ce + ours.mean()
    assert float(ce.detach()) == VECTOR.approx("mixup_ce")
    assert float(loss.detach()) == VECTOR.approx("loss")
    for gradient, name in zip(torch.autograd.grad(loss, [z, f]), ("grad_logits", "grad_features"), strict=True):
        near(VECTOR, gradient, name)
    aligned = float(replace(TERM, uniformity=0.0)(one, PROTOTYPES)[0].detach().mean())
    uniform = float(replace(TERM, alignment=0.0)(one, PROTOTYPES)[0].detach().mean())
    wrong = more("fedstabilize.WRONG_loss")
    assert (aligned, uniform) == (VECTOR.approx("alignment"), VECTOR.approx("regulariser"))
    assert aligned != wrong.approx("not_interpolated")
    assert uniform not in (wrong.approx("reversed"), wrong.approx("per_sample"))
    assert float(replace(TERM, alignment=0.0, uniformity=0.0)(one, PROTOTYPES)[0]) == 0


def test_an_unmixed_batch_goes_to_its_own_prototypes() -> None:
    f = tensor(VECTOR.inputs["features"])
    one = replace(batch(tensor(VECTOR.inputs["logits"]), f), mixing=None)
    ours = replace(TERM, uniformity=0.0)(one, PROTOTYPES)[0]
    expected = [0.5 * (1 - float(x @ PROTOTYPES[y] / x.norm())) ** 2 for x, y in zip(f, LABELS, strict=True)]
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


# ------------------------------------------------------------------------------------------------------- the split


def test_the_split_of_clients(caplog: pytest.LogCaptureFixture) -> None:
    vector = more("fedstabilize.client_split")
    module = Classifier(nn.Identity(), nn.Linear(8, 4))
    exchange = replace(EXCHANGE, threshold=0.6)
    start = exchange.init(9, dict(module.named_parameters()))
    losses = vector.inputs["mean_loss"]
    assert exchange.send(start, 3, Clock(2, 3, LENGTHS)) == ()
    state = exchange.receive(start, {k: Payload(MeanLoss(loss)) for k, loss in enumerate(losses)}, 1)
    assert state.noisy.nonzero()[:, 0].tolist() == vector.expected["noisy"]
    assert "class 1" in caplog.text, "what noisy clients never learn is said"
    assert exchange.receive(state, {0: Payload()}, 1) is state
    assert [exchange.send(state, k, Clock(2, 3, LENGTHS))[0].noisy for k in (2, 3)] == [False, True]
    assert exchange.send(state, 3, Clock(1, 2, LENGTHS)) == (), "nobody knows in the round of the comparison"
    split, unreachable = exchange.findings(state, {}, Payload())
    assert isinstance(split, NoisyClients)
    assert torch.equal(split.scores["mean_loss"][:8], tensor(losses))
    assert unreachable == Scalar("unreachable_classes", 1.0)
    assert exchange.findings(start, {}, Payload()) == ()


@pytest.mark.parametrize("losses", [[0.7] * 8, [0.1, 5.0, 6.0]])
def test_nobody_is_noisy_where_clients_are_alike_or_few(losses: list[float], caplog: pytest.LogCaptureFixture) -> None:
    start = EXCHANGE.init(9, dict(Classifier(nn.Identity(), nn.Linear(8, 4)).named_parameters()))
    with caplog.at_level(logging.WARNING):
        state = EXCHANGE.receive(start, {k: Payload(MeanLoss(loss)) for k, loss in enumerate(losses)}, 1)
    assert not state.noisy.any()
    assert "nobody is noisy" in caplog.text


@pytest.mark.parametrize(("loss", "name"), [("ce", "correct"), ("ce_of_softmax", "released")])
def test_the_loss_that_a_client_sends(loss: Any, name: str) -> None:
    vector = more("fedstabilize.WRONG_client_loss")
    pixels, labels = tensor(vector.inputs["logits"]).reshape(3, 1, 1, 3), torch.tensor(vector.inputs["labels"])
    toy, module = federation([pixels], [labels]), Logits()
    work = task(module, toy.samples(0), round=1, stage=2)
    exchange = replace(EXCHANGE, loss=loss)
    sent, _ = exchange.report(network(module, transform=toy.dataset.transform), work, fitted({}))
    assert sent.one(MeanLoss).value == pytest.approx(vector.expected[name], abs=1e-6)
    other = replace(work, broadcast=replace(work.broadcast, stage=3))
    assert not exchange.report(network(module, transform=toy.dataset.transform), other, fitted({}))[0]


# ------------------------------------------------------------------------------------------------- a noisy client

RELABEL = more("fedstabilize.relabel")


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ClientTask]:
    """A client whose features are its pixels, with the vector's prototypes."""
    found = tensor(RELABEL.inputs["prototypes"])
    monkeypatch.setattr(of_seed, "turned", lambda *_: found)
    pixels = tensor(RELABEL.inputs["features"]).reshape(4, 1, 1, 5)
    toy = federation([pixels], [torch.tensor(RELABEL.inputs["given"])])
    module = Classifier(nn.Flatten(), nn.Linear(5, 3)).double()
    state = EXCHANGE.receive(
        EXCHANGE.init(8, dict(module.named_parameters())),
        {k: Payload(MeanLoss(9.0 if k == 0 else 0.1 + k / 1000)) for k in range(8)},
        1,
    )
    extras = Payload(*EXCHANGE.send(state, 0, Clock(2, 3, LENGTHS)))
    work = task(module, toy.samples(0), round=2, stage=3, extras=extras)
    return network(module, transform=toy.dataset.transform), work


def test_what_a_noisy_client_trains_on(noisy: tuple[Any, ClientTask]) -> None:
    net, work = noisy
    visit, kept = EXCHANGE.begin(net, work)
    chosen = visit.one(PrototypeLabels)
    np.testing.assert_allclose(chosen.cosine, np.max(RELABEL.expected["cos"], 1), atol=1e-6)
    assert chosen.labels.tolist() == RELABEL.expected["predicted"]
    assert chosen.used.tolist() == RELABEL.expected["used"]
    work = replace(work, visit=visit)
    (phase,) = BATCH.phases(net, work, 0, 1)
    assert phase.positions is not None
    assert phase.labels is not None
    assert phase.positions.tolist() == [0, 2]
    assert phase.labels[phase.positions].tolist() == [0, 2]
    assert EXCHANGE.report(net, work, fitted({}))[0].one(UsedSamples).count == RELABEL.expected["weight"]
    (everyone,) = replace(BATCH, use="all").phases(net, work, 0, 1)
    assert everyone.positions is None
    assert everyone.labels is not None
    assert everyone.labels.tolist() == [0, 2, 2, 1], "the second and fourth keep theirs"
    assert not replace(EXCHANGE, use="all").report(net, work, fitted({}))[0]
    state = EXCHANGE.receive(EXCHANGE.init(8, work.broadcast.params), {0: Payload(MeanLoss(1.0))}, 1)
    *_, suspects = EXCHANGE.findings(state, {0: ClientState(extras=kept)}, Payload())
    assert isinstance(suspects, SuspectedSamples)
    assert suspects.mask.tolist() == [False, True, False, True]


def test_a_share_of_what_can_be_reached(noisy: tuple[Any, ClientTask]) -> None:
    """The last prototype has a negative entry, and .99 of its positive part's norm to reach."""
    net, work = noisy
    visit, _ = replace(EXCHANGE, threshold=0.975, relative=True).begin(net, work)
    can = tensor(RELABEL.inputs["prototypes"]).clamp_min(0).norm(dim=1)
    expected = [
        max(row) > 0.975 * float(can[c])
        for row, c in zip(RELABEL.expected["cos"], RELABEL.expected["predicted"], strict=True)
    ]
    assert visit.one(PrototypeLabels).used.tolist() == expected == [True, False, True, False]
    assert not replace(EXCHANGE, threshold=0.975).begin(net, work)[0].one(PrototypeLabels).used[2]


def test_a_clean_client_trains_on_all(noisy: tuple[Any, ClientTask]) -> None:
    net, work = noisy
    clean = replace(work, broadcast=Broadcast(2, 3, work.broadcast.params, Payload()))
    assert not any(len(payload) for payload in EXCHANGE.begin(net, clean))
    assert list(BATCH.phases(net, clean, 0, 1)) == [WHOLE]


# ------------------------------------------------------------------------------------------------------- the server


def test_the_model_that_is_evaluated_classifies_by_cosine() -> None:
    module = Classifier(nn.Identity(), nn.Linear(6, 4)).double()
    params = dict(module.state_dict())
    other = {name: p + 1 for name, p in params.items()}
    update = PrototypeHead("prototypes", keep=False, prototypes=RELEASED)
    state = update.init(params)
    assert update(params, other, [0], 1, state)[0] is other
    assert replace(update, keep=True)(params, other, [0], 1, state)[0] is params
    assert replace(update, prediction="head").shown(params, state) is params
    features = torch.rand(20, 6, dtype=torch.float64)
    module.load_state_dict(update.shown(params, state))
    assert torch.equal(module(features).argmax(1), cosines(features, turned(4, 6, 1, "released")).argmax(1))


@pytest.mark.parametrize("part", [TERM, EXCHANGE, PrototypeHead("head", keep=False, prototypes=RELEASED)])
def test_a_network_without_room_for_prototypes_is_refused(part: Any) -> None:
    setting = Setting({0: 10}, LENGTHS, ONE_STEP, "method")
    assert part.refuses(Classifier(nn.Linear(2, 9), nn.Linear(9, 10)), (), setting) is None
    said = part.refuses(Classifier(nn.Linear(2, 8), nn.Linear(8, 10)), (), setting)
    assert said == "10 prototypes need at least 9 features, and this network has 8: widen it"
    assert "head" in str(part.refuses(nn.Linear(9, 10), (), setting))
    fixed = nn.Linear(2, 9).requires_grad_(False)
    for body in (nn.Identity(), fixed):
        said = part.refuses(Classifier(body, nn.Linear(9, 10)), (), setting)
        assert "nothing before this network's last layer is trained" in str(said)


def test_a_stage_without_a_comparison_is_said() -> None:
    assert EXCHANGE.caution(Setting({0: 10}, LENGTHS, ONE_STEP, "method.exchange.x")) is None
    assert "nobody is noisy" in str(EXCHANGE.caution(Setting({0: 10}, (1, 0, 3), ONE_STEP, "method.exchange.x")))


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        *(("cifar10", (40, 950, 0.6, 0.03, 10)), ("cifar100", (90, 900, 0.5, 0.01, 10))),
        ("clothing1m", (50, 100, 0.6, 0.001, 16)),
    ],
)
def test_settings_of_the_readme(protocol: str, expected: tuple[float, ...]) -> None:
    """T1, T2, θ, the rate, and samples in a batch."""
    cfg = compose.load(["method=fedstabilize", f"protocol={protocol}"])
    stages, theta = cfg.method.stages, cfg.method.exchange.by_prototypes.threshold
    found = (stages.warmup.rounds, stages.usual.rounds, theta, cfg.train.lr, cfg.train.batch_size)
    assert found == expected
