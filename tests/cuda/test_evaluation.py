"""Scores come from recorded graphs, which no bit shows (``flnl.engine.recorded_passes``)."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flnl.core.messages import Broadcast, ClientState, ClientTask, Samples
from flnl.core.step import FEATURES, LOGITS
from flnl.data.images import TensorImages
from flnl.engine import network as scoring
from flnl.engine import recorded_passes
from flnl.engine.executors.stacked import Stacked
from flnl.engine.network import Network
from flnl.engine.placement import placement_for
from flnl.engine.recorded_passes import RARE
from flnl.models.resnet import ResNet
from tests.cuda.test_cuda import CROPPED, network
from tests.properties.runs import assembled
from tests.registry import BY_NAME
from tests.simulated_gpu import device

BATCH = 8
WARM = 3  # passes that run as they are before one is recorded


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "SCORE_BATCH", BATCH)


@pytest.fixture
def counted(gpu: str, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many graphs are made and replayed."""
    kind, counts = torch.get_device_module(gpu).CUDAGraph, Counter[str]()
    create, replay = kind.__init__, kind.replay

    def made(graph: Any, *args: Any) -> None:
        counts["made"] += 1
        create(graph, *args)

    def replayed(graph: Any) -> None:
        counts["replayed"] += 1
        replay(graph)

    monkeypatch.setattr(kind, "__init__", made)
    monkeypatch.setattr(kind, "replay", replayed)
    return counts


def store(count: int, net: Network) -> TensorImages:
    draw = torch.Generator().manual_seed(1)
    return TensorImages(torch.randint(0, 256, (count, *net.transform.shape), dtype=torch.uint8, generator=draw))


def models(net: Network, count: int) -> list[dict[str, Tensor]]:
    """Different parameters and statistics, as of successive rounds."""
    draw = torch.Generator().manual_seed(2)
    held = net.params()
    noise = [{n: torch.rand(t.shape, generator=draw).to(t.device) for n, t in held.items()} for _ in range(count)]
    return [{n: t + own[n] if t.is_floating_point() else t for n, t in held.items()} for own in noise]


@pytest.mark.parametrize("precision", [32, "bf16", 64])
@pytest.mark.parametrize("output", [LOGITS, FEATURES])
def test_scores_are_those_of_passes_that_are_not_recorded(
    precision: int | str, output: str, gpu: str, counted: Counter[str]
) -> None:
    """One graph serves all full batches of three models; the short last batch runs as it is."""
    samples, found = 5 * BATCH + 3, []
    for graphs in (False, "branches"):
        net = network(gpu, precision)
        Stacked(net, 5, 1.0, graphs)
        images, own = store(samples, net), []
        for params in models(net, 3):
            net.load(params)
            own.append(net.outputs(images, torch.arange(samples), output=output))
        assert counted["made"] == bool(graphs)
        found.append(own)
    assert counted["replayed"] == 3 * 5 - WARM
    for one, other in zip(*found, strict=True):
        assert one.device.type == "cpu"
        assert torch.equal(one, other)
    assert not torch.equal(found[1][0], found[1][1])


def test_scores_stay_as_they_were_when_others_follow(gpu: str) -> None:
    """A graph writes to the same memory each time."""
    net = network(gpu)
    Stacked(net, 5, 1.0, "branches")
    images, index = store(6 * BATCH, net), torch.arange(6 * BATCH)
    first, second = models(net, 2)
    net.load(first)
    net.outputs(images, index)
    scores = net.outputs(images, index, on_device=True)
    before = scores.clone()
    net.load(second)
    net.outputs(images, index)
    assert scores.device.type == gpu
    assert torch.equal(scores, before)


def test_the_model_in_training_and_the_received_one_have_graphs_of_their_own(gpu: str, counted: Counter[str]) -> None:
    net = network(gpu)
    Stacked(net, 5, 1.0, "branches")
    images, index = store(6 * BATCH, net), torch.arange(6 * BATCH)
    trained, sent = models(net, 2)
    expected = []
    for params in (trained, sent):
        net.load(params)
        expected.append(net.outputs(images, index))
    given = task(images, index, sent)
    net.load(trained)
    for _ in range(2):
        assert torch.equal(net.outputs(images, index), expected[0])
        assert torch.equal(net.received(given, augment=None), expected[1])
    assert counted["made"] == 2


def task(images: TensorImages, index: Tensor, sent: dict[str, Tensor]) -> ClientTask:
    samples = Samples(images, index, torch.zeros(len(index), dtype=torch.int64))
    return ClientTask(0, samples, Broadcast(0, 1, sent), ClientState(), 5)


