"""How each entry of the registry fares on the simulated GPU: ``python -m tests.simulated_gpu.report [NAME ...]``.

For clients one by one and in recorded stacks: whether every round has the CPU's bits in double precision, how often the
host waited from a visit's second epoch on, how many steps were recorded and replayed, and why others were not.
"""

import contextlib
import io
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.table import Table

from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from tests.cuda.test_waits import later_epochs
from tests.properties.runs import assembled, difference
from tests.registry import BY_NAME, Entry
from tests.simulated_gpu import device


class Reasons(logging.Handler):
    """Collects why steps were not recorded or stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the reason of a message that has one."""
        text = record.getMessage()
        if "because " in text:
            self.texts.add(text.partition("because ")[2].removesuffix(" (logged once)"))


def examine(entry: Entry, stack: int) -> tuple[str, int, int, int, str]:
    """Whether the bits are the CPU's, waits, recorded graphs, replays, and reasons."""
    counts = {"made": 0, "replayed": 0}
    create, replay = device.CUDAGraph.__init__, device.CUDAGraph.replay

    def made(graph: Any) -> None:
        counts["made"] += 1
        create(graph)

    def replayed(graph: Any) -> None:
        counts["replayed"] += 1
        replay(graph)

    reasons = Reasons()
    ends: list[Any] = []
    heard: list[str] = []
    words = [word for word in entry.words if not word.startswith(("executor", "precision"))]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr("flnl.engine.stacked.graph.LEAST", 2)  # three batches make an epoch here
        patch.setattr(Stacked, "_fewest", 1)
        patch.setattr(device.CUDAGraph, "__init__", made)
        patch.setattr(device.CUDAGraph, "replay", replayed)
        for kind in ("cpu", device.NAME):
            with assembled(words, Path(folder) / kind, "precision=64", f"device={kind}") as parts:
                net = parts.evaluator.network
                executor: Any = Stacked(net, 5, 1.0, "stacks") if stack else Sequential(net)
                logging.getLogger("flnl").addHandler(reasons)
                if kind == "cpu":
                    rounds = parts.results(executor=executor)
                else:
                    with later_epochs(torch.get_device_module(kind), patch) as heard:
                        rounds = parts.results(executor=executor)
                logging.getLogger("flnl").removeHandler(reasons)
                ends.append([{n: t.cpu() for n, t in r.state.server.params.items()} for r in rounds])
    same = "yes" if difference(ends[0], ends[1]) is None else "NO"
    return same, len(heard), counts["made"], counts["replayed"], "; ".join(sorted(reasons.texts))


def main(names: Sequence[str]) -> None:
    """Print a row for each entry and way, and the totals."""
    device.install()
    table = Table()
    for title in ("entry", "clients", "CPU's bits", "waits", "graphs", "replays", "not recorded or stacked, because"):
        table.add_column(title, overflow="fold")
    right = rows = 0
    for name in names or BY_NAME:
        for stack in (0, 5):
            with contextlib.redirect_stderr(io.StringIO()):
                same, waits, graphs, replays, why = examine(BY_NAME[name], stack)
            rows, right = rows + 1, right + (same == "yes")
            table.add_row(name, "stacked" if stack else "one by one", same, str(waits), str(graphs), str(replays), why)
    Console(width=200).print(table)
    print(f"{right} of {rows} have the CPU's bits")


if __name__ == "__main__":
    main(sys.argv[1:])
