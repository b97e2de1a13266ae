"""What the CPU's tests cannot see, on a GPU or on the simulated one (``tests/simulated_gpu``)."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flnl.core.errors import UserError
from flnl.core.execution import as_list
from flnl.core.messages import Broadcast, ClientResult, ClientState, ClientTask, Samples
from flnl.core.optimizer import SGD, Adam, AdamW, Optimizer
from flnl.core.parts import LossTerm
from flnl.core.payload import Payload, all_finite
from flnl.core.step import Step
from flnl.core.training import Training
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform
from flnl.engine.cuda_graph import GraphRecorder
from flnl.engine.executors import processes
from flnl.engine.executors.processes import Processes
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.placement import placement_for
from flnl.models.lenet import LeNet5
from flnl.models.resnet import ResNet
from flnl.parts.batches import Mixup, Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.parts.losses.proximal import Proximal
from flnl.run.checkpoint import client_store
from tests.cuda.watch import HEARD, waited, watch, watching
from tests.properties.runs import assembled, difference, run
from tests.properties.test_client_memory import ON_DISK
from tests.registry import BY_NAME, Entry, others_slow
from tests.simulated_gpu import device

TRAINING = Training(lr=0.05, momentum=0.5, weight_decay=0.001, batch_size=5, epochs=2, lr_decay=1.0)
SIZES = (40, 37, 40, 31, 44)
TERMS: dict[str, LossTerm] = {"cross_entropy": CrossEntropy()}
SMALL = Transform(size=(16, 16), mean=(0.4,) * 3, std=(0.2,) * 3)
CROPPED = Transform(size=(12, 12), mean=(0.4,) * 3, std=(0.2,) * 3, padding=2, flip=True)


def network(device: str, precision: int | str = 32, layout: Any = "auto") -> Network:
    torch.manual_seed(0)
    module: nn.Module = ResNet(8, [1, 1])((3, 12, 12), 3)
    return Network(module, CROPPED, 3, placement_for(device, precision), layout)


def tasks(net: Network, sizes: Sequence[int] = SIZES, round: int = 0) -> list[ClientTask]:
    draw = torch.Generator().manual_seed(1)
    store = TensorImages(torch.randint(0, 256, (sum(sizes), *net.transform.shape), dtype=torch.uint8, generator=draw))
    labels = torch.randint(0, 3, (sum(sizes),), generator=draw)
    index = torch.arange(sum(sizes)).split(list(sizes))
    sent = Broadcast(round, 1, net.params())
    return [ClientTask(k, Samples(store, at, labels[at]), sent, ClientState(), 5) for k, at in enumerate(index)]


def job(**parts: Any) -> LocalTraining:
    own: dict[str, Any] = {"batch": Plain(), "terms": TERMS, "gradient": None, "exchanges": {}}
    return LocalTraining(parts.pop("training", TRAINING), **{**own, **parts})


def results(executor: Any, work: LocalTraining, given: Sequence[ClientTask]) -> list[ClientResult]:
    return [result for block in executor.map(work, given, as_list) for result in block.results]


def close(one: Sequence[ClientResult], other: Sequence[ClientResult], tolerance: float) -> None:
    for first, second in zip(one, other, strict=True):
        for name, tensor in (first.params or {}).items():
            torch.testing.assert_close(
                tensor.cpu().double(), (second.params or {})[name].cpu().double(), rtol=tolerance, atol=tolerance
            )


# --------------------------------------------------------------------------------------------------- as on the CPU


@pytest.mark.parametrize("stack", [0, 5])
def test_the_device_computes_what_the_cpu_computes(stack: int, gpu: str) -> None:
    """In float64, so that a wrong layout, crop or draw is not taken for rounding."""
    found = []
    for kind in ("cpu", gpu):
        net = network(kind, 64)
        executor: Any = Stacked(net, stack, 1.0, False) if stack else Sequential(net)
        found.append(results(executor, job(batch=Mixup(1.0, True, None)), tasks(net)))
        assert next(iter((found[-1][0].params or {}).values())).device.type == kind
    close(found[0], found[1], 1e-8)


@dataclass(frozen=True)
class Begun:
    """What an exchange computed before the visit."""

    values: Tensor  # [n]


@dataclass(frozen=True)
class Held(Begun):
    """What the client keeps."""


class Reads(LossTerm):
    """Cross-entropy times numbers of the samples, which parts have left on the CPU wherever a step has some."""

    def begin(self, network: Any, task: ClientTask, state: Any) -> Begun:
        return Begun(torch.linspace(0.5, 1.5, len(task.samples)))

    def __call__(self, step: Step, state: Begun) -> tuple[Tensor, Begun]:
        each = (state.values, step.visit.one(Begun).values, step.kept.one(Held).values)
        weights = torch.stack([values[step.positions] for values in each]).prod(0)
        return weights * nn.functional.cross_entropy(step.logits, step.labels, reduction="none"), state


@pytest.mark.parametrize("graphs", [None, False, "stacks", "branches"])
def test_what_parts_leave_on_the_cpu_is_there_in_a_step(graphs: Any, gpu: str) -> None:
    found = []
    for kind in ("cpu", gpu):
        net = network(kind, 64)
        given = [
            replace(
                task,
                visit=Payload(Begun(torch.linspace(1, 2, len(task.samples)))),
                state=ClientState(extras=Payload(Held(torch.linspace(2, 1, len(task.samples))))),
            )
            for task in tasks(net)
        ]
        executor: Any = Sequential(net) if graphs is None else Stacked(net, 5, 1.0, graphs if kind == gpu else False)
        found.append(results(executor, job(terms={"reads": Reads()}), given))
    close(found[0], found[1], 1e-8)


MODELS_OF_A_STACK = ("fedbeat",)
"""Ask ``network.at`` for outputs of models that lie as they did in a stack, which has last bits of its own."""


@pytest.mark.parametrize("graphs", [None, "stacks", "branches"], ids=["sequential", "stacked", "branches"])
@pytest.mark.parametrize("entry", others_slow(), ids=str)
def test_a_method_is_the_same_run(
    entry: Entry, graphs: Any, tmp_path: Path, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole runs in double precision, to the bit on the simulated GPU; branches compute as stacks of one client."""
    if "dropout" in entry.name:
        pytest.skip("dropout draws from the device's own generator")
    monkeypatch.setattr("flnl.engine.stacked.graph.LEAST", 2)  # three batches make an epoch here
    monkeypatch.setattr("flnl.engine.recorded_passes.RARE", 0)  # clients score their samples a few times
    monkeypatch.setattr(Stacked, "_fewest", 1)  # on the CPU, too
    words = [word for word in entry.words if not word.startswith(("executor", "precision"))]
    runs = []
    for kind in ("cpu", gpu):
        with assembled(words, tmp_path / kind, "precision=64", f"device={kind}") as parts:
            net = parts.evaluator.network
            stack = 1 if graphs == "branches" and kind == "cpu" else 5
            runs.append(parts.results(executor=Stacked(net, stack, 4.0, graphs) if graphs else Sequential(net)))
    for one, other in zip(*runs, strict=True):
        assert one.cohort == other.cohort
        assert one.state.counters == other.state.counters
        for name, tensor in one.state.server.params.items():
            there = other.state.server.params[name].cpu()
            if gpu == device.NAME and entry.name in MODELS_OF_A_STACK and graphs == "stacks":
                torch.testing.assert_close(there, tensor, rtol=1e-12, atol=1e-14)
            elif gpu == device.NAME:
                assert torch.equal(there, tensor), (one.state.round, name)
            else:
                torch.testing.assert_close(there, tensor, rtol=1e-6, atol=1e-8)


