"""FLR inside a run: averages, schedules and steps against a loop in numpy, on a network whose logits are w times x."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.config import compose
from flnl.config.folders import CONF
from flnl.core.errors import UserError
from flnl.core.messages import Broadcast, ClientTask, Fit
from flnl.core.model import Model
from flnl.core.parts import LossTerm, Setting
from flnl.core.streams import stream
from flnl.core.training import Training
from flnl.data.federation.build import Federation
from flnl.engine.local.batching import Draws
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.methods.flr.loss import FLR
from flnl.parts.batches import Mixup, Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.parts.samplers.uniform import Uniform
from tests.toys import (
    ONE_STEP,
    Logits,
    composed,
    federation,
    fitted,
    method,
    mlp,
    network,
    random_federation,
    rounds,
    stage,
    step,
    task,
)

Array = NDArray[np.float64]

TERM = FLR(
    lam=2.0,
    alpha=0.9,
    beta=0.7,
    gamma=0.5,
    R=None,
    R_w=1,
    first_stage=1,
    alpha_schedule="linear",
    warmup="ce",
    pseudo_label="mixture",
    special=None,
    server_pred="batch",
    init_average="prediction",
    clamp="inner",
    inner_max=0.9999,
)
TRAINING = Training(lr=0.3, momentum=0.0, weight_decay=0.0, batch_size=2, epochs=2, lr_decay=1.0)
CLASSES = 3


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max())
    return np.asarray(e / e.sum())


@dataclass
class Client:
    """A client of the loop: pixels [n, K], labels, and the averages of each sample, None before they are taken."""

    x: Array
    y: Sequence[int]
    s: list[Array | None]
    m: list[Array | None]


def gradient(w: float, x: Array, y: int, lam: float, t: Array | None) -> float:
    """dℓ/dw of one sample, by Eq. 2; the logits are w x."""
    p = softmax(w * x)
    g = p - np.eye(CLASSES)[y]
    if t is not None:
        g = g + lam * p * (p @ t - t) / (1 - p @ t)
    return float(g @ x)


def coefficients(r: int, R: int, R_w: int) -> tuple[float, float, float]:
    """α, β and γ of a round, as App. E.5 has them."""
    return 0.9 * r / R, 0.0 if r < R / 2 else 0.7, 0.0 if r < R_w else 0.5


def train(client: Client, w: float, r: int, R: int, R_w: int, order: Any) -> float:
    """Algorithm 1 on one client, in batches of two, sample by sample."""
    received = w
    alpha, beta, gamma = coefficients(r, R, R_w)
    for _ in range(TRAINING.epochs):
        positions = order.permutation(len(client.y))
        for first in range(0, len(positions), TRAINING.batch_size):
            batch = positions[first : first + TRAINING.batch_size]
            total = 0.0
            for i in batch:
                t = None
                if r >= R_w:
                    server, own = softmax(received * client.x[i]), softmax(w * client.x[i])
                    s, m = client.s[i], client.m[i]
                    client.s[i] = server if s is None else beta * s + (1 - beta) * server
                    client.m[i] = own if m is None else gamma * m + (1 - gamma) * own
                    t = alpha * client.s[i] + (1 - alpha) * client.m[i]
                total += gradient(w, client.x[i], client.y[i], 2.0, t)
            w -= TRAINING.lr * total / len(batch)
    return w


def pixels(n: int, seed: int) -> Tensor:
    return torch.randn(n, 1, 1, CLASSES, generator=torch.Generator().manual_seed(seed)).double()


def toy() -> tuple[Federation, list[Client]]:
    images = [pixels(5, 1), pixels(4, 2), pixels(3, 3)]
    labels = [torch.tensor([0, 2, 1, 1, 0]), torch.tensor([2, 2, 0, 1]), torch.tensor([1, 0, 2])]
    clients = [
        Client(x.float().double().reshape(-1, CLASSES).numpy(), y.tolist(), [None] * len(y), [None] * len(y))
        for x, y in zip(images, labels, strict=True)
    ]
    return federation(images, labels, classes=CLASSES), clients


def test_rounds_of_flr_are_those_of_a_loop() -> None:
    """Six rounds with two of three clients each: warm-up, then a half without and a half with the server's memory."""
    dealt, clients = toy()
    one = stage(rounds=6, local={"cross_entropy": CrossEntropy(), "flr": TERM}, sampler=Uniform(0.67))
    found = rounds(method(one), dealt, Logits(), TRAINING)
    w = 1.0
    for r, result in enumerate(found):
        assert len(result.cohort) == 2
        trained = [train(clients[c], w, r, 6, 1, stream(1, "batches", r, c)) for c in result.cohort]
        sizes = [len(clients[c].y) for c in result.cohort]
        w = float(np.average(trained, weights=sizes))
        assert float(result.state.server.params["scale"]) == pytest.approx(w, rel=1e-10), r
        kept = {c for c in range(3) if clients[c].s[0] is not None}
        assert {c for c, own in result.state.clients.items() if "flr" in own.terms} == kept
        for c in kept:
            averages = result.state.clients[c].terms["flr"]
            np.testing.assert_allclose(averages["server"].numpy(), np.array(clients[c].s), rtol=1e-10)
            np.testing.assert_allclose(averages["client"].numpy(), np.array(clients[c].m), rtol=1e-10)
            assert averages["seen"].all()
    assert {len(r.cohort) for r in found} == {2}
    assert len({r.cohort for r in found}) > 1


