"""Local training against a plain torch loop, and every seam that a part can act through."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.core.errors import PartError
from flnl.core.execution import Executor, as_list
from flnl.core.messages import ClientResult, ClientState, ClientTask, Fit, Samples
from flnl.core.model import Model
from flnl.core.parts import BatchRule, Exchange, GradientTransform, LossTerm
from flnl.core.payload import Params, Payload
from flnl.core.step import LOGITS, Phase, Step
from flnl.core.streams import OfEngine
from flnl.core.training import Training
from flnl.data.transforms import Transform
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.batching import batch_sizes
from flnl.engine.local.objective import backward
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.parts.batches import Mixup, Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from tests.properties.parts import Eases, Easiness
from tests.toys import equal, mlp, network, random_federation, task

TRAINING = Training(lr=0.2, momentum=0.9, weight_decay=0.01, batch_size=3, epochs=2, lr_decay=1.0)
CROSS_ENTROPY: dict[str, LossTerm] = {"cross_entropy": CrossEntropy()}
CROPPED = Transform(size=(2, 2), mean=(0.0,), std=(1.0,), scale=1.0, padding=1, flip=True)


def trained(
    work: ClientTask,
    net: Network,
    training: Training = TRAINING,
    *,
    terms: Mapping[str, LossTerm] = CROSS_ENTROPY,
    batch: BatchRule | None = None,
    gradient: GradientTransform | None = None,
    exchanges: Mapping[str, Exchange] | None = None,
) -> ClientResult:
    return LocalTraining(training, batch or Plain(), terms, gradient, exchanges or {})(net, work)


def params(result: ClientResult) -> Params:
    assert result.params is not None
    return result.params


def four_tasks(net: Network, samples: Samples) -> list[ClientTask]:
    """The same work in another round, for another client and with another seed."""
    one = partial(task, net.module, samples)
    return [one(), one(round=1), one(client=1), one(seed=2)]


def plain_loop(module: nn.Module, work: ClientTask, training: Training, cuts: Sequence[Sequence[int]]) -> Params:
    """Mini-batch SGD as everybody writes it; ``cuts`` are the batches' positions in each epoch's order."""
    module.load_state_dict(work.broadcast.params)
    dtype = next(module.parameters()).dtype
    inputs, labels = work.samples.read().to(dtype), work.labels
    orders = work.engine_stream(OfEngine.BATCHES)
    optimizer = torch.optim.SGD(
        module.parameters(), training.lr, training.momentum, weight_decay=training.weight_decay, fused=True
    )
    module.train()
    for _ in range(training.epochs):
        order = torch.from_numpy(orders.permutation(len(labels)))
        for cut in cuts:
            positions = order[list(cut)]
            optimizer.zero_grad()
            F.cross_entropy(module(inputs[positions]), labels[positions], reduction="none").mean().backward()
            optimizer.step()
    return {name: t.detach().clone() for name, t in module.state_dict().items()}


def cut(count: int, size: int) -> list[list[int]]:
    return [list(range(first, min(first + size, count))) for first in range(0, count, size)]


# ----------------------------------------------------------------------------------------------------------- plain


@pytest.mark.parametrize("precision", [32, 64])
@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.01)])
def test_local_training_is_plain_sgd(precision: int, momentum: float, weight_decay: float):
    """To the bit; the last batch of one is a batch like the others."""
    training = replace(TRAINING, momentum=momentum, weight_decay=weight_decay)
    net = network(mlp(4, 3), precision=precision)
    work = task(net.module, random_federation([7]).samples(0), round=4)
    found = trained(work, net, training)
    expected = plain_loop(mlp(4, 3).to(net.dtype), work, training, cut(7, 3))
    assert equal(params(found), expected)
    assert not equal(params(found), work.broadcast.params)
    assert (found.client, found.num_samples, found.steps, found.finite) == (0, 7, 2 * 3, True)


def test_sgd_by_its_formula():
    """``v ← m v + g + d w;  w ← w - r v``, from v = 0."""
    training = replace(TRAINING, batch_size=7, epochs=4)
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([7]).samples(0))
    weights = {name: t.clone().requires_grad_() for name, t in work.broadcast.params.items()}
    velocity = {name: torch.zeros_like(t) for name, t in weights.items()}
    module = mlp(4, 3).double()
    for _ in range(4):
        logits = torch.func.functional_call(module, weights, (work.samples.read().double(),))
        gradients = torch.autograd.grad(F.cross_entropy(logits, work.labels), list(weights.values()))
        with torch.no_grad():
            for (name, w), g in zip(weights.items(), gradients, strict=True):
                velocity[name] = training.momentum * velocity[name] + g + training.weight_decay * w
                w -= training.lr * velocity[name]
    found = params(trained(work, net, training))
    for name, w in weights.items():
        torch.testing.assert_close(found[name], w.detach(), rtol=1e-12, atol=1e-14)


def test_every_fit_starts_anew():
    """Neither momentum nor parameters nor anything else is left over from the fit before."""
    net = network(mlp(4, 3))
    dealt = random_federation([7, 6])
    work, other = (task(net.module, dealt.samples(k), client=k) for k in (0, 1))
    first = trained(work, net)
    trained(other, net)
    assert equal(params(trained(work, net)), params(first))


def test_reported_loss_is_the_mean_over_steps():
    training = Training(lr=1e-12, momentum=0.0, weight_decay=0.0, batch_size=4, epochs=3, lr_decay=1.0)
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([8]).samples(0))
    expected = F.cross_entropy(mlp(4, 3).double()(work.samples.read().double()), work.labels)
    assert trained(work, net, training).loss == pytest.approx(expected.item(), rel=1e-9)


def test_another_round_client_or_seed_has_other_batches():
    net = network(mlp(4, 3))
    samples = random_federation([7]).samples(0)
    found = [params(trained(work, net)) for work in four_tasks(net, samples)]
    assert not any(equal(a, b) for i, a in enumerate(found) for b in found[:i])


def test_the_clients_own_labels_are_what_is_learned():
    """As corrected, not as given: the task's samples carry them."""
    net = network(mlp(4, 3))
    samples = random_federation([7]).samples(0)
    corrected = replace(samples, given=(samples.given + 1) % 3)
    work = task(net.module, corrected)
    assert equal(params(trained(work, net)), plain_loop(mlp(4, 3).double(), work, TRAINING, cut(7, 3)))


