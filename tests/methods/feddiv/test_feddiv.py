"""FedDiv's parts on clients small enough for a loop over samples, and what its stages do."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flnl.core.messages import ClientState, ClientTask
from flnl.core.payload import Payload
from flnl.core.step import Phase
from flnl.core.training import Training
from flnl.engine import loop
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.evaluation.estimates import by_client
from flnl.figures import confusion
from flnl.methods.feddiv.batch import Reselection
from flnl.methods.feddiv.exchange import (
    ClassBias,
    FilterFlags,
    FilterState,
    FirstFit,
    LastPredictions,
    LocalFilter,
    NoiseFilter,
)
from flnl.methods.feddiv.loss import Prior
from flnl.methods.feddiv.noise_filter import Filter
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.record.run import RunRecord
from tests.properties.runs import assembled, run
from tests.registry import BY_NAME
from tests.toys import START, Logits, composed, equal, federation, fitted, network, step, task

Array = NDArray[np.float64]

RULE = Reselection(
    alpha=0.0,
    enabled=False,
    stages=None,
    loss="ce",
    norm="minmax",
    threshold=0.5,
    guard=False,
    guard_above=False,
    delta=0.1,
    strict_delta=False,
    zeta=0.6,
    relabel=True,
    relabel_min_delta=0.0,
    persist=False,
    pcs="per_epoch",
    pcs_start=0,
    clean_agrees=False,
    xi=0.5,
    at_least=0,
    inference_augment=False,
)
EXCHANGE = NoiseFilter(
    init_from="after_warmup",
    reach="federated",
    variance="linear",
    sort=True,
    loss="ce",
    norm="minmax",
    threshold=0.5,
    guard=False,
    guard_above=False,
    m=0.2,
    bias_samples="all",
    xi=0.5,
    pcs="per_epoch",
    inference_augment=False,
)
W = Filter((0.1, 0.7), (0.02, 0.05), (0.6, 0.4))
BIAS = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)


def client(*, sent: Filter | None = W, state: ClientState | None = None, count: int = 60) -> tuple[Network, ClientTask]:
    """A client whose pixels are its logits under the received model, and the network that holds it."""
    net = network(Logits(), classes=4)
    rng = torch.Generator().manual_seed(3)
    pixels = 2 * torch.randn(count, 1, 2, 2, generator=rng)
    labels = torch.where(torch.rand(count, generator=rng) < 0.6, pixels.flatten(1).argmax(1), 0)
    dealt = federation([pixels], [labels], classes=4)
    extras = Payload() if sent is None else Payload(sent)
    return net, task(net.module, dealt.samples(0), state=state, extras=extras)


def known(bias: torch.Tensor = BIAS, visits: int = 3, *more: Any) -> ClientState:
    return ClientState(extras=Payload(ClassBias(bias, visits), *more))


def softmax(row: Array) -> Array:
    e = np.exp(row - row.max())
    return np.asarray(e / e.sum())


def by_hand(work: ClientTask, local: float, **other: Any) -> tuple[list[int], list[int]]:
    """Kept positions and labels, sample by sample; the local model multiplies logits by ``local``."""
    rule = replace(RULE, **other)
    logits = work.samples.read().flatten(1).double().numpy()
    given = work.labels.tolist()
    losses = [-math.log(softmax(row)[y]) for row, y in zip(logits, given, strict=True)]
    scaled = [(x - min(losses)) / (max(losses) - min(losses)) for x in losses]

    def bell(x: float, g: int) -> float:
        spread = 2 * W.variance[g]
        return W.share[g] / math.sqrt(math.pi * spread) * math.exp(-((x - W.mean[g]) ** 2) / spread)

    clean = [bell(x, 0) / (bell(x, 0) + bell(x, 1)) >= rule.threshold for x in scaled]
    kept, labels = [], list(given)
    for i, row in enumerate(logits):
        p = softmax(row)
        guess = int(p.argmax())
        if not clean[i]:
            if p.max() < rule.zeta or not rule.relabel:
                continue
            labels[i] = guess
        if rule.pcs != "off" and int((local * row - rule.xi * np.log(BIAS.numpy())).argmax()) != guess:
            continue
        kept.append(i)
    return kept, labels


@pytest.mark.parametrize(
    "other",
    [{}, {"zeta": 0.9}, {"relabel": False}, {"pcs": "off"}, {"xi": 0.0}, {"threshold": 0.8}],
    ids=lambda d: str(next(iter(d), "")),
)
@pytest.mark.parametrize("local", [0.2, -1.0])
def test_an_epoch_trains_on_what_a_loop_over_samples_keeps(local: float, other: dict[str, Any]) -> None:
    net, work = client(state=known())
    net.load({"scale": torch.tensor([local], dtype=torch.float64)})
    found = replace(RULE, **other).select(net, work, 1)
    assert found.positions is not None
    assert found.labels is not None
    kept, labels = by_hand(work, local, **other)
    assert found.positions.tolist() == kept
    assert found.labels[found.positions].tolist() == [labels[i] for i in kept]
    assert float(net.params()["scale"]) == local  # scoring the received model leaves the trained one loaded


def test_the_first_epoch_compares_the_received_model_with_itself_less_the_bias() -> None:
    net, work = client(state=known())
    found = RULE.select(net, work, 0)
    assert found.positions is not None
    assert found.positions.tolist() == by_hand(work, 1.0)[0]


def test_the_received_model_is_scored_once_a_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    net, work = client(state=known())
    calls = []
    scores = Network._scores

    def counted(self: Network, *args: Any) -> Any:
        calls.append(1)
        return scores(self, *args)

    monkeypatch.setattr(Network, "_scores", counted)
    for epoch in range(3):
        RULE.select(net, work, epoch)
    EXCHANGE.report(net, work, fitted(net.params()))
    assert len(calls) == 1 + 2 + 1  # received; local in the later epochs; trained


def test_what_was_scored_for_one_client_is_not_taken_for_another() -> None:
    net, first = client(state=known())
    _, other = client(state=known(), count=40)
    assert len(net.received(first)) == 60
    assert torch.equal(net.received(other), net.logits(other.samples))
    assert len(net.received(first)) == 60


def test_cached_agreement_is_with_the_labels_of_the_last_visit() -> None:
    last = torch.arange(60) % 4
    rule = replace(RULE, pcs="cached", pcs_start=3)
    net, work = client(state=known(BIAS, 3, LastPredictions(last)))
    found, early = rule.select(net, work, 0), replace(rule, pcs_start=4).select(net, work, 0)
    assert found.positions is not None
    assert early.positions is not None
    guess = work.samples.read().flatten(1).argmax(1)
    off = by_hand(work, 1.0, pcs="off")[0]
    assert found.positions.tolist() == [i for i in off if int(last[i]) == int(guess[i])]
    assert early.positions.tolist() == off


def test_a_client_without_a_filter_or_without_noise_uses_all_it_has() -> None:
    net, work = client(sent=None)
    assert RULE.select(net, work, 0) == Phase()
    net, work = client()
    assert replace(RULE, delta=1.0, strict_delta=True).select(net, work, 0) == Phase()
    assert replace(RULE, threshold=0.0).select(net, work, 0) == Phase()


def test_new_labels_stay_where_they_are_to_persist() -> None:
    """Those of every doubted sample that the received model is sure of, whether or not it was trained on."""
    net, work = client(state=known())
    training = Training(lr=0.1, momentum=0.0, weight_decay=0.0, batch_size=10, epochs=2, lr_decay=1.0)

    def after(rule: Reselection) -> torch.Tensor | None:
        return LocalTraining(training, rule, {"cross_entropy": CrossEntropy()}, None, {})(net, work).state.labels

    labels = by_hand(work, 1.0, pcs="off")[1]
    assert labels != work.labels.tolist()
    held = after(replace(RULE, persist=True))
    assert held is not None
    assert held.tolist() == labels
    assert after(RULE) is None
    assert after(replace(RULE, persist=True, delta=1.0, strict_delta=True)) is None, "a clean client keeps its own"
    earlier = replace(work, state=replace(work.state, labels=work.labels))
    kept = LocalTraining(training, RULE, {"cross_entropy": CrossEntropy()}, None, {})(net, earlier).state.labels
    assert kept is work.labels


def test_a_noisy_client_that_keeps_too_little_trains_on_nothing() -> None:
    net, work = client(state=known())
    kept = len(by_hand(work, 1.0)[0])
    for least, left in ((kept, 0), (kept - 1, kept)):
        found = replace(RULE, at_least=least).select(net, work, 0)
        assert found.positions is not None
        assert len(found.positions) == left
    rule = replace(RULE, at_least=60)
    training = Training(lr=0.1, momentum=0.0, weight_decay=0.0, batch_size=10, epochs=2, lr_decay=1.0)
    result = LocalTraining(training, rule, {"cross_entropy": CrossEntropy()}, None, {})(net, work)
    assert (result.steps, result.finite, result.num_samples) == (0, True, 60)
    assert result.params is not None
    assert equal(result.params, work.broadcast.params)


# -------------------------------------------------------------------------------------------------------- exchange


def test_a_report_is_em_from_the_received_filter_and_the_mean_prediction() -> None:
    net, work = client(state=known())
    trained = 0.5
    net.load({"scale": torch.tensor([trained], dtype=torch.float64)})
    up, keeps = EXCHANGE.report(net, work, fitted(net.params()))

    logits = trained * work.samples.read().flatten(1).double().numpy()
    predictions = np.array([softmax(row) for row in logits])
    losses = -np.log(predictions[np.arange(60), work.labels.numpy()])
    x = (losses - losses.min()) / np.ptp(losses)
    mean, var, share = (np.array(v) for v in (W.mean, W.variance, W.share))
    for _ in range(3000):
        bells = share * np.exp(-((x[:, None] - mean) ** 2) / (2 * var)) / np.sqrt(2 * np.pi * var)
        belongs = bells / bells.sum(1, keepdims=True)
        mass = belongs.sum(0)
        mean = belongs.T @ x / mass
        var, share = (belongs * (x[:, None] - mean) ** 2).sum(0) / mass, mass / 60
    found = up.one(LocalFilter)
    assert found.count == 60
    assert found.filter.mean == pytest.approx(np.sort(mean), abs=2e-3)
    assert found.filter.share == pytest.approx(share[np.argsort(mean)], abs=5e-3)
    bias = keeps.one(ClassBias)
    assert bias.visits == 4
    assert bias.mean.numpy() == pytest.approx(0.2 * BIAS.numpy() + 0.8 * predictions.mean(0))
    flags = keeps.one(FilterFlags)
    assert flags.clean.nonzero()[:, 0].tolist() == [
        i for i in range(60) if i in by_hand(work, 1.0, pcs="off", relabel=False)[0]
    ]
    assert keeps.get(LastPredictions) is None
    last = replace(EXCHANGE, pcs="cached").report(net, work, fitted(net.params()))[1].one(LastPredictions).labels
    assert last.tolist() == (logits - 0.5 * np.log(bias.mean.numpy())).argmax(1).tolist()


def of(value: float, count: int) -> Payload:
    return Payload(LocalFilter(Filter((value, value + 1), (value, 2 * value), (0.5, 0.5)), count))


def test_the_server_keeps_the_last_filter_of_everybody() -> None:
    def folded(exchange: NoiseFilter) -> FilterState:
        state = exchange.receive(exchange.init(4, {}), {0: of(0.1, 10), 1: of(0.2, 30), 2: of(0.3, 60)}, 1)
        state = exchange.receive(state, {1: of(0.4, 30)}, 1)
        return exchange.receive(state, {3: Payload()}, 1)  # one that had nothing to say

    for reach, means in {
        "federated": (0.01 + 0.12 + 0.18,) * 4,
        "degraded": (0.4,) * 4,
        "local": (0.1, 0.4, 0.3, None),
    }.items():
        exchange = replace(EXCHANGE, reach=reach)  # type: ignore[arg-type]
        state = folded(exchange)
        to_all, to_each = exchange.broadcast(state, START), [exchange.send(state, k, START) for k in range(4)]
        assert (to_all == (), any(to_each)) == ((True, True) if reach == "local" else (False, False))
        for found, mean in zip(to_each, means, strict=True):
            received = (*to_all, *found)
            assert (received[0].mean[0] if received else None) == (None if mean is None else pytest.approx(mean))
    squaring = replace(EXCHANGE, variance="squared_share")
    (squared,) = squaring.broadcast(folded(squaring), START)
    assert squared.variance[0] == pytest.approx(0.1**2 * 0.1 + 0.3**2 * 0.4 + 0.6**2 * 0.3)


def test_blobs_serve_those_of_whom_nothing_is_known() -> None:
    exchange = replace(EXCHANGE, init_from="blobs", reach="local")
    assert exchange.before_round(exchange.init(2, {}), START) is None
    assert exchange.send(exchange.init(2, {}), 0, START) == ()
    state = exchange.receive(exchange.init(2, {}), {}, 1)
    assert exchange.send(state, 0, START) == exchange.send(state, 1, START) == (state.start,)
    assert exchange.receive(exchange.init(2, {}), {}, 2).start != state.start
    state = exchange.receive(state, {1: of(0.4, 30)}, 1)
    assert exchange.send(state, 0, START) == (state.start,)
    assert exchange.send(state, 1, START)[0].mean[0] == 0.4


def test_the_first_fit_is_under_the_received_model() -> None:
    net, work = client()
    net.load({"scale": torch.tensor([-5.0], dtype=torch.float64)})
    opened = FirstFit("ce", "minmax", inference_augment=False)(net, work)
    assert opened.reports.one(LocalFilter).filter.mean[0] < 0.3
    net, alone = client(count=1)
    assert len(FirstFit("ce", "minmax", inference_augment=False)(net, alone).reports) == 0


def test_the_prior_is_the_divergence_times_eta() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]], dtype=torch.float64)
    mean = np.array([softmax(row) for row in logits.numpy()]).mean(0)
    loss, state = Prior(0.7)(step(logits=logits), None)
    assert float(loss) == pytest.approx(0.7 * float((np.log(1 / 3) - np.log(mean)).mean()))
    assert state is None


# ----------------------------------------------------------------------------------------------------------- whole

WHOLE = ("method=feddiv", "method.T_wu=1", "method.T=3", "noise.rho=0.8", "method.zeta=0.3", "method.at_least=1")


def test_before_the_second_stage_everybody_fits_once_and_no_label_changes() -> None:
    ran = composed(*WHOLE)
    warm, first = ran.rounds[3].state, ran.rounds[4].state

    def server(state: Any) -> FilterState:
        found = state.server.exchanges["noise_filter"]
        assert isinstance(found, FilterState)
        return found

    assert server(warm).cached == {}
    assert sorted(server(first).cached) == [0, 1, 2, 3]
    assert server(first).reported == ran.rounds[4].cohort
    assert [r.state.counters.participations for r in ran.rounds] == [1, 2, 3, 4, 6, 8, 10]
    model = sum(t.numel() * t.element_size() for t in ran.start.values())
    opening = first.counters.bytes_up - warm.counters.bytes_up - 2 * model
    assert opening == (4 + 2) * 7 * 8  # six numbers and n_k, from everybody and then from the cohort
    for own in ran.rounds[-1].state.clients.values():
        assert own.labels is None
    for found in server(ran.rounds[-1].state).cached.values():
        assert sum(found.share) == pytest.approx(1)
        assert min(found.variance) > 0
        assert found.mean[0] < found.mean[1]


def test_flags_are_held_against_the_labels_that_they_judged() -> None:
    """Under ``relabel_persist`` those of the last visit, which are neither as given nor as they are held afterwards."""
    ran = composed(*WHOLE, "method.relabel_persist=true", "method.T=6", "train.epochs=4", "train.lr=0.1")
    truth, told_apart = ran.federation.truth, 0
    assert truth is not None
    for before, found in pairwise(ran.rounds[4:]):
        told = by_client(
            ran.federation, ran.method.findings(found.state, ran.federation.sizes)["exchange/noise_filter"]
        )
        for client in found.cohort:
            flags, samples = found.state.client(client).extras.one(FilterFlags), ran.federation.samples(client)
            held = before.state.client(client).labels
            judged = samples.given if held is None else held
            clean, right = flags.clean.tolist(), (judged == truth[samples.index]).tolist()
            accuracy = sum(c == r for c, r in zip(clean, right, strict=True)) / len(clean)
            assert told["filter_accuracy"][told["client"].index(client)] == pytest.approx(accuracy)
            told_apart += not torch.equal(judged, samples.given)
    assert told_apart


def test_the_record_begins_with_the_labels_as_given_and_then_as_held(tmp_path: Path) -> None:
    ran = run([*BY_NAME["feddiv"].words, "method.relabel_persist=true"], tmp_path / "run")
    rows = ran.record["selection"]
    moved = 0
    with assembled(BY_NAME["feddiv"].words, tmp_path / "again") as parts:
        truth = parts.federation.truth
        assert truth is not None
        for row in rows:
            assert list(row)[:3] == ["client", "as given", "as held"]
            samples, held = parts.federation.samples(row["client"]), ran.state.client(row["client"]).labels
            for name, labels in (("as given", samples.given), ("as held", samples.given if held is None else held)):
                counts = np.zeros((10, 10), int)
                np.add.at(counts, (truth[samples.index].numpy(), labels.numpy()), 1)
                assert row[name] == counts.tolist()
            moved += row["as given"] != row["as held"]
    assert moved


def test_the_record_says_what_each_step_leaves_of_the_first_clients(tmp_path: Path) -> None:
    """Counted from what the rule itself selects; a clean client trains on all it has."""
    words = [*BY_NAME["feddiv"].words, "method.at_least=100"]  # so that epochs train on nothing: that is not shown
    ran = run(words, tmp_path / "run")
    rows = ran.record["selection"]
    assert [row["client"] for row in rows] == [0, 1, 2, 3, 4]
    with assembled(words, tmp_path / "again") as parts:
        state, truth, network = ran.state, parts.federation.truth, parts.evaluator.network
        assert truth is not None
        tasks = loop.next_tasks(parts.run, state, range(5))
        rule: Any = parts.method.stages[1].batch
        sizes = []
        for row, work in zip(rows, tasks, strict=True):
            network.load(state.server.params)
            for name, pcs in (("filtered and relabelled", "off"), ("re-selected", "per_epoch")):
                found = replace(rule, pcs=pcs, at_least=0).select(network, work, 0)
                counts = np.zeros((10, 10), int)
                for i in range(len(work.samples)) if found.positions is None else found.positions.tolist():
                    label = work.labels[i] if found.labels is None else found.labels[i]
                    counts[int(truth[work.samples.index[i]]), int(label)] += 1
                assert row[name] == counts.tolist()
                sizes.append(counts.sum())
            given = np.array(row["as given"])
            assert given.sum() == len(work.samples)
            assert np.trace(given) == int((work.labels == truth[work.samples.index]).sum())
    assert len({int(size) for size in sizes}) > 2
    assert "selection" not in run(BY_NAME["fedavg"].words, tmp_path / "fedavg").record
    figure = confusion.draw_selection(RunRecord.open(ran.folder))
    assert figure is not None
    assert len(figure.axes) == 15
    assert np.array_equal(figure.axes[10].images[0].get_array(), rows[0]["re-selected"])  # type: ignore[arg-type]
