"""FedRN: its scores against the vector, mixtures against scikit-learn, a visit against a loop by hand, and a run."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

from flnl.core.findings import SuspectedSamples
from flnl.core.messages import ClientState, Clock, Samples
from flnl.core.parts import Setting
from flnl.core.payload import Params, Payload, size_in_bytes
from flnl.core.step import WHOLE
from flnl.core.streams import stream
from flnl.core.training import Training
from flnl.engine.network import Network
from flnl.methods.fedrn.batch import ReliableSamples
from flnl.methods.fedrn.exchange import CleanSamples, Neighbours, Reliability, ReliableNeighbours, above, agreed
from flnl.methods.fedrn.head import with_trained_head
from flnl.methods.fedrn.reliability import neighbourhood, scores, similarities
from flnl.numerics.mixture import LossMixture
from flnl.numerics.scaling import min_max
from flnl.parts.messages import LastModel
from tests.properties.runs import assembled, difference, run
from tests.registry import TINY
from tests.toys import ONE_STEP, START, fitted, network, random_federation, task
from tests.vectors.vectors import federated

HEAD = Training(lr=0.1, momentum=0.5, weight_decay=0.01, batch_size=4, epochs=1, lr_decay=1.0)
NEAR = ReliableNeighbours(
    neighbours=2, alpha=0.6, threshold=0.5, tolerance=0.01, min_variance=0.0005, head=HEAD, stage=2
)
MIXTURE = LossMixture(0.01, 0.0005)


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# --------------------------------------------------------------------------------------------------------- scores


def test_scores_neighbours_and_the_agreed_choice() -> None:
    entry = federated("fedrn.scores")
    outputs, expertise, alpha = f64(entry.inputs["noise_outputs"]), entry.inputs["expertise"], entry.inputs["alpha"]
    me, count = entry.inputs["me"], entry.inputs["k"]
    similarity = similarities(outputs, me)
    assert similarity.tolist() == entry.approx("similarity")
    assert min_max(similarity).tolist() == entry.approx("sim_norm")
    assert min_max(np.array(expertise)).tolist() == entry.approx("exp_norm")
    every = scores(np.array(expertise), similarity, alpha)
    assert {str(k): every[k] for k in range(5) if k != me} == entry.approx("scores")
    assert every[me] == entry.approx("own_score")
    found = neighbourhood(me, dict(enumerate(expertise)), dict(enumerate(outputs)), alpha=alpha, count=count)
    assert list(found.clients) == [me, *entry.expected["neighbours"]]
    assert list(found.weights) == entry.approx("weights")
    probability = agreed(found.weights, [np.array(p) for p in entry.inputs["gmm_clean_prob_rows_me_then_neighbours"]])
    assert probability.tolist() == entry.approx("final_prob")
    assert above(probability, 0.5).nonzero()[:, 0].tolist() == entry.expected["kept"]
    without_me = scores(np.delete(expertise, me), np.delete(similarity, me), alpha)  # scaled over the others alone
    assert without_me.tolist() != pytest.approx(list(entry.expected["scores"].values()), abs=1e-3)


def test_scores_are_scaled_over_all_clients_whatever_their_numbers() -> None:
    rng = np.random.default_rng(0)
    outputs, expertise = rng.normal(size=(6, 4)), rng.uniform(size=6)
    numbers = [3, 5, 8, 13, 21, 34]
    for place, me in enumerate(numbers):
        cosines = [row @ outputs[place] / np.linalg.norm(row) / np.linalg.norm(outputs[place]) for row in outputs]
        score = 0.3 * (expertise - expertise.min()) / np.ptp(expertise)
        score += 0.7 * (np.array(cosines) - min(cosines)) / np.ptp(cosines)
        order = [k for k in np.argsort(-score) if k != place][:3]
        found = neighbourhood(
            me,
            dict(zip(numbers, expertise.tolist(), strict=True)),
            {k: f64(row) for k, row in zip(numbers, outputs, strict=True)},
            alpha=0.3,
            count=3,
        )
        assert found.clients == (me, *(numbers[k] for k in order))
        assert found.weights == pytest.approx(score[[place, *order]] / score[[place, *order]].sum())


def test_clients_that_do_not_differ_are_neighbours_by_number() -> None:
    """0/0 is 0; the client's own similarity is 1 all the same."""
    alike = dict.fromkeys((2, 4, 6, 9), 0.5)
    outputs = dict.fromkeys(alike, f64([1.0, 2.0]))
    found = neighbourhood(6, alike, outputs, alpha=0.6, count=2)
    assert found.clients == (6, 2, 4)
    assert list(found.weights) == [1, 0, 0]
    assert neighbourhood(6, alike, outputs, alpha=1.0, count=2).weights == pytest.approx([1 / 3] * 3)
    assert neighbourhood(6, alike, outputs, alpha=0.6, count=9).clients == (6, 2, 4, 9)
    assert neighbourhood(6, alike, outputs, alpha=0.6, count=0).weights == (1,)
    assert neighbourhood(6, {6: 0.5}, {6: f64([0.0, 0.0])}, alpha=0.6, count=2).clients == (6,)


