"""FedPeer inside a run: labels shared once, q as the server recovers it, and rounds against a loop in numpy."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.messages import Clock
from flnl.core.method import Method
from flnl.core.parts import Exchange, Setting
from flnl.core.payload import Payload
from flnl.core.state import RoundResult
from flnl.core.step import Step
from flnl.core.streams import stream
from flnl.core.training import Training
from flnl.data.federation.build import Federation
from flnl.evaluation.evaluator import Evaluator
from flnl.methods.fedpeer.exchange import (
    LabelCounts,
    LabelDistribution,
    LabelSharing,
    LabelsKnown,
    OwnDistribution,
    SharedLabels,
)
from flnl.methods.fedpeer.loss import Peer
from flnl.numerics.randomised_response import RandomisedResponse
from flnl.parts.batches import Mixup
from flnl.run.checkpoint import decode, encode
from tests.toys import ONE_STEP, START, Logits, composed, federation, method, network, rounds, stage, step

Array = NDArray[np.float64]
CLASSES = 3
TERM = Peer("sample", 1.0, 1e-5, "subtracted", ramp=False, ramp_start=10, ramp_length=30, first_stage=1)
SHARING = LabelSharing(epsilon=1.5, peer_dist="global_dp", projection="simplex", stage=1)
TRAINING = Training(lr=0.2, momentum=0.0, weight_decay=0.0, batch_size=2, epochs=2, lr_decay=1.0)
LABELS = ([0, 2, 1, 1, 0], [2, 2, 0, 1], [1, 0, 2])


def pixels(n: int, seed: int) -> Tensor:
    return torch.randn(n, 1, 1, CLASSES, generator=torch.Generator().manual_seed(seed)).double()


def toy() -> Federation:
    images = [pixels(len(y), k) for k, y in enumerate(LABELS)]
    return federation(images, [torch.tensor(y) for y in LABELS], classes=CLASSES)


def made(term: Peer = TERM, sharing: LabelSharing = SHARING, *, length: int = 3, **parts: Any) -> Method:
    exchange: Mapping[str, Exchange] = {"label_sharing": sharing}
    return method(stage(rounds=length, local={"fedpeer": term}, exchange=exchange, **parts), exchange=exchange)


def ran(term: Peer = TERM, sharing: LabelSharing = SHARING, *, length: int = 3, **parts: Any) -> list[RoundResult]:
    return rounds(made(term, sharing, length=length, **parts), toy(), Logits(), TRAINING)


def shared(result: RoundResult) -> SharedLabels:
    found: SharedLabels = result.state.server.exchanges["label_sharing"]
    return found


def randomised(seed: int = 1, epsilon: float = 1.5) -> list[int]:
    """Counts of the labels that came up, drawn as clients draw them before the first round."""
    told: list[int] = []
    for client, labels in enumerate(LABELS):
        rng = stream(seed, "label privacy", 0, client)
        told += RandomisedResponse(epsilon, CLASSES).randomised(np.array(labels), rng).tolist()
    return [told.count(c) for c in range(CLASSES)]


# --------------------------------------------------------------------------------------------------------- sharing


def test_labels_are_shared_once_and_q_is_what_the_inverse_gives() -> None:
    found = ran(length=3)
    counts = randomised()
    for result in found:
        state = shared(result)
        assert state.counts is not None
        assert state.counts.tolist() == counts
        assert state.known is not None
        T = RandomisedResponse(1.5, CLASSES).matrix()
        recovered = np.linalg.solve(T.T, np.array(counts) / 12)
        assert state.known.least == pytest.approx(recovered.min())
        if recovered.min() >= 0:
            np.testing.assert_allclose(state.known.shares.numpy(), recovered, rtol=1e-10)
        assert float(state.known.shares.sum()) == pytest.approx(1)
        assert (state.known.epsilon, dict(state.spent.epsilon)) == (1.5, {0: 1.5, 1: 1.5, 2: 1.5})
    assert decode(encode(shared(found[-1]))).counts.tolist() == counts


def test_what_sharing_costs_is_counted() -> None:
    """Counts up and a model down to ask for them; then q beside each model."""
    with_it, without = ran(length=2), ran(sharing=replace(SHARING, peer_dist="uniform"), length=2)
    K, N = CLASSES, 3
    assert with_it[0].state.counters.bytes_up - without[0].state.counters.bytes_up == N * 8 * K
    assert with_it[1].state.counters.bytes_up - without[1].state.counters.bytes_up == N * 8 * K
    assert with_it[0].state.counters.bytes_down - without[0].state.counters.bytes_down == N * 8 * K
    assert with_it[1].state.counters.bytes_down - without[1].state.counters.bytes_down == 2 * N * 8 * K


@pytest.mark.parametrize("kind", ["global_true", "local", "uniform"])
def test_other_distributions(kind: str) -> None:
    found = ran(sharing=replace(SHARING, peer_dist=kind))[-1]  # type: ignore[arg-type]
    state = shared(found)
    kept = {c: own.extras.get(OwnDistribution) for c, own in found.state.clients.items()}
    if kind == "global_true":
        assert state.known is not None
        assert state.known.shares.tolist() == pytest.approx([4 / 12, 4 / 12, 4 / 12])
        assert (state.known.epsilon, state.spent.most) == (0.0, 0.0)
        assert kept == {}
        return
    assert (state.known, state.counts) == (None, None)
    for client, labels in enumerate(LABELS):
        own = kept[client]
        assert own is not None
        shares = [labels.count(c) / len(labels) for c in range(CLASSES)] if kind == "local" else [1 / 3] * 3
        assert own.shares.tolist() == pytest.approx(shares)


def test_a_rare_class_may_be_recovered_as_negative_and_is_projected() -> None:
    report = {0: Payload(LabelCounts(torch.tensor([90, 10, 0])))}
    for projection in ("simplex", "clip_renorm", "mle"):
        sharing = replace(SHARING, projection=projection)
        known = sharing.receive(SharedLabels(), report, 1).known
        assert known is not None
        b = 1 / (math.exp(1.5) + 2)
        assert known.least == pytest.approx(-b / (math.exp(1.5) * b - b))
        assert float(known.shares.min()) == 0
        assert float(known.shares.sum()) == pytest.approx(1)
    assert sharing.broadcast(SharedLabels(), START) == sharing.known(SharedLabels()) == ()


def test_labels_are_shared_before_the_stage_that_needs_them() -> None:
    times = [Clock(*when, (1, 1, 2)) for when in ((0, 1), (2, 3), (3, 3))]
    asked = [replace(SHARING, stage=3).before_round(SharedLabels(), time) is not None for time in times]
    assert asked == [False, True, False]
    ran = composed(
        *("method=fedcorr", "method/local=[fedpeer]", "method/exchange=[fedcorr_lid,fedpeer_label_sharing]"),
        *("method.T1=1", "method.T2=1", "method.T3=1"),
    )
    known = [r.state.server.exchanges["label_sharing"].known for r in ran.rounds]
    assert known[-2] is None
    assert isinstance(known[-1], LabelsKnown)


def test_the_record_says_how_far_q_is_from_the_given_labels() -> None:
    dealt = toy()
    net = network(Logits(), classes=CLASSES, transform=dealt.dataset.transform)
    state = ran()[-1].state
    found = Evaluator(dealt, net, made()).shared(state)
    q = state.server.exchanges["label_sharing"].known.shares.numpy()
    assert found["label_distribution_error"] == pytest.approx(np.abs(q - 1 / 3).sum())
    assert found["label_privacy_epsilon"] == 1.5
    assert found["label_privacy_simulated"]
    open_to_all = replace(SHARING, peer_dist="global_true")
    assert "label_privacy_simulated" not in Evaluator(dealt, net, made(sharing=open_to_all)).shared(
        ran(sharing=open_to_all)[-1].state
    )
    alone = replace(SHARING, peer_dist="uniform")
    assert Evaluator(dealt, net, made(sharing=alone)).shared(ran(sharing=alone)[-1].state) == {}


# ------------------------------------------------------------------------------------------------------------ loss


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max())
    return np.asarray(e / e.sum())


def gradient(w: float, x: Array, label: int, contrast: Array, floor: float) -> float:
    """d/dw of -log p_y + Σ_c κ_c log(p_c + floor), with κ the contrast; the logits are w x."""
    p = softmax(w * x)
    g = p - np.eye(CLASSES)[label]
    for c in range(CLASSES):
        g = g + contrast[c] * p[c] / (p[c] + floor) * (np.eye(CLASSES)[c] - p)
    return float(g @ x)


@pytest.mark.parametrize("peer", ["sample", "cores"])
@pytest.mark.parametrize("floor", [0.0, 1e-5])
def test_rounds_of_fedpeer_are_those_of_a_loop(peer: str, floor: float) -> None:
    term = replace(TERM, peer=peer, prob_floor=floor, beta=0.8)  # type: ignore[arg-type]
    found = ran(term, length=3)
    known = shared(found[0]).known
    assert known is not None
    q, dealt, w = known.shares.numpy(), toy(), 1.0
    for r, result in enumerate(found):
        trained = []
        for client, labels in enumerate(LABELS):
            x = dealt.samples(client).read().reshape(-1, CLASSES).double().numpy()
            orders, draws = stream(1, "batches", r, client), stream(1, "term fedpeer", r, client)
            own = w
            for _ in range(TRAINING.epochs):
                order = orders.permutation(len(labels))
                for first in range(0, len(labels), TRAINING.batch_size):
                    batch, total = order[first : first + TRAINING.batch_size], 0.0
                    uniforms = draws.random(len(batch) if peer == "sample" else 0)
                    for j, i in enumerate(batch):
                        contrast = 0.8 * q
                        if peer == "sample":
                            contrast = 0.8 * np.eye(CLASSES)[int(np.searchsorted(np.cumsum(q), uniforms[j], "right"))]
                        total += gradient(own, x[i], labels[i], contrast, floor)
                    own -= TRAINING.lr * total / len(batch)
            trained.append(own)
        w = float(np.average(trained, weights=[len(y) for y in LABELS]))
        assert float(result.state.server.params["scale"]) == pytest.approx(w, rel=1e-9), r


def test_beta_rises_over_rounds() -> None:
    ramp = replace(TERM, beta=2.0, ramp=True, ramp_start=1, ramp_length=3)
    assert [ramp._beta(r) for r in (-1, 0, 1, 2, 3, 9)] == [0, 0, 0, 1, 2, 2]
    plain, raised = ran(length=2), ran(ramp, length=2)
    fedavg = ran(replace(TERM, beta=0.0), length=2)
    assert torch.equal(raised[1].state.server.params["scale"], fedavg[1].state.server.params["scale"])
    assert not torch.equal(raised[1].state.server.params["scale"], plain[1].state.server.params["scale"])


@pytest.mark.parametrize("floor_terms", ["subtracted", "both"])
def test_of_a_mixed_batch_the_fitted_label_is_mixed(floor_terms: str) -> None:
    """A soft label is fitted as the mean of its labels' losses; the peer label is one of q all the same."""
    term = replace(TERM, floor_terms=floor_terms, prob_floor=0.01)  # type: ignore[arg-type]
    logits = torch.randn(4, CLASSES, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    q = Payload(LabelDistribution(torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)))
    draws = {"fedpeer": torch.tensor([0.1, 0.3, 0.69, 0.71])}
    soft = torch.tensor([[1.0, 0, 0], [0.25, 0.75, 0], [0, 0.5, 0.5], [0, 0, 1.0]], dtype=torch.float64)

    def loss(targets: Tensor) -> Tensor:
        given = drawn(step(logits=logits, targets=targets, extras=q), draws)
        return term(given, None)[0]

    mixed = sum(soft[:, c] * loss(torch.full((4,), c)) for c in range(CLASSES))
    torch.testing.assert_close(loss(soft), mixed)