# ------------------------------------------------------------------------------------------------------ batch norm


def test_last_batch_of_one_joins_the_one_before():
    assert batch_sizes(7, 3, join_last_of_one=True) == [3, 4]
    assert batch_sizes(7, 3, join_last_of_one=False) == [3, 3, 1]
    assert batch_sizes(8, 3, join_last_of_one=True) == [3, 3, 2]
    assert batch_sizes(9, 3, join_last_of_one=True) == [3, 3, 3]
    assert batch_sizes(1, 3, join_last_of_one=True) == [1]
    assert batch_sizes(3, 1, join_last_of_one=True) == [1, 2]
    assert batch_sizes(0, 3, join_last_of_one=True) == []


def test_batch_norm_has_no_batch_of_one():
    """To the bit as the plain loop with batches of 3 and 4, running statistics included."""
    net = network(mlp(4, 3, norm=True))
    work = task(net.module, random_federation([7]).samples(0))
    expected = plain_loop(mlp(4, 3, norm=True).double(), work, TRAINING, [[0, 1, 2], [3, 4, 5, 6]])
    found = trained(work, net)
    assert equal(params(found), expected)
    assert found.steps == 4
    assert params(found)["2.num_batches_tracked"].item() == 4


def test_a_client_of_one_sample_trains_under_batch_norm():
    """Nothing can be normalised by its own statistics, so the running ones serve and stay."""
    net = network(mlp(4, 3, norm=True))
    work = task(net.module, random_federation([1]).samples(0))
    found = params(trained(work, net))
    assert all(p.isfinite().all() for p in found.values())
    assert torch.equal(found["2.running_mean"], work.broadcast.params["2.running_mean"])
    assert not torch.equal(found["1.weight"], work.broadcast.params["1.weight"])


def test_batch_norm_is_in_training_mode_whatever_ran_before():
    """A scoring pass leaves its own mode behind."""
    net = network(mlp(4, 3, norm=True))
    work = task(net.module, random_federation([8]).samples(0))
    net.module.eval()
    first = trained(work, net)
    net.logits(work.samples)
    assert equal(params(trained(work, net)), params(first))
    assert params(first)["2.num_batches_tracked"].item() > 0


