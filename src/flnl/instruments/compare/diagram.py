"""The critical-difference diagram of a ranking (Demšar, JMLR 2006)."""

from __future__ import annotations

import numpy as np
import scikit_posthocs
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter
from pandas import DataFrame

from flnl.figures.style import INK
from flnl.instruments.compare.ranking import Ranking, S

BAR = 2.5
"""Width, in points, of the bars that join methods without a significant difference."""


def draw(ranking: Ranking[S], made: str) -> Figure:
    """The diagram of Nemenyi's test: methods at their mean ranks, best on the left, and its critical difference.

    Bars join what ``ranking.apart`` does not tell apart.

    Args:
        ranking: with a test.
        made: of what, for the caption: the figure may be copied out of its page.
    """
    same = DataFrame(1.0, index=ranking.methods, columns=ranking.methods)
    for better, worse in ranking.apart:
        same.loc[better, worse] = same.loc[worse, better] = 0.0
    ranks, difference = ranking.mean_ranks, ranking.critical_difference
    figure = Figure(figsize=(7.5, 1.8 + 0.22 * len(ranks)))
    axes = figure.add_axes((0.22, 0.14, 0.56, 0.68))
    scikit_posthocs.critical_difference_diagram(
        ranks,
        same,
        ax=axes,
        label_fmt_left="{label}  {rank:.2f} ",
        label_fmt_right=" {rank:.2f}  {label}",
        text_h_margin=0.05 * len(ranks),
        color_palette=dict.fromkeys(ranks, INK),
        crossbar_props={"color": INK, "linewidth": BAR},
        marker_props={"s": 14},
        elbow_props={"lw": 0.9},
        label_props={"fontsize": 9, "parse_math": False},
    )
    for bar in axes.get_lines():  # their ends come from a set, whose order differs between processes
        if bar.get_linewidth() == BAR:
            bar.set_xdata(np.sort(np.asarray(bar.get_xdata(), float)))
    above = axes.get_xaxis_transform()
    axes.plot([1, 1 + difference], [1.16, 1.16], color=INK, lw=1.2, transform=above, clip_on=False)
    for end in (1, 1 + difference):
        axes.plot([end, end], [1.13, 1.19], color=INK, lw=1.2, transform=above, clip_on=False)
    axes.text(1 + difference, 1.16, f"  CD = {difference:.2f}", va="center", fontsize=9, color=INK, transform=above)
    axes.xaxis.set_major_locator(FixedLocator(range(1, len(ranks) + 1)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda rank, _: f"{rank:.0f}"))
    axes.tick_params(colors=INK, labelsize=9)
    axes.spines["top"].set_color(INK)
    figure.text(0.5, 0.03, f"{len(ranking.settings)} settings{made}", ha="center", fontsize=8, color=INK)
    return figure
