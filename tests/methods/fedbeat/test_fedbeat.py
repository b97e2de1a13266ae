"""FedBeat against the vectors, and what passes between clients and server."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flnl.core.findings import Scalar, SuspectedSamples
from flnl.core.messages import Broadcast, ClientResult, ClientState, Clock, Combined, Gathered
from flnl.core.parts import Setting
from flnl.core.payload import Payload
from flnl.core.step import FEATURES
from flnl.methods.fedbeat.batch import DistilledSamples
from flnl.methods.fedbeat.ensemble import DistilledSet, ModelMoments
from flnl.methods.fedbeat.exchange import Ensemble, LabelByEnsemble, TransitionNetwork
from flnl.methods.fedbeat.server import HoldClassifier
from flnl.methods.fedbeat.transition import (
    FedBeat,
    LearnTransitions,
    Transitions,
    corrected_loss,
    log_transitions,
    transition_loss,
)
from flnl.models.mlp import MLP
from flnl.parts.batches import Mixup
from flnl.parts.messages import UsedSamples
from flnl.parts.shared_layers import Descent, SharedLayers
from tests.toys import ONE_STEP, Logits, federation, fitted, network, step, task
from tests.vectors.vectors import NEWER, entries

EXCHANGE = Ensemble(members=3, threshold=0.4, scale=0.1, sample_buffers=False, stage=2)
TERM = LearnTransitions(Descent(0.1, 0.9, 0.0))
LENGTHS = (2, 3, 4)


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Fixed:
    """A generator whose draws are known."""

    def __init__(self, values: list[float]) -> None:
        self.values = np.array(values)

    def standard_normal(self, shape: Any) -> Any:
        return self.values.reshape(shape)


# --------------------------------------------------------------------------------------------------------- ensemble


def test_members_lie_around_the_mean_as_the_clients_do() -> None:
    vector = entries(NEWER)["fedbeat.ensemble"]
    models = [{"w": f64(values)} for values in vector.inputs["client_tensors"]]
    mean = {"w": f64(vector.inputs["global"])}
    moments = ModelMoments.of(models, mean, buffers=False)
    assert moments.means["w"].tolist() == vector.approx("mean_direction")
    assert moments.variances["w"].tolist() == vector.approx("variance")
    assert moments.norms["w"] == vector.approx("mean_norm")
    rng: Any = Fixed(vector.inputs["eps"])
    assert moments.member(mean, rng, vector.inputs["scale"])["w"].tolist() == vector.approx("member")


def test_a_tensor_that_nobody_moved_stays_and_running_statistics_are_drawn_only_if_asked() -> None:
    mean = {"w": f64([1.0, 2.0]), "n.running_var": f64([1.0]), "n.num_batches_tracked": torch.tensor(3)}
    moved = {**mean, "n.running_var": f64([2.0])}
    moments = ModelMoments.of([mean, moved], mean, buffers=False)
    assert set(moments.means) == {"w"}
    assert moments.means["w"].tolist() == [0, 0]
    drawn = moments.member(mean, np.random.default_rng(0), 0.1)
    assert torch.equal(drawn["w"], mean["w"])
    assert torch.equal(drawn["n.running_var"], mean["n.running_var"])
    released = ModelMoments.of([mean, moved], mean, buffers=True)
    assert set(released.means) == {"w", "n.running_var"}
    assert not torch.equal(released.member(mean, np.random.default_rng(0), 0.1)["n.running_var"], mean["n.running_var"])


def problem() -> tuple[Any, Any, Any]:
    module = MLP([5], 0.0)((1, 2, 2), 3).double()
    toy = federation([normal(9, 1, 2, 2).float()], [torch.arange(9) % 3])
    return module, toy.samples(0), network(module, transform=toy.dataset.transform)


def test_clients_keep_what_their_members_are_sure_of() -> None:
    module, samples, net = problem()
    mean = net.params()
    models = [{name: p + 0.3 * normal(*p.shape, seed=k) for name, p in mean.items()} for k in range(3)]
    moments = ModelMoments.of(models, mean, buffers=False)
    work = task(module, samples, extras=Payload(moments))
    opened = LabelByEnsemble(3, 0.4, 0.1)(net, work)
    found = opened.keeps.one(DistilledSet)
    total = torch.zeros(9, 3, dtype=torch.float64)
    for number in range(3):
        member = moments.member(mean, work.stream("ensemble", number), 0.1)
        module.load_state_dict(member)
        total += module(samples.read().double()).detach().softmax(1)
    module.load_state_dict(mean)
    np.testing.assert_array_equal(found.labels, total.argmax(1))
    np.testing.assert_array_equal(found.chosen, total.amax(1) / 3 > 0.4)
    assert opened.reports.one(UsedSamples).count == int(found.chosen.sum())
    assert torch.equal(found.judged, samples.given)


# ------------------------------------------------------------------------------------------------------------- loss


def test_losses() -> None:
    vector = entries(NEWER)["fedbeat.losses"]
    transitions, logits = f64(vector.inputs["T"]), f64(vector.inputs["logits"])
    true, given = torch.tensor(vector.inputs["pseudo"]), torch.tensor(vector.inputs["given"])
    assert float(transition_loss(transitions.log(), true, given).mean()) == vector.approx("transition_loss")
    posterior = torch.einsum("bi,bij->bj", logits.softmax(1), transitions)
    np.testing.assert_allclose(posterior, vector.expected["noisy_posterior"], atol=vector.absolute)
    losses = corrected_loss(logits, transitions, given)
    assert float(losses.mean()) == vector.approx("classifier_loss")
    batch = replace(
        step(logits=logits, targets=given),
        labels=given,
        visit=Payload(Transitions(transitions.flip(0))),
        positions=torch.tensor([1, 0]),
    )
    assert float(FedBeat()(batch, None)[0].mean()) == vector.approx("classifier_loss")
    plain = FedBeat()(replace(batch, visit=Payload()), None)[0]
    np.testing.assert_allclose(plain, torch.nn.functional.cross_entropy(logits, given, reduction="none"), rtol=1e-12)


def test_the_last_layer_of_the_transition_network_takes_steps_of_its_own() -> None:
    module, samples, net = problem()
    work = task(module, samples)
    state = TERM.begin(net, work, None)
    assert {name: tuple(t.shape) for name, t in state.values.items()} == {"weight": (9, 5), "bias": (9,)}
    assert torch.equal(state.values["bias"], TERM.begin(net, replace(work, client=5), None).values["bias"])
    features, labels = normal(4, 5), torch.tensor([0, 1, 2, 2])
    logs = log_transitions(state.values, features)
    outputs = (features @ state.values["weight"].T + state.values["bias"]).view(4, 3, 3)
    np.testing.assert_allclose(logs, outputs.log_softmax(2), rtol=1e-12)
    own = DistilledSet(torch.ones(9, dtype=torch.bool), torch.tensor([2, 1, 0, 0, 0, 0, 0, 0, 0]), samples.given)
    batch = replace(
        step(logits=features[:, :3]),
        labels=labels,
        positions=torch.tensor([0, 1, 2, 3]),
        kept=Payload(own),
        computed={"logits": features[:, :3], FEATURES: features},
    )
    losses, after = TERM(batch, state)
    np.testing.assert_allclose(losses, -logs[torch.arange(4), own.labels[:4], labels], rtol=1e-12)
    layer = torch.nn.Linear(5, 9).double()
    layer.load_state_dict(dict(state.values))
    optimizer = torch.optim.SGD(layer.parameters(), 0.1, 0.9)
    for _ in range(2):
        optimizer.zero_grad()
        transition_loss(layer(features).view(4, 3, 3).log_softmax(2), own.labels[:4], labels).mean().backward()
        optimizer.step()
    np.testing.assert_allclose(TERM(batch, after)[1].values["weight"], layer.weight.detach(), rtol=1e-9)


# ------------------------------------------------------------------------------------------- what passes, and when


def gathered(round: int, stage: int, *values: float) -> Gathered:
    results = [
        ClientResult(k, 1, {"w": f64([v])}, ClientState(), Payload(), 0.0, 1, True) for k, v in enumerate(values)
    ]
    combined = Combined({"w": f64([sum(values) / len(values)])})
    return Gathered(Broadcast(round, stage, {"w": f64([0.0])}, lengths=LENGTHS), results, combined, Payload(), 1)


def test_moments_go_down_once_and_the_transition_network_once_to_each_client() -> None:
    clock = [Clock(r, stage, LENGTHS) for r, stage in ((0, 1), (1, 1), (2, 2), (3, 2), (5, 3))]
    assert [EXCHANGE.wants_models(c) for c in clock] == ["no", "after", "no", "no", "no"]
    state = EXCHANGE.gathered(EXCHANGE.init(3, {}), gathered(0, 1, 1.0, 3.0))
    assert state.moments is None
    state = EXCHANGE.gathered(state, gathered(1, 1, 1.0, 3.0))
    assert state.moments is not None
    assert state.moments.norms == {"w": 1.0}
    assert isinstance(EXCHANGE.before_round(state, clock[2]), LabelByEnsemble)
    assert EXCHANGE.broadcast(state, clock[2]) == (state.moments,)
    assert EXCHANGE.broadcast(state, clock[1]) == ()
    state = EXCHANGE.receive(state, {0: Payload(UsedSamples(4))}, 1)
    assert EXCHANGE.broadcast(state, clock[2]) == ()
    assert EXCHANGE.before_round(state, clock[3]) is None
    state = EXCHANGE.gathered(state, gathered(4, 2, 7.0, 9.0))
    assert EXCHANGE.send(state, 0, clock[3]) == ()
    (sent,) = EXCHANGE.send(state, 0, clock[4])
    assert sent == TransitionNetwork({"w": f64([8.0])})
    after = EXCHANGE.gathered(state, gathered(5, 3, 1.0, 1.0))
    assert [len(EXCHANGE.send(after, k, clock[4])) for k in range(3)] == [0, 0, 1], "the third was not there"


def test_a_client_keeps_the_matrices_of_its_samples() -> None:
    module, samples, net = problem()
    layers = {"weight": normal(9, 5), "bias": normal(9)}
    body = {name: 2 * p for name, p in net.params().items()}
    work = task(module, samples, stage=3, extras=Payload(TransitionNetwork(body), SharedLayers(layers)))
    visit, kept = EXCHANGE.begin(net, work)
    features = net.at(body).outputs(samples, names=(FEATURES,))[FEATURES]
    values = (features @ layers["weight"].T + layers["bias"]).view(9, 3, 3).softmax(2)
    np.testing.assert_allclose(visit.one(Transitions).values, values, rtol=1e-12)
    later = task(module, samples, stage=3, state=ClientState(extras=kept))
    assert EXCHANGE.begin(net, later)[0].one(Transitions) is kept.one(Transitions)
    assert not len(EXCHANGE.begin(net, task(module, samples))[0])


def test_distilled_samples_are_trained_on_and_counted() -> None:
    module, samples, net = problem()
    chosen = torch.tensor([True, False, True, True, True, True, True, True, False])
    own = DistilledSet(chosen, torch.tensor([1, 1, 2, 0, 1, 2, 0, 1, 2]), samples.given)
    work = task(module, samples, stage=2, state=ClientState(extras=Payload(own)))
    (phase,) = DistilledSamples(last_batch_only=False, batch_size=4).phases(net, work, 0, 1)
    assert phase.positions is not None
    assert phase.positions.tolist() == [0, 2, 3, 4, 5, 6, 7]
    (last,) = DistilledSamples(last_batch_only=True, batch_size=4).phases(net, work, 0, 1)
    assert last.positions is not None
    assert len(last.positions) == 3, "of batches of 4 and 3"
    assert set(last.positions.tolist()) <= set(phase.positions.tolist())
    assert EXCHANGE.report(net, work, fitted({}))[0].one(UsedSamples).count == 7
    assert not len(EXCHANGE.report(net, replace(work, broadcast=replace(work.broadcast, stage=3)), fitted({}))[0])
    scalar, suspected = EXCHANGE.findings(EXCHANGE.init(1, {}), {0: work.state}, Payload())
    assert scalar == Scalar("distilled", 7 / 9)
    assert isinstance(suspected, SuspectedSamples)
    assert suspected.mask.tolist() == [True, False, False, False, False, False, False, False, False]


def test_the_classifier_waits_and_is_shown() -> None:
    update, w = HoldClassifier(2), {"w": f64([1.0])}
    state = update.init(w)
    first, state = update(w, {"w": f64([5.0])}, [0], 1, state)
    assert first["w"].item() == 5.0
    assert update.shown(first, state) is w
    second, state = update(first, {"w": f64([7.0])}, [0], 1, state)
    assert second is w


def test_what_cannot_work_is_said() -> None:
    setting, plain = Setting({}, LENGTHS, ONE_STEP, "method.exchange.ensemble"), MLP([5], 0.0)((1, 2, 2), 3)
    for term in (TERM, FedBeat()):
        assert term.refuses(plain, [], setting) is None
        assert "mixed" in (term.refuses(plain, [Mixup(1.0, True, None)], setting) or "")
        assert "head" in (term.refuses(Logits(), [], setting) or "")
    linear = MLP([], 0.0)((1, 2, 2), 3)
    assert FedBeat().refuses(linear, [], setting) is None
    assert "nothing before this network's last layer is trained" in (TERM.refuses(linear, [], setting) or "")
    assert EXCHANGE.caution(setting) is None
    assert "no round" in (EXCHANGE.caution(replace(setting, lengths=(0, 3, 4))) or "")