# --------------------------------------------------------------------------------------------------------- weights


def test_weights_of_samples():
    """Each batch's loss is ``Σ w l / Σ w``."""
    training = replace(TRAINING, momentum=0.0, weight_decay=0.0, epochs=1)
    net = network(mlp(4, 3))
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0, 1.0, 3.0, 0.25])
    work = task(net.module, random_federation([7]).samples(0), state=ClientState(weight=weight))
    module = mlp(4, 3).double()
    order = work.engine_stream(OfEngine.BATCHES).permutation(7)
    for part in cut(7, 3):
        rows = torch.from_numpy(order[part])
        losses = F.cross_entropy(module(work.samples.read(rows).double()), work.labels[rows], reduction="none")
        share = weight[rows].double()
        gradients = torch.autograd.grad((share * losses).sum() / share.sum(), list(module.parameters()))
        with torch.no_grad():
            for p, g in zip(module.parameters(), gradients, strict=True):
                p.sub_(training.lr * g)
    found = params(trained(work, net, training))
    for name, p in module.state_dict().items():
        torch.testing.assert_close(found[name], p, rtol=1e-12, atol=1e-14)


def test_weights_of_one_are_no_weights():
    net = network(mlp(4, 3))
    samples = random_federation([7]).samples(0)
    plain = params(trained(task(net.module, samples), net))
    for value in (1.0, 0.3):
        work = ClientTask(
            0, samples, task(mlp(4, 3).double(), samples).broadcast, ClientState(weight=torch.full((7,), value)), 1
        )
        found = params(trained(work, net))
        for name, p in plain.items():
            torch.testing.assert_close(found[name], p, rtol=1e-7, atol=1e-9)


def test_a_sample_of_weight_zero_is_not_learned():
    net = network(mlp(4, 3))
    samples = random_federation([6]).samples(0)
    weight = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    other = replace(samples, given=torch.where(weight == 0, (samples.given + 1) % 3, samples.given))
    work = task(net.module, samples, state=ClientState(weight=weight))
    assert equal(params(trained(replace(work, samples=other), net)), params(trained(work, net)))


def test_weights_all_zero_are_no_step():
    """An empty selection has loss 0 and no gradient, not NaN."""
    training = replace(TRAINING, weight_decay=0.0)
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([5]).samples(0), state=ClientState(weight=torch.zeros(5)))
    found = trained(work, net, training)
    assert equal(params(found), work.broadcast.params)
    assert found.loss == 0
    assert found.finite


# ------------------------------------------------------------------------------------------------- gradients, terms


@dataclass(frozen=True)
class Scaled(GradientTransform):
    """Gradients times ``factor``, of parameters whose name starts so."""

    factor: float
    only: str = ""

    def __call__(self, gradients: Mapping[str, Tensor], step: Step) -> Mapping[str, Tensor]:
        """New gradients."""
        assert set(gradients) == set(step.params)
        return {name: g * self.factor for name, g in gradients.items() if name.startswith(self.only)}


def test_gradient_transform_acts_between_backward_and_step():
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([7]).samples(0))
    no_decay = replace(TRAINING, weight_decay=0.0)
    assert equal(params(trained(work, net, no_decay, gradient=Scaled(0.0))), work.broadcast.params)
    assert equal(params(trained(work, net, gradient=Scaled(1.0))), params(trained(work, net)))
    halved = params(trained(work, net, no_decay, gradient=Scaled(0.5)))
    assert equal(halved, params(trained(work, net, replace(no_decay, lr=no_decay.lr / 2))))


def test_gradients_that_a_transform_does_not_return_stay():
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([7]).samples(0))
    found = params(trained(work, net, replace(TRAINING, weight_decay=0.0), gradient=Scaled(0.0, only="1.")))
    same = {name: torch.equal(p, work.broadcast.params[name]) for name, p in found.items()}
    assert same == {"1.weight": True, "1.bias": True, "3.weight": False, "3.bias": False}


