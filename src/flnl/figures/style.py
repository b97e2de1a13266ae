"""The style of all figures: colours that are distinct in colour blindness, bare axes, small type."""

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator

INK, CLEAN, WRONG = "#222222", "#4c78a8", "#d1495b"
GREEN, ORANGE, PURPLE, GREY = "#009e73", "#e69f00", "#8e6bb0", "#b9b9b9"
EIGHT = ("#0072b2", "#d55e00", GREEN, "#cc79a7", ORANGE, "#56b4e9", INK, "#882255")
"""Colours of lines: Okabe and Ito's without yellow, and Tol's wine; distinct in all kinds of colour blindness."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""One for each of ``EIGHT``, so that lines and points can also be told apart without colour."""
DASHES = ("-", "--", ":", "-.")
"""Dash patterns, used in turn for more than eight lines."""
MANY = 60
"""From this number of clients, bars touch and clients have no individual markers."""

LETTERS = 12
"""Letters of a title that fit into an inch."""


def plain(text: str) -> str:
    r"""A name as it stands: Matplotlib would read what is between two ``$`` as mathematics.

    >>> plain("a_$_b")
    'a_\\$_b'
    """
    return text.replace("$", r"\$")


def look(place: int) -> tuple[str, str]:
    """Colour and dash pattern of the line at ``place``."""
    return EIGHT[place % len(EIGHT)], DASHES[place // len(EIGHT) % len(DASHES)]


NAMED, NAME_LETTERS, AXIS_LETTERS = 30, 24, 70
"""Maximum number of clients whose names are shown, of letters of one, and of all of them side by side."""


def client_axis(axes: Any, names: Sequence[str], of: str | None = None) -> None:
    """Name the clients below the x axis, or, if there are too many, say in what order they are.

    Args:
        axes: where client i is at x = i.
        names: the clients' names or numbers, in the order of the axis.
        of: what they are ordered by; None if they are in the order of their numbers.
    """
    axes.set_xlim(-0.7, len(names) - 0.3)
    if len(names) <= NAMED:
        shown = [plain(name if len(name) <= NAME_LETTERS else f"{name[: NAME_LETTERS - 1]}\u2026") for name in names]
        fits = max(map(len, shown), default=0) * len(shown) <= AXIS_LETTERS
        axes.set_xticks(range(len(names)), shown, rotation=0 if fits else 90)
        axes.set_xlabel("client" if of is None else f"client, in order of {of}")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axes.set_xlabel("client" if of is None else f"rank of the client by {of}")


def bare(axes: Any) -> None:
    """Use small ticks, and remove the frame above and on the right."""
    axes.tick_params(which="both", colors=INK, labelsize=8, length=2)
    axes.xaxis.label.set_size(9)
    axes.yaxis.label.set_size(9)
    axes.title.set_size(9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def within_shares(axes: Any) -> None:
    """End the vertical axis at 0 and 1 where its margins go beyond: no share lies there."""
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0), min(high, 1))


def title(figure: Any, text: str) -> None:
    """Set the title of the whole figure, as it stands; in several lines if the figure is too narrow for one."""
    lines = textwrap.fill(text, int(LETTERS * figure.get_figwidth()))
    figure.suptitle(plain(lines), x=0.01, ha="left", fontsize=11, color=INK)


def legend(axes: Any, *of: Any, **more: Any) -> None:
    """Add a legend without a frame; of a figure with several panels, of what is labelled in the panels ``of``."""
    if of:
        shown = (pair for one in of for pair in zip(*one.get_legend_handles_labels(), strict=True))
        handles, labels = zip(*shown, strict=True)
        more = {"handles": handles, "labels": labels, "ncols": len(labels), **more}
    axes.legend(fontsize=8, frameon=False, **more)