def test_the_averages_of_a_client_that_is_not_picked_stay() -> None:
    dealt, _ = toy()
    one = stage(rounds=6, local={"cross_entropy": CrossEntropy(), "flr": TERM}, sampler=Uniform(0.67))
    found = rounds(method(one), dealt, Logits(), TRAINING)
    stayed = 0
    for before, after in pairwise(found):
        for client, own in before.state.clients.items():
            if client not in after.cohort:
                now = after.state.clients[client].terms["flr"]
                assert all(torch.equal(own.terms["flr"][name], now[name]) for name in now)
                stayed += 1
    assert stayed > 0


def begun(count: int = 4) -> tuple[Network, ClientTask]:
    """A network and the first visit of a client of ``count`` samples."""
    net = network(mlp(4, CLASSES), classes=CLASSES)
    return net, task(net.module, random_federation([count], classes=CLASSES).samples(0))


@dataclass
class Watched(LossTerm):
    """FLR, with every step and state that it was given."""

    term: FLR
    calls: list[tuple[Any, Any, Tensor, Any]]

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        return self.term.begin(network, task, state)

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        return self.term.finish(network, task, fit, state)

    def __call__(self, given: Any, state: Any) -> tuple[Tensor, Any]:
        loss, after = self.term(given, state)
        self.calls.append((given, state, loss.detach(), after))
        return loss, after


def test_a_mixed_batch_holds_the_mixed_pseudo_label_against_its_prediction() -> None:
    dealt, clients = toy()
    net = network(Logits(), classes=CLASSES, transform=dealt.dataset.transform)
    watched = Watched(replace(TERM, R=10, R_w=0), [])
    terms: dict[str, Any] = {"cross_entropy": CrossEntropy(), "flr": watched}
    work = task(net.module, dealt.samples(0), round=4)
    LocalTraining(TRAINING, Mixup(1.0, True, None), terms, None, {})(net, work)
    mixing = Draws(work, Mixup(1.0, True, None), terms)
    w, x = 1.0, clients[0].x
    for given, _, loss, after in watched.calls:
        draw = mixing.mixing(len(given.labels))
        assert draw is not None
        share, partner = draw.share, draw.partner.numpy()
        at = given.positions.numpy()
        s, m = after["server"].numpy()[at], after["client"].numpy()[at]
        np.testing.assert_allclose(s, [softmax(x[i]) for i in at], rtol=1e-10)  # β is 0 in the first half
        t = 0.36 * s + 0.64 * m
        mixed = share * x[at] + (1 - share) * x[at[partner]]
        target = share * t + (1 - share) * t[partner]
        w = float(given.logits.detach().flatten()[0]) / mixed[0, 0]
        expected = [2.0 * np.log(1 - softmax(w * row) @ goal) for row, goal in zip(mixed, target, strict=True)]
        np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-6)
    first = watched.calls[0]
    np.testing.assert_allclose(  # on a first view m is the prediction on the unmixed input
        first[3]["client"].numpy()[first[0].positions.numpy()],
        [softmax(x[i]) for i in first[0].positions.numpy()],
        rtol=1e-10,
    )


def calls(term: FLR, *, round: int = 4, lengths: tuple[int, ...] = (), epochs: int = 2) -> Watched:
    dealt, _ = toy()
    net = network(Logits(), classes=CLASSES, transform=dealt.dataset.transform)
    watched = Watched(term, [])
    work = task(net.module, dealt.samples(0), round=round)
    work = replace(work, broadcast=replace(work.broadcast, lengths=lengths))
    terms: dict[str, Any] = {"cross_entropy": CrossEntropy(), "flr": watched}
    LocalTraining(replace(TRAINING, epochs=epochs), Plain(), terms, None, {})(net, work)
    return watched


