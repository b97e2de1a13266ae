"""Steps that are recorded and replayed come out as steps that are run: to the bit, whatever changes between rounds.

A tape stands for the GPU's graph (``tests/engine/stacked/tape.py``); ``tests/cuda`` has the real one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from flnl.config import compose
from flnl.config.check import check_config
from flnl.core.errors import UserError
from flnl.core.messages import Broadcast, ClientState, ClientTask, Fit
from flnl.core.model import Model
from flnl.core.parts import LossTerm
from flnl.core.payload import Params, Payload
from flnl.core.step import Step
from flnl.core.tally import Tally
from flnl.engine.cuda_graph import WARM
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.stacked.graph import MOST, Graphs
from flnl.engine.stacked.network import stacked
from flnl.engine.stacked.training import train
from flnl.methods.fedcorr.exchange import NoiseDirective
from flnl.parts.batches import Mixup
from flnl.parts.losses.cross_entropy import CrossEntropy
from tests.engine.executors.test_stacked import CROPPED, TERMS, TRAINING, OwnScale, OwnStep, Seen, job
from tests.engine.stacked.tape import Tape
from tests.properties.parts import Agreement, Scaled, TwoViews
from tests.properties.runs import assembled, difference
from tests.registry import REGISTRY, Entry, others_slow
from tests.toys import mlp, network, random_federation

SIZES = (35, 34, 36, 33, 42, 29)
"""In batches of 4: six full batches or more each, and last ones of every size."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


class Recorder:
    """Graphs on tapes, what was said of them, and how often they were replayed."""

    def __init__(self, tape: Callable[[], Tape] = Tape) -> None:
        self.said: list[str] = []
        self.tapes: list[Tape] = []
        self._tape = tape
        self.graphs = Graphs(self, self.said.append)

    def __call__(self) -> Tape:
        self.tapes.append(self._tape())
        return self.tapes[-1]

    def warm(self, step: Callable[[], Tensor], branch: int) -> Tensor:
        """As it is."""
        return step()

    @property
    def replays(self) -> int:
        return sum(tape.replays for tape in self.tapes)


def cohort(
    net: Network,
    sizes: Sequence[int],
    clients: Sequence[int] | None = None,
    params: Params | None = None,
    states: Mapping[int, ClientState] | None = None,
    round: int = 0,
    count: int = 1,
) -> list[ClientTask]:
    """The tasks of a round, each with a directive of its own; by default of all clients, with the network's model."""
    dealt, sent = random_federation(sizes), net.params() if params is None else params
    return [
        ClientTask(
            k,
            dealt.samples(k),
            Broadcast(round, 1, sent, Payload(NoiseDirective(True, (k + 1 + round) / 10)), (count, 2)),
            (states or {}).get(k, ClientState()),
            5,
        )
        for k in (range(len(sizes)) if clients is None else clients)
    ]


def rounds(
    net: Network, work: LocalTraining, graphs: Graphs | None, count: int = 3, **given: Any
) -> list[dict[str, Any]]:
    """Rounds of a cohort, each from the first client's model of the last, with what clients keep."""
    sizes = given.get("sizes", SIZES)
    params, states, found = net.params(), dict[int, ClientState](given.get("states", {})), []
    for round in range(count):
        clients = given.get("cohorts", [range(len(sizes))] * count)[round]
        tasks = cohort(net, sizes, clients, params, states, round, count)
        more = [] if graphs is None else [graphs]
        fits = given.get("way", train)(work, net, stacked(net).network, tasks, given.get("pooled", 10_000), *more)
        for task, fit in zip(tasks, fits, strict=True):
            found.append({"params": fit.params, "states": dict(fit.states), "loss": fit.loss, "steps": fit.steps})
            ended = {name: term.finish(net, task, fit, fit.states[name]) for name, term in work.terms.items()}
            kept = {name: state for name, state in ended.items() if state is not None}
            found[-1]["momentum"] = fit.momentum
            states[task.client] = replace(task.state, terms={**task.state.terms, **kept}, momentum=fit.momentum)
        params = fits[0].params
        given.get("between", lambda: None)()
    return found


