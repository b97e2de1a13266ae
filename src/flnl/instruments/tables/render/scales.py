"""How well our order of the methods agrees with the papers', at several scales side by side, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from flnl.console.markdown import grid
from flnl.instruments.tables.render import markdown
from flnl.instruments.tables.render.agreement import Agreement, agreements, coefficient, decimals
from flnl.instruments.tables.render.markdown import escaped
from flnl.instruments.tables.render.ranking import Ranking, is_ranked, papers_mean_ranks, ranking
from flnl.instruments.tables.results import Filled

TITLE = "# How our order of the methods agrees with the papers'"
HIGH = 0.8
"""A coefficient from which on orders count as agreeing."""


@dataclass(frozen=True)
class Rendered:
    """A folder of rendered tables, of one paper."""

    name: str  # of the folder
    paper: str
    tables: Sequence[Filled]

    @property
    def settings(self) -> Mapping[tuple[str, str], Agreement]:
        """The agreement in every column of the paper, by the table's name and the paper's column."""
        return {(filled.table.name, one.of): one for filled in self.tables for one in agreements(filled)}

    @property
    def coefficients(self) -> list[float]:
        """Those that are defined, one for each set of runs and paper's column."""
        return [one.coefficient for one in self.settings.values() if one.coefficient is not None]

    @property
    def ranking(self) -> Ranking | None:
        """The methods over all settings."""
        return ranking(self.tables)


def page(folders: Mapping[str, Sequence[Filled]], metric: str | None = None) -> str:
    """The page: a summary by paper and scale, then mean ranks and all settings of each paper.

    Args:
        folders: the tables of each folder, by its name beside the page. Tables of one's own and of other metrics than
            accuracies are left out.
        metric: what our numbers are, if not those of the tables.
    """
    names = dict.fromkeys(one.table.paper for tables in folders.values() for one in tables if one.table.paper)
    papers = {name: [one for one in _of_paper(name, folders) if one.settings] for name in names}
    return markdown.page("scales.md.j2").render(
        title=TITLE,
        metric=metric,
        summary=_summary(papers),
        papers=[(name, _ranks(several), _settings(several)) for name, several in papers.items() if several],
    )


def _of_paper(paper: str, folders: Mapping[str, Sequence[Filled]]) -> Iterator[Rendered]:
    for folder, tables in folders.items():
        yield Rendered(folder, paper, [one for one in tables if one.table.paper == paper and is_ranked(one.table)])


def _summary(papers: Mapping[str, Sequence[Rendered]]) -> str:
    heading = ["paper", "scale", "settings", "Spearman, median", f"{HIGH} and more"]
    heading += ["settings of ranks", "lowest mean rank, ours", "the paper's"]
    rows = []
    for name, several in papers.items():
        for one in several:
            if found := one.coefficients:
                link = f"[{escaped(one.name)}]({one.name}/README.md)"
                high = sum(round(each, 2) >= HIGH for each in found)  # as it is shown
                rows.append([escaped(name), link, str(len(found)), decimals(median(found)), str(high), *_firsts(one)])
    return grid(heading, rows, "llrrrrll")


def _firsts(one: Rendered) -> tuple[str, str, str]:
    """Over how many settings methods are ranked, and those of the lowest mean rank: of ours, of the paper's numbers."""
    ranked = one.ranking
    if ranked is None:
        return "", "", ""
    return str(len(ranked.settings)), _lowest(ranked.mean_ranks), _lowest(papers_mean_ranks(ranked) or {})


def _lowest(ranks: Mapping[str, float]) -> str:
    lowest = min(ranks.values(), default=0.0)
    return ", ".join(escaped(method) for method, rank in ranks.items() if math.isclose(rank, lowest))


def _ranks(several: Sequence[Rendered]) -> str:
    """A table of mean ranks for every scale, if any; the paper's are over the settings that have run there."""
    ranked = {one.name: found for one in several if (found := one.ranking) is not None}
    if not ranked:
        return ""
    methods = dict.fromkeys(method for found in ranked.values() for method in found.mean_ranks)
    heading = ["mean rank", *(f"{escaped(name)}, ours / the paper's" for name in ranked)]
    rows = [[escaped(method), *(_both(found, method) for found in ranked.values())] for method in methods]
    rows.append(["*settings*", *(str(len(found.settings)) for found in ranked.values())])
    return grid(heading, rows)


def _both(found: Ranking, method: str) -> str:
    if method not in found.mean_ranks:
        return ""
    theirs = papers_mean_ranks(found)
    return f"{found.mean_ranks[method]:.1f} / {f'{theirs[method]:.1f}' if theirs and method in theirs else ''}"


def _settings(rendered: Sequence[Rendered]) -> str:
    """Spearman's coefficient of every setting at every scale, with the number of methods."""
    found = {one.name: one.settings for one in rendered}
    keys = dict.fromkeys(key for of_scale in found.values() for key in of_scale)
    numbers = {one.table.name: one.table.number for folder in rendered for one in folder.tables}
    rows = []
    for name, column in keys:
        several = (of_scale.get((name, column)) for of_scale in found.values())
        cells = ["" if one is None else f"{escaped(coefficient(one))} ({len(one.methods)})" for one in several]
        rows.append([escaped(f"Table {numbers[name]}: {column}"), *cells])
    return grid(["Spearman (methods)", *map(escaped, found)], rows)