# ---------------------------------------------------------------------------------------------- inside of the step


@dataclass(frozen=True)
class Looking(LossTerm):
    """Notes what a step sees: type and layout of its logits and inputs."""

    seen: list[tuple[torch.dtype, torch.device, bool]]

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        last = step.inputs.is_contiguous(memory_format=torch.channels_last)
        self.seen.append((step.logits.dtype, step.inputs.device, last))
        return 0 * step.logits.float().sum(), state


@pytest.mark.parametrize("precision", [32, "tf32", "bf16"])
def test_float32_is_float32_unless_tf32_is_asked_for(precision: int | str, gpu: str) -> None:
    """Factors of 20 bits after the point; TF32 has 10."""
    placement_for(gpu, precision)
    try:
        allowed = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
        assert allowed == (precision == "tf32",) * 2
        factor = torch.full((512, 512), 1 + 2.0**-20, device=gpu)
        if precision != "tf32":
            assert torch.equal(factor @ torch.eye(512, device=gpu), factor)
    finally:
        placement_for(gpu, 32)


def test_in_bf16_weights_and_their_momenta_lie_channels_last(gpu: str) -> None:
    """So no step converts them; in float32 they do not, where that is faster."""
    for precision, last in (("bf16", True), (32, False)):
        net = network(gpu, precision)
        executor = Stacked(net, 5, 4.0, "branches", memory_format="auto")
        assert executor.settings()["memory_format"] == ("channels_last" if last else "contiguous")
        results(executor, job(), tasks(net))
        for branch in executor._graphs.kept:
            view = branch._view
            several = [p for p in view.live.values() if p.dim() == 4 and min(p.shape[1:3]) > 1]
            assert several
            assert {p.is_contiguous(memory_format=torch.channels_last) for p in several} == {last}
            assert [p.grad.stride() for p in several if p.grad is not None] == [p.stride() for p in several]
            assert {t.shape: t.stride() for t in view.kept.values()}.items() >= {
                t.shape: t.stride() for t in view.momenta["momentum"].values()
            }.items()