def same(net: Network, work: LocalTraining, *, replayed: bool = True, **given: Any) -> Recorder:
    """Demand the bits and the passes of the run without graphs, and that there were replays; the recorder."""
    held, recorder = net.params(), Recorder()
    one = rounds(net, work, None, **given)
    passed = net.meter.pop()
    net.load(held)
    many = rounds(net, work, recorder.graphs, **given)
    assert difference(many, one) is None
    assert net.meter.pop() == passed != Tally()
    assert bool(recorder.replays) == replayed, recorder.said
    return recorder


# ------------------------------------------------------------------------------------------------------ the same bits


NETWORKS: dict[str, Callable[[], Network]] = {
    "mlp": lambda: network(mlp(4, 3), precision=32),
    "mlp with batch norm": lambda: network(mlp(4, 3, norm=True), precision=32),
    "cnn with batch norm": lambda: network(_normed_cnn(), precision=32),
    "bf16": lambda: network(mlp(4, 3), precision="bf16"),
}


def _normed_cnn() -> torch.nn.Module:
    cnn = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 2, padding=1), torch.nn.BatchNorm2d(3), torch.nn.ReLU(), torch.nn.Flatten()
    )
    return torch.nn.Sequential(cnn, torch.nn.Linear(27, 3))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.9, 0.01), (0.0, 0.0)])
def test_networks_and_optimisers(name: str, momentum: float, weight_decay: float):
    torch.manual_seed(0)
    work = job(replace(TRAINING, momentum=momentum, weight_decay=weight_decay))
    recorder = same(NETWORKS[name](), work)
    assert recorder.replays >= 3 * 3 * 6 - WARM  # three rounds of three epochs of six batches that all clients have
    assert any("last batches" in said for said in recorder.said)


def test_clients_continue_with_their_momentum():
    """It is copied into the graph and back, with those who step apart from the others for last batches."""
    for net in (NETWORKS["mlp with batch norm"](), NETWORKS["cnn with batch norm"]()):
        same(net, job(replace(TRAINING, keep_momentum=True)), cohorts=[range(4), range(1, 6), range(6)])


def test_a_graph_is_kept_from_round_to_round():
    recorder = same(network(mlp(4, 3), precision=32), job(), sizes=(24,) * 5)
    assert len(recorder.tapes) == 1
    assert recorder.replays == 3 * 3 * 6 - WARM


@pytest.mark.parametrize("clients", [1, 2])
def test_few_clients(clients: int):
    """One is what a sequential step is."""
    torch.manual_seed(0)
    same(network(mlp(4, 3, norm=True), precision=32), job(terms=TERMS["adaptive"]), sizes=SIZES[:clients])


@dataclass(frozen=True)
class Averages(LossTerm):
    """A running mean of each sample's predictions, as methods keep it."""

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        count = len(task.samples)
        return {"mean": torch.zeros(count, network.num_classes), "seen": torch.zeros(count)} if state is None else state

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        probabilities, at = step.logits.softmax(1), step.positions
        mean = state["mean"].index_copy(0, at, 0.7 * state["mean"][at] + 0.3 * probabilities.detach())
        seen = state["seen"].index_copy(0, at, state["seen"][at] + 1)
        return -(mean[at] * probabilities).sum(1), {"mean": mean, "seen": seen}

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        return state


@dataclass(frozen=True)
class Draws(LossTerm):
    """A draw a batch: tensors, and a number that differs between clients."""

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        return torch.from_numpy(rng.normal(size=(size, 1))).float(), rng.random()

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        noise, share = step.draw
        return share * (step.logits * noise).mean(1), state


@dataclass(frozen=True)
class Distils(LossTerm):
    """The received model's opinion, which is another model in every round."""

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return (step.logits - step.received_logits).square().mean(), state


@dataclass(frozen=True)
class DistilsByPass(LossTerm):
    """The same, by the pass itself."""

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        with torch.no_grad():
            received = step.passes.received(step.unmixed)
        return (step.logits - received).square().mean(), state


@dataclass(frozen=True)
class Grows(LossTerm):
    """Heavier from round to round."""

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return step.broadcast.clock.since(1) * step.logits.square().mean(), state


@dataclass(frozen=True)
class GrowsByRow(LossTerm):
    """The same, of rows alone."""

    rowwise: ClassVar[bool] = True

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return step.broadcast.round * step.logits.square().mean(1), state


