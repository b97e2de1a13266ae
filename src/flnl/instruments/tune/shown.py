"""What was tried and what was chosen, on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as Grid

from flnl.console.shell import joined
from flnl.console.terminal import print_line
from flnl.instruments.tune.markdown import spread
from flnl.instruments.tune.runs import final
from flnl.instruments.tune.scores import MEASURES
from flnl.record.tuned import Tuned, overrides_of


def show(tuned: Tuned, own: Sequence[str] = ()) -> None:
    """Print every combination's score, and the command with the chosen values, after the overrides ``own``."""
    console = Console(markup=False, highlight=False)
    print_line(f"scores: {MEASURES.get(tuned.measure, tuned.measure)} ({tuned.measure})")
    for study in tuned.studies:
        title = " ".join([*overrides_of(study.each)]) or " ".join(study.fixed)
        grid = Grid(title=title, title_justify="left")
        for key in study.trials[0].values:
            grid.add_column(key)
        for seed in tuned.seeds:
            grid.add_column(f"seed {seed}", justify="right")
        grid.add_column("mean", justify="right")
        grid.add_column("")
        for trial in study.trials:
            scores = [_percent(trial.scores[seed]) if seed in trial.scores else "" for seed in tuned.seeds]
            mark = "chosen" if trial is study.chosen else "dropped" if study.dropped(trial) else ""
            grid.add_row(*trial.values.values(), *scores, _percent(trial.mean), mark)
        console.print(grid)
        for edge in study.edges:
            print_line(f"at the edge of the grid: {edge}; one beyond it may be better")
        if study.chosen is not None:
            print_line(f"flnl {joined([*own, *final(study.overrides, tuned.measure)])}")


def show_reported(tuned: Tuned) -> None:
    """Print the results of every choice under the seeds that took no part in it."""
    for study in tuned.studies:
        if study.reported is not None and study.chosen is not None:
            results = (f"{name} {spread(by_seed, ' %')}" for name, by_seed in study.reported.scores.items())
            named = " ".join([*overrides_of(study.each), *overrides_of(study.chosen.values)])
            print_line(f"{named} over seeds {', '.join(map(str, study.reported.runs))}: {', '.join(results)}")


def _percent(value: float | None) -> str:
    return "failed" if value is None else f"{100 * value:.2f} %"