@pytest.mark.parametrize("augmented", [False, True])
def test_clients_own_scores_are_recorded_once_their_size_has_come_often(
    augmented: bool, gpu: str, counted: Counter[str]
) -> None:
    """Clients of 6 samples, less than a full batch, and one of 5: its size comes once a round, theirs three times."""
    sizes, found = (6, 5, 6, 6), []
    for graphs in (False, "branches"):
        net = network(gpu)
        Stacked(net, 5, 1.0, graphs)
        images, own = store(sum(sizes), net), []
        for round, params in enumerate(models(net, 5)):
            for at in torch.arange(sum(sizes)).split(list(sizes)):
                augment = np.random.default_rng(round) if augmented else None
                own.append(net.received(task(images, at, params), augment, output=FEATURES))
        found.append(own)
    assert counted["made"] == 1
    assert counted["replayed"] == 5 * 3 - RARE - WARM
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_only_so_many_sizes_are_recorded(gpu: str, counted: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """And full batches; no samples are no size."""
    monkeypatch.setattr(recorded_passes, "MOST", 3)
    net = network(gpu)
    Stacked(net, 5, 1.0, "branches")
    images = store(BATCH, net)
    for size in range(BATCH + 1):
        for _ in range(RARE + WARM + 1):
            assert net.outputs(images, torch.arange(size)).shape == (size, 3)
    assert counted["made"] == 3 + 1


class Reads(nn.Module):
    """Reads a value of its inputs, which a graph cannot contain."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = ResNet(8, [1, 1])((3, 12, 12), 3)

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.inner(inputs)
        return scores if float(inputs.mean()) < 100 else -scores


def test_a_pass_that_cannot_be_recorded_runs_as_it_is(
    gpu: str, counted: Counter[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It is seen before anything is recorded, said once, and changes no number."""
    found = []
    for graphs in (False, "branches"):
        torch.manual_seed(0)
        net = Network(Reads(), CROPPED, 3, placement_for(gpu, 32))
        Stacked(net, 5, 1.0, graphs)
        images = store(6 * BATCH, net)
        found.append([net.outputs(images, torch.arange(6 * BATCH)) for _ in range(2)])
    assert torch.equal(torch.stack(found[0]), torch.stack(found[1]))
    assert not counted
    said = [record.getMessage() for record in caplog.records if "evaluations" in record.getMessage()]
    assert len(said) == 1
    assert "without a CUDA graph, because reads a tensor's value" in said[0]


def test_scoring_waits_once(gpu: str) -> None:
    """For the scores, at the end: not for those of each batch."""
    if gpu != device.NAME:
        pytest.skip("counts the simulated GPU's waits")
    net = network(gpu)
    Stacked(net, 5, 1.0, "branches")
    images, index = store(6 * BATCH, net), torch.arange(6 * BATCH)
    net.outputs(images, index)
    with device.waits.counting() as events:
        net.outputs(images, index)
    assert sum(count for event, count in events.items() if event.kind == "d2h") == 1


@pytest.mark.parametrize("name", ["fedavg", "co_teaching"])
def test_evaluations_of_a_run_are_replayed(name: str, tmp_path: Path, gpu: str, counted: Counter[str]) -> None:
    """A run's metrics and recorded probabilities, of one network and of a pair, round by round."""
    words = [word for word in BY_NAME[name].words if not word.startswith("executor")]
    found, replays = [], []
    for recorded in (False, True):
        more = (f"device={gpu}", "executor=stacked", "audit.record=true")
        with assembled(words, tmp_path / str(recorded), *more) as parts:
            if not recorded:
                parts.evaluator.network.recorded = None
            rounds = parts.results()
            recorder = parts.evaluator.recorder
            assert recorder is not None
            found.append(([one.evaluation for one in rounds], recorder.sums.all.cpu(), recorder.sums.test_all))
        replays.append(counted["replayed"])
    (metrics, *sums), (others, *other_sums) = found
    assert metrics == others
    assert all(metrics)
    assert all(torch.equal(one, other) for one, other in zip(sums, other_sums, strict=True))
    assert replays[1] > 2 * replays[0] + 10  # those of steps, if any, and of the second run's evaluations


def test_a_model_is_scored_only_by_the_executors_graphs(gpu: str, counted: Counter[str]) -> None:
    """Nothing is recorded before there is an executor that records, nor by one that does not."""
    net = network(gpu)
    images, index = store(6 * BATCH, net), torch.arange(6 * BATCH)
    net.outputs(images, index)
    Stacked(net, 5, 1.0, False)
    net.outputs(images, index)
    assert not counted
