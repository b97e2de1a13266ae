"""Images a second of local training on a GPU: FedCorr's setting on images in the shape of CIFAR-10, way after way.

``python -m bench.gpu [--setting lenet5] [--seconds 5] [--minutes 4.5] [--ways A;B] [--out FILE] [--profile]``
(``--device cpu --tiny`` tries it out)

All ways run in one process, on images in device memory. Only local training is measured, without evaluation,
aggregation and logging. The report is written anew after each way; a way that fails is reported, and the others go on.
"""

from __future__ import annotations

import argparse
import gc
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.hand import local_sgd
from bench.machine import machine
from bench.report import conditions, table, time_of
from bench.ways import ROOT
from bench.workloads import SEED, WORKLOADS, Workload, model, normalise, orders
from flnl.console.templates import template
from flnl.core.execution import as_list
from flnl.core.messages import Broadcast, ClientState, ClientTask, Samples
from flnl.core.training import Training
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Layout, Network
from flnl.engine.placement import placement_for
from flnl.parts.batches import Plain
from flnl.parts.losses.cross_entropy import CrossEntropy

FEDCORR = Workload("gpu", "ResNet-18, 3x32x32", "resnet18", "pixels", cohort=10, turn=1, clients=20, samples=500)
SETTINGS = {
    "fedcorr": FEDCORR,
    "lenet5": replace(FEDCORR, title="LeNet-5, 3x32x32", model="lenet5"),
    "cnn": replace(WORKLOADS["cnn"], name="gpu"),
    "pfl": replace(WORKLOADS["public"], name="gpu"),
    "blazefl": replace(
        FEDCORR,
        title="ResNet-18 with ImageNet's stem, 3x32x32, batches of 50",
        model="resnet18_imagenet",
        clients=100,
        batch=50,
    ),
}
"""FedCorr's setting, with LeNet-5 too, and those in which pfl-research and BlazeFL were measured by their authors."""
TINY = replace(FEDCORR, title="LeNet-5, 3x32x32, tiny", model="lenet5", cohort=2, clients=2, samples=40, epochs=1)
GOAL = 27_800
"""Images a second with which FedCorr's 10,000 trainings on CIFAR-10 (5 epochs of 500 images) take 15 minutes."""
MEMORY = 64.0
"""Memory limit of a stack in GiB, large enough for every size."""
FIRST = 10
"""Batches of each client in the first two rounds, of which one starts libraries and records steps; the third has twice
as many."""
PROFILED = 20
"""Steps of each client that are profiled."""
KERNELS = 25
"""Kernels in the profile."""

KINDS = ("hand", "sequential", "graphs", "stack", "branches")


@dataclass(frozen=True)
class Way:
    """One way to train a cohort."""

    kind: str  # of ``KINDS``
    precision: str  # default (torch's own: TF32 in convolutions, any kernels), fp32, tf32 or bf16
    layout: Layout
    stack: int | None = None  # clients at once; None: one after another
    compile: bool = False

    @property
    def title(self) -> str:
        """A unique name."""
        stack = "" if self.stack is None else f" of {self.stack}"
        return f"{self.kind}{stack}, {self.precision}, {self.layout}{', compiled' * self.compile}"

    @property
    def order(self) -> tuple[int, int, str, str, bool]:
        """Its place in the report."""
        return KINDS.index(self.kind), self.stack or 0, self.precision, self.layout, self.compile


def ways(cohort: int, device: str = "cuda") -> dict[str, Way]:
    """All ways of a device by name, the most telling first; the first is the baseline."""
    chosen = _of_a_cpu(cohort) if device == "cpu" else _of_a_gpu(cohort)
    return {way.title: way for way in chosen}


def _of_a_cpu(cohort: int) -> list[Way]:
    """In the layout that runs take: neither graphs nor branches, which are a GPU's."""
    return [
        Way("hand", "fp32", "contiguous"),
        Way("sequential", "fp32", "channels_last"),
        *(Way("stack", "fp32", "channels_last", k) for k in sorted({3, 5, cohort, 2 * cohort})),
        *(Way(kind, "bf16", "channels_last") for kind in ("hand", "sequential")),
        Way("stack", "bf16", "channels_last", cohort),
    ]