def test_weight_decay_is_applied_after_the_transform():
    """What is masked are gradients; the optimiser's decay is its own."""
    training = Training(lr=0.1, momentum=0.0, weight_decay=0.5, batch_size=10, epochs=2, lr_decay=1.0)
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([7]).samples(0))
    found = params(trained(work, net, training, gradient=Scaled(0.0)))
    for name, p in work.broadcast.params.items():
        torch.testing.assert_close(found[name], p * (1 - 0.1 * 0.5) ** 2, rtol=1e-12, atol=0)


@dataclass(frozen=True)
class Recorder(LossTerm):
    """Adds nothing to the loss; its state counts how often each sample was seen, and it notes what it is shown."""

    seen: dict[str, list[Any]] = field(default_factory=lambda: {k: [] for k in ("begin", "draw", "step", "finish")})

    def begin(self, network: Model, task: ClientTask, state: Tensor | None) -> Tensor:
        """Zeros at the first visit."""
        self.seen["begin"].append((network.received(task), task, state))
        return torch.zeros(len(task.samples), dtype=torch.int64) if state is None else state

    def draw(self, rng: np.random.Generator, size: int) -> float:
        """A number a batch."""
        self.seen["draw"].append((size, value := rng.random()))
        return value

    def __call__(self, step: Step, state: Tensor) -> tuple[Tensor, Tensor]:
        """A scalar of zero."""
        self.seen["step"].append(step)
        counts = state.clone()
        counts[step.positions] += 1
        return step.logits.sum() * 0, counts

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Tensor) -> Tensor:
        """The counts, as they are."""
        self.seen["finish"].append((network.params(), task, fit))
        return state


def test_seams_of_a_term():
    """State by sample, draws from its own stream, both ends of the fit."""
    net, recorder = network(mlp(4, 3)), Recorder()
    samples = random_federation([7]).samples(0)
    work = task(net.module, samples)
    found = trained(work, net, terms={**CROSS_ENTROPY, "seen": recorder})
    (began,), (ended,) = recorder.seen["begin"], recorder.seen["finish"]
    assert began[1:] == (work, None)
    sent = mlp(4, 3).double().eval()
    sent.load_state_dict(work.broadcast.params)
    torch.testing.assert_close(began[0], sent(samples.read().double()).detach(), rtol=1e-12, atol=1e-12)
    held, ended_task, fit = ended
    assert ended_task is work
    assert equal(held, params(found))
    assert fit.params is found.params
    assert (fit.steps, fit.lr, fit.finite) == (6, TRAINING.lr, True)
    assert fit.loss == found.loss
    assert found.state.terms["seen"].tolist() == [2] * 7
    assert "cross_entropy" not in found.state.terms
    steps: list[Step] = recorder.seen["step"]
    assert [s.number for s in steps] == [0, 1, 2, 0, 1, 2]
    assert [len(s.positions) for s in steps] == [3, 3, 1, 3, 3, 1]
    rng = work.engine_stream(OfEngine.TERM, of="seen")
    assert recorder.seen["draw"] == [(len(s.positions), rng.random()) for s in steps]
    assert [s.draws["seen"] for s in steps] == [value for _, value in recorder.seen["draw"]]
    for s in steps:
        with pytest.raises(LookupError, match="only a loss term has a draw"):  # as for a gradient transform
            _ = s.draw
        assert torch.equal(s.labels, samples.given[s.positions])
        assert torch.equal(s.inputs, samples.read(s.positions).double())
        assert s.broadcast is work.broadcast
    again = trained(replace(work, state=found.state), net, terms={**CROSS_ENTROPY, "seen": recorder})
    assert recorder.seen["begin"][1][2] is found.state.terms["seen"]
    assert again.state.terms["seen"].tolist() == [4] * 7


def test_a_term_that_is_silent_changes_no_draw():
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([7]).samples(0))
    assert equal(params(trained(work, net, terms={"seen": Recorder(), **CROSS_ENTROPY})), params(trained(work, net)))


def test_state_of_a_term_survives_a_stage_without_it():
    """What a client keeps is kept until the term is there again."""
    net, recorder = network(mlp(4, 3)), Recorder()
    work = task(net.module, random_federation([7]).samples(0))
    first = trained(work, net, terms={**CROSS_ENTROPY, "seen": recorder})
    between = trained(replace(work, state=first.state), net)
    last = trained(replace(work, state=between.state), net, terms={**CROSS_ENTROPY, "seen": recorder})
    assert last.state.terms["seen"].tolist() == [4] * 7