@pytest.mark.parametrize(
    ("precision", "dtype", "last"),
    [("bf16", torch.bfloat16, True), ("tf32", torch.float32, True), (32, torch.float32, False)],
)
def test_precision_and_layout_reach_the_step(precision: int | str, dtype: torch.dtype, last: bool, gpu: str) -> None:
    """Channels last is auto's layout in bf16 and TF32 alone; parameters stay in float32."""
    net, seen = network(gpu, precision), list[Any]()
    found = results(Sequential(net), job(terms={**TERMS, "looking": Looking(seen)}), tasks(net)[:1])
    assert {(kind, there.type, way) for kind, there, way in seen} == {(dtype, gpu, last)}
    assert all(p.dtype in (torch.float32, torch.int64) for p in (found[0].params or {}).values())


def test_images_lie_on_the_device_as_bytes(gpu: str) -> None:
    net, memory = network(gpu), torch.get_device_module(gpu).memory_allocated
    given = tasks(net)
    results(Sequential(net), job(), given)
    held = net.here(given[0].samples.images)
    assert isinstance(held, TensorImages)
    assert (held.pixels.dtype, held.pixels.device.type) == (torch.uint8, gpu)
    before = memory()
    assert net.here(given[0].samples.images) is held
    assert memory() == before


def test_memory_is_not_filled_before_it_is_written(gpu: str) -> None:
    """Torch does so in deterministic mode, for code that reads it all the same."""
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[attr-defined]  # no stub
    network(gpu)
    assert not torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


def test_all_tensors_of_a_model_are_examined_in_one_wait(gpu: str) -> None:
    model = {str(k): torch.ones(3, device=gpu) for k in range(5)}
    for broken in (False, True):
        if broken:
            model["3"] = model["3"].log().reciprocal()  # on a GPU, to assign a number would wait, too
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            with watching(torch.get_device_module(gpu), "warn"):
                assert all_finite(model) != broken
        assert len(waited(heard)) == 1


def test_evaluation_is_computed_on_the_device(gpu: str) -> None:
    net, devices = network(gpu), set[str]()
    net.module.register_forward_pre_hook(lambda _, given: devices.add(given[0].device.type))
    logits = net.logits(tasks(net)[0].samples)
    assert (devices, logits.device.type) == ({gpu}, "cpu")


@pytest.mark.parametrize("stack", [0, 5])
def test_an_epoch_waits_for_nothing(stack: int, gpu: str) -> None:
    """Torch's own watch: from the second visit on, when all is in place, no step synchronises."""
    net, library = network(gpu), torch.get_device_module(gpu)
    executor: Any = Stacked(net, stack, 1.0, False) if stack else Sequential(net)
    results(executor, job(), tasks(net))
    library.synchronize()
    original = net.autocast
    modes: list[int] = []

    def watched() -> Any:  # the forward pass of every step begins here
        modes.append(library.get_sync_debug_mode())
        watch(library, "error")
        return original()

    net.autocast = watched
    try:
        with pytest.raises(RuntimeError, match=HEARD):  # what comes after the last step waits for it
            results(executor, job(training=replace(TRAINING, epochs=2)), tasks(net)[:1] if not stack else tasks(net))
    finally:
        watch(library, "default")
    steps = len(modes)
    assert steps >= (16 if not stack else 12)  # of two epochs


# ---------------------------------------------------------------------------------------------------------- graphs


@pytest.mark.parametrize("precision", [32, "bf16"])
@pytest.mark.parametrize("sizes", [(40,) * 5, SIZES, (40,)], ids=["equal", "unequal", "one"])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"batch": Mixup(1.0, True, None)},
        {"terms": {**TERMS, "near": Proximal(0.1, "squared_half")}},
        {"training": replace(TRAINING, lr=0.01, momentum=0.0, clip=0.5, optimizer=AdamW(0.9, 0.99, 1e-8))},
    ],
)
def test_graphs_give_the_bits_of_the_steps_that_they_record(
    precision: int | str, sizes: tuple[int, ...], parts: dict[str, Any], gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over three rounds, the first of which records and the others replay."""
    found, replays = [], [0]
    kind = torch.get_device_module(gpu).CUDAGraph
    replay = kind.replay

    def counted(graph: Any) -> None:
        replays[0] += 1
        replay(graph)

    monkeypatch.setattr(kind, "replay", counted)
    for least in (1000, 4):
        monkeypatch.setattr("flnl.engine.stacked.graph.LEAST", least)
        net = network(gpu, precision)
        executor, own = Stacked(net, 5, 1.0, True), []
        for number in range(3):
            own.append([r.params for r in results(executor, job(**parts), tasks(net, sizes, number))])
            net.load(own[-1][0] or {})
        found.append(own)
    assert difference(found[0], found[1]) is None
    assert replays[0] > 20


def resnet18(device: str, precision: int | str) -> Network:
    torch.manual_seed(0)
    return Network(ResNet(16, [2, 2, 2, 2])((3, 16, 16), 3), SMALL, 3, placement_for(device, precision))


def lenet5(device: str, precision: int | str) -> Network:
    torch.manual_seed(0)
    return Network(
        LeNet5(batch_norm=False)((3, 32, 32), 3),
        Transform((32, 32), (0.4,) * 3, (0.2,) * 3),
        3,
        placement_for(device, precision),
    )


def replays(library: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts graphs that are made, and replays."""
    kind, counted = library.CUDAGraph, [0, 0]
    replay = kind.replay

    def replayed(graph: Any) -> None:
        counted[1] += 1
        replay(graph)

    monkeypatch.setattr(kind, "replay", replayed)
    return counted


@pytest.mark.parametrize("precision", [32, "bf16"])
@pytest.mark.parametrize("made", [network, resnet18, lenet5])
@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"batch": Mixup(1.0, True, None), "terms": {**TERMS, "near": Proximal(0.1, "squared_half")}},
        {"training": replace(TRAINING, lr=0.01, momentum=0.0, clip=0.5, optimizer=AdamW(0.9, 0.99, 1e-8))},
    ],
    ids=["plain", "mixup and a term that sees it", "clipped AdamW"],
)
def test_branches_give_the_bits_of_graphs_of_one_client(
    precision: int | str, made: Any, parts: dict[str, Any], gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over three rounds of unequal clients, whose branches end one after another; losses as well as parameters.

    On a real GPU the branches run at the same time: memory that two of them shared would show here.
    """
    counted, found = replays(torch.get_device_module(gpu), monkeypatch), []
    monkeypatch.setattr("flnl.engine.stacked.graph.IDLE", 2)  # both with idle branches and without
    ways: tuple[tuple[int, Any], ...] = ((1, True), (5, "branches"))
    for stack, graphs in ways:
        net, own = made(gpu, precision), list[Any]()
        executor = Stacked(net, stack, 4.0, graphs)
        for number in range(3):
            own += [(r.params, r.loss) for r in results(executor, job(**parts), tasks(net, round=number))]
            net.load(own[-1][0])
        assert not executor.refusals
        found.append(own)
    assert difference(found[0], found[1]) is None
    assert counted[1] > 40


def test_a_client_is_the_same_whoever_is_beside_it(gpu: str) -> None:
    found = []
    for chosen in ((0, 1, 2, 3, 4), (2,), (4, 2)):
        net = network(gpu)
        given = tasks(net)
        every = results(Stacked(net, 5, 4.0, "branches"), job(), [given[k] for k in chosen])
        found.append(next(result.params for result in every if result.client == 2))
    assert difference(found[0], found[1]) is None
    assert difference(found[0], found[2]) is None


def test_a_client_that_cannot_be_recorded_runs_beside_the_others(gpu: str, caplog: pytest.LogCaptureFixture) -> None:
    @dataclass(frozen=True)
    class Copies(LossTerm):
        """Copies from the host, of client 2 alone."""

        def begin(self, network: Any, task: ClientTask, state: Any) -> Any:
            return task.client == 2

        def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
            share = torch.ones(3).to(step.logits.device).mean() if state else 1.0
            return share * step.logits.square().mean(), state

    net = network(gpu)
    work = job(terms={**TERMS, "copies": Copies()})
    many = results(Stacked(net, 5, 4.0, "branches"), work, tasks(net))
    assert "without a CUDA graph" in caplog.text
    close(many, results(Stacked(net, 1, 4.0, True), work, tasks(net)), 0.0)


def test_a_recording_that_fails_in_a_branch_leaves_the_device_usable(gpu: str) -> None:
    """The branches join before the recording ends, and the next one is made."""
    device = torch.device(gpu, 0)
    numbers, record = torch.arange(4.0, device=device), GraphRecorder(device)

    def doubled() -> Tensor:
        return numbers * 2

    def reads() -> Tensor:
        return numbers * numbers.sum().item()

    for step in (doubled, reads):
        for branch in range(3):
            record.warm(step, branch)
    with pytest.raises(RuntimeError, match="captur"):
        record().capture([(0, doubled), (1, reads), (2, doubled)])
    graph = record()
    together = graph.capture([(0, doubled), (2, doubled)])
    graph.replay()
    assert together.tolist() == [0.0, 2.0, 4.0, 6.0] * 2


@pytest.mark.parametrize("optimizer", [SGD(), Adam(0.9, 0.99, 1e-8)])
@pytest.mark.parametrize("precision", [32, 64])
def test_graphs_follow_a_learning_rate_that_changes(
    precision: int, optimizer: Optimizer, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 one graph serves all rounds; in float64, whose kernel takes the rate as a number, each records."""
    kind, made = torch.get_device_module(gpu).CUDAGraph, [0]
    create = kind.__init__

    def counted(graph: Any, *args: Any) -> None:
        made[0] += 1
        create(graph, *args)

    monkeypatch.setattr(kind, "__init__", counted)
    runs = []
    for least in (1000, 4):
        monkeypatch.setattr("flnl.engine.stacked.graph.LEAST", least)
        net = network(gpu, precision)
        executor, own = Stacked(net, 5, 1.0, True), []
        for number, rate in enumerate((0.05, 0.02, 0.01)):
            momentum = TRAINING.momentum if isinstance(optimizer, SGD) else 0.0
            work = job(training=replace(TRAINING, lr=rate, momentum=momentum, optimizer=optimizer))
            own.append([r.params for r in results(executor, work, tasks(net, (40,) * 5, number))])
        runs.append(own)
    assert difference(runs[0], runs[1]) is None
    assert difference(runs[1][1], runs[1][2]) is not None
    assert made[0] == (1 if precision == 32 else 3)


def test_a_step_that_cannot_be_recorded_runs_as_it_is(gpu: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is seen before anything is recorded; the device works on."""

    @dataclass(frozen=True)
    class Copies(LossTerm):
        def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
            return step.logits.square().mean() * torch.ones(3).to(step.logits.device).mean(), state

    net = network(gpu)
    work = job(terms={**TERMS, "copies": Copies()})
    many = results(Stacked(net, 5, 1.0, True), work, tasks(net))
    assert "without a CUDA graph" in caplog.text
    close(many, results(Stacked(net, 5, 1.0, False), work, tasks(net)), 0.0)


def test_a_recording_follows_others_that_are_gone_or_failed(gpu: str) -> None:
    """Torch ends a memory pool with its last graph; after a failure it leaves the side stream current."""
    library, device = torch.get_device_module(gpu), torch.device(gpu, 0)
    numbers, record = torch.arange(4.0, device=device), GraphRecorder(device)
    before = library.current_stream()

    def doubled() -> Tensor:
        return numbers * 2

    def reads() -> Tensor:
        return numbers * numbers.sum().item()

    graphs = [record()]
    record.warm(doubled)
    first = graphs[0].capture([(0, doubled)])  # keeps memory of the pool in use when the graph is gone
    graphs.clear()
    for step in (doubled, reads, doubled):
        graphs.append(record())
        record.warm(step)
        if step is reads:
            with pytest.raises(RuntimeError, match="captur"):
                graphs[-1].capture([(0, step)])
        else:
            last = graphs[-1].capture([(0, step)])
            graphs[-1].replay()
            assert last.tolist() == [0.0, 2.0, 4.0, 6.0]
        assert library.current_stream() == before
    assert first.shape == (4,)


# -------------------------------------------------------------------------------------------------------- executors


def test_a_worker_on_the_gpu_is_not_forked(gpu: str) -> None:
    net = network(gpu)
    with pytest.raises(UserError, match=f"executor.start=fork, but device={gpu}.*executor.start=spawn"):
        Processes(net, Sequential, 2, "fork")
    assert Processes(net, Sequential, 2, "auto").settings()["start"] == "spawn"


def test_workers_fit_the_memory_of_the_gpu(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, library = network(gpu), torch.get_device_module(gpu)
    monkeypatch.setattr(processes, "usable_cores", lambda: 16)
    for free, count in ((7 * 2**30, 3), (2**20, 1), (80 * 2**30, 16)):
        monkeypatch.setattr(library, "mem_get_info", lambda _, free=free: (free, 80 * 2**30))
        assert Processes(net, Sequential, None, "auto").count == count
        assert Processes(net, Sequential, 5, "auto").count == 5


@pytest.mark.parametrize(("total", "limit"), [(80, 16.0), (8, 6.0)])
def test_a_stack_takes_no_more_than_three_quarters_of_the_gpu(
    total: int,
    limit: float,
    tmp_path: Path,
    gpu: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The run says so, unless the limit is set."""
    library = torch.get_device_module(gpu)
    monkeypatch.setattr(library, "mem_get_info", lambda _: (2**30, total * 2**30))
    said = "executor.memory=6 GiB, 75 % of what "
    words = [word for word in BY_NAME["fedavg"].words if not word.startswith("executor")]
    for more, memory in (
        ([], limit),
        (["executor=stacked"], limit),
        (["executor=stacked", "executor.memory=30"], 30.0),
    ):
        with assembled(words, tmp_path / str(len(more)), f"device={gpu}", *more) as parts:
            assert parts.executor.settings()["memory"] == memory
        assert (said in capsys.readouterr().err) == (memory == 6.0), more


@pytest.mark.slow
def test_processes_on_the_gpu_give_the_bits_of_one_process(
    gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are started as new processes, which have the device, too."""
    if gpu == device.NAME:
        monkeypatch.setenv("FLNL_SIMULATED_GPU", "1")
        monkeypatch.syspath_prepend(str(device.SITE))
    words = [word for word in BY_NAME["feddyn"].words if not word.startswith("executor=")]
    one = run(words, tmp_path / "one", f"device={gpu}", "executor=sequential")
    two = run(words, tmp_path / "two", f"device={gpu}", "executor=processes", "executor.workers=2")
    assert difference(one.state, two.state) is None


def test_no_such_device_is_refused() -> None:
    with pytest.raises(UserError, match="device=xpu, but torch finds no such device here: use device=cpu"):
        placement_for("xpu", 32)


# ------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("name", ["fedavg", "fedcorr", "flr"])
def test_a_run_repeats_its_bits(name: str, tmp_path: Path, gpu: str) -> None:
    words = [w for w in BY_NAME[name].words if not w.startswith("executor=")]
    one, other = (run(words, tmp_path / folder, f"device={gpu}") for folder in ("one", "other"))
    assert difference(one.state, other.state) is None
    assert one.lines == other.lines
    assert one.record["peak_gpu_memory"] > 0
    assert torch.get_device_module(gpu).get_device_name(0) in one.record["machine"]


@pytest.mark.parametrize("name", ["fedavg", "fedcorr", "flr"])
def test_a_run_goes_on_to_the_bit(name: str, tmp_path: Path, gpu: str) -> None:
    """Graphs are recorded anew, and steps come out as they would have."""
    words = [w for w in BY_NAME[name].words if not w.startswith("executor=")]
    whole = run(words, tmp_path / "whole", f"device={gpu}")
    run(words, tmp_path / "cut", f"device={gpu}", "max_rounds=2")
    again = run(words, tmp_path / "cut", f"device={gpu}", f"resume={tmp_path / 'cut'}")
    assert difference(again.state, whole.state) is None


@pytest.mark.parametrize("name", ["flr", "joint_opt", "fedelc"])
def test_a_run_of_the_cpu_goes_on_on_the_gpu(name: str, tmp_path: Path, gpu: str) -> None:
    """What clients have kept of terms lies on the CPU, and their labels are on the GPU."""
    words = [w for w in BY_NAME[name].words if not w.startswith("executor=")]
    run(words, tmp_path / "run", "device=cpu", "max_rounds=3")
    again = run(words, tmp_path / "run", f"device={gpu}", f"resume={tmp_path / 'run'}")
    assert again.record["status"] == "finished"


def test_what_clients_keep_in_files_is_read_without_the_gpu(tmp_path: Path, gpu: str) -> None:
    words = [w for w in BY_NAME["fedavg"].words if not w.startswith("executor=")]
    words += ["train.keep_momentum=true", ON_DISK, "rounds=4"]
    stopped = run(words, tmp_path / "run", f"device={gpu}", "max_rounds=2")
    for name in ("cpu", gpu):
        clients = stopped.state.clients.on(client_store(tmp_path / "run", torch.device(name)), 0)
        kept = [momentum for client in clients if (momentum := clients[client].momentum) is not None]
        assert {p.device.type for momentum in kept for p in momentum.values()} == {torch.device(name).type}
    assert run(words, tmp_path / "run", "device=cpu", f"resume={tmp_path / 'run'}").record["status"] == "finished"
