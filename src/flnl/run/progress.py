"""What a person sees of a run: the parts at the start, a bar while it goes, a table at the end.

On a terminal the bar moves; elsewhere a line appears at the borders of stages and every half minute.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from flnl.core.method import Method
from flnl.core.state import RoundResult
from flnl.core.terminal import cell, print_line, visible

QUIET_SECONDS = 30.0


class Bar:
    """Progress over the rounds of a run."""

    def __init__(self, total: int, done: int) -> None:
        self.console = Console(stderr=True)
        self._lively = self.console.is_terminal
        self._total, self._done = total, done
        self._accuracy: float | None = None
        self._stage, self._said = "", time.monotonic()
        self._started = time.monotonic()
        columns = (
            TextColumn("[bold]{task.fields[stage]:<10}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[accuracy]:>8}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self.console, disable=not self._lively)
        self._task = self._bar.add_task("rounds", total=total, completed=done, stage="", accuracy="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def round(self, result: RoundResult) -> None:
        """Show the state after a round."""
        if result.evaluation is not None:
            self._accuracy = result.evaluation["accuracy"]
        shown = "" if self._accuracy is None else f"{100 * self._accuracy:.2f} %"
        self._bar.update(self._task, completed=result.state.round, stage=escape(visible(result.stage)), accuracy=shown)
        now = time.monotonic()
        border = result.stage != self._stage or result.state.round == self._total
        if not self._lively and (border or now - self._said > QUIET_SECONDS):
            pace = (now - self._started) / max(1, result.state.round - self._done)
            left = pace * (self._total - result.state.round)
            print_line(
                f"{result.stage:<10} round {result.state.round}/{self._total}  {shown or 'not evaluated yet'}  "
                f"about {left:.0f} s left",
                to=sys.stderr,
            )
            self._said = now
        self._stage = result.stage


def _console(*, stderr: bool) -> Console:
    """Tables are as wide as the terminal, and whole where there is none."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=200)


def opening(lines: Sequence[str]) -> None:
    """What is about to run, before it does."""
    for line in lines:
        print_line(line, to=sys.stderr)


def stages(method: Method) -> None:
    """The active parts of every stage, side by side."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(cell(method.title), style="dim")
    for stage in method.stages:
        table.add_column(cell(stage.name), overflow="fold")
    parts = [stage.parts() for stage in method.stages]
    for slot in dict.fromkeys(slot for found in parts for slot in found):
        table.add_row(cell(slot), *(cell(found.get(slot, "")) for found in parts))
    _console(stderr=True).print(table)


ROWS = (
    ("best", "best test accuracy (an oracle over the test set)", "%"),
    ("last", "last test accuracy", "%"),
    ("mean_last_10", "mean test accuracy of the last 10 evaluations", "%"),
    ("at_best_validation", "test accuracy at the best validation round", "%"),
    ("noise_given", "labels wrong as given", "%"),
    ("noise_final", "labels wrong at the end", "%"),
    ("detection_precision", "detection: precision", "%"),
    ("detection_recall", "detection: recall", "%"),
    ("detection_f1", "detection: F1", "%"),
    ("filter_accuracy", "filter: right flags, mean over clients", "%"),
    ("filter_auc", "filter: AUC over samples", "%"),
    ("client_detection_f1", "noisy clients: F1", "%"),
    ("quality_error", "quality of clients: mean squared error", "#"),
    ("quality_rank_correlation", "quality of clients: rank correlation", "#"),
    ("correction_accuracy", "changed labels that are right", "%"),
    ("changed", "labels changed", ""),
    ("participations", "participations (local trainings)", ""),
    ("left_out", "local trainings left out as non-finite", "of participations"),
    ("bytes", "bytes that travelled", "B"),
    ("wall_time_s", "wall time", "s"),
)


def closing(title: str, numbers: Mapping[str, Any]) -> None:
    """The table at the end."""
    print_line(title)
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for key, name, unit in ROWS:
        value = float("nan") if numbers.get(key) is None else float(numbers[key])
        if not math.isnan(value) and not (key == "left_out" and not value):
            table.add_row(name, _share(value, numbers) if unit == "of participations" else _shown(value, unit))
    _console(stderr=False).print(table)


def _share(count: float, numbers: Mapping[str, Any]) -> str:
    """How many local trainings, and what share of all of them."""
    made = float(numbers.get("participations") or 0)
    return f"{count:,.0f}" + (f" ({100 * count / made:.2f} %)" if made else "")


def _shown(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.2f} %"
    if unit == "B":
        for name in ("B", "kB", "MB", "GB", "TB"):
            if value < 1000 or name == "TB":
                return f"{value:.0f} B" if name == "B" else f"{value:.2f} {name}"
            value /= 1000
    if unit == "#":
        return f"{value:.3f}"
    return f"{value:.1f} s" if unit == "s" else f"{value:,.0f}"