def _of_a_gpu(cohort: int) -> list[Way]:
    return [
        Way("hand", "fp32", "contiguous"),
        *(Way("branches", p, layout, cohort) for p, layout in LAYOUTS),
        *(Way("branches", p, layout, cohort, True) for p, layout in LAYOUTS),
        *(Way("branches", p, "contiguous", cohort) for p in ("bf16", "tf32")),
        *(Way("graphs", p, layout, 1) for p, layout in LAYOUTS),
        Way("graphs", "bf16", "channels_last", 1, True),
        Way("stack", "bf16", "channels_last", cohort),
        Way("stack", "fp32", "contiguous", cohort),
        *(Way("branches", p, layout, k) for k in (cohort // 2, 2 * cohort) for p, layout in LAYOUTS),
        Way("branches", "bf16", "channels_last", 2 * cohort, True),
        Way("hand", "bf16", "channels_last"),
        Way("hand", "bf16", "contiguous"),
        Way("hand", "tf32", "contiguous"),
        Way("hand", "default", "contiguous"),
        Way("sequential", "bf16", "channels_last"),
        Way("sequential", "fp32", "contiguous"),
    ]


LAYOUTS: tuple[tuple[str, Layout], ...] = (("bf16", "channels_last"), ("fp32", "contiguous"), ("tf32", "channels_last"))
"""The layout that a run on a GPU takes for each precision."""

Round = Callable[[int, Workload], float]
"""Trains the workload's cohort in round ``n`` from the initial model; the mean loss, or NaN if it is not computed."""


def by_hand(way: Way, workload: Workload, images: Tensor, labels: Tensor, device: torch.device) -> Round:
    """The hand-written loop, with inputs normalised before the clock starts."""
    placement_for(device.type, PRECISION.get(way.precision, 32))
    if way.precision == "default":
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.allow_tf32 = True
    memory_format = torch.channels_last if way.layout == "channels_last" else torch.contiguous_format
    network = model(workload).to(device).to(memory_format=memory_format)  # type: ignore[call-overload]
    initial = {name: t.clone() for name, t in network.state_dict().items()}
    inputs = normalise(images.to(device)).contiguous(memory_format=memory_format).split(workload.samples)
    held = labels.to(device).split(workload.samples)

    def round(number: int, workload: Workload) -> float:
        for client in range(workload.cohort):
            network.load_state_dict(initial)
            epochs = [order.to(device) for order in orders(workload, number, client)]
            with torch.autocast(device.type, torch.bfloat16) if way.precision == "bf16" else nullcontext():
                local_sgd(network, workload, inputs[client], held[client], epochs)
        return float("nan")

    return round


def ours(way: Way, workload: Workload, images: Tensor, labels: Tensor, device: torch.device) -> Round:
    """Our executors, with the same inputs as in a run."""
    placement = placement_for(device.type, PRECISION[way.precision])
    channels, height, width = workload.shape
    transform = Transform(size=(height, width), mean=(0.5,) * channels, std=(0.5,) * channels)
    network = Network(model(workload), transform, 10, placement, way.layout)
    training = Training(workload.lr, workload.momentum, 0.0, workload.batch, workload.epochs, lr_decay=1.0)
    executor: Any = Sequential(network)
    if way.stack is not None:
        graphs: Any = {"branches": "branches", "graphs": True, "stack": device.type != "cpu"}[way.kind]
        executor = Stacked(network, way.stack, MEMORY, graphs, memory_format=way.layout, compile=way.compile)
    store, params = TensorImages(images), network.params()
    index = torch.arange(len(images)).split(workload.samples)

    def round(number: int, workload: Workload) -> float:
        job = LocalTraining(
            replace(training, epochs=workload.epochs), Plain(), {"cross_entropy": CrossEntropy()}, None, {}
        )
        sent = Broadcast(number, 1, params)
        own = [index[k][: workload.samples] for k in range(workload.cohort)]
        tasks = [ClientTask(k, Samples(store, at, labels[at]), sent, ClientState(), SEED) for k, at in enumerate(own)]
        losses = [result.loss for block in executor.map(job, tasks, as_list) for result in block.results]
        if way.stack is not None and (refused := executor.refusals):
            raise RuntimeError(f"steps could not be recorded: {'; '.join(refused)}")
        return statistics.fmean(losses)

    return round


PRECISION: dict[str, int | str] = {"fp32": 32, "tf32": "tf32", "bf16": "bf16"}


@dataclass(frozen=True)
class Measured:
    """What was measured of one way."""

    recording: float = float("nan")  # seconds that the first round took more than the second
    rates: tuple[float, ...] = ()  # images a second of every timed round
    epochs: int = 0  # of the timed rounds
    memory: float = float("nan")  # peak, GiB
    loss: float = float("nan")  # the mean loss of the last round
    failure: str = ""

    @property
    def rate(self) -> float:
        """The median; NaN if there is none."""
        return statistics.median(self.rates) if self.rates else float("nan")


@dataclass(frozen=True)
class Bench:
    """Where and on what ways are measured."""

    workload: Workload
    device: torch.device
    seconds: float

    def prepared(self, way: Way) -> tuple[Round, Workload]:
        """The way, ready to train; and its cohort, of the workload's clients or of as many as it trains at once."""
        workload = replace(self.workload, cohort=max(self.workload.cohort, way.stack or 0))
        draw = torch.Generator().manual_seed(0)
        shape = (max(workload.clients, workload.cohort) * workload.samples, *workload.shape)
        images = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
        labels = torch.randint(0, 10, shape[:1], generator=draw)
        make = by_hand if way.kind == "hand" else ours
        return make(way, workload, images, labels, self.device), workload

    def measured(self, way: Way) -> Measured:
        """Three short rounds, then rounds for the given time: of all epochs if one fits into it, else of one epoch.

        The third is twice as long as the second: what a round takes besides its steps is not counted for each of them.
        """
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        round, workload = self.prepared(way)
        short = replace(workload, samples=min(workload.samples, FIRST * workload.batch), epochs=1)
        longer = replace(workload, samples=min(workload.samples, 2 * short.samples), epochs=1)
        first, second, third = (self._timed(round, n, of)[0] for n, of in enumerate((short, short, longer)))
        each = max(third - second, 0.0) / max(1, longer.samples - short.samples)
        whole = second + each * (workload.samples * workload.epochs - short.samples) <= self.seconds
        timed = replace(workload, epochs=workload.epochs if whole else 1)
        count = timed.cohort * timed.samples * timed.epochs
        rates, loss, began, number = list[float](), float("nan"), time.perf_counter(), 3
        while not rates or time.perf_counter() - began < self.seconds:
            took, loss = self._timed(round, number, timed)
            rates.append(count / took)
            number += 1
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.device.type == "cuda" else float("nan")
        return Measured(max(0.0, first - second), tuple(rates), timed.epochs, peak, loss)

    def _timed(self, round: Round, number: int, workload: Workload) -> tuple[float, float]:
        began = time.perf_counter()
        loss = round(number, workload)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began, loss

    def profile(self, way: Way) -> str:
        """A table of the kernels that take the most time, of a round of ``PROFILED`` steps a client."""
        from torch.profiler import ProfilerActivity, profile

        round, workload = self.prepared(way)
        short = replace(workload, samples=min(workload.samples, PROFILED * workload.batch), epochs=1)
        self._timed(round, 0, short)
        cuda = self.device.type == "cuda"
        with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
            wall, _ = self._timed(round, 1, short)
        steps = short.cohort * -(-short.samples // short.batch)

        def time_of_row(row: Any) -> float:
            return float(row.device_time_total if cuda else row.self_cpu_time_total)

        rows = sorted(found.key_averages(), key=time_of_row, reverse=True)
        head = ("kernel", "us a client-step", "calls a client-step")
        cells = [
            (row.key[:90].replace("|", " "), f"{time_of_row(row) / steps:.1f}", f"{row.count / steps:.1f}")
            for row in rows[:KERNELS]
        ]
        total, calls = sum(map(time_of_row, rows)) / steps, sum(row.count for row in rows) / steps
        about = (
            f"{PROFILED} steps a client of *{way.title}*, profiled: {1e6 * wall / steps:.0f} us a client-step, in "
            f"which {calls:.0f} kernels take {total:.0f} us, summed over those that run at the same time."
        )
        return f"{about}\n\n{table(head, cells)}"


def measure(
    chosen: dict[str, Way], bench: Bench, tell: Callable[[str], object], until: float = float("inf")
) -> Iterator[dict[str, Measured]]:
    """What is known so far, by way: after each way, of which none but the first begins after ``until`` (monotonic)."""
    results: dict[str, Measured] = {}
    for name, way in chosen.items():
        if results and time.monotonic() > until:
            tell(f"no time for {'; '.join(other for other in chosen if other not in results)}: --minutes gives more")
            return
        try:
            results[name] = one = bench.measured(way)
            tell(f"{name}: {one.rate:,.0f} images a second, {time_of(one.recording)} to start and record")
        except Exception as error:  # the other ways are worth having
            results[name] = Measured(failure=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            tell(f"{name}: {results[name].failure}")
        gc.collect()
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
        yield dict(results)


def markdown(results: dict[str, Measured], chosen: dict[str, Way], bench: Bench, about: str, profile: str = "") -> str:
    """The report; a dash for what was not measured."""
    floor = next(iter(results.values())).rate
    rows = []
    for name in sorted(results, key=lambda name: chosen[name].order):
        one = results[name]
        spread = f"{min(one.rates):,.0f} to {max(one.rates):,.0f}" if one.rates else "-"
        cells = (f"{one.rate:,.0f}", spread, f"{one.rate / floor:.2f}", f"{one.rate / GOAL:.2f}")
        more = (time_of(one.recording), f"{one.memory:.1f}", f"{one.loss:.4f}")
        rows.append((name, *("-" if cell.startswith("nan") else cell for cell in (*cells, *more))))
    return template(Path(__file__).with_name("gpu.md.j2"), {"table": table}).render(
        workload=bench.workload,
        about=about,
        seconds=f"{bench.seconds:g}",
        goal=f"{GOAL:,}",
        rows=rows,
        results=results,
        profile=profile,
    )


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.gpu", description="How fast local training is on a GPU.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model and little data, to try this command out")
    parser.add_argument("--setting", choices=tuple(SETTINGS), default="fedcorr", help="model, clients and batches")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each way, after its first rounds")
    parser.add_argument(
        "--minutes", type=float, default=4.5, help="after which no way begins; the telling ones are first"
    )
    parser.add_argument(
        "--ways",
        metavar="A;B",
        help="names, or beginnings of several, as in 'hand;branches of 10, bf16'; the first is always measured",
    )
    parser.add_argument("--profile", action="store_true", help="the kernels of the fastest way, too")
    parser.add_argument(
        "--out", metavar="FILE", help="the report (bench/results/gpu.md, or part.md where not everything is measured)"
    )
    return parser.parse_args(arguments)


def chosen(available: dict[str, Way], asked: str | None) -> dict[str, Way]:
    """The first way and those ``asked`` for, names or beginnings of names between semicolons; all for None."""
    first, wanted = next(iter(available)), ("",) if asked is None else tuple(asked.split(";"))
    whole = tuple(name for name in wanted if name in available)
    beginnings = tuple(name for name in wanted if name not in available)
    return {n: way for n, way in available.items() if n == first or n in whole or n.startswith(beginnings)}


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Measure, and write the report."""
    options = _arguments(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("bench.gpu: torch finds no GPU here; try the command out with --device cpu --tiny", file=sys.stderr)
        sys.exit(2)
    device, workload = torch.device(options.device), TINY if options.tiny else SETTINGS[options.setting]
    bench, began = Bench(workload, device, options.seconds), time.monotonic()

    def tell(line: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {line}", file=sys.stderr, flush=True)

    here, selected = machine(), chosen(ways(workload.cohort, device.type), options.ways)
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else "none: the CPU stands in"
    command = shlex.join(["python", "-m", "bench.gpu", *arguments])
    whole = options.ways is None and workload is FEDCORR and device.type == "cuda"
    out = Path(options.out) if options.out else ROOT / "bench/results" / f"{'gpu' if whole else 'part'}.md"
    text, results = "", dict[str, Measured]()

    def write(profile: str = "") -> None:
        nonlocal text
        about = conditions(here, command, time.monotonic() - began, ("GPU", gpu))
        text = markdown(results, selected, bench, about, profile)
        out.write_text(text)  # each time, so that a stop loses one way

    for known in measure(selected, bench, tell, began + 60 * options.minutes):
        results = known
        write()
    if options.profile and any(one.rates for one in results.values()):
        fastest = max((name for name in results if results[name].rates), key=lambda name: results[name].rate)
        tell(f"profile of {fastest}")
        try:
            write(bench.profile(selected[fastest]))
        except Exception as error:  # the times are worth having
            tell(f"no profile: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    print(text)


if __name__ == "__main__":
    main()
