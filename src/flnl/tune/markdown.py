"""The results and the scores of tuning as Markdown: what ``--each`` names first are the rows, the rest the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, stdev

from flnl.storage.tuned import Study, Tuned, Values

FAILED = "failed"


def markdown(tuned: Tuned) -> str:
    """Two tables: results of the choice under the reported seeds, if there are any, and every score of the grid."""
    sections = []
    if any(study.reported is not None for study in tuned.studies):
        sections.append(_pivot(tuned.studies, _results(tuned)))
    sections.append(_pivot(tuned.studies, {f"{tuned.measure}, % at {_grid(tuned)}": _scores}))
    return "\n\n".join(sections) + "\n"


def spread(scores: Mapping[int, float | None], unit: str = "") -> str:
    """``mean ± sample standard deviation`` in percent, with ``unit``; ``failed`` if a run has no score."""
    values = [100 * score for score in scores.values() if score is not None]
    if len(values) < len(scores) or not values:
        return FAILED
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "") + unit


def _results(tuned: Tuned) -> dict[str, Callable[[Study], str]]:
    def of(measure: str) -> Callable[[Study], str]:
        return lambda study: FAILED if study.reported is None else spread(study.reported.scores[measure])

    def chosen(study: Study) -> str:
        return FAILED if study.chosen is None else ", ".join(study.chosen.values.values())

    return {"last, %": of("last"), "best, %": of("best"), _axes(tuned): chosen}


def _scores(study: Study) -> str:
    """The mean score of each combination, in the order of the grid; that of the chosen one is bold."""
    shown = []
    for trial in study.trials:
        text = FAILED if trial.mean is None else f"{100 * trial.mean:.1f}"
        shown.append(f"**{text}**" if trial is study.chosen else text)
    return " / ".join(shown)


def _axes(tuned: Tuned) -> str:
    """The keys that were chosen, separated by commas."""
    return ", ".join(tuned.studies[0].trials[0].values)


def _grid(tuned: Tuned) -> str:
    """What the scores of a cell belong to: the keys, with their values if all studies tried the same."""
    tried = {tuple(", ".join(trial.values.values()) for trial in study.trials) for study in tuned.studies}
    return _axes(tuned) + (f" = {' / '.join(tried.pop())}" if len(tried) == 1 else "")


def _pivot(studies: Sequence[Study], cells: Mapping[str, Callable[[Study], str]]) -> str:
    """A row for each value of the first key of ``each``, a group of columns for each combination of the others."""
    rows = list(dict.fromkeys(_first(study.each) for study in studies))
    columns = list(dict.fromkeys(_others(study.each) for study in studies))
    by_place = {(_first(study.each), _others(study.each)): study for study in studies}
    heading = [f"{column}: {name}" if column else name for column in columns for name in cells]
    body = []
    for row in rows:
        line = [row]
        for column in columns:
            study = by_place.get((row, column))
            line += ["" if study is None else cell(study) for cell in cells.values()]
        body.append(line)
    key = next(iter(studies[0].each), "")
    return "\n".join(map(_line, [[key, *heading], ["---", *["---:"] * len(heading)], *body]))


def _first(each: Values) -> str:
    return next(iter(each.values()), "")


def _others(each: Values) -> str:
    return ", ".join(list(each.values())[1:])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