def test_with_the_bounds_of_its_authors_the_special_case_is_elr() -> None:
    """Three visits, one of a sample predicted with certainty, as Liu et al. compute them.

    With 100 classes the average's largest entry stays below 0.9999 / 1.0098, which bounds the pull on such a sample.
    """
    elr = replace(
        TERM, lam=4.0, R_w=0, special="elr", init_average="zero", clamp="normalised", alpha_schedule="constant"
    )
    classes, past = 100, 0.5
    z = torch.randn(2, classes, generator=torch.Generator().manual_seed(5)).double()
    z[0, 3] += 12.0
    kept = np.zeros((2, classes))
    state: Any = {"client": torch.zeros(2, classes).double(), "seen": torch.zeros(2, dtype=torch.bool)}
    for visit in range(3):
        logits = z * (1 + visit / 10)
        found, state = elr(step(logits=logits), state)
        p = np.stack([softmax(row) for row in logits.numpy()]).clip(1e-4, 1 - 1e-4)
        kept = past * kept + (1 - past) * p / p.sum(1, keepdims=True)
        np.testing.assert_allclose(found.numpy(), 4 * np.log(1 - (kept * p).sum(1)), rtol=1e-10)


def test_once_a_round_the_server_average_moves_on_the_first_view_only() -> None:
    term = replace(TERM, R=4, R_w=0, init_average="zero")
    often, once = calls(term), calls(replace(term, server_pred="once"))
    after_one = [c for c in once.calls if len(c[0].labels)][2][3]["server"]  # three batches an epoch
    assert torch.equal(once.calls[-1][3]["server"], after_one)
    torch.testing.assert_close(often.calls[2][3]["server"], after_one)
    torch.testing.assert_close(often.calls[-1][3]["server"], after_one * 1.7)  # 0.7 v + 0.3 p of v = 0.3 p
    assert once.calls[-1][3]["viewed"].tolist() == [4] * 5


def test_rounds_count_from_the_first_stage_that_the_term_is_in() -> None:
    """α is 0.9 r/R, and a round before that stage is none."""

    def alpha(round: int, lengths: tuple[int, ...]) -> float | None:
        broadcast = Broadcast(round, 1, {}, lengths=lengths)
        now = replace(TERM, first_stage=2, R_w=0)._at(broadcast)
        return None if now is None else now.alpha

    assert alpha(7, (8, 2, 3)) is None
    assert alpha(8, (8, 2, 3)) == 0
    assert alpha(11, (8, 2, 3)) == pytest.approx(0.9 * 3 / 5)


@pytest.mark.parametrize(
    "off", [{"lam": 0.0}, {"pseudo_label": "vanilla"}, {"R_w": 5}, {"first_stage": 2}], ids=lambda o: next(iter(o))
)
def test_without_the_regulariser_it_is_zero_and_nothing_is_kept(off: Mapping[str, Any]) -> None:
    watched = calls(replace(TERM, **off), lengths=(10, 2))
    for _, before, loss, after in watched.calls:
        assert loss.shape == ()
        assert loss.item() == 0
        assert after is before
    net, work = begun()
    late = replace(work, broadcast=Broadcast(4, 1, {}, lengths=(10, 2)))
    assert watched.finish(net, late, fitted({}), watched.calls[-1][3]) is None


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {"server", "client"}),
        ({"special": "elr"}, {"client"}),
        ({"special": "slr"}, {"server"}),
        ({"special": "er"}, {"client"}),
        ({"pseudo_label": "global_only", "server_pred": "once"}, {"server", "viewed"}),
    ],
)
def test_only_the_averages_that_are_used_are_kept(given: Mapping[str, Any], kept: set[str]) -> None:
    state = replace(TERM, **given).begin(*begun(), None)
    assert set(state) == kept | {"seen"}
    assert all(state[name].dtype == torch.float64 for name in kept & {"server", "client"})


def test_two_names_for_the_pseudo_label_are_refused() -> None:
    with pytest.raises(UserError, match="special=elr and pseudo_label=local_only"):
        replace(TERM, special="elr", pseudo_label="local_only")


def test_states_that_were_given_are_not_written_into() -> None:
    watched = calls(replace(TERM, R=4, R_w=0))
    for _, before, _, after in watched.calls:
        assert before is not after
        assert all(before[name].data_ptr() != after[name].data_ptr() for name in before)


