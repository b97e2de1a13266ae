"""The size of a cohort."""

from flnl.numerics.rounding import whole


def cohort_size(fraction: float, clients: int) -> int:
    """``max(⌊γN⌋, 1)``, with a tolerance for rounding.

    >>> cohort_size(0.29, 100)
    29
    """
    return max(whole(fraction * clients), 1)
