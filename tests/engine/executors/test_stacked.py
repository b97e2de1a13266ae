"""Clients trained as one come out as those trained one by one: exactly in float64, up to rounding in float32."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from flnl.core.execution import as_list
from flnl.core.messages import Broadcast, ClientResult, ClientState, ClientTask, Fit
from flnl.core.model import Model
from flnl.core.parts import BatchRule, Exchange, GradientTransform, LossTerm
from flnl.core.payload import Params, Payload
from flnl.core.state import RoundResult
from flnl.core.step import LOGITS, WHOLE, Mixing, Phase, Step
from flnl.core.training import Training
from flnl.data.federation.build import Federation
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.jobs import Reduce
from flnl.engine.local.batching import Draws
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.stacked.eligibility import clients_in, why_not
from flnl.engine.stacked.schedule import runs
from flnl.engine.stacked.training import train
from flnl.methods.fedcorr.exchange import NoiseDirective
from flnl.methods.fedcorr.loss import AdaptiveProximal
from flnl.methods.feddyn.loss import FedDyn
from flnl.methods.fedes.exchange import ClientQuality, CriticalityRanks
from flnl.methods.fedes.gradient import SelectiveDecay
from flnl.methods.fedes.selective_decay import ranks
from flnl.models.cnn import CNN
from flnl.models.lenet import LeNet5
from flnl.models.mlp import MLP
from flnl.models.outputs import Pair
from flnl.models.resnet import ResNet
from flnl.parts.aggregators.mean import Mean
from flnl.parts.batches import Mixup, Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.parts.losses.proximal import Proximal
from tests.properties.parts import (
    Agreement,
    ByEasiness,
    Eases,
    EasyThenHard,
    Guesses,
    HalfTheSamples,
    Pull,
    Scaled,
    Trailing,
    averageable,
    averaged,
)
from tests.properties.runs import assembled, difference, run
from tests.registry import BY_NAME, COVERING, REGISTRY, Entry, others_slow
from tests.toys import federation, mlp, network, random_federation

EXACT = 1e-9
TRAINING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=4, epochs=3, lr_decay=1.0)
CROPPED = Transform(size=(2, 2), mean=(0.1,), std=(0.7,), scale=1.0, padding=1, flip=True)
SIZES = (9, 8, 1, 4, 23, 5, 3, 40, 13, 2, 6, 17)
"""Smaller than a batch, whole batches, one over a whole number of batches, and everything between."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def job(training: Training = TRAINING, **parts: Any) -> LocalTraining:
    own: dict[str, Any] = {
        "batch": Plain(),
        "terms": {"cross_entropy": CrossEntropy()},
        "gradient": None,
        "exchanges": {},
    }
    return LocalTraining(training, **{**own, **parts})


def tasks(
    net: Network,
    sizes: Sequence[int] = SIZES,
    *,
    dealt: Federation | None = None,
    states: Mapping[int, ClientState] | None = None,
    extras: Mapping[int, Payload] | None = None,
) -> list[ClientTask]:
    """One for each client, all from what the network holds."""
    dealt = dealt or random_federation(sizes)
    params = net.params()
    return [
        ClientTask(
            k,
            dealt.samples(k),
            Broadcast(3, 2, params, (extras or {}).get(k, Payload())),
            (states or {}).get(k, ClientState()),
            5,
        )
        for k in range(len(sizes))
    ]


def results(executor: Any, work: Any, given: Sequence[ClientTask]) -> list[ClientResult]:
    return [r for block in executor.map(work, given, as_list) for r in block.results]


def agree(
    net: Network,
    work: LocalTraining,
    given: Sequence[ClientTask],
    caplog: pytest.LogCaptureFixture,
    *,
    stack: int = 15,
    tolerance: float = EXACT,
) -> list[ClientResult]:
    """Run both, demand equal results and passes of the one that must have stacked, and give the results."""
    net.meter.pop()
    one = results(Sequential(net), work, given)
    passed = net.meter.pop()
    mode, held = net.module.training, net.params()
    caplog.clear()
    many = results(Stacked(net, stack, 1.0), work, given)
    assert net.meter.pop() == passed
    assert not caplog.records, "the clients ran one by one"
    assert difference(many, one, tolerance=tolerance) is None
    assert net.module.training == mode
    if work.exchanges:
        assert difference(net.params(), held, tolerance=tolerance) is None
    moved = [not torch.equal(p, given[0].broadcast.params[n]) for r in many for n, p in (r.params or {}).items()]
    assert any(moved)
    return many


# -------------------------------------------------------------------------------------------------- whole methods


ALONE = ("phases",)
"""Words in the names of entries with several phases an epoch, throughout."""
OF_SOME = ("fednoro", "fedsir", "fedelc_and_mixup", "maskedoptim_and_mixup")
"""How the names of entries begin in which only noisy clients need some passes, which a stack makes for all."""
OF_VIEWS = ("fedgr", "fedcorr_and_fedgr")
"""Likewise, of a term that asks the network for a view alone, when a stack has passed the batch already."""


