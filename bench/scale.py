"""Memory and time with many simulated clients: only the state that a method must keep should grow.

``python -m bench.scale [--clients 100,10000] [--methods fedavg,flr,feddyn] [--rounds 20]``

Every line of the table is a whole run in a separate process: FedAvg, FLR and FedDyn with 100 clients per round, with
clients' state in memory (the default limit), and with almost all of it on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import machine
from bench.memory import Sampler
from bench.report import conditions, table, time_of
from bench.round_cost import Clock
from bench.ways import ROOT, environment
from bench.workloads import Workload, write_arrays
from flnl.config import compose
from flnl.config.check import check_config
from flnl.console.templates import template
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.sgd import LocalTraining
from flnl.run import opening

COHORT, SAMPLES = 100, 7
LIMITS = {"2": "memory", "0.01": "disk"}
"""``client_memory`` in GiB, and where clients' state is then stored; 2 is the default."""
EVERY = 0.2
"""Seconds between samples of the memory."""
MIB = 2**20


@dataclass(frozen=True)
class Case:
    """One run."""

    method: str
    clients: int
    client_memory: str
    rounds: int

    @property
    def name(self) -> str:
        """A name that is valid for a folder."""
        return f"{self.method}-{self.clients}-{LIMITS[self.client_memory]}"

    def overrides(self, data: Path, folder: Path) -> list[str]:
        """The overrides: resampled digits, an MLP of 38,410 parameters, and otherwise the defaults of a run."""
        return [
            f"method={self.method}",
            "dataset=arrays",
            f"dataset.root={data.parent}",
            f"dataset.file={data.name}",
            "dataset.normalize=half",
            "partition=file",
            "noise=fedcorr",
            "model=mlp",
            "model.hidden=[512]",
            f"fraction={COHORT / self.clients}",
            "executor=stacked",  # in this process, where training can be timed apart
            f"rounds={self.rounds}",
            f"train.batch_size={SAMPLES}",
            f"client_memory={self.client_memory}",
            "device=cpu",
            "threads=1",
            "wandb.mode=disabled",
            f"output={folder / 'run'}",
            f"cache={folder / 'cache'}",
        ]


def arrays(clients: int, path: Path) -> Path:
    """Write the data of ``clients`` clients with ``SAMPLES`` digits each."""
    shape = Workload("scale", "", "mlp", "digits", cohort=COHORT, turn=1, clients=clients, samples=SAMPLES)
    return write_arrays(shape, path)


def measure(overrides: Sequence[str]) -> dict[str, Any]:
    """Measure a run, in seconds and bytes, from its configuration to its last file.

    ``outside`` is the median over all rounds but the first of everything except local training: sampling, tasks,
    aggregation, evaluation, clients' state, logging, and a checkpoint if one is due.
    """
    with Sampler(os.getpid(), EVERY) as memory:
        began, clock = time.perf_counter(), Clock()
        cfg = compose.load(overrides)
        check_config(cfg)
        with opening.open_session(cfg, overrides, opening.claim(cfg, overrides, None)) as run:
            memory.look()
            opened, at_start = time.perf_counter() - began, memory.peak
            clock.watch(LocalTraining, "__call__", "training")
            clock.watch(Stacked, "_trained", "training")
            rounds = list(_rounds(run, clock))
            saving = time.perf_counter()
            run.keep(now=True)
            saving = time.perf_counter() - saving
            memory.look()
            in_rounds = memory.peak
            closing = time.perf_counter()
            record = run.close("finished")
            closing = time.perf_counter() - closing
            held, files = run.state.clients.size, len(run.state.clients.files)
            accuracy = record.metrics["last"]
            executor = record.raw["executor"]["name"]
    states = Path(run.folder.path, "clients")
    return {
        "opening": opened,
        "first": rounds[0][0],
        "round": statistics.median(whole for whole, _ in rounds[1:]),
        "outside": statistics.median(whole - training for whole, training in rounds[1:]),
        "checkpoint": saving,
        "end": closing,
        "at_start": at_start,
        "in_rounds": in_rounds,
        "peak": memory.peak,
        "held": held,
        "files": files,
        "disk": sum(file.stat().st_size for file in states.glob("*")) if states.exists() else 0,
        "accuracy": accuracy,
        "executor": executor,
    }


def _rounds(run: Any, clock: Any) -> Iterator[tuple[float, float]]:
    """The seconds of every round, and of its local training."""
    began = time.perf_counter()
    for result in run.results():
        run.log(result)
        run.keep(now=False)
        yield time.perf_counter() - began, clock.seconds.pop("training")
        began = time.perf_counter()


# ------------------------------------------------------------------------------------------------------------- report


def markdown(results: Sequence[tuple[Case, dict[str, Any]]], about: str) -> str:
    """The report."""
    rows = [
        (
            case.method,
            f"{case.clients:,}",
            LIMITS[case.client_memory],
            f"{(m['held'] + m['disk']) / MIB:.1f}",
            *(f"{m[key] / MIB:.0f}" for key in ("at_start", "in_rounds", "peak")),
            *(time_of(m[key]) for key in ("opening", "round", "outside", "checkpoint", "end")),
            f"{100 * m['accuracy']:.1f}",
        )
        for case, m in results
    ]
    page = template(Path(__file__).with_name("scale.md.j2"), {"table": table})
    return page.render(about=about, cohort=COHORT, samples=SAMPLES, rows=rows)


def _names(text: str) -> list[str]:
    return [name for name in text.replace(" ", ",").split(",") if name]


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Run every case, and write the report."""
    parser = argparse.ArgumentParser("bench.scale", description="Memory and time with many simulated clients.")
    parser.add_argument("--clients", type=_names, default=["100", "10000"], metavar="A,B")
    parser.add_argument("--methods", type=_names, default=["fedavg", "flr", "feddyn"], metavar="A,B")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--name", default="scale", help="of the file in bench/results")
    options = parser.parse_args(arguments)
    cases = [
        Case(method, int(clients), limit, options.rounds)
        for method in options.methods
        for clients in options.clients
        for limit in LIMITS
    ]
    here, began, results = machine(), time.monotonic(), []
    for case in cases:
        print(f"[{time.monotonic() - began:4.0f} s] {case.name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            data = arrays(case.clients, Path(scratch, "arrays.npz"))
            command = [sys.executable, "-m", "bench.scale", "--one", *case.overrides(data, Path(scratch))]
            done = subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
            results.append((case, json.loads(done.stdout)))
    command_line = shlex.join(["python", "-m", "bench.scale", *arguments])
    text = markdown(results, conditions(here, command_line, time.monotonic() - began))
    (ROOT / "bench/results" / f"{options.name}.md").write_text(text)
    print(text)


def one(overrides: Sequence[str]) -> None:
    """Run one case in this process: JSON on standard output, everything else on standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(measure(overrides)), file=out, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2:])
    else:
        main()
