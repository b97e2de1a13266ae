"""When means over seeds or rounds count as equal, and how exactly they are written."""

DIGITS = 10
"""Significant digits to which means are compared, and written into files: far beyond what any test set can tell."""


def exact(number: float | None) -> str:
    """A number as files have it; empty if there is none."""
    return "" if number is None else f"{number:.{DIGITS}g}"


def compared(mean: float) -> float:
    """A mean as it is compared with others.

    Means of equal sums may differ in their last bits, which would put one before the other.

    >>> one, other = (0.81 + 0.85) / 2, (0.82 + 0.84) / 2
    >>> one == other, compared(one) == compared(other)
    (False, True)
    """
    return float(exact(mean))
