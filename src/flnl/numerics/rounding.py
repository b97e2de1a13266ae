"""Shares of a whole as whole numbers, with a tolerance for how floats round: in binary, 0.29 · 100 is 28.999…."""

from math import floor

TOLERANCE = 1e-9


def whole(x: float) -> int:
    """``x`` rounded down.

    >>> int(100 * 0.29), whole(100 * 0.29)
    (28, 29)
    """
    return floor(x + TOLERANCE)


def nearest(x: float) -> int:
    """``x`` rounded to the nearest integer, halves up.

    >>> nearest(2.5), nearest(3.5), nearest(500 * 0.37)
    (3, 4, 185)
    """
    return floor(x + 0.5 + TOLERANCE)


def cohort_size(fraction: float, clients: int) -> int:
    """The number of clients in a round: ``max(⌊γN⌋, 1)``.

    >>> cohort_size(0.29, 100)
    29
    """
    return max(whole(fraction * clients), 1)
