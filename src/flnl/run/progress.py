"""Terminal output of a run: the parts at the start, a progress bar during the run, a table at the end.

Without a terminal, the bar becomes a line at the start and end of stages and every ``QUIET_SECONDS``.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Self

from rich import box
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from flnl.console.counting import QUIET_SECONDS
from flnl.console.terminal import cell, console, duration, print_line, visible
from flnl.core.method import Method
from flnl.core.state import RoundResult
from flnl.record import label_table
from flnl.record.run import RunRecord


class Bar:
    """Progress over the rounds of a run.

    The time left counts local epochs: rounds of other stages may cost more. It is known from the second round on, since
    in the first one libraries and workers start.
    """

    def __init__(self, epochs: Sequence[float], done: int) -> None:
        """Begin after ``done`` rounds.

        Args:
            epochs: planned local epochs of every round.
            done: number of rounds that are done.
        """
        self.console = console(stderr=True)
        self._animated = self.console.is_terminal
        self._total = len(epochs)
        self._work = [0.0, *accumulate(epochs)]  # until the end of each round
        self._begun = self._work[done]
        self._accuracy: float | None = None
        self._stage, self._printed = "", time.monotonic()
        self._started: float | None = None  # when the first round of this process was over
        columns = (
            TextColumn("[bold]{task.fields[stage]:<10}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[rounds]}"),
            TextColumn("{task.fields[accuracy]:>8}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=self.console, disable=not self._animated)
        self._task = self._bar.add_task(
            "rounds",
            total=self._work[-1],
            completed=round(self._begun),
            rounds=self._counted(done),
            stage="",
            accuracy="",
        )

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
        if self._accuracy is not None and math.isnan(self._accuracy):
            shown = "no test samples"
        number, work = result.state.round, self._work[result.state.round]
        self._bar.update(
            self._task,
            completed=work,
            rounds=self._counted(number),
            stage=escape(visible(result.stage)),
            accuracy=shown,
        )
        now = time.monotonic()
        border = result.stage != self._stage or number == self._total
        if not self._animated and (border or now - self._printed > QUIET_SECONDS):
            print_line(
                f"{result.stage:<10} round {self._counted(number)}  {shown or 'not evaluated yet'}"
                f"{self._left(now, work)}",
                to=sys.stderr,
            )
            self._printed = now
        if self._started is None:
            self._started, self._begun = now, work
        self._stage = result.stage

    def _left(self, now: float, work: float) -> str:
        """The time left after ``work`` local epochs, as the end of a line; empty after the first round."""
        if self._started is None:
            return ""
        return f"  about {duration((now - self._started) / (work - self._begun) * (self._work[-1] - work))} left"

    def _counted(self, rounds: int) -> str:
        return f"{rounds}/{self._total}"


def opening(lines: Sequence[str]) -> None:
    """Print lines about the run before it starts."""
    for line in lines:
        print_line(line, to=sys.stderr)


BETWEEN = 3
"""Characters between two columns of the table of stages, and at its edges."""


def stages(method: Method) -> None:
    """Print a table of the active parts of all stages: side by side, or below each other where that is too wide."""
    stream = console(stderr=True)
    parts = {stage.name: stage.parts() for stage in method.stages}
    stream.print(_side_by_side(method.title, parts, stream.width) or _below_each_other(method.title, parts))


def _side_by_side(title: str, parts: Mapping[str, Mapping[str, str]], width: int) -> Table | None:
    """A column for each stage and a row for each slot; None if a word would be broken in ``width`` characters.

    Rich would break words: it takes the space that lacks from the widest columns, whatever their longest word.
    """
    slots = list(dict.fromkeys(slot for by_slot in parts.values() for slot in by_slot))
    longest = [max(map(len, " ".join((name, *by_slot.values())).split())) for name, by_slot in parts.items()]
    widest = [max(map(len, (name, *by_slot.values()))) for name, by_slot in parts.items()]
    free = width - max(map(len, (title, *slots))) - BETWEEN * (len(parts) + 1) - sum(longest)
    if free < 0:
        return None
    wanted = sum(widest) - sum(longest)
    share = min(1.0, free / wanted) if wanted else 0.0
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(cell(title), style="dim")
    for name, least, most in zip(parts, longest, widest, strict=True):
        table.add_column(cell(name), overflow="fold", width=least + int((most - least) * share))
    for slot in slots:
        table.add_row(cell(slot), *(cell(by_slot.get(slot, "")) for by_slot in parts.values()))
    return table


def _below_each_other(title: str, parts: Mapping[str, Mapping[str, str]]) -> Table:
    """A block for each stage; after the first, only what differs from the stage before."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(cell(title), style="dim")
    table.add_column(overflow="fold")
    before: Mapping[str, str] = {}
    for name, by_slot in parts.items():
        table.add_row("stage", cell(name), style="bold")
        for slot in dict.fromkeys((*by_slot, *before)):
            if by_slot.get(slot) != before.get(slot):
                table.add_row(cell(slot), cell(by_slot.get(slot, "none")))
        before = by_slot
        table.add_section()
    return table