def test_a_model_that_answers_nothing_resembles_nobody() -> None:
    assert similarities(f64([[0.0, 0.0], [3.0, 4.0], [-3.0, -4.0]]), 1).tolist() == [0, 1, -1]
    assert similarities(f64([[0.0, 0.0], [3.0, 4.0]]), 0).tolist() == [0, 0]


# ------------------------------------------------------------------------------------------------------- mixtures


def with_losses(losses: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Logits of two classes, and labels, of which these are the cross-entropies."""
    odds = -np.log(np.expm1(losses))
    return f64(np.stack([odds, np.zeros(len(odds))], 1).tolist()), torch.zeros(len(odds), dtype=torch.int64)


@pytest.mark.parametrize("seed", [0, 1, 3, 4])
def test_the_probability_is_that_of_the_lower_component(seed: int) -> None:
    """Scikit-learn's mixture, with the constants of the released code, where its random start finds the best split."""
    rng = np.random.default_rng(seed)
    losses = np.concatenate([rng.gamma(2, 0.2, 40), rng.normal(2.5, 0.4, 20)]) + 0.01
    scaled = (losses - losses.min()) / np.ptp(losses)
    model = GaussianMixture(2, max_iter=100, tol=1e-2, reg_covar=5e-4, random_state=0).fit(scaled[:, None])
    wanted = model.predict_proba(scaled[:, None])[:, model.means_.argmin()]
    found = MIXTURE.clean_probability(*with_losses(losses.tolist()))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)
    assert 0.3 < (found > 0.5).mean() < 0.9
    other = LossMixture(0.01, 0.05).clean_probability(*with_losses(losses.tolist()))
    assert np.abs(other - wanted).max() > 0.01


@pytest.mark.parametrize("losses", [[0.7] * 5, [0.3]])
def test_samples_that_do_not_differ_are_clean(losses: list[float]) -> None:
    assert MIXTURE.clean_probability(*with_losses(losses)).tolist() == [1] * len(losses)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_sample_whose_loss_overflows_is_not_clean_among_equal_ones(bad: float) -> None:
    logits = torch.tensor([[1.0, 0.0]] * 5 + [[bad, 0.0]]).double()
    found = MIXTURE.clean_probability(logits, torch.zeros(6, dtype=torch.int64))
    assert [p > 0.5 for p in found] == [True] * 5 + [False]


def test_without_any_clean_sample_all_count() -> None:
    assert above(np.array([0.2, 0.5]), 0.5).tolist() == [True, True]
    assert above(np.array([0.2, 0.6]), 0.5).tolist() == [False, True]


# ------------------------------------------------------------------------------------------------------ the head


class Small(nn.Module):
    """One hidden layer, with or without batch norm."""

    def __init__(self, seed: int, *, norm: bool = False) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6) if norm else nn.Identity(), nn.ReLU()
        )
        self.head = nn.Linear(6, 3)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=rng) / 2 + 0.1)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(inputs))
        return logits


