"""Memory and time with many simulated clients: what a method must keep grows, nothing else should.

``python -m bench.scale [--clients 100,10000] [--methods fedavg,flr,feddyn] [--rounds 20]``

Every line of the table is a whole run in a process of its own: FedAvg, FLR and FedDyn with 100 clients a round, with
what clients keep in memory (the default limit) and with next to none of it there.
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
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.sgd import LocalTraining
from flnl.run import opening

COHORT, SAMPLES = 100, 7
LIMITS = {"2": "memory", "0.01": "disk"}
"""``client_memory`` in GiB, and where what clients keep then lies: 2 is the default."""
EVERY = 0.2
"""Seconds between looks at the memory."""
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
        """As a folder."""
        return f"{self.method}-{self.clients}-{LIMITS[self.client_memory]}"

    def words(self, data: Path, folder: Path) -> list[str]:
        """The overrides: digits resampled, an MLP of 38,410 parameters, otherwise as a run has it."""
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
    """Write so many clients of ``SAMPLES`` digits each."""
    shape = Workload("scale", "", "mlp", "digits", cohort=COHORT, turn=1, clients=clients, samples=SAMPLES)
    return write_arrays(shape, path)


def measure(words: Sequence[str]) -> dict[str, Any]:
    """What a run takes, in seconds and bytes, from its configuration to its last file.

    ``outside`` is the median over the rounds, without the first, of what is not local training: sampling, tasks,
    aggregation, evaluation, what clients keep, logging, a checkpoint where one is due.
    """
    with Sampler(os.getpid(), EVERY) as memory:
        began, clock = time.perf_counter(), Clock()
        cfg = compose.load(words)
        check_config(cfg)
        with opening.open_session(cfg, words, opening.claim(cfg, words, None)) as run:
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
            accuracy = record["metrics"]["last"]
            executor = record["executor"]["name"]
    shelf = Path(run.folder.path, "clients")
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
        "disk": sum(file.stat().st_size for file in shelf.glob("*")) if shelf.exists() else 0,
        "accuracy": accuracy,
        "executor": executor,
    }


def _rounds(run: Any, clock: Any) -> Iterator[tuple[float, float]]:
    """Seconds of every round, and of the local training in it."""
    began = time.perf_counter()
    for result in run.results():
        run.log(result)
        run.keep(now=False)
        yield time.perf_counter() - began, clock.seconds.pop("training")
        began = time.perf_counter()


# ------------------------------------------------------------------------------------------------------------- report

HEAD = (
    "method",
    "clients",
    "state in",
    "kept by clients, MiB",
    "before the first round, MiB",
    "in the rounds, MiB",
    "peak, MiB",
    "opening",
    "a round",
    "of it outside training",
    "a checkpoint",
    "the end",
    "accuracy, %",
)

READING = f"""\
A line is a run of FedAvg, FLR or FedDyn on digits resampled, an MLP of 38,410 parameters (150 KiB), {COHORT} clients a
round, {SAMPLES} samples a client, in its own process. *Kept by clients* is what the method leaves with every client
that was visited: nothing (FedAvg), {SAMPLES} times 10 probabilities (FLR), a tensor as large as the model (FedDyn).
*Memory* leaves it there (`client_memory=2`, the default), *disk* next to none of it (`client_memory=0.01`). Memory is
anonymous and shared pages (PSS). *Opening* is from the configuration to the first round, imports apart; *the end* is
`model.pt`, `labels.csv` with a line a sample, and the figures; a round is evaluated on 1000 images. Times are medians.
"""


def markdown(found: Sequence[tuple[Case, dict[str, Any]]], about: str) -> str:
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
        for case, m in found
    ]
    return "\n\n".join(["# Many clients", about, READING.strip(), table(HEAD, rows)]) + "\n"


def _names(text: str) -> list[str]:
    return [name for name in text.replace(" ", ",").split(",") if name]


def main(words: Sequence[str] = sys.argv[1:]) -> None:
    """Run every case, and write the report."""
    parser = argparse.ArgumentParser("bench.scale", description="Memory and time with many simulated clients.")
    parser.add_argument("--clients", type=_names, default=["100", "10000"], metavar="A,B")
    parser.add_argument("--methods", type=_names, default=["fedavg", "flr", "feddyn"], metavar="A,B")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--name", default="scale", help="of the file in bench/results")
    asked = parser.parse_args(words)
    cases = [
        Case(method, int(clients), limit, asked.rounds)
        for method in asked.methods
        for clients in asked.clients
        for limit in LIMITS
    ]
    here, began, found = machine(), time.monotonic(), []
    for case in cases:
        print(f"[{time.monotonic() - began:4.0f} s] {case.name}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            data = arrays(case.clients, Path(scratch, "arrays.npz"))
            command = [sys.executable, "-m", "bench.scale", "--one", *case.words(data, Path(scratch))]
            done = subprocess.run(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
            found.append((case, json.loads(done.stdout)))
    command_line = shlex.join(["python", "-m", "bench.scale", *words])
    text = markdown(found, conditions(here, command_line, time.monotonic() - began))
    (ROOT / "bench/results" / f"{asked.name}.md").write_text(text)
    print(text)


def one(words: Sequence[str]) -> None:
    """What a run's process does: JSON on standard output, everything else on standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(measure(words)), file=out, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2:])
    else:
        main()