@dataclass(frozen=True)
class Forgets(Recorder):
    """Ends a visit as terms do by default."""

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Tensor) -> Any:
        """What the protocol does."""
        return LossTerm.finish(self, network, task, fit, state)


def test_a_term_keeps_nothing_unless_it_says_so():
    """What is stored of it, by another version say, stays."""
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([7]).samples(0))
    assert trained(work, net, terms={**CROSS_ENTROPY, "seen": Forgets()}).state.terms == {}
    held = ClientState(terms={"seen": torch.arange(7)})
    found = trained(replace(work, state=held), net, terms={**CROSS_ENTROPY, "seen": Forgets()})
    assert found.state.terms["seen"] is held.terms["seen"]


@dataclass(frozen=True)
class Constant(LossTerm):
    """``c · Σ w`` as a scalar, or the same number for each sample."""

    c: float
    per_sample: bool

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """Scalar or [B]."""
        total = self.c * torch.stack([p.sum() for p in step.params.values()]).sum()
        return (total.expand(len(step.positions)) if self.per_sample else total), state


@pytest.mark.parametrize("per_sample", [True, False])
def test_terms_are_added(per_sample: bool):
    """Per-sample losses are averaged, scalars added as they are: batches of 3 and of 1 weigh the same."""
    training = replace(TRAINING, momentum=0.0, weight_decay=0.0)
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([7]).samples(0))
    terms = {"a": Constant(1.0, per_sample), "b": Constant(0.5, not per_sample)}
    found = params(trained(work, net, training, terms=terms))
    for name, p in work.broadcast.params.items():
        torch.testing.assert_close(found[name], p - 6 * 0.2 * 1.5, rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class Parity(BatchRule):
    """Even positions in even epochs, odd ones in odd epochs."""

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        """Half of the samples."""
        yield Phase(positions=torch.arange(epoch % 2, len(task.samples), 2))


def test_a_phase_chooses_the_samples_of_an_epoch():
    net, recorder = network(mlp(4, 3)), Recorder()
    work = task(net.module, random_federation([8]).samples(0))
    training = replace(TRAINING, epochs=3, batch_size=4)
    found = trained(work, net, training, terms={"seen": recorder, **CROSS_ENTROPY}, batch=Parity())
    assert found.state.terms["seen"].tolist() == [2, 1] * 4
    assert [sorted(s.positions.tolist()) for s in recorder.seen["step"]] == [[0, 2, 4, 6], [1, 3, 5, 7], [0, 2, 4, 6]]
    assert found.num_samples == 8  # the weight in the mean is that of all its data


# -------------------------------------------------------------------------------------------------- precision, draws


@dataclass(frozen=True)
class Types(LossTerm):
    """Writes down the types it is shown."""

    seen: list[tuple[torch.dtype, ...]] = field(default_factory=list)

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The cross-entropy."""
        loss = F.cross_entropy(step.logits, step.targets, reduction="none")
        self.seen.append((step.logits.dtype, loss.dtype, next(iter(step.params.values())).dtype))
        return loss, state


@pytest.mark.parametrize(
    ("precision", "logits", "loss", "weights"),
    [
        ("bf16", torch.bfloat16, torch.float32, torch.float32),
        (32, torch.float32, torch.float32, torch.float32),
        (64, torch.float64, torch.float64, torch.float64),
    ],
)
@pytest.mark.parametrize("batch", [Plain(), Mixup(1.0, True, None)])
def test_precision_inside_a_step(
    precision: int | str, logits: torch.dtype, loss: torch.dtype, weights: torch.dtype, batch: BatchRule
):
    net, types = network(mlp(4, 3), precision=precision), Types()
    work = task(net.module, random_federation([7]).samples(0))
    found = trained(work, net, terms={"types": types}, batch=batch)
    assert set(types.seen) == {(logits, loss, weights)}
    assert {p.dtype for p in params(found).values()} == {weights}
    assert net.logits(work.samples).dtype == weights


def test_dropout_draws_from_the_task():
    """Whoever ran before, and whatever else has been drawn; and nobody else's generator moves."""
    net = network(mlp(4, 3, dropout=0.5))
    dealt = random_federation([7, 7])
    works = [task(net.module, dealt.samples(k), client=k) for k in (0, 1)]
    torch.manual_seed(1)
    forward = [params(trained(w, net)) for w in works]
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    before, before_numpy = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index]  # noqa: NPY002
    backward = [params(trained(w, net)) for w in reversed(works)]
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1] == before_numpy).all()  # type: ignore[index]  # noqa: NPY002
    assert all(equal(a, b) for a, b in zip(forward, reversed(backward), strict=True))