ROWS = (
    ("best", "best test accuracy (an oracle over the test set)", "%"),
    ("last", "last test accuracy", "%"),
    ("mean_last_10", "mean test accuracy of the last 10 evaluations", "%"),
    ("worst_client_mean_last_10", "the same of the worst client, by its classes", "%"),
    ("at_best_validation", "test accuracy at the best validation round", "%"),
    (
        "validation_true_mean_last_10",
        "the mean of 10 on held-out samples of the clients, by true labels",
        "%",
    ),
    ("noise_given", "labels wrong as given", "%"),
    ("noise_final", "labels wrong at the end", "%"),
    ("detection_precision", "detection: precision", "%"),
    ("detection_recall", "detection: recall", "%"),
    ("detection_f1", "detection: F1", "%"),
    ("filter_accuracy", "filter: right flags, mean over clients", "%"),
    ("filter_auc", "filter: AUC over samples", "%"),
    ("label_accuracy", "labels that the method proposes: right ones", "%"),
    ("client_detection_f1", "noisy clients: F1", "%"),
    ("quality_error", "quality of clients: mean squared error", "#"),
    ("quality_rank_correlation", "quality of clients: rank correlation", "#"),
    ("flagged", "labels flagged by the method", "of labels"),
    ("changed", "labels changed by the method", "of labels"),
    ("correction_accuracy", "changed labels that are right", "%"),
    ("participations", "participations (local trainings)", ""),
    ("left_out", "local trainings left out (non-finite or not answered)", "of participations"),
    ("training_passes forward_passes optimizer_steps", "training passes, forward passes, optimiser steps", ""),
    ("bytes", "bytes sent", "B"),
    ("wall_time_s cpu_time_s", "wall time, CPU time", "s"),
    ("peak_memory peak_gpu_memory", "peak memory, in tensors on the GPU", "B"),
)
"""Keys of the record, a name and a unit. A row of several numbers names each; those that are unknown are left out."""


TOTALS = {"of labels": "labels", "of participations": "participations"}
"""Units of counts that are shown with their percentage, and the key of the total."""


def warn(line: str) -> None:
    """Print a warning about the run."""
    print_line(f"warning: {line}", to=sys.stderr)


def closing(status: str, folder: Path, record: RunRecord) -> None:
    """Print the table of results at the end of a run, where ``labels.csv`` is, and the warnings.

    Args:
        status: how the run ended.
        folder: its folder.
        record: its record.
    """
    numbers = {**record.raw, **record.metrics}
    print_line(f"{status}: {folder}")
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for keys, name, unit in ROWS:
        values = {key: float(numbers[key]) for key in keys.split() if numbers.get(key) is not None}
        known = {key: value for key, value in values.items() if not math.isnan(value)}
        if known and not (keys == "left_out" and not known[keys]):
            texts = (
                _share(value, numbers.get(TOTALS[unit])) if unit in TOTALS else _shown(value, unit)
                for value in known.values()
            )
            named = zip(keys.split(), name.split(", ") if " " in keys else [name], strict=True)
            table.add_row(", ".join(text for key, text in named if key in known), ", ".join(texts))
    for key, rate in record.given.items():
        table.add_row(cell(f"given to the method: the noise rate ({key})"), _shown(float(rate), "%"))
    if record.clean_samples:
        table.add_row("given to the method: clean samples", f"{record.clean_samples:,}")
    console().print(table)
    if (labels := folder / label_table.NAME).is_file():
        print_line(f"all labels: {labels}")
    for line in record.warnings:
        warn(line)


def _share(count: float, total: float | None) -> str:
    """A count, with its percentage of ``total`` if that is known."""
    return f"{count:,.0f}" + (f" ({100 * count / total:.2f} %)" if total else "")


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