def drawn(given: Step, draws: Mapping[str, Tensor]) -> Step:
    """The step with other draws."""
    return replace(given, draws=draws, term="fedpeer")


def test_a_client_that_has_a_distribution_of_its_own_uses_it() -> None:
    logits = torch.zeros(1, CLASSES, dtype=torch.float64)
    sent = Payload(LabelDistribution(torch.tensor([1.0, 0, 0])))
    own = Payload(OwnDistribution(torch.tensor([0, 0, 1.0])))
    logits[0, 2] = 3.0
    given = drawn(step(logits=logits, extras=sent), {"fedpeer": torch.tensor([0.5])})
    by_server, by_itself = (TERM(replace(given, kept=k), None)[0].item() for k in (Payload(), own))
    assert by_server == pytest.approx(0, abs=1e-3)  # the peer label is the label
    assert by_itself == pytest.approx(3, abs=1e-3)  # z_peer - z_label


def test_peer_labels_are_drawn_a_sample_and_a_step() -> None:
    rng = np.random.default_rng(0)
    first, second = TERM.draw(rng, 5), TERM.draw(rng, 5)
    assert first.shape == (5,)
    assert len({*first.tolist(), *second.tolist()}) == 10
    assert replace(TERM, peer="cores").draw(rng, 5) is None


def test_it_trains_with_mixup() -> None:
    found = ran(batch=Mixup(1.0, True, None))[-1]
    assert found.metrics["left_out"] == 0
    assert math.isfinite(float(found.state.server.params["scale"]))


@pytest.mark.parametrize(
    ("changed", "lengths", "acts"),
    [
        ({}, (5,), True),
        ({"ramp": True, "ramp_start": 10}, (10,), False),
        ({"ramp": True, "ramp_start": 10}, (12,), True),
        ({"ramp": True, "ramp_start": 10, "beta": 0.0}, (5,), True),  # asked for, so nothing to say
        ({"ramp": True, "ramp_start": 3, "first_stage": 2}, (9, 4), False),
    ],
)
def test_peers_that_never_count_are_told_of(changed: Mapping[str, Any], lengths: tuple[int, ...], acts: bool) -> None:
    caution = replace(TERM, **changed).caution(Setting({0: 10}, lengths, ONE_STEP))
    assert (caution is None) == acts