def test_dropout_has_its_own_stream():
    """To the bit as the plain loop after ``torch.manual_seed``."""
    net = network(mlp(4, 3, dropout=0.5))
    work = task(net.module, random_federation([7]).samples(0), round=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(work.engine_seed(OfEngine.DROPOUT))
        expected = plain_loop(mlp(4, 3, dropout=0.5).double(), work, TRAINING, cut(7, 3))
    assert equal(params(trained(work, net)), expected)


def test_mixing_and_augmentation_have_their_own_streams():
    """The same draws as the order of the batches would tie partners and crops to it."""
    net, recorder = network(mlp(4, 3), transform=CROPPED), Recorder()
    work = task(net.module, random_federation([7]).samples(0), round=3)
    rule = Mixup(1.0, True, None)
    trained(work, net, terms={"seen": recorder, **CROSS_ENTROPY}, batch=rule)
    mixing, crops = work.engine_stream(OfEngine.MIXING), work.engine_stream(OfEngine.CROPS)
    steps: list[Step] = recorder.seen["step"]
    for epoch in (steps[:3], steps[3:]):
        order = torch.cat([s.positions for s in epoch])
        images = net.prepare(work.samples.read(order), CROPPED.draw(crops, 7, (2, 2)))
        for s, inputs in zip(epoch, images.split(3), strict=True):
            share, partner = mixing.beta(1.0, 1.0), torch.from_numpy(mixing.permutation(len(inputs)))
            torch.testing.assert_close(s.inputs, share * inputs + (1 - share) * inputs[partner], rtol=1e-12, atol=1e-12)
            onehot = F.one_hot(s.labels, 3).double()
            torch.testing.assert_close(s.targets, share * onehot + (1 - share) * onehot[partner], rtol=1e-12, atol=0)


def test_dropout_differs_by_client_round_and_seed():
    """One full batch, so that only the masks differ."""
    net = network(mlp(4, 3, dropout=0.5, hidden=40))
    samples = random_federation([7]).samples(0)
    training = Training(lr=0.2, momentum=0.0, weight_decay=0.0, batch_size=7, epochs=1, lr_decay=1.0)
    found = [params(trained(work, net, training)) for work in four_tasks(net, samples)]
    assert not any(torch.allclose(a["1.weight"], b["1.weight"]) for i, a in enumerate(found) for b in found[:i])


@pytest.mark.parametrize(
    ("transform", "batch"), [(CROPPED, Plain()), (None, Mixup(1.0, True, None)), (CROPPED, Mixup(1.0, True, None))]
)
def test_augmentation_and_mixing_shift_no_batch(transform: Transform | None, batch: BatchRule):
    """Each has its own stream: the order of the samples and the terms' draws are those of the plain run."""
    samples = random_federation([7]).samples(0)
    recorded = []
    for chosen, rule in ((None, Plain()), (transform, batch)):
        net, recorder = network(mlp(4, 3), transform=chosen), Recorder()
        trained(task(net.module, samples), net, terms={"seen": recorder, **CROSS_ENTROPY}, batch=rule)
        recorded.append(recorder.seen)
    plain, changed = recorded
    assert [s.positions.tolist() for s in plain["step"]] == [s.positions.tolist() for s in changed["step"]]
    assert plain["draw"] == changed["draw"]
    assert not all(torch.equal(a.inputs, b.inputs) for a, b in zip(plain["step"], changed["step"], strict=True))


def test_augmented_inputs_are_crops_of_their_own_sample():
    """Every batch's inputs are windows of the padded image at its positions, new ones in every epoch."""
    net, recorder = network(mlp(4, 3), transform=CROPPED), Recorder()
    samples = random_federation([7]).samples(0)
    work = task(net.module, samples)
    trained(work, net, replace(TRAINING, epochs=4), terms={"seen": recorder, **CROSS_ENTROPY})
    padded = F.pad(samples.read().double(), [1] * 4)
    windows = torch.stack([padded[:, :, i : i + 2, j : j + 2] for i in range(3) for j in range(3)], 1)
    windows = torch.cat([windows, windows.flip(-1)], 1)  # [n, 18, 1, 2, 2]
    kinds = set()
    for s in recorder.seen["step"]:
        for position, image in zip(s.positions.tolist(), s.inputs, strict=True):
            hits = (windows[position] == image).flatten(1).all(1)
            assert hits.any()
            kinds.add((position, int(hits.nonzero()[0])))
    assert len(kinds) > 14  # 28 draws of 18 windows a sample
    plain = samples.read().double()
    assert torch.equal(net.logits(samples), net.module.eval()(plain))  # scores are taken without augmentation


# --------------------------------------------------------------------------------------------------------- reports


@dataclass(frozen=True)
class Note:
    """Sent up."""

    value: float


@dataclass(frozen=True)
class Memory:
    """Kept on the client."""

    value: float


@dataclass(frozen=True)
class Tells(Exchange):
    """Sends the first weight of the trained model, and keeps the network's first logit."""

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """Both."""
        first = float(fit.params["1.weight"][0, 0])
        return Payload(Note(first)), Payload(Memory(float(network.logits(task.samples)[0, 0])))


def test_reports_are_of_the_model_just_trained():
    """Not of the one received: what is sent and what is kept, and what was kept before stays."""
    net = network(mlp(4, 3))
    samples = random_federation([7]).samples(0)
    work = task(net.module, samples, state=ClientState(labels=samples.given, extras=Payload("earlier", Memory(9.0))))
    found = trained(work, net, exchanges={"tells": Tells()})
    assert found.reports.one(Note).value == params(found)["1.weight"][0, 0].item()
    module = mlp(4, 3).double().eval()
    module.load_state_dict(params(found))
    expected = module(samples.read().double())[0, 0].item()
    assert found.state.extras.one(Memory).value == pytest.approx(expected, rel=1e-12)
    assert found.state.extras.one(str) == "earlier"
    assert found.state.labels is samples.given


def test_a_fit_that_diverges_reports_nothing_and_changes_no_state():
    net = network(mlp(4, 3))
    state = ClientState(terms={"seen": torch.arange(7)})
    work = task(net.module, random_federation([7]).samples(0), state=state)
    terms = {**CROSS_ENTROPY, "seen": Recorder()}
    found = trained(work, net, replace(TRAINING, lr=1e200), terms=terms, exchanges={"tells": Tells()})
    assert not found.finite
    assert found.state is state
    assert len(found.reports) == 0


def test_what_a_visit_begins_with_ends_with_it():
    """Parts read it; it is in nothing that the client keeps or sends, and the task that was given has none."""
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([7]).samples(0))
    recorder = Recorder()
    found = trained(work, net, terms={**CROSS_ENTROPY, "seen": recorder}, exchanges={"eases": Eases()})
    losses = F.cross_entropy(net.received(work), work.labels, reduction="none")
    for step in recorder.seen["step"]:
        assert torch.equal(step.visit.one(Easiness).values, torch.exp(-losses))
        assert len(step.kept) == 0
    ((_, ended, _),) = recorder.seen["finish"]
    assert len(ended.visit) == 1
    assert len(work.visit) == len(found.state.extras) == len(found.reports) == 0