RECORDED: dict[str, LocalTraining] = {
    "proximal": job(terms=TERMS["proximal"]),
    "a level a client": job(terms=TERMS["adaptive"]),
    "a state a sample": job(terms={"cross_entropy": CrossEntropy(), "averages": Averages()}),
    "an average of models": job(terms=TERMS["an average of models"]),
    "draws": job(terms={"cross_entropy": CrossEntropy(), "draws": Draws()}),
    "the received model": job(terms={"cross_entropy": CrossEntropy(), "distils": Distils()}),
    "the received model, by its pass": job(terms={"cross_entropy": CrossEntropy(), "distils": DistilsByPass()}),
    "the round": job(terms={"cross_entropy": CrossEntropy(), "grows": Grows()}),
    "the round, by row": job(terms={"cross_entropy": CrossEntropy(), "grows": GrowsByRow()}),
    "mixup": job(batch=Mixup(1.0, True, None)),
    "mixup and a term that sees it": job(batch=Mixup(1.0, True, None), terms=TERMS["proximal"]),
    "two views": job(batch=TwoViews(), terms={"cross_entropy": CrossEntropy(), "agreement": Agreement(0.5)}),
    "a scaled gradient": job(gradient=Scaled(0.3)),
    "a gradient by the batch": job(gradient=OwnScale()),
    "a step by the batch": job(gradient=OwnStep()),
}


@pytest.mark.parametrize("clients", [1, 6])
@pytest.mark.parametrize("name", RECORDED)
def test_parts(name: str, clients: int):
    recorder = same(network(mlp(4, 3), precision=32), RECORDED[name], sizes=SIZES[:clients])
    assert all("last batches" in said for said in recorder.said)


def test_views_with_crops():
    same(network(mlp(4, 3), precision=32, transform=CROPPED), RECORDED["two views"])


def test_weights_of_samples():
    weights = {k: ClientState(weight=torch.rand(n)) for k, n in enumerate(SIZES)}
    same(network(mlp(4, 3), precision=32), job(batch=Mixup(1.0, True, None)), states=weights)


def test_cohorts_of_other_clients_and_other_numbers():
    """States go with their clients, in whatever order they come."""
    cohorts = [(0, 1, 2, 3, 4), (5, 4, 3, 2, 1), (2, 0), (0, 1, 2, 3, 5)]
    same(network(mlp(4, 3), precision=32), RECORDED["a state a sample"], cohorts=cohorts, count=4)


def test_the_learning_rate_may_change():
    """A graph has the rate that it was recorded with."""
    net = network(mlp(4, 3), precision=32)
    recorder, held, found = Recorder(), net.params(), []
    for graphs in (None, recorder.graphs):
        net.load(held)
        found.append([rounds(net, job(replace(TRAINING, lr=lr)), graphs, 1) for lr in (0.1, 0.01, 0.1)])
    assert difference(found[0], found[1]) is None
    assert recorder.replays


# ------------------------------------------------------------------------------------------------- nothing is stale


def test_what_a_graph_held_is_never_read_again():
    """Everything that it computes on is made worthless between rounds, parameters, batches and states."""
    for name, work in RECORDED.items():
        net, recorder = network(mlp(4, 3, norm=name == "mixup"), precision=32), Recorder()
        held = net.params()
        clean = rounds(net, work, None)
        net.load(held)
        spoilt = rounds(net, work, recorder.graphs, between=lambda graphs=recorder.graphs: spoil(graphs))
        assert difference(spoilt, clean) is None, name
        assert recorder.replays


def spoil(graphs: Graphs) -> None:
    for graph in graphs.kept:
        assert graph._batch is not None
        given = graph._given
        of = [] if given is None else [j.held() for j in (given.received, given.kept, given.held) if j is not None]
        for tensor in (t for tensors in [graph._view.everything(), graph._batch.held(), *of] for t in tensors):
            with torch.no_grad():
                tensor.fill_(float("nan") if tensor.is_floating_point() else 1)


# ------------------------------------------------------------------------------------------------ what runs as it is


@dataclass(frozen=True)
class Looks(LossTerm):
    """Waits for a value that is no part of any client's step, so that it may be stacked."""

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        share = torch.full((1,), 0.3).item()
        return share * step.logits.square().mean(), state


@dataclass(frozen=True)
class Masks(LossTerm):
    """As many rows as a mask says."""

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return torch.arange(4.0)[torch.tensor([True, False, True, True])].sum() * step.logits.square().mean(), state