def test_the_term_runs_under_vmap() -> None:
    """Stacked clients are one call with a leading dimension on tensors alone."""
    n, B = 4, 2
    logits = torch.randn(3, B, CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = torch.tensor([[0, 2], [1, 3], [3, 0]])
    term = replace(TERM, R=4, R_w=0, server_pred="once")
    state = term.begin(*begun(n), None)

    def one(z: Tensor, positions: Tensor, own: Any) -> tuple[Tensor, Any]:
        plain = step(logits=z)
        given = replace(plain, positions=positions, broadcast=Broadcast(3, 1, {}))
        return term(given, own)

    stacked = {name: value.expand(3, *value.shape) for name, value in state.items()}
    losses, after = torch.func.vmap(one)(logits, at, stacked)
    for k in range(3):
        loss, alone = one(logits[k], at[k], state)
        torch.testing.assert_close(losses[k], loss)
        for name, value in alone.items():
            torch.testing.assert_close(after[name][k], value)


def test_flr_plus_counts_its_rounds_from_the_second_stage() -> None:
    """FedCorr's first stage has no regulariser; the second and third share one schedule and one set of averages."""
    ran = composed(
        *("method=fedcorr", "method/local=[flr]", "method/stages=fedcorr_flr", "noise.rho=0.6"),
        *("method.T1=1", "method.T2=2", "method.T3=2"),
    )
    terms = [s.local.get("flr") for s in ran.method.stages]
    assert terms[0] is None
    assert isinstance(terms[1], FLR)
    assert terms[1] == terms[2]
    assert (terms[1].first_stage, terms[1].R_w, terms[1].R) == (2, 0, None)
    kept = [{c for c, own in r.state.clients.items() if "flr" in own.terms} for r in ran.rounds]
    assert kept[3] == set()
    assert kept[4] == set(ran.rounds[4].cohort)
    assert kept[-1] >= kept[4] | set(ran.rounds[-1].cohort)


def test_a_network_is_left_as_it_was_by_the_received_one() -> None:
    """The frozen copy follows the broadcast of each client and round; training never moves it."""
    dealt, clients = toy()
    net: Network = network(Logits(), classes=CLASSES, transform=dealt.dataset.transform)
    term: LossTerm = replace(TERM, R=1, R_w=0, beta=0.0, alpha=1.0, alpha_schedule="constant")
    for start in (0.5, 2.0):
        with torch.no_grad():
            net.module.scale.fill_(start)  # type: ignore[operator]
        work = task(net.module, dealt.samples(1), client=1)
        terms = {"cross_entropy": CrossEntropy(), "flr": term}
        result = LocalTraining(TRAINING, Plain(), terms, None, {})(net, work)
        averages = result.state.terms["flr"]["server"].numpy()
        np.testing.assert_allclose(averages, [softmax(start * x) for x in clients[1].x], rtol=1e-10)


# ------------------------------------------------------------------------------------------------- a run too short


@pytest.mark.parametrize(
    ("changed", "lengths", "acts"),
    [
        ({"R_w": 50}, (6,), False),
        ({"R_w": 5}, (6,), True),
        ({"R_w": 6}, (6,), False),
        ({"R_w": 50, "lam": 0.0}, (6,), True),  # asked for, so nothing to say
        ({"R_w": 3, "first_stage": 2}, (6, 3), False),
        ({"R_w": 3, "first_stage": 2}, (6, 4), True),
        ({"R_w": 50, "warmup": "server_reg"}, (6,), True),
    ],
)
def test_a_regulariser_that_never_acts_says_so(
    changed: Mapping[str, Any], lengths: tuple[int, ...], acts: bool
) -> None:
    caution = replace(TERM, **changed).caution(Setting({0: 10}, lengths, ONE_STEP, "method.local.mine"))
    assert (caution is None) == acts
    if caution is not None:
        assert caution.startswith(f"method.local.mine.R_w={changed['R_w']}: ")
        assert f"no more rounds than these, {lengths[-1]}; " in caution


def test_the_warm_up_ends_under_every_protocol() -> None:
    """Under one of 40 rounds a warm-up of 50 would never end, and FLR would be FedAvg."""
    for file in sorted((CONF / "protocol").glob("*.yaml")):
        cfg = compose.resolved(compose.load(["method=flr", f"protocol={file.stem}"]))
        assert cfg["method"]["local"]["flr"]["R_w"] < cfg["protocol"]["rounds"], file.stem
