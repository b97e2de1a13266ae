"""The benchmark command: measure, and write the report.

``python -m bench [--quick] [--workloads mlp,lenet5,round,startup] [--ways hand,sequential]``
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from bench import figure, report, round_cost
from bench.machine import machine
from bench.measure import Tell, alternate, prepared
from bench.report import Results
from bench.startup import startup
from bench.ways import HAND, PEERS_PYTHON, ROOT, Way, environment, ways
from bench.workloads import WORKLOADS, Workload

EXTRA = ("round", "startup")
QUICK = ("mlp", "lenet5", "startup")


def _names(text: str) -> list[str]:
    return [name for name in text.replace(" ", ",").split(",") if name]


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench", description="Time of a round, compared with a hand-written loop.")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}, fewer repeats")
    known = [*WORKLOADS, *EXTRA]
    parser.add_argument("--workloads", type=_names, metavar="A,B", help=f"of {', '.join(known)}")
    parser.add_argument("--ways", type=_names, metavar="A,B", help=f"of {', '.join(ways())}; hand is always included")
    parser.add_argument("--repeats", type=int, metavar="N", help="turns of every way on every workload (5; quick: 3)")
    parser.add_argument("--name", help="of the files in bench/results (full, quick or part)")
    chosen = parser.parse_args(arguments)
    for what, asked, there in (("workload", chosen.workloads, known), ("way", chosen.ways, list(ways()))):
        for name in asked or ():
            if name not in there:
                parser.error(f"there is no {what} {name}; there are {', '.join(there)}")
    return chosen


def _shortened(workload: Workload) -> Workload:
    """The workload of ``--quick``: fewer rounds per turn, and fewer samples if a step is slow."""
    samples = 100 if workload.data == "pixels" else workload.samples
    return replace(workload, turn=min(workload.turn, 3), samples=samples)


def _selected(names: Sequence[str] | None, tell: Tell) -> dict[str, Way]:
    available = ways()
    if names is None:
        if find_spec("ray") is None:
            tell("Ray is not installed here: executor=ray is left out")
            del available["ray"]
        return available
    return {HAND.name: HAND, **{name: way for name, way in available.items() if name in names}}


def _install_peers(chosen: dict[str, Way], tell: Tell) -> None:
    """Let the Makefile create the environment of other frameworks, if any is selected."""
    if any(way.kind == "peer" for way in chosen.values()):
        done = subprocess.run(["make", "--silent", "bench-peers"], cwd=ROOT, check=False)
        if done.returncode or not PEERS_PYTHON.exists():
            tell("the environment of other frameworks could not be created; they will be reported as failed")


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    """Run the benchmark."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()

    def tell(line: str) -> None:
        seconds = int(time.monotonic() - began)
        print(f"[{seconds // 60}:{seconds % 60:02}] {line}", file=sys.stderr, flush=True)

    options = _arguments(arguments)
    chosen = _selected(options.ways, tell)
    _install_peers(chosen, tell)
    began = time.monotonic()
    names = options.workloads or (QUICK if options.quick else (*WORKLOADS, *EXTRA))
    repeats = options.repeats or (3 if options.quick else 5)
    results = Results(machine(), shlex.join(["python", "-m", "bench", *arguments]))
    partial = options.workloads is not None or options.ways is not None
    name = options.name or ("part" if partial else "quick" if options.quick else "full")
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        try:
            for number, one in enumerate(names):
                folder = Path(scratch, one)
                if one == "round":
                    _round_cost(results, folder, 2 if options.quick else 4, tell)
                elif one == "startup":
                    results.startup = startup(2 if options.quick else 5, folder, tell)
                else:
                    workload = _shortened(WORKLOADS[one]) if options.quick else WORKLOADS[one]
                    _workload(
                        results, workload, chosen, folder, repeats, 1 if number == 0 and not options.quick else 2, tell
                    )
        except KeyboardInterrupt:
            tell("interrupted; the measurements so far are written")
        results.seconds = time.monotonic() - began
        write(results, ROOT / "bench/results", name)
    print(report.short(results))
    print(f"\nbench/results/{name}.md, .csv, .png")


def _workload(
    results: Results, workload: Workload, chosen: dict[str, Way], folder: Path, repeats: int, together: int, tell: Tell
) -> None:
    taking_part = {n: way for n, way in chosen.items() if workload.peers or way.kind != "peer"}
    results.workloads[workload.name] = workload
    results.measured[workload.name] = alternate(
        workload,
        prepared(workload, folder),
        folder,
        taking_part,
        min(repeats, workload.repeats or repeats),
        together,
        tell,
    )


def _round_cost(results: Results, folder: Path, rounds: int, tell: Tell) -> None:
    tell(f"round: {rounds} rounds of LeNet-5 with 100 clients, each part timed")
    job = prepared(round_cost.WORKLOAD, folder)
    command = [sys.executable, "-m", "bench.round_cost", str(job), str(folder / "run"), str(rounds)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600, check=True
        )
        results.round_cost = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        results.round_cost_failure = (error.stderr.strip().splitlines() or ["no output"])[-1]
    except subprocess.TimeoutExpired as error:
        results.round_cost_failure = f"no answer in {error.timeout:.0f} s"


def write(results: Results, folder: Path, name: str) -> None:
    """Write the report's files."""
    folder.mkdir(exist_ok=True)
    picture = f"{name}.png" if any(m.spread for measured in results.measured.values() for m in measured) else None
    if picture is not None:
        figure.draw(results, folder / picture)
    (folder / f"{name}.md").write_text(report.markdown(results, picture))
    (folder / f"{name}.csv").write_text(report.csv_text(results))


if __name__ == "__main__":
    main()
