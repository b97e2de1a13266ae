"""The house style of figures: colours that the colour-blind can tell apart, bare axes, small type."""

from typing import Any

INK, CLEAN, WRONG = "#222222", "#4c78a8", "#d1495b"
GREEN, ORANGE, PURPLE, GREY = "#009e73", "#e69f00", "#8e6bb0", "#b9b9b9"
EIGHT = ("#0072b2", "#d55e00", GREEN, "#cc79a7", ORANGE, "#56b4e9", INK, "#882255")
"""Lines side by side: Okabe and Ito's without their yellow, and Tol's wine, apart in every kind of colour blindness."""
DASHES = ("-", "--", ":", "-.")
"""Kinds of lines, for more than eight."""
MANY = 60
"""From so many clients on, bars touch and clients are not marked one by one."""


def bare(axes: Any) -> None:
    """Small ticks, no frame above and on the right."""
    axes.tick_params(colors=INK, labelsize=8, length=2)
    axes.xaxis.label.set_size(9)
    axes.yaxis.label.set_size(9)
    axes.title.set_size(9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def title(figure: Any, text: str) -> None:
    """The title of a whole figure."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=11, color=INK)


def legend(axes: Any, **more: Any) -> None:
    """A legend without a frame."""
    axes.legend(fontsize=8, frameon=False, **more)