CALLS = ("begin of a term", "begin of an exchange", "finish", "report", "phases", "phases, at the end", "relabels")


@dataclass(frozen=True)
class Call:
    """The call in which a part loads a model into the network."""

    call: str

    def _now(self, call: str, network: Any) -> None:
        if call == self.call:
            network.load({name: tensor + 1 for name, tensor in network.params().items()})


@dataclass(frozen=True)
class TermLoads(Call, LossTerm):
    """A term that does."""

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        self._now("begin of a term", network)

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return step.logits[:, 0] * 0, state

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        self._now("finish", network)


@dataclass(frozen=True)
class ExchangeLoads(Call, Exchange):
    """An exchange that does."""

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        self._now("begin of an exchange", network)
        return Payload(), Payload()

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        self._now("report", network)
        return Payload(), Payload()


@dataclass(frozen=True)
class RuleLoads(Call, BatchRule):
    """A batch rule that does."""

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        self._now("phases", network)
        yield Phase()
        self._now("phases, at the end", network)

    def relabels(self, network: Model, task: ClientTask) -> Tensor | None:
        self._now("relabels", network)
        return None


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("call", CALLS)
def test_a_part_that_loads_a_model_is_refused(call: str, alone: bool) -> None:
    """It would be trained, or reported, instead of the client's."""
    net = network(mlp(4, 3))
    job = LocalTraining(
        TRAINING, RuleLoads(call), {**CROSS_ENTROPY, "loads": TermLoads(call)}, None, {"loads": ExchangeLoads(call)}
    )
    given = [task(net.module, random_federation([7, 6]).samples(k), client=k) for k in range(2)]
    executor: Executor = Sequential(net) if alone else Stacked(net, stack=2, memory=None)
    with pytest.raises(PartError, match=r"loads a model.*network\.at\(params\)"):
        list(executor.map(job, given, as_list))
    net.load(net.params())  # of the engine; it is not refused for ever