@pytest.mark.parametrize("entry", others_slow(COVERING), ids=str)
def test_a_method_is_the_same_run(entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """States of server and clients, counters, labels, metrics, evaluations and corrections."""
    stacks = trained_together(monkeypatch)
    with assembled(entry.words, tmp_path / "run", "precision=64") as parts:
        one = parts.results()
        many = parts.results(executor=Stacked(parts.evaluator.network, 5, 1.0))
    for begins, passes in ((OF_SOME, "forward_passes"), (OF_VIEWS, "training_passes")):
        if entry.name.startswith(begins):
            more, fewer = ([getattr(r.state.counters, passes) or 0 for r in of] for of in (many, one))
            assert all(a >= b for a, b in zip(more, fewer, strict=True))
            many = [_with_passes(r, passes, count) for r, count in zip(many, fewer, strict=True)]
    assert difference(many, one, tolerance=EXACT) is None
    alone = any(word in entry.name for word in ALONE)
    assert bool(stacks) != alone, "of the others, whoever has company is stacked"


def _with_passes(result: RoundResult, passes: str, count: int) -> RoundResult:
    state = result.state
    return replace(result, state=replace(state, counters=replace(state.counters, **{passes: count})))


def test_it_is_chosen_on_the_command_line(tmp_path: Path):
    with assembled(REGISTRY[0].words, tmp_path / "run", "executor=stacked", "executor.stack=10") as parts:
        assert isinstance(parts.executor, Stacked)
        assert parts.executor.stack == 10
        assert parts.results()[-1].state.counters.participations == 30


# ------------------------------------------------------------------------------------------------------- networks


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: mlp(4, 3),
    "mlp with batch norm": lambda: mlp(4, 3, norm=True),
    "softmax regression": lambda: MLP([], 0.0)((1, 2, 2), 3),
    "cnn": lambda: CNN([3], 0.0)((1, 2, 2), 3),
    "mlp with dropout": lambda: mlp(4, 3, dropout=0.3),
    "mlp with batch norm and dropout": lambda: mlp(4, 3, norm=True, dropout=0.3),
    "cnn with dropout": lambda: CNN([3], 0.4)((1, 2, 2), 3),
    "dropout of images and of features": lambda: nn.Sequential(
        *(
            nn.Conv2d(1, 4, 1),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Conv2d(4, 6, 2, padding=1),
            nn.Dropout(0.5, inplace=True),
        ),
        *(nn.Flatten(), nn.Linear(54, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)),
    ),
    "resnet": lambda: ResNet(4, [1, 1])((1, 2, 2), 3),
    "grouped": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 1),
        nn.Conv2d(4, 6, 2, groups=2, bias=False),
        nn.BatchNorm2d(6, affine=False),
        nn.Flatten(),
        nn.ReLU(),
        nn.Linear(6, 3, bias=False),
    ),
    "vectors under batch norm": lambda: nn.Sequential(
        nn.Flatten(),
        nn.BatchNorm1d(4),
        nn.Linear(4, 6),
        nn.BatchNorm1d(6),
        nn.Tanh(),
        nn.BatchNorm1d(6),
        nn.Linear(6, 3),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_clients_of_unequal_size(name: str, caplog: pytest.LogCaptureFixture):
    """With and without batch norm, whose statistics are in the parameters that are compared."""
    torch.manual_seed(0)
    made: nn.Module = NETWORKS[name]()
    net = network(made)
    found = agree(net, job(), tasks(net), caplog)
    assert [r.num_samples for r in found] == list(SIZES)
    assert len({r.steps for r in found}) > 5


@pytest.mark.parametrize("sizes", [(5, 9, 13, 1, 17), (2, 3, 1, 3, 2), (7,) * 6, (8,) * 6, (1,) * 6, (41, 1)])
def test_sizes_that_end_in_every_way(sizes: tuple[int, ...], caplog: pytest.LogCaptureFixture):
    for norm in (False, True):
        net = network(mlp(4, 3, norm=norm))
        agree(net, job(), tasks(net, sizes), caplog)


def test_batches_of_one(caplog: pytest.LogCaptureFixture):
    for norm in (False, True):
        net = network(mlp(4, 3, norm=norm))
        agree(net, job(replace(TRAINING, batch_size=1)), tasks(net, (1, 2, 3, 5, 4)), caplog)


def test_random_sizes(caplog: pytest.LogCaptureFixture):
    rng = np.random.default_rng(0)
    for norm in (False, True):
        net = network(mlp(4, 3, norm=norm))
        agree(net, job(), tasks(net, rng.integers(1, 41, 20).tolist()), caplog, stack=20)


def test_resnet8_on_images(caplog: pytest.LogCaptureFixture):
    """Its running statistics, too, to the tenth digit after a few steps; in float64, since in float32 they part."""
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    transform = Transform(size=(12, 12), mean=(0.4,) * 3, std=(0.2,) * 3, padding=2, flip=True, scale=1.0)
    net = network(ResNet(8, [1, 1, 1])((3, 12, 12), 3), transform=transform)
    sizes = (11, 10, 5, 7, 9)
    dealt = federation(
        [torch.rand(n, 3, 12, 12, generator=rng) for n in sizes],
        [torch.randint(0, 3, (n,), generator=rng) for n in sizes],
        transform=transform,
    )
    agree(net, job(replace(TRAINING, batch_size=5)), tasks(net, sizes, dealt=dealt), caplog)


@pytest.mark.parametrize("model", [MLP([16], 0.0), LeNet5(batch_norm=False)], ids=["mlp", "lenet5"])
def test_single_precision_is_close(model: Any, caplog: pytest.LogCaptureFixture):
    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    sizes = (9, 5, 8, 8, 6)
    transform = Transform(size=(16, 16), mean=(0.4,) * 3, std=(0.2,) * 3, scale=1.0)
    dealt = federation(
        [torch.rand(n, 3, 16, 16, generator=rng) for n in sizes],
        [torch.randint(0, 3, (n,), generator=rng) for n in sizes],
        transform=transform,
    )
    net = network(model((3, 16, 16), 3), precision=32, transform=transform)
    agree(net, job(replace(TRAINING, epochs=1)), tasks(net, sizes, dealt=dealt), caplog, tolerance=2e-5)


def test_frozen_parameters_stay(caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3))
    first = next(net.module.parameters())
    first.requires_grad_(False)
    found = agree(net, job(), tasks(net), caplog)
    assert all(torch.equal(r.params["1.weight"], first) for r in found if r.params)


# ---------------------------------------------------------------------------------------------------- optimisation


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.5, 0.01)])
def test_momentum_and_weight_decay(momentum: float, weight_decay: float, caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3))
    agree(net, job(replace(TRAINING, momentum=momentum, weight_decay=weight_decay)), tasks(net), caplog)


def test_weights_of_samples(caplog: pytest.LogCaptureFixture):
    """Alone, mixed, and under a term that sees its own step."""
    net = network(mlp(4, 3))
    rng = torch.Generator().manual_seed(3)
    states = {k: ClientState(weight=(torch.rand(n, generator=rng) - 0.3).clamp_min(0)) for k, n in enumerate(SIZES)}
    given = tasks(net, states=states)
    plain = agree(net, job(), given, caplog)
    assert difference(plain, results(Sequential(net), job(), tasks(net)), tolerance=EXACT) is not None
    agree(net, job(batch=Mixup(1.0, True, None)), given, caplog)
    agree(net, job(terms={"seen": Seen(), "smooth": Smooth()}), given, caplog)


@pytest.mark.parametrize("transform", [None, CROPPED])
def test_mixing_and_augmentation(transform: Transform | None, caplog: pytest.LogCaptureFixture):
    for rule in (Plain(), Mixup(1.0, True, None), Mixup(0.5, True, [1])):
        net = network(mlp(4, 3, norm=True), transform=transform)
        agree(net, job(batch=rule), tasks(net), caplog)


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("transform", [None, CROPPED])
def test_views(transform: Transform | None, mixed: bool, caplog: pytest.LogCaptureFixture, monkeypatch: Any):
    """Each with crops of its own, beside batches that are mixed or not; also where images are drawn for in parts."""
    rule = ManyViews(1.0, mixed, None)
    terms = {"cross_entropy": CrossEntropy(), "agreement": Agreement(2.0)}
    net = network(mlp(4, 3), transform=transform)
    found = agree(net, job(batch=rule, terms=terms), tasks(net), caplog)
    if transform is not None:  # equal views change little else than what batches are mixed of
        plain = results(Sequential(net), job(batch=Mixup(1.0, mixed, None), terms=terms), tasks(net))
        assert difference(found, plain, tolerance=EXACT) is not None
    monkeypatch.setattr("flnl.engine.network.CHUNK_BYTES", 8 * 4 * 11)
    monkeypatch.setattr("flnl.engine.executors.stacked.POOLED", 1e-8)
    agree(network(mlp(4, 3), transform=transform), job(batch=rule, terms=terms), tasks(net), caplog)


@pytest.mark.parametrize("training", [True, False])
def test_opinions(training: bool, caplog: pytest.LogCaptureFixture):
    """Of each view, in both modes, and under batch norm, which uses each view by itself and updates nothing."""
    for norm in (False, True):
        net = network(mlp(4, 3, norm=norm), transform=CROPPED)
        terms = {"cross_entropy": CrossEntropy(), "opinion": Opinion(training)}
        agree(net, job(batch=ManyViews(1.0, False, None), terms=terms), tasks(net), caplog)


def test_opinions_that_update_running_statistics(caplog: pytest.LogCaptureFixture):
    """Under batch norm, clients are trained one by one: statistics depend on the order of passes; else together."""
    terms = {"cross_entropy": CrossEntropy(), "opinion": Opinion(True, updating=True)}
    many = job(batch=ManyViews(1.0, False, None), terms=terms)
    plain = network(mlp(4, 3), transform=CROPPED)
    agree(plain, many, tasks(plain), caplog)
    normed = network(mlp(4, 3, norm=True), transform=CROPPED)
    given = tasks(normed)
    wanted = results(Sequential(normed), many, given)
    assert difference(results(Stacked(normed, 15, 1.0), many, given), wanted) is None
    assert "running statistics depend on the order" in caplog.text
    left = replace(many, terms=terms | {"opinion": Opinion(True)})
    assert difference(wanted, results(Sequential(normed), left, given), tolerance=EXACT) is not None


@dataclass(frozen=True)
class Opinion(LossTerm):
    """Holds the predictions to opinions of the views."""

    training: bool
    updating: bool = False

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        opinions = step.opinions(LOGITS, step.views, training=self.training, updating=self.updating)
        return (step.logits - torch.stack(opinions).mean(0)).square().sum(1), state


@dataclass(frozen=True)
class ManyViews(Mixup):
    """Mixup, with three views of each image."""

    views: ClassVar[int] = 3


def test_views_that_nobody_reads_cost_nothing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """Where all terms are of rows, which see no views."""
    net, drawn = network(mlp(4, 3), transform=CROPPED), list[int]()
    crops = Draws.crops

    def counted(*args: Any, view: int = 0, **more: Any) -> Any:
        drawn.append(view)
        return crops(*args, view=view, **more)

    monkeypatch.setattr(Draws, "crops", counted)
    results(Stacked(net, 15, 1.0), job(batch=ManyViews(1.0, False, None)), tasks(net))
    assert set(drawn) == {0}
    drawn.clear()
    terms = {"cross_entropy": CrossEntropy(), "agreement": Agreement(2.0)}
    results(Stacked(net, 15, 1.0), job(batch=ManyViews(1.0, False, None), terms=terms), tasks(net))
    assert set(drawn) == {0, 1, 2}


@dataclass(frozen=True)
class Hurries(LossTerm):
    """Reads where in its visit the client is."""

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        assert step.progress is not None
        return step.logits.square().mean() * step.progress.epoch, state


def test_the_place_in_a_visit_is_a_single_clients(caplog: pytest.LogCaptureFixture):
    net, work = network(mlp(4, 3)), job(terms={"cross_entropy": CrossEntropy(), "hurries": Hurries()})
    given = tasks(net)
    one = results(Sequential(net), work, given)
    assert difference(results(Stacked(net, 15, 1.0), work, given), one) is None
    assert "are not at the same place in their visits" in caplog.text


@dataclass(frozen=True)
class Sceptical(LossTerm):
    """Reads which samples the client has selected."""

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return step.logits.square().mean() * (1.0 if step.phase is WHOLE else 2.0), state


def test_a_phase_of_selected_samples_is_a_single_clients(caplog: pytest.LogCaptureFixture):
    net, terms = network(mlp(4, 3)), {"cross_entropy": CrossEntropy(), "sceptical": Sceptical()}
    agree(net, job(terms=terms), tasks(net), caplog)  # all samples: everybody's
    falls_back(net, job(batch=HalfTheSamples(), terms=terms), tasks(net), "it reads step.phase", caplog)


@dataclass(frozen=True)
class Gone(BatchRule):
    """Selects no sample after the first epoch."""

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        yield Phase(positions=torch.arange(len(task.samples) if epoch == 0 else 0))


@pytest.mark.parametrize("transform", [None, CROPPED])
def test_nobody_selects_a_sample(transform: Transform | None, caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3), transform=transform)
    agree(net, job(batch=Gone()), tasks(net), caplog)


def test_outputs_of_the_received_model_are_computed_once_a_client(monkeypatch: pytest.MonkeyPatch):
    """Although every client is asked in every epoch; what is kept for a stack is gone with it."""

    class Asks(HalfTheSamples):
        def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
            network.received(task)
            yield from super().phases(network, task, epoch, epochs)

    net = network(mlp(4, 3))
    scored: list[int] = []
    scores = Network._scores

    def counted(self: Network, images: Any, index: Tensor, *more: Any, **options: Any) -> Tensor:
        scored.append(len(index))
        return scores(self, images, index, *more, **options)

    monkeypatch.setattr(Network, "_scores", counted)
    results(Stacked(net, 15, 1.0), job(batch=Asks()), tasks(net))
    once = sum(SIZES)
    assert sum(scored) == once * (1 + TRAINING.epochs)  # received once; by HalfTheSamples in every epoch
    assert len(net._received) == 0


@pytest.mark.parametrize(("precision", "layout"), [(32, "channels_last"), (64, "contiguous")])
def test_auto_is_the_faster_layout(precision: int, layout: str):
    net = network(mlp(4, 3), precision=precision)
    assert Stacked(net, 5, 1.0, memory_format="auto").settings()["memory_format"] == layout


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_masks_of_dropout_are_those_of_one_client_in_the_same_layout(layout: Any, caplog: pytest.LogCaptureFixture):
    """On a CPU masks are drawn in the order of memory."""
    plain = network(NETWORKS["dropout of images and of features"](), precision=32)
    net = Network(plain.module, plain.transform, 3, plain.placement, layout)
    work, given = job(training=TRAINING), tasks(net)
    one = results(Sequential(net), work, given)
    many = results(Stacked(net, 15, 1.0, memory_format=layout), work, given)
    assert difference(many, one, tolerance=1e-5) is None
    assert not caplog.records


def test_clients_with_several_phases_run_one_by_one(caplog: pytest.LogCaptureFixture):
    """Whether the rule announces them or not."""

    class Unannounced(EasyThenHard):
        alone = None

    net = network(mlp(4, 3))
    for rule in (EasyThenHard(), Unannounced()):
        work = job(batch=rule, terms={"guesses": Guesses()})
        given = tasks(net, (9, 8, 5))
        one = results(Sequential(net), work, given)
        assert difference(results(Stacked(net, 15, 1.0), work, given), one) is None
    assert "EasyThenHard has several phases in an epoch" in caplog.text
    assert "Unannounced plans several phases, or a second pool of samples" in caplog.text


def test_crops_are_drawn_in_the_portions_of_one_client(caplog: pytest.LogCaptureFixture, monkeypatch: Any):
    """Images that do not fit a chunk are drawn for in several parts, and those of a stack are read as needed."""
    monkeypatch.setattr("flnl.engine.network.CHUNK_BYTES", 8 * 4 * 11)
    monkeypatch.setattr("flnl.engine.executors.stacked.POOLED", 1e-8)
    net = network(mlp(4, 3, norm=True), transform=CROPPED)
    agree(net, job(), tasks(net), caplog)
    net = network(mlp(4, 3))
    agree(net, job(batch=Mixup(1.0, True, None)), tasks(net), caplog)


@dataclass(frozen=True, eq=False)
class Portions(TensorImages):
    """Images that say in which portions they are asked for."""

    asked: list[list[int]] = field(default_factory=list)

    def read_each(self, parts: Sequence[Tensor], *, augmented: bool = False) -> Iterator[Tensor]:
        assert augmented
        self.asked.append([len(part) for part in parts])
        return super().read_each(parts, augmented=augmented)


@pytest.mark.parametrize("held", [True, False])
def test_a_store_is_told_what_comes_next(held: bool, monkeypatch: pytest.MonkeyPatch):
    """So that it may decode ahead: an epoch's portions at once, or all clients' where a stack holds its images."""
    monkeypatch.setattr("flnl.engine.network.CHUNK_BYTES", 8 * 4 * 16)  # 16 images
    if not held:
        monkeypatch.setattr("flnl.engine.executors.stacked.POOLED", 1e-9)
    net = network(mlp(4, 3))
    dealt = random_federation((8, 8, 5))
    first = dealt.samples(0).images
    assert isinstance(first, TensorImages)
    store = Portions(first.pixels)
    given = [replace(t, samples=replace(t.samples, images=store)) for t in tasks(net, (8, 8, 5), dealt=dealt)]
    results(Stacked(net, 5, 1.0), job(), given)
    assert store.asked == ([[8, 8, 5]] if held else [[12, 8, 1]] * TRAINING.epochs)


# ----------------------------------------------------------------------------------------------------------- terms


@dataclass(frozen=True)
class Seen(LossTerm):
    """Per-sample state as methods have it: a running mean of the predictions, and how often each sample was seen."""

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        if state is not None:
            return state
        count = len(task.samples)
        target = torch.zeros(count, network.num_classes, dtype=torch.float64)
        return {"target": target, "seen": torch.zeros(count), "steps": 0}

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        probabilities = step.logits.softmax(1)
        target, seen = state["target"].clone(), state["seen"].clone()
        target[step.positions] = 0.7 * target[step.positions] + 0.3 * probabilities.detach()
        seen[step.positions] += 1
        loss = -(target[step.positions] * probabilities).sum(1)
        return loss, {"target": target, "seen": seen, "steps": state["steps"] + 1}

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        return state


@dataclass(frozen=True)
class Smooth(LossTerm):
    """A draw a batch, the received model's opinion, and another pass through the network."""

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        return torch.from_numpy(rng.normal(size=(size, 1, 1, 1))), rng.random()

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        noise, share = step.draw
        other = step.output("logits", step.inputs + 0.1 * noise.to(step.inputs.dtype))
        return share * (other - step.logits.detach()).square().mean() + 0.1 * step.number * step.logits.mean(), state


def directives(sizes: Sequence[int] = SIZES) -> dict[int, Payload]:
    return {k: Payload(NoiseDirective(k % 2 == 0, k / 10)) for k in range(len(sizes))}


TERMS: dict[str, dict[str, LossTerm]] = {
    "proximal": {"cross_entropy": CrossEntropy(), "proximal": Proximal(0.5, "squared_half")},
    "adaptive": {"cross_entropy": CrossEntropy(), "adaptive": AdaptiveProximal(3.0, "squared")},
    "adaptive norm": {"cross_entropy": CrossEntropy(), "adaptive": AdaptiveProximal(0.3, "norm")},
    "a state a sample": {"seen": Seen(), "cross_entropy": CrossEntropy()},
    "a state a parameter": {"cross_entropy": CrossEntropy(), "pull": Pull(0.1)},
    "an average of models": {"cross_entropy": CrossEntropy(), "trailing": Trailing(0.3, 0.75)},
    "draws and passes": {"smooth": Smooth(), "cross_entropy": CrossEntropy()},
}


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", TERMS)
def test_terms(name: str, norm: bool, caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3, norm=norm))
    if norm and name == "draws and passes":  # the second pass counts in the running statistics, too: in which order?
        falls_back(net, job(terms=TERMS[name]), tasks(net, SIZES[:5]), "running statistics", caplog)
        return
    agree(net, job(terms=TERMS[name]), tasks(net, extras=directives()), caplog)


def test_statistics_of_the_batch_that_nobody_tracks(caplog: pytest.LogCaptureFixture):
    plain = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3))
    net = network(plain)
    agree(net, job(), tasks(net, (8, 6, 11)), caplog)


def test_states_go_on_from_the_last_visit(caplog: pytest.LogCaptureFixture):
    """What differs between clients by then, numbers included, differs still."""
    net = network(mlp(4, 3))
    work = job(terms={"cross_entropy": CrossEntropy(), "seen": Seen(), "pull": Pull(0.1)})
    first = agree(net, work, tasks(net), caplog)
    states = {r.client: r.state for r in first if r.client % 3}
    for k in (1, 4):
        pull = states[k].terms["pull"]
        states[k] = replace(states[k], terms={**states[k].terms, "pull": {**pull, "visits": 3 + k}})
    found = agree(net, work, tasks(net, states=states), caplog)
    assert found[4].state.terms["pull"]["visits"] == 8
    assert type(found[4].state.terms["seen"]["steps"]) is int


def test_what_a_visit_begins_with(caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3))
    easy = {"cross_entropy": CrossEntropy(), "easy": ByEasiness(0.1)}
    work, given = job(terms=easy, exchanges={"eases": Eases()}), tasks(net)
    one, many = (results(executor, work, given) for executor in (Sequential(net), Stacked(net, 15, 1.0)))
    assert not caplog.records
    assert difference(many, one, tolerance=EXACT) is None
    assert all(result.state.empty for result in many)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("stacked", [False, True])
def test_averages_of_a_clients_models(stacked: bool, norm: bool, caplog: pytest.LogCaptureFixture):
    """To the bit those of the models that clients have after one step, after two, and so on."""
    net = network(mlp(4, 3, norm=norm))
    given = tasks(net, (8, 6, 11))
    executor = Stacked(net, 15, 1.0) if stacked else Sequential(net)
    follow = {"cross_entropy": CrossEntropy(), "trailing": Trailing(0.3, 0.75)}

    def after(steps: int) -> list[ClientResult]:
        return results(executor, job(replace(TRAINING, steps=steps), terms=follow), given)

    averages = [averageable(task.broadcast.params) for task in given]
    for steps in range(1, 6):
        found = after(steps)
        averages = [averaged(kept, r.params or {}, 0.75) for kept, r in zip(averages, found, strict=True)]
        assert difference([r.state.terms["trailing"] for r in found], averages) is None
    assert not caplog.records
    agree(net, job(terms=follow), given, caplog)


def test_gradients_are_transformed(caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3, norm=True))
    for transform in (Scaled(0.3), OwnScale()):
        plain = job(gradient=transform)
        agree(net, plain, tasks(net), caplog)


@dataclass(frozen=True)
class OwnScale(GradientTransform):
    """Scales some gradients by what the client's own batch and weights are; the others stay."""

    def __call__(self, gradients: Mapping[str, Tensor], step: Step) -> Mapping[str, Tensor]:
        by = step.logits.std() * step.targets.double().mean() * step.params["1.bias"].abs().mean()
        return {name: by * g for name, g in gradients.items() if name.endswith("weight")}


@dataclass(frozen=True)
class OwnStep(GradientTransform):
    """Shortens the optimiser's steps of the weights, by what the client's own batch, weights and gradients are."""

    def update(
        self,
        before: Mapping[str, Tensor],
        after: Mapping[str, Tensor],
        gradients: Mapping[str, Tensor],
        step: Step,
    ) -> Mapping[str, Tensor]:
        by = torch.sigmoid(step.logits.std() + step.params["1.bias"].sum() + gradients["1.weight"].sum())
        return {name: w + by * (after[name] - w) for name, w in before.items() if name.endswith("weight")}


@pytest.mark.parametrize("training", [TRAINING, replace(TRAINING, momentum=0.0, clip=0.5)], ids=["momentum", "clipped"])
def test_updates_are_changed(training: Training, caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3, norm=True))
    changed = agree(net, job(training, gradient=OwnStep()), tasks(net), caplog)
    plain = agree(net, job(training), tasks(net), caplog)
    assert difference(changed, plain, tolerance=EXACT) is not None


@pytest.mark.parametrize("target", ["update", "grad"])
@pytest.mark.parametrize("mask", ["static", "per_step"])
def test_clients_of_different_quality(mask: Any, target: Any, caplog: pytest.LogCaptureFixture):
    """Among them one that rests, and one of full quality."""
    net = network(mlp(4, 3))
    rho = dict(enumerate((0.0, 1.0, 0.29, *np.linspace(0.1, 0.9, len(SIZES) - 3).tolist())))
    place = {k: ranks({n: torch.randn_like(p) for n, p in net.params().items() if p.dim() == 2}) for k in rho}
    given = tasks(
        net,
        states={k: ClientState(extras=Payload(CriticalityRanks(p))) for k, p in place.items()},
        extras={k: Payload(ClientQuality(value)) for k, value in rho.items()},
    )
    gradient = SelectiveDecay(mask=mask, target=target, scope="dims_2_4", enabled=True)
    agree(net, job(gradient=gradient), given, caplog)


def test_clients_that_received_different_models(caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3))
    given = tasks(net, extras=directives())
    given = [
        replace(t, broadcast=replace(t.broadcast, params={n: p + 0.01 * k for n, p in t.broadcast.params.items()}))
        for k, t in enumerate(given)
    ]
    agree(net, job(terms=TERMS["proximal"]), given, caplog)


# --------------------------------------------------------------------------------------------------------- reports


@dataclass(frozen=True)
class Tells(Exchange):
    """What the network holds when it is asked, and in which mode."""

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        assert isinstance(network, Network)
        assert not network.module.training
        assert difference(network.params(), fit.params) is None
        return Payload(float(network.logits(task.samples).sum())), Payload(len(task.samples))


def test_reports_are_of_each_clients_own_model(caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3, norm=True))
    found = agree(net, job(exchanges={"tells": Tells()}), tasks(net), caplog)
    assert len({r.reports.one(float) for r in found}) == len(found)


def test_a_client_that_diverges_harms_no_other(caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3, norm=True))
    extras = {k: Payload(NoiseDirective(True, 1e200 if k == 4 else 0.1)) for k in range(len(SIZES))}
    state = {4: ClientState(terms={"other": 1})}
    given = tasks(net, extras=extras, states=state)
    found = agree(net, job(terms=TERMS["adaptive"], exchanges={"tells": Tells()}), given, caplog)
    assert [r.client for r in found if not r.finite] == [4]
    assert found[4].state is given[4].state
    assert len(found[4].reports) == 0


# ----------------------------------------------------------------------------------------------------- what cannot


@dataclass(frozen=True)
class Branches(LossTerm):
    """Looks at a value."""

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return step.logits.square().mean() if step.logits.mean() > 0 else step.logits.mean(), state


@dataclass(frozen=True)
class Lies(LossTerm):
    """Says that rows are alone, and reads the parameters."""

    rowwise: ClassVar[bool] = True

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return step.logits.sum(1) + step.params["1.bias"].sum(), state


@dataclass(frozen=True)
class OfOneClient(LossTerm):
    """Says that rows are alone, and reads what belongs to one client, or is no row."""

    rowwise: ClassVar[bool] = True
    path: str

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        value: Any = step
        for name in self.path.split("."):
            value = getattr(value, name)
        other = value() if callable(value) else value
        return step.logits.sum(1) + (other is None), state


@dataclass(frozen=True)
class OfRows(LossTerm):
    """Reads everything that is a row's, and what is the same for all clients."""

    rowwise: ClassVar[bool] = True

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        assert step.draw is None
        factor = 0.01 * step.broadcast.clock.since(2) + 0.05 * step.broadcast.clock.last_of_stage
        features = step.output("features")
        return factor * features.square().sum(1) + 0.1 * step.logits.square().sum(1) * step.targets, state


@dataclass(frozen=True)
class Scalar(LossTerm):
    """Says that it is a loss a row, and is a number."""

    rowwise: ClassVar[bool] = True

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return step.logits.square().mean(), state


class AcrossChannels(nn.Module):
    """A softmax over all features, which no layer's type tells of."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, 5))
        self.head = nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.body(inputs).flatten(1).softmax(1)
        logits: Tensor = self.head(hidden)
        return logits


class ChannelSoftmax(nn.Module):
    """The same of a convolution's channels."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs).softmax(1).flatten(1)  # type: ignore[no-any-return]


class Own(nn.Linear):
    """A layer of somebody's own."""


class Parameter(nn.Module):
    """Parameters outside of any layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = mlp(4, 3), nn.Parameter(torch.ones(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs) * self.scale  # type: ignore[no-any-return]


def shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer, nn.Linear(4, 3))


UNFIT: dict[str, Any] = {
    "a Dropout2d": lambda: nn.Sequential(nn.Conv2d(1, 4, 1), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(16, 3)),
    "dropout that keeps nothing": lambda: nn.Sequential(nn.Flatten(), nn.Dropout(1.0), nn.Linear(4, 3)),
    "mixes channels": ChannelSoftmax,
    "stacked features": AcrossChannels,
    "a Own": lambda: nn.Sequential(nn.Flatten(), Own(4, 3)),
    "a Parameter": Parameter,
    "momentum=None": lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 3)),
    "share parameters": shared,
    "padding_mode=circular": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 2, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(18, 3)
    ),
}


@pytest.mark.parametrize("reason", UNFIT)
def test_networks_that_cannot_be_stacked(reason: str, caplog: pytest.LogCaptureFixture):
    """They run one by one, and one line says why."""
    net = network(UNFIT[reason]())
    found = why_not(job(), net)
    assert found is not None
    assert reason in found or reason == "stacked features"
    falls_back(net, job(), tasks(net), reason if reason != "stacked features" else "forward pass", caplog)


def falls_back(
    net: Network, work: LocalTraining, given: Sequence[ClientTask], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.clear()
    net.meter.pop()
    one = results(Sequential(net), work, given)
    passed = net.meter.pop()
    executor = Stacked(net, 5, 1.0)
    for _ in range(2):
        assert difference(results(executor, work, given), one) is None
        assert net.meter.pop() == passed  # what a stack has begun counts once
    (line,) = [r.getMessage() for r in caplog.records]
    assert "one by one" in line
    assert reason in line


@pytest.mark.parametrize("term", [Branches(), Lies(), Scalar()])
def test_terms_that_cannot_be_stacked(term: LossTerm, caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3))
    work = job(terms={"cross_entropy": CrossEntropy(), "odd": term})
    assert why_not(work, net) is None
    falls_back(net, work, tasks(net), "odd", caplog)


def of_stage(given: Sequence[ClientTask], lengths: tuple[int, ...]) -> list[ClientTask]:
    return [replace(t, broadcast=replace(t.broadcast, lengths=lengths)) for t in given]


@pytest.mark.parametrize("lengths", [(1, 3), (1, 9)])
def test_a_rowwise_term_reads_features_its_draw_and_the_round(lengths: Any, caplog: pytest.LogCaptureFixture):
    net = network(MLP([5], 0.0)((1, 2, 2), 3))
    agree(net, job(terms={"rows": OfRows()}), of_stage(tasks(net), lengths), caplog)


OF_ONE_CLIENT = (
    "params",
    "passes",
    "unmixed_logits",
    "inputs",
    "unmixed",
    "mixing",
    "weight",
    "number",
    "kept",
    "broadcast.extras.__iter__",
)


@pytest.mark.parametrize("reads", OF_ONE_CLIENT)
def test_a_rowwise_term_that_reads_more_than_rows_runs_alone(reads: str, caplog: pytest.LogCaptureFixture):
    """And does not get another value than it gets alone."""
    net = network(mlp(4, 3))
    falls_back(net, job(terms={"odd": OfOneClient(reads)}), tasks(net, extras=directives()), "odd", caplog)


@dataclass(frozen=True)
class Hears(LossTerm):
    """Reads a message, where the client has one of its type."""

    kind: type
    kept: bool

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        heard = (step.kept if self.kept else step.broadcast.extras).get(self.kind)
        return (0.0 if heard is None else getattr(heard, "value", 0.1)) * step.logits.square().sum(1), state


@dataclass(frozen=True)
class Awkward:
    """A message that cannot be joined, as its names differ."""

    name: str


@pytest.mark.parametrize("kept", [True, False])
def test_messages_that_some_clients_lack_matter_only_to_who_reads_them(kept: bool, caplog: pytest.LogCaptureFixture):
    """A stack stays one whatever else its clients have; the line names what kept it from being one."""
    net = network(mlp(4, 3))
    some = {k: Payload(ClientQuality(0.1 * k), *[NoiseDirective(True, 0.1)] * (k % 2)) for k in range(len(SIZES))}
    odd = {k: payload.including(Awkward(f"of {k}")) for k, payload in some.items()}
    given = tasks(net, states={k: ClientState(extras=p) for k, p in odd.items()}) if kept else tasks(net, extras=odd)
    terms = {"cross_entropy": CrossEntropy(), "hears": Hears(ClientQuality, kept)}
    agree(net, job(terms=terms, gradient=OwnScale()), given, caplog)
    agree(net, job(terms={**terms, "hears": Hears(int, kept)}), given, caplog)
    for kind, reason in (
        (NoiseDirective, "some clients have a NoiseDirective"),
        (Awkward, "of Awkward, clients differ"),
    ):
        falls_back(net, job(terms={**terms, "hears": Hears(kind, kept)}), given, reason, caplog)


class Attentive(nn.Module):
    """A network with an output that mixes features, beside those that can be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, 5))
        self.head = nn.Linear(5, 3)

    def outputs(self, inputs: Tensor) -> dict[str, Tensor]:
        hidden = self.body(inputs)
        return {"logits": self.head(hidden), "attention": hidden.flatten(1).softmax(1), "doubled": 2 * hidden}

    def forward(self, inputs: Tensor) -> Tensor:
        return self.outputs(inputs)["logits"]


@dataclass(frozen=True)
class Reads(LossTerm):
    """Reads one output."""

    output: str

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return 0.1 * step.output(self.output).square().sum(1) * step.labels, state


@pytest.mark.parametrize("rowwise", [False, True])
def test_only_outputs_that_are_read_must_be_stackable(rowwise: bool, caplog: pytest.LogCaptureFixture):
    torch.manual_seed(0)
    kind = type("ReadsRows", (Reads,), {"rowwise": True}) if rowwise else Reads
    net = network(Attentive())
    for output in ("logits", "doubled", "features"):
        agree(net, job(terms={"reads": kind(output)}), tasks(net), caplog)
    reason = "reads" if rowwise else "no output 'attention' for many clients at once"
    falls_back(net, job(terms={"reads": kind("attention")}), tasks(net), reason, caplog)
    pair = network(Pair(MLP([5], 0.0)((1, 2, 2), 3), MLP([5], 0.0)((1, 2, 2), 3)))
    agree(pair, job(terms={"reads": kind("second")}), tasks(pair), caplog)
    falls_back(pair, job(terms={"reads": kind("features")}), tasks(pair), "reads", caplog)


@dataclass(frozen=True)
class AtBothEnds(LossTerm):
    """Keeps what the network says before and after a visit, if it is to look."""

    looks: bool

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        start = network.logits(task.samples).sum() if self.looks else torch.zeros(())
        return {"start": start, "end": torch.zeros((), dtype=network.dtype)}

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return 0.1 * (step.logits - 0.01 * state["start"].to(step.logits)).square().sum(1), state

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        return {**state, "end": network.logits(task.samples).sum()} if self.looks else state


@pytest.mark.parametrize("looks", [True, False])
def test_a_term_has_the_network_at_both_ends_and_it_is_loaded_only_if_it_looks(
    looks: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    net, start = network(mlp(4, 3)), network(mlp(4, 3)).params()
    given = tasks(net)
    given = [replace(t, broadcast=replace(t.broadcast, params={n: p + 0.1 for n, p in start.items()})) for t in given]
    agree(net, job(terms={"ends": AtBothEnds(looks)}), given, caplog)
    loads: list[object] = []
    write = net._write

    def counted(params: Params) -> None:
        loads.append(params)
        write(params)

    monkeypatch.setattr(net, "_write", counted)
    results(Stacked(net, 15, 1.0), job(terms={"ends": AtBothEnds(looks)}), given)
    assert len(loads) == (2 * len(given) if looks else 0)


def test_the_received_model_may_first_be_asked_for_in_a_stack(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A run has one network and no round before its first."""
    words = [word for word in BY_NAME["flr"].words if not word.startswith("executor=")]
    run([*words, "method.R_w=0", "executor=stacked"], tmp_path / "run")
    assert "one by one" not in caplog.text


@dataclass(frozen=True)
class Unlearned(Mixup):
    """Trains on the samples whose label the model being trained does not give, under another label if they are even.

    Clients select different numbers of samples, every third of them none in the second epoch.
    """

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        wrong = (network.logits(task.samples).argmax(1) != task.labels).nonzero()[:, 0]
        labels = (task.labels + (torch.arange(len(task.samples)) % 2 == 0)) % network.num_classes
        yield Phase(positions=wrong[:0] if epoch == 1 and task.client % 3 == 0 else wrong, labels=labels)


@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("rule", [HalfTheSamples(), Unlearned(1.0, True, None)], ids=lambda rule: type(rule).__name__)
def test_clients_are_stacked_on_the_samples_that_they_select(
    rule: BatchRule, steps: int | None, caplog: pytest.LogCaptureFixture
):
    """By their own model, anew in each epoch, under labels of the phase's own."""
    net = network(mlp(4, 3, norm=True), transform=CROPPED)
    weights = {k: ClientState(weight=torch.linspace(0.5, 1.5, size)) for k, size in enumerate(SIZES)}
    training = replace(TRAINING, epochs=2) if steps is None else replace(TRAINING, steps=steps)
    agree(net, job(training, batch=rule), tasks(net, states=weights), caplog)


@dataclass(frozen=True)
class Skips(BatchRule):
    """Mixes some batches, by chance."""

    def mixing(self, rng: np.random.Generator, size: int, stage: int) -> Mixing | None:
        return None if rng.random() < 0.5 else Mixing(0.25, torch.arange(size).flip(0))


def test_a_batch_rule_that_mixes_some_batches_cannot_be_stacked(caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3))
    falls_back(net, job(batch=Skips()), tasks(net), "Skips", caplog)


def test_weights_for_some_clients_only(caplog: pytest.LogCaptureFixture):
    net = network(mlp(4, 3))
    given = tasks(net, SIZES[:5], states={2: ClientState(weight=torch.ones(SIZES[2]))})
    falls_back(net, job(), given, "weigh", caplog)


# ---------------------------------------------------------------------------------------------------------- stacks


@dataclass
class Watched:
    """A job that says who ran it; no training, so never stacked."""

    seen: list[int] = field(default_factory=list)

    def __call__(self, network: Model, task: ClientTask) -> int:
        self.seen.append(task.client)
        return task.client


def test_other_jobs_run_one_by_one_and_nothing_is_said_of_them(caplog: pytest.LogCaptureFixture):
    net, watched = network(mlp(4, 3)), Watched()
    given = tasks(net)
    blocks = list(Stacked(net, 5, 1.0).map(watched, given, as_list))
    assert [b.results for b in blocks] == [b.results for b in Sequential(net).map(Watched(), given, as_list)]
    assert watched.seen == list(range(len(SIZES)))
    assert not caplog.records


@pytest.mark.parametrize("stack", [5, 10, 15])
def test_blocks_are_cut_as_everywhere(stack: int, caplog: pytest.LogCaptureFixture):
    """Whatever a stack holds, sums of five clients go on, and each result without its model."""
    net = network(mlp(4, 3))
    given = tasks(net)
    reduce = Reduce(Mean("samples"), given[0].broadcast.params, Payload(), models_wanted=False)
    one, many = (list(e.map(job(), given, reduce)) for e in (Sequential(net), Stacked(net, stack, 1.0)))
    assert [len(b.results) for b in many] == [5, 5, 2]
    assert difference(many, one, tolerance=EXACT) is None
    assert not caplog.records


def trained_together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients each stack has, from now on."""
    sizes: list[int] = []

    def counted(work: Any, net: Any, many: Any, together: Any, *more: Any) -> Any:
        sizes.append(len(together))
        return train(work, net, many, together, *more)

    monkeypatch.setattr("flnl.engine.executors.stacked.train", counted)
    return sizes


def test_a_cohort_is_cut_into_stacks(monkeypatch: pytest.MonkeyPatch):
    sizes = trained_together(monkeypatch)
    net = network(mlp(4, 3))
    results(Stacked(net, 5, 1.0), job(), tasks(net))
    results(Stacked(net, 20, 1.0), job(), tasks(net))
    results(Stacked(net, 5, 1.0), job(), tasks(net, SIZES[:6]))
    results(Stacked(net, 5, 1.0), job(), tasks(net, SIZES[:1]))
    assert sizes == [5, 5, 2, 12, 5]  # a client that is left alone runs alone


def test_memory_bounds_a_stack(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    sizes = trained_together(monkeypatch)
    net = network(mlp(4, 3, hidden=100))
    model = 8 * 4 * (5 * 100 + 101 * 3)  # weights, gradient, momentum, result, in float64
    batch = 8 * TRAINING.batch_size * (4 + 100)  # what linear layers and ReLU leave for their gradients
    for clients, expected in ((15.1, 12), (10.1, 10), (9.9, 5), (4.9, None)):
        sizes.clear()
        memory = clients * (model + batch) / 0.75 / 2**30
        results(Stacked(net, 20, memory), job(), tasks(net))
        assert (sizes[0] if sizes else None) == expected, (clients, sizes)
    assert "more than a stack's memory=" in caplog.text


class Peak(TorchDispatchMode):
    """Measures the largest number of bytes of tensors that were alive at a time, without those made before."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {tensor.untyped_storage()._cdata for tensor in tree_iter(args) if isinstance(tensor, Tensor)}
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage())._cdata not in given:
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._alive = {key: kept for key, kept in self._alive.items() if not kept[0].expired()}
        self.bytes = max(self.bytes, sum(size for _, size in self._alive.values()))
        return result


@pytest.mark.parametrize("clients", [5, 10])
@pytest.mark.parametrize(
    "term", [Proximal(0.1, "squared_half"), FedDyn(0.1, None), Trailing(0.1, 0.7), Pull(0.1), Seen()]
)
def test_memory_of_states(term: LossTerm, clients: int, caplog: pytest.LogCaptureFixture):
    """The rule's estimate is what a stack of clients takes at most, but for the batch, which is small here."""
    net, work = network(mlp(4, 3, hidden=2000)), job(TRAINING, terms={"cross_entropy": CrossEntropy(), "term": term})
    given, executor = tasks(net, (4,) * clients), Stacked(net, clients, 1.0)
    results(executor, work, given)
    with Peak() as peak:
        results(executor, work, given)
    assert not caplog.records
    estimated = next(limit for limit in range(0, 2**30, 2**12) if clients_in(work, net, clients, limit) == clients)
    assert 0.85 * estimated <= peak.bytes <= 1.15 * estimated  # without gradients of activations


def test_the_order_of_steps():
    """Sizes by rank; full batches on ever fewer clients, then those that are left over."""
    sizes = [[4, 4, 4], [4, 4, 3], [4, 1], [4, 1], [3]]
    found = [(r.members, r.number, r.steps, r.size) for r in runs(sizes, 4, same_number=False)]
    assert found == [
        ((0, 1, 2, 3), 0, 1, 4),
        ((0, 1), 1, 1, 4),
        ((0,), 2, 1, 4),
        ((1, 4), 2, 1, 3),
        ((2, 3), 1, 1, 1),
    ]
    apart = [(r.members, r.number) for r in runs(sizes, 4, same_number=True)][3:]
    assert apart == [((1,), 2), ((2, 3), 1), ((4,), 0)]


def test_two_runs_are_the_same_to_the_bit():
    net = network(mlp(4, 3), precision=32)
    first, second = (results(Stacked(net, 10, 1.0), job(), tasks(net)) for _ in range(2))
    assert difference(first, second) is None


def test_results_have_tensors_of_their_own():
    """A view would keep the whole stack, and travel with it."""
    net = network(mlp(4, 3))
    work = job(terms={"cross_entropy": CrossEntropy(), "seen": Seen()})
    for r in results(Stacked(net, 15, 1.0), work, tasks(net)):
        assert r.params is not None
        own = [*r.params.values(), r.state.terms["seen"]["target"]]
        assert all(t.untyped_storage().nbytes() == t.numel() * t.element_size() for t in own)
        assert all(t.is_contiguous() and not t.requires_grad for t in own)