REFUSED = {
    "reads a tensor's value": job(terms={"cross_entropy": CrossEntropy(), "looks": Looks()}),
    "selects elements by a mask": job(terms={"cross_entropy": CrossEntropy(), "masks": Masks()}),
    "counts the batches": job(terms=TERMS["adaptive norm"]),
    "changes its structure": job(terms={"cross_entropy": CrossEntropy(), "seen": Seen()}),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_recorded_runs_as_it_is_and_is_said_once(reason: str):
    recorder = same(network(mlp(4, 3), precision=32), REFUSED[reason], replayed=False)
    assert any(reason in said for said in recorder.said)


class Broken(Tape):
    """Fails in the middle of a recording."""

    def capture(self, steps: Sequence[tuple[int, Callable[[], Tensor]]]) -> Tensor:
        super().capture(steps)
        self._done.clear()
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("name", ["proximal", "a state a sample", "mixup"])
def test_a_recording_that_fails_costs_nothing(name: str):
    net, recorder = network(mlp(4, 3, norm=True), precision=32), Recorder(Broken)
    held = net.params()
    one = rounds(net, RECORDED[name], None)
    net.load(held)
    assert difference(rounds(net, RECORDED[name], recorder.graphs), one) is None
    assert any("not permitted" in said for said in recorder.said)
    assert not recorder.graphs.kept


def test_graphs_are_bounded():
    """With more kinds of step than are kept, the first ones stay."""
    sizes = tuple(16 * (k + 1) for k in range(MOST + 2))
    recorder = same(network(mlp(4, 3), precision=32), job(), sizes=sizes, count=2)
    assert len(recorder.tapes) == MOST
    assert any(f"more than {MOST} graphs" in said for said in recorder.said)


# ------------------------------------------------------------------------------------------------------ whole methods


NOT_RECORDED = (
    "fedavg_with_dropout",
    "fedcorr_with_dropout",
    "fedavg_and_reselection",
    "parts_with_memory",
    "phases_with_a_second_pool",
    "flr_on_half_the_samples",
    "fedlsr_as_released_with_batch_norm",
    "fedgr_as_released_with_batch_norm_on_unequal_clients",
    "fedclean",
)
"""Entries whose clients run one by one, or select so few samples that no two steps are alike; of every other some steps
are recorded."""


@pytest.mark.parametrize("entry", others_slow(), ids=str)
def test_a_method_is_the_same_run(entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Cut into the same stacks, one of a single client among them, steps are the same whether recorded or run."""
    found = []
    for least in (1000, 2):  # three batches make an epoch here
        monkeypatch.setattr("flnl.engine.stacked.graph.LEAST", least)
        recorder = Recorder()
        with assembled(entry.words, tmp_path / f"run{least}") as parts:
            executor = Stacked(parts.evaluator.network, 5, 1.0)
            executor.__dict__["_graphs"] = recorder.graphs
            found.append(parts.results(executor=executor))
    assert difference(found[0], found[1]) is None
    assert bool(recorder.replays) == (entry.name not in NOT_RECORDED), set(recorder.said)


# ------------------------------------------------------------------------------------------------------- the setting


def test_graphs_are_a_gpus(tmp_path: Path):
    assert not Stacked(network(mlp(4, 3)), 5, 1.0)._graphs
    with pytest.raises(UserError, match=r"executor\.graphs=auto"):
        Stacked(network(mlp(4, 3)), 5, 1.0, True)
    with assembled(REGISTRY[0].words, tmp_path / "run", "executor=stacked") as parts:
        assert parts.executor.settings() == {
            "stack": 20,
            "memory": 1.0,
            "graphs": "auto",
            "split": 1,
            "memory_format": "channels_last",
            "compile": False,
        }


@pytest.mark.parametrize(("stack", "fits"), [(0, False), (1, True), (4, True), (5, True), (7, False), (20, True)])
def test_stacks_are_few_clients_or_whole_blocks(stack: int, fits: bool, tmp_path: Path):
    words = [*REGISTRY[0].words, "executor=stacked", f"executor.stack={stack}"]
    if fits:
        check_config(compose.load(words))
    else:
        with pytest.raises(UserError, match=r"executor\.stack"):
            check_config(compose.load(words))
