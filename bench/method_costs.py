"""What each method costs, with its defaults: ``python -m bench.method_costs FOLDER [--methods fedavg,...]``.

One run on the digits a method, with a budget of 20 rounds of FedAvg, one after another; a command that was interrupted
goes on where it stopped. ``bench/results/method_costs.csv`` gets a line for each method. Times are of one thread:
nothing else should run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from bench.whole_runs import made, read_rows, write_rows
from flnl.config.folders import CONF

METHODS = sorted(file.stem for file in (CONF / "method").glob("*.yaml"))
FILE = CONF.parent / "bench" / "results" / "method_costs.csv"
SETTING = ("protocol.name=costs", "eval.benchmark=0.2", "products=false")


@dataclass(frozen=True)
class Row:
    """A run's costs: passes of one sample, bytes, seconds of CPU, and the most bytes of resident memory at once."""

    method: str
    participations: int
    training_passes: int
    forward_passes: int
    bytes_down: int
    bytes_up: int
    cpu_time_s: float
    peak_memory: int
    machine: str
    commit: str


def main(argv: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and write the lines of all that are there."""
    parser = argparse.ArgumentParser(prog="python -m bench.method_costs", description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--methods", default=",".join(METHODS), help="by default all")
    parser.add_argument("--rounds", type=int, default=20, help="those of FedAvg; by default 20")
    args = parser.parse_args(argv)
    rows = {row.method: row for row in read_rows(FILE, Row)}
    for method in args.methods.split(","):
        if method not in METHODS:
            parser.error(f"--methods: {method} is none of {', '.join(METHODS)}")
        record = made([f"method={method}", f"protocol.rounds={args.rounds}", *SETTING], args.folder / method)
        if record is not None:
            rows[method] = Row(method, *(getattr(record, one.name) for one in fields(Row)[1:]))
            write_rows(FILE, Row, [rows[name] for name in sorted(rows)])


if __name__ == "__main__":
    main()