@dataclass(frozen=True)
class AsksAnother(BatchRule, Exchange):
    """Asks another model wherever a part is given the network."""

    params: Params
    said: list[Tensor] = field(default_factory=list)

    def _ask(self, network: Model, task: ClientTask) -> None:
        before = network.logits(task.samples)
        self.said.append(network.at(self.params).outputs(task.samples)[LOGITS])
        assert torch.equal(network.logits(task.samples), before)

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        self._ask(network, task)
        return Payload(), Payload()

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        self._ask(network, task)
        return Payload(), Payload()

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        self._ask(network, task)
        yield Phase()


@pytest.mark.parametrize("alone", [True, False])
def test_to_ask_another_model_changes_nothing(alone: bool) -> None:
    net = network(mlp(4, 3, norm=True))
    other = {name: t + 0.5 if t.is_floating_point() else t for name, t in net.params().items()}
    asks = AsksAnother(other)
    given = [task(net.module, random_federation([7, 6]).samples(k), client=k) for k in range(2)]
    executor: Executor = Sequential(net) if alone else Stacked(net, stack=2, memory=None)
    found = [
        [params(result) for block in executor.map(job, given, as_list) for result in block.results]
        for job in (
            LocalTraining(TRAINING, Plain(), CROSS_ENTROPY, None, {}),
            LocalTraining(TRAINING, asks, CROSS_ENTROPY, None, {"asks": asks}),
        )
    ]
    assert all(equal(one, two) for one, two in zip(*found, strict=True))
    module = mlp(4, 3, norm=True).double().eval()
    module.load_state_dict(other)
    for said in asks.said:
        (samples,) = (t.samples for t in given if len(t.samples) == len(said))
        torch.testing.assert_close(said, module(samples.read().double()).detach(), rtol=1e-12, atol=1e-12)
    assert len(asks.said) == 2 * (1 + TRAINING.epochs + 1)


@pytest.mark.parametrize("shape", [(), (4,), (4, 3)], ids=["a number", "rows", "rows of clients"])
def test_backward_gives_torchs_gradients_of_the_weighted_sum(shape: tuple[int, ...]) -> None:
    """Also added to those that are there, and where the loss is the parameter, whose gradient may then be changed."""
    numbers = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ours, theirs = (torch.nn.Parameter(numbers.clone()) for _ in range(2))
    for loss in (torch.sin, torch.Tensor.exp, lambda p: p.reshape(shape)):
        backward(loss(ours), 0.25)
        (0.25 * loss(theirs)).sum().backward()
        assert torch.equal(gradient(ours), gradient(theirs))
    for _ in range(2):
        ours.grad = None
        backward(ours.reshape(shape), 0.25)
        assert bool((gradient(ours) == 0.25).all())
        gradient(ours).mul_(2)
    with pytest.raises(RuntimeError, match="does not require grad"):
        backward(numbers.sin(), 0.25)


def gradient(parameter: torch.nn.Parameter) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad
