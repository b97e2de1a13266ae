"""Time of local training on a GPU: FedCorr's setting on images in the shape of CIFAR-10, all ways in turn.

``python -m bench.gpu [--repeats 5] [--ways A;B] [--device cpu --tiny]``

All ways run in one process and take turns, on images in device memory. A round is the local training of a cohort,
without evaluation, aggregation and logging.
"""

from __future__ import annotations

import argparse
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bench.hand import local_sgd
from bench.machine import machine
from bench.report import conditions, table, time_of
from bench.ways import ROOT
from bench.workloads import SEED, Workload, model, normalise, orders
from flnl.config.schema import Training
from flnl.core.execution import as_list
from flnl.core.messages import Broadcast, ClientState, ClientTask, Samples
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Layout, Network
from flnl.engine.placement import placement_for
from flnl.parts.batches import Plain
from flnl.parts.losses.cross_entropy import CrossEntropy

FEDCORR = Workload("gpu", "ResNet-18, 3x32x32", "resnet18", "pixels", cohort=10, turn=1, clients=10, samples=500)
TINY = replace(FEDCORR, title="LeNet-5, 3x32x32, tiny", model="lenet5", cohort=2, clients=2, samples=40, epochs=1)
ALONE, TOGETHER = 500, 9500
"""Trainings of FedCorr on CIFAR-10 (Table 7): 5 x 100 one at a time, then 500 + 450 rounds of 10."""
MEMORY = 64.0
"""Memory limit of a stack in GiB, large enough for every size."""


@dataclass(frozen=True)
class Way:
    """One way to train a cohort."""

    kind: str  # hand, sequential, stack or graphs
    precision: str  # fp32, tf32 (fp32 with torch's own default of TF32 in convolutions) or bf16
    layout: Layout
    stack: int | None = None  # clients per stack; None: no stack

    @property
    def graphs(self) -> bool:
        """Whether its steps are CUDA graphs."""
        return self.kind == "graphs"

    @property
    def alone(self) -> str:
        """The way that trains single clients with the same settings."""
        if self.stack is None:
            return self.title
        return (replace(self, stack=1) if self.graphs else Way("sequential", self.precision, self.layout)).title

    @property
    def title(self) -> str:
        """A unique name."""
        stack = "" if self.stack is None else f" of {self.stack}"
        return f"{self.kind}{stack}, {self.precision}, {self.layout}"


def ways(clients: int) -> dict[str, Way]:
    """All ways by name; the first is the baseline."""
    floor = [Way("hand", precision, layout) for precision, layout in PLAIN]
    single = [Way("sequential", precision, layout) for precision, layout in PLAIN if precision != "tf32"]
    stacks = sorted({size for size in (1, 2, 5, 10) if size <= clients})
    stacked = [Way("stack", p, "contiguous", k) for p in ("fp32", "bf16") for k in stacks if k > 1]
    graphed = [Way("graphs", p, "contiguous", k) for p in ("fp32", "bf16") for k in stacks]
    return {way.title: way for way in (*floor, *single, *stacked, *graphed)}


PLAIN: tuple[tuple[str, Layout], ...] = (
    ("fp32", "contiguous"),
    ("tf32", "contiguous"),
    ("fp32", "channels_last"),
    ("bf16", "contiguous"),
    ("bf16", "channels_last"),
)


@contextmanager
def allowed(way: Way, device: torch.device) -> Iterator[None]:
    """Allow TF32 and nondeterministic kernels while a way with torch's defaults runs."""
    if device.type != "cuda":
        yield
        return
    default = way.precision == "tf32"
    torch.use_deterministic_algorithms(not default, warn_only=True)
    torch.backends.cudnn.allow_tf32 = default
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.allow_tf32 = False


Round = Callable[[int], float]
"""Trains the cohort in round ``n`` from the initial model and returns the mean loss, or NaN if it is not computed."""


def by_hand(way: Way, workload: Workload, images: Tensor, labels: Tensor, device: torch.device) -> Round:
    """The hand-written loop, with inputs normalised before the clock starts."""
    memory_format = torch.channels_last if way.layout == "channels_last" else torch.contiguous_format
    network = model(workload).to(device).to(memory_format=memory_format)  # type: ignore[call-overload]
    initial = {name: t.clone() for name, t in network.state_dict().items()}
    inputs = normalise(images.to(device)).contiguous(memory_format=memory_format).split(workload.samples)
    held = labels.to(device).split(workload.samples)

    def round(number: int) -> float:
        for client in range(workload.cohort):
            network.load_state_dict(initial)
            epochs = [order.to(device) for order in orders(workload, number, client)]
            with torch.autocast(device.type, torch.bfloat16) if way.precision == "bf16" else nullcontext():
                local_sgd(network, workload, inputs[client], held[client], epochs)
        return float("nan")

    return round


def ours(way: Way, workload: Workload, images: Tensor, labels: Tensor, device: torch.device) -> Round:
    """Our executors, with the same inputs as in a run."""
    fabric = placement_for(device.type, "bf16" if way.precision == "bf16" else 32)
    transform = Transform(size=workload.shape[1:], mean=(0.5,) * 3, std=(0.5,) * 3)
    network = Network(model(workload), transform, 10, fabric, way.layout)
    training = Training(workload.lr, workload.momentum, 0.0, workload.batch, workload.epochs, lr_decay=1.0)
    job = LocalTraining(training, Plain(), {"cross_entropy": CrossEntropy()}, None, {})
    executor: Any = Sequential(network)
    if way.stack is not None:
        executor = Stacked(network, way.stack, MEMORY, way.graphs)
    store, params = TensorImages(images), network.params()
    index = torch.arange(len(images)).split(workload.samples)

    def round(number: int) -> float:
        sent = Broadcast(number, 1, params)
        tasks = [
            ClientTask(k, Samples(store, index[k], labels[index[k]]), sent, ClientState(), SEED)
            for k in range(workload.cohort)
        ]
        losses = [result.loss for block in executor.map(job, tasks, as_list) for result in block.results]
        return statistics.fmean(losses)

    return round


@dataclass(frozen=True)
class Measured:
    """What was measured of one way."""

    first: float  # seconds of the first round, in which libraries initialise and steps are recorded
    seconds: tuple[float, ...] = ()  # of every repeat
    loss: float = math.nan  # the mean loss of the last round

    @property
    def median(self) -> float:
        """Of the repeats; NaN before the first."""
        return statistics.median(self.seconds) if self.seconds else math.nan


def measure(
    chosen: dict[str, Way], workload: Workload, device: torch.device, repeats: int, tell: Callable[[str], object]
) -> Iterator[dict[str, Measured]]:
    """What is known so far, by way: after the first rounds, and after each turn of all ways."""
    draw = torch.Generator().manual_seed(0)
    shape = (workload.clients * workload.samples, *workload.shape)
    images = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
    labels = torch.randint(0, 10, shape[:1], generator=draw)
    rounds: dict[str, Round] = {}
    results: dict[str, Measured] = {}
    for name, way in chosen.items():
        with allowed(way, device):
            rounds[name] = (by_hand if way.kind == "hand" else ours)(way, workload, images, labels, device)
            seconds, loss = _timed(rounds[name], 0, device)
        results[name] = Measured(seconds, loss=loss)
        tell(f"{name}: {time_of(seconds)} for the first round")
    yield dict(results)
    for number in range(1, repeats + 1):
        for name, way in chosen.items():
            with allowed(way, device):
                seconds, loss = _timed(rounds[name], number, device)
            results[name] = replace(results[name], seconds=(*results[name].seconds, seconds), loss=loss)
        tell(f"{number} of {repeats}")
        yield dict(results)


def _timed(round: Round, number: int, device: torch.device) -> tuple[float, float]:
    began = time.perf_counter()
    loss = round(number)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began, loss


READING = """\
A round is the local training of {cohort} clients of {samples} samples on batches of {batch} for {epochs} epochs, with
{steps} steps in all, from images that lie on the device as bytes; no evaluation. *hand* is the plain loop, *sequential*
our loop of one client after another, *stack of K* one network of K clients, *graphs of K* its steps as CUDA graphs.
Stacks lay out their weights in their own way, so there is no second layout of them. Ratios are repeat by repeat to the
first line; tf32 is fp32 with torch's defaults (TF32 in convolutions, kernels that need not repeat their bits), which no
run of ours has. *FedCorr* is its 10,000 trainings on CIFAR-10: 500 one at a time, 9,500 ten at a time. Several graphs
at once on several streams are not measured: one thread drives one stack here.
"""
HEAD = (
    "way",
    "first round",
    "a round, median",
    "rounds/s",
    "times as fast as hand",
    "FedCorr, hours",
    "last mean loss",
)


def markdown(results: dict[str, Measured], chosen: dict[str, Way], workload: Workload, about: str) -> str:
    """The report; a dash for what was not measured."""
    floor = next(iter(results.values())).seconds
    rows = []
    for name, one in results.items():
        ratios = [slow / fast for slow, fast in zip(floor, one.seconds, strict=True)]
        alone = results[chosen[name].alone].median if chosen[name].alone in results else math.nan
        hours = (ALONE * alone + TOGETHER * one.median) / workload.cohort / 3600
        cells = time_of(one.first), time_of(one.median), f"{1 / one.median:.3g}"
        ratio = statistics.median(ratios) if ratios else math.nan
        shown = (name, *cells, f"{ratio:.2f}", f"{hours:.2f}", f"{one.loss:.4f}")
        rows.append(tuple("-" if cell.startswith("nan") else cell for cell in shown))
    sizes = {name: getattr(workload, name) for name in ("cohort", "samples", "batch", "epochs", "steps")}
    return "\n\n".join([f"# {workload.title}", about, READING.format(**sizes).strip(), table(HEAD, rows)]) + "\n"


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.gpu", description="How fast local training is on a GPU.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and little data, to try this command out")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--ways", metavar="A;B", help="beginnings of names, as in 'hand;graphs of 10'; the first is kept"
    )
    parser.add_argument("--name", help="of the file in bench/results (gpu, or part where not everything is measured)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Measure, and write the report."""
    options = _arguments(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("bench.gpu: torch finds no GPU here; try the command out with --device cpu --tiny", file=sys.stderr)
        sys.exit(2)
    device, workload = torch.device(options.device), TINY if options.tiny else FEDCORR
    began = time.monotonic()

    def tell(line: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {line}", file=sys.stderr, flush=True)

    here, available = machine(), ways(workload.cohort)
    starts = tuple(options.ways.split(";")) if options.ways else ("",)
    first = next(iter(available))
    chosen = {name: way for name, way in available.items() if name == first or name.startswith(starts)}
    if device.type == "cpu":
        chosen = {name: way for name, way in chosen.items() if not way.graphs}
        tell("graphs are left out: they are a GPU's")
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else "none: the CPU stands in"
    command = shlex.join(["python", "-m", "bench.gpu", *arguments])
    whole = options.ways is None and not options.tiny and device.type == "cuda"
    name = options.name or ("gpu" if whole else "part")
    text = ""
    for results in measure(chosen, workload, device, options.repeats, tell):
        about = conditions(here, command, time.monotonic() - began, ("GPU", gpu))
        text = markdown(results, chosen, workload, about)
        (ROOT / "bench/results" / f"{name}.md").write_text(text)  # each time, so that a stop loses one turn
    print(text)


if __name__ == "__main__":
    main()
