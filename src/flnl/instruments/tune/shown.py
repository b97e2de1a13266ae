"""What was tried, what was chosen and what that gave: on the terminal, and as Markdown.

In Markdown, what ``--each`` names first are the rows, and the rest the columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.table import Table as Grid

from flnl.console.markdown import grid, literal
from flnl.console.shell import joined
from flnl.console.terminal import print_line
from flnl.core.grouping import group_by_key
from flnl.instruments.compare.table import Number, written
from flnl.instruments.tune.runs import final
from flnl.instruments.tune.scores import MEASURES
from flnl.record.tuned import Study, Tuned, Values, overrides_of

FAILED = "failed"
SHOWN = ("mean_last_10", "last", "best")
"""The measures of the results that tables have, if the file has them."""


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


def markdown(tuned: Tuned) -> str:
    """Results of the choice under the reported seeds, if there are any, and every score of the grid.

    If ``each`` has several keys, every kind of number has a table of its own, under a line that names it, with a column
    for each combination of the keys after the first.
    """
    results: dict[str, Callable[[Study], str]] = {}
    reported = [study.reported for study in tuned.studies if study.reported is not None]
    if reported:
        there = [measure for measure in SHOWN if all(measure in one.scores for one in reported)]
        results = {f"{measure}, %": _result(measure) for measure in there} | {f"chosen {_axes(tuned)}": _chosen}
    scores = {f"{tuned.measure}, % at {_grid(tuned)}": _scores}
    columns = _columns(tuned.studies)
    if not any(columns):
        (others,) = columns
        sections = [
            _table(tuned.studies, {(others, name): cell for name, cell in part.items()})
            for part in (results, scores)
            if part
        ]
    else:
        sections = [
            f"{name}:\n\n" + _table(tuned.studies, dict.fromkeys(columns.items(), cell))
            for name, cell in (results | scores).items()
        ]
    return "\n\n".join([*sections, *notes(tuned)]) + "\n"


def notes(tuned: Tuned) -> list[str]:
    """What readers of the tables should know: which score chose, where choices are at an edge, what has no trace."""
    seeds = ", ".join(map(str, tuned.seeds))
    found = [f"Chosen by {MEASURES.get(tuned.measure, tuned.measure)} (`{tuned.measure}`), under seeds {seeds}."]
    columns = _columns(tuned.studies)
    for edge, studies in tuned.edges.items():
        rows = group_by_key((columns[_others(study.each)], _first(study.each)) for study in studies)
        places = ((column, ", ".join(filter(None, labels))) for column, labels in rows.items())
        names = "; ".join(": ".join(filter(None, place)) for place in places)
        of = f"in {len(studies)} of {len(tuned.studies)} choices" + (f" ({literal(names)})" if names else "")
        found.append(f"At the edge of the grid, so that one beyond it may be better: {literal(str(edge))}, {of}.")
    if tuned.untraced:
        lacking = "commit, machine, digests of data and federation, and metrics"
        have = "has" if tuned.scored == 1 else "have"
        found.append(f"{tuned.untraced} of {tuned.scored} runs {have} no trace in the file: {lacking}.")
    return found


def spread(scores: Mapping[int, float | None], unit: str = "") -> str:
    """``mean ± sample standard deviation`` in percent, with ``unit``; ``failed`` if a run has no score."""
    values = [100 * score for score in scores.values() if score is not None]
    number = Number.of(values)
    if number is None or len(values) < len(scores):
        return FAILED
    return written(number.mean, number.deviation, 1) + unit


def _percent(value: float | None) -> str:
    return "failed" if value is None else f"{100 * value:.2f} %"


def _result(measure: str) -> Callable[[Study], str]:
    def shown(study: Study) -> str:
        if study.reported is None:
            return FAILED if study.chosen is None else ""  # not asked for
        return spread(study.reported.scores[measure])

    return shown


def _chosen(study: Study) -> str:
    return FAILED if study.chosen is None else literal(", ".join(study.chosen.values.values()))


def _scores(study: Study) -> str:
    """The mean score of each combination, in the order of the grid; that of the chosen one is bold.

    In brackets, the combination was dropped, and its mean is over fewer seeds.
    """
    shown = []
    for trial in study.trials:
        text = FAILED if trial.mean is None else f"{100 * trial.mean:.1f}"
        shown.append(f"**{text}**" if trial is study.chosen else f"({text})" if study.dropped(trial) else text)
    return " / ".join(shown)


def _axes(tuned: Tuned) -> str:
    """The keys that were chosen, separated by commas."""
    return ", ".join(tuned.studies[0].trials[0].values)


def _grid(tuned: Tuned) -> str:
    """What the scores of a cell belong to: the keys, with their values if all studies tried the same."""
    tried = {tuple(", ".join(trial.values.values()) for trial in study.trials) for study in tuned.studies}
    return _axes(tuned) + (f" = {' / '.join(tried.pop())}" if len(tried) == 1 else "")


def _columns(studies: Sequence[Study]) -> dict[str, str]:
    """The combinations of the keys after the first, and how they are shown: without a folder that all are in."""
    columns = list(dict.fromkeys(_others(study.each) for study in studies))
    folders = {column.rpartition("/")[0] for column in columns}
    return {column: column.rpartition("/")[2] if len(folders) == 1 else column for column in columns}


def _table(studies: Sequence[Study], cells: Mapping[tuple[str, str], Callable[[Study], str]]) -> str:
    """A row for each value of the first key of ``each``; a column for each cell's combination of the others."""
    by_place = {(_first(study.each), _others(study.each)): study for study in studies}
    body = []
    for row in dict.fromkeys(_first(study.each) for study in studies):
        line = [literal(row)]
        for (others, _), cell in cells.items():
            study = by_place.get((row, others))
            line.append("" if study is None else cell(study))
        body.append(line)
    key = next(iter(studies[0].each), "")
    return grid([key, *(literal(name) for _, name in cells)], body)


def _first(each: Values) -> str:
    return next(iter(each.values()), "")


def _others(each: Values) -> str:
    return ", ".join(list(each.values())[1:])