def params_of(module: nn.Module) -> Params:
    return {
        name: t.detach().clone().double() if t.is_floating_point() else t for name, t in module.state_dict().items()
    }


def drawn(size: int = 11, *, seed: int = 0) -> Samples:
    return random_federation([size], seed=seed).samples(0)


def of(net: Network, samples: Samples) -> Tensor:
    """The inputs of the samples [n, 1, 2, 2]."""
    return net.prepare(samples.read())


def test_one_step_moves_the_last_layer_alone() -> None:
    net, samples = network(Small(0)), drawn()
    received, among = params_of(Small(1)), torch.arange(11) % 3 != 0
    before = {name: t.clone() for name, t in received.items()}
    asked = replace(task(Small(2), samples, round=3), state=ClientState(labels=(samples.given + 1) % 3))
    training = replace(HEAD, batch_size=20, lr_decay=0.5)
    found = with_trained_head(net, asked, received, among, training, 7)

    module = Small(1).double()
    module.body.requires_grad_(requires_grad=False)
    loss = F.cross_entropy(module(of(net, samples)[among]), (samples.given[among] + 1) % 3)
    loss.backward()
    for name, t in before.items():
        grad = module.get_parameter(name).grad
        wanted = t if grad is None else t - 0.1 * 0.125 * (grad + 0.01 * t)
        torch.testing.assert_close(found[name], wanted, rtol=1e-12, atol=1e-14)
        assert torch.equal(found[name], t) == name.startswith("body")
    assert difference(received, before) is None
    assert set(net.trainable()) == set(before)


def test_batches_depend_on_the_neighbour_and_running_statistics_adapt() -> None:
    net, samples, every = network(Small(0, norm=True)), drawn(), torch.ones(11, dtype=torch.bool)
    received, asked = params_of(Small(1, norm=True)), task(Small(2, norm=True), samples)
    one, again, other = (with_trained_head(net, asked, received, every, HEAD, number) for number in (7, 7, 8))
    assert difference(one, again) is None
    assert not torch.equal(one["head.weight"], other["head.weight"])
    assert torch.equal(one["body.2.weight"], received["body.2.weight"])
    assert not torch.equal(one["body.2.running_mean"], received["body.2.running_mean"])
    assert int(one["body.2.num_batches_tracked"]) == 3


def test_training_that_diverges_is_undone() -> None:
    net, samples, received = network(Small(0), precision=32), drawn(), params_of(Small(1))
    wild = replace(HEAD, lr=1e38, epochs=3)
    found = with_trained_head(net, task(Small(2), samples), received, torch.ones(11, dtype=torch.bool), wild, 0)
    assert found is received


# -------------------------------------------------------------------------------------------------------- a visit


def tuned(net: Network, received: Params, samples: Samples, among: Tensor) -> nn.Module:
    """A neighbour's model after one epoch in one batch, by hand."""
    module = Small(0).double()
    module.load_state_dict(received)
    head = list(module.head.parameters())
    optimizer = torch.optim.SGD(head, 0.1, momentum=0.5, weight_decay=0.01)
    F.cross_entropy(module(of(net, samples)[among]), samples.given[among]).backward()
    optimizer.step()
    return module


def clean(net: Network, module: nn.Module, samples: Samples) -> Any:
    with torch.no_grad():
        return MIXTURE.clean_probability(module(of(net, samples)), samples.given)


def test_a_client_chooses_with_its_neighbours() -> None:
    """As by hand: its last model judges first, then the neighbours', with heads trained on what is clean by it."""
    net, samples = network(Small(0)), drawn(16, seed=3)
    own, others, weights = params_of(Small(4)), [params_of(Small(s)) for s in (5, 6)], (0.5, 0.3, 0.2)
    state = ClientState(extras=Payload(LastModel(own)))
    sent = Payload(Neighbours((3, 8), tuple(others), weights))
    asked = task(Small(9), samples, stage=2, state=state, extras=sent)
    near = replace(NEAR, head=replace(HEAD, batch_size=20))
    (chosen,) = near.begin(net, asked)[1]

    first = Small(4).double()
    among = torch.from_numpy(clean(net, first, samples) > 0.5)
    assert 0 < int(among.sum()) < 16
    opinions = [clean(net, m, samples) for m in (first, *(tuned(net, p, samples, among) for p in others))]
    wanted = sum(w * p for w, p in zip(weights, opinions, strict=True))
    np.testing.assert_allclose(chosen.probability, wanted, atol=1e-9)
    assert chosen.mask.tolist() == (wanted > 0.5).tolist()
    assert 0 < int(chosen.mask.sum()) < 16
    assert chosen.labels is None
    assert not np.array_equal(chosen.mask, among)

    rule, after = ReliableSamples(), replace(asked, state=asked.state.keeping(chosen))
    for epoch in (0, 4):
        (phase,) = rule.phases(net, after, epoch, 5)
        assert phase.positions is not None
        assert phase.positions.tolist() == chosen.mask.nonzero()[:, 0].tolist()
        assert phase.labels is None
    assert list(rule.phases(net, asked, 0, 5)) == [WHOLE]


def test_without_neighbours_nothing_is_chosen() -> None:
    net, samples = network(Small(0)), drawn()
    assert len(NEAR.begin(net, task(Small(0), samples, stage=2))[1]) == 0
    state = ClientState(extras=Payload(LastModel(params_of(Small(4)))))
    assert len(NEAR.begin(net, task(Small(0), samples, stage=2, state=state))[1]) == 0


def test_the_server_relays_the_models_of_clients_that_have_trained() -> None:
    models = {client: params_of(Small(client)) for client in (1, 2, 4)}
    clients = {client: ClientState(extras=Payload(LastModel(p))) for client, p in models.items()}
    reports = {c: Payload(Reliability(a, f64([1.0, c]))) for c, a in zip(models, (0.9, 0.5, 0.7), strict=True)}
    state = NEAR.receive(NEAR.init(6, {}), {**reports, 5: Payload()}, 1)
    assert NEAR.receive(state, {5: Payload()}, 1) is state
    assert NEAR.send(state, 2, START) == ()
    (sent,) = NEAR.relay(state, 2, Clock(0, 2), clients)
    of_2 = neighbourhood(2, state.expertise, state.outputs, alpha=0.6, count=2)
    assert sent.clients == of_2.clients[1:]
    assert {*sent.clients} == {1, 4}
    assert sent.weights == of_2.weights
    assert all(model is models[client] for client, model in zip(sent.clients, sent.models, strict=True))
    assert NEAR.relay(state, 2, Clock(0, 1), clients) == ()  # warm-up
    assert NEAR.relay(state, 3, Clock(0, 2), clients) == ()  # has not trained
    later = NEAR.receive(state, {2: Payload(Reliability(0.1, f64([5.0, 1.0])))}, 1)
    assert (later.expertise[2], later.expertise[1]) == (0.1, 0.9)
    assert later.outputs[2].tolist() == [5, 1]


def test_a_client_reports_its_accuracy_and_its_answer_to_noise() -> None:
    """All clients answer to the same image in every round."""
    net, found = network(Small(0)), []
    labels = torch.tensor([0, 1, 2] * 4)
    for client, round, samples in ((0, 0, drawn(12)), (5, 3, drawn(12, seed=1))):
        params = params_of(Small(4))
        net.load(params)
        asked = task(Small(1), samples, client=client, round=round, state=ClientState(labels=labels))
        up, kept = NEAR.report(net, asked, fitted(params))
        module = Small(4).double()
        right = module(of(net, samples)).argmax(1) == labels
        assert up.one(Reliability).expertise == float(right.double().mean())
        assert difference(kept.one(LastModel).params, params) is None
        found.append(up.one(Reliability).output)
        image = stream(asked.seed, "image of noise").standard_normal((1, 1, 2, 2))
        torch.testing.assert_close(found[-1], module(torch.from_numpy(image))[0].detach(), rtol=1e-12, atol=0)
    assert torch.equal(*found)


@pytest.mark.parametrize("where", ["samples", "noise"])
def test_a_model_whose_logits_overflow_is_no_neighbour(where: str) -> None:
    """Its parameters are finite, but its answer to noise would be the most alike. The last usable model stays."""
    net, samples = network(Small(0)), drawn(12)
    asked = task(Small(1), samples, state=ClientState(labels=torch.tensor([0, 1, 2] * 4)))
    params = params_of(Small(4))
    net.load(params)
    up, kept = NEAR.report(net, asked, fitted(params))
    state = NEAR.receive(NEAR.init(3, {}), dict.fromkeys(range(3), up), 1)
    if where == "samples":
        huge = {name: t * (1e308 if name.startswith("head") else 1.0) for name, t in params.items()}
        net.load(huge)
    else:
        huge = params
        net.scored = lambda inputs: torch.full((1, 3), math.nan).double()  # type: ignore[method-assign]
    again, more = NEAR.report(net, asked, fitted(huge))
    assert len(again) == len(more) == 0
    assert kept.one(LastModel)
    assert NEAR.receive(state, {1: again}, 1) is state


def test_a_network_without_a_head_is_refused() -> None:
    reason = NEAR.refuses(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), [], Setting({0: 4}, (3,), ONE_STEP))
    assert reason is not None
    assert reason.endswith("must be called head; this network has 1: rename its last layer")
    assert NEAR.refuses(Small(1), [], Setting({0: 4}, (3,), ONE_STEP)) is None


# ---------------------------------------------------------------------------------------------------------- a run

SMALL = (*(w for w in TINY if "fraction" not in w), "fraction=0.5", "precision=64", "noise.rho=0.8", "seed=2")
RUN = (*SMALL, "method=fedrn", "method.T_wu=2", "method.T=3", "train.lr=0.2")


def test_a_run_sends_models_from_the_second_stage_on(tmp_path: Path) -> None:
    with assembled(RUN, tmp_path / "run") as parts:
        results = parts.results()
    states = [result.state for result in results]
    trained: set[int] = set()
    model, extra = size_in_bytes(states[0].server.params), []
    for before, result in zip([None, *states], results, strict=False):
        down = result.state.counters.bytes_down - (0 if before is None else before.counters.bytes_down)
        with_model = [client for client in result.cohort if client in trained and result.stage == "usual"]
        extra.append(down - 4 * model)
        assert extra[-1] == len(with_model) * (2 * model + 8 * (2 + 3))  # two models, their numbers, three weights
        for client in result.cohort:
            kept = result.state.client(client).extras
            assert (kept.get(CleanSamples) is not None) == (client in with_model)
            assert kept.get(LastModel) is not None
        trained |= {*result.cohort}
        assert {*result.state.server.exchanges["reliable_neighbours"].expertise} == trained
        up = result.state.counters.bytes_up - (0 if before is None else before.counters.bytes_up)
        assert up == 4 * (model + 8 + 80)  # the accuracy, and ten logits
    assert extra[:2] == [0, 0]
    assert min(extra[2:]) > 0
    assert any(client not in trained for client in range(8)) or len({*results[2].cohort} - {*results[0].cohort}) > 0


def test_what_is_left_out_is_measured_and_models_may_lie_on_disk(tmp_path: Path) -> None:
    done = run(RUN, tmp_path / "run")
    assert "given" not in done.record
    found = done.state.clients
    chosen = {client: c for client in found if (c := found[client].extras.get(CleanSamples)) is not None}
    assert any(0 < int(c.mask.sum()) < len(c.mask) for c in chosen.values())
    suspects = NEAR.findings(NEAR.init(8, {}), found, Payload())
    assert all(isinstance(s, SuspectedSamples) for s in suspects)
    assert {s.client: int(s.mask.sum()) for s in suspects if isinstance(s, SuspectedSamples)} == {
        client: int((~c.mask).sum()) for client, c in chosen.items()
    }
    assert {"filter_accuracy", "filter_auc"} <= done.record["metrics"].keys()
    on_disk = run(RUN, tmp_path / "disk", "client_memory=0")
    assert difference(on_disk.state.server.params, done.state.server.params) is None
    assert on_disk.lines == done.lines
