"""Mean and standard deviation, as over seeds, where there may be too few values for them."""

from collections.abc import Sequence
from statistics import fmean, stdev


def mean(values: Sequence[float]) -> float | None:
    """The mean; None without a value."""
    return fmean(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation (ddof=1); None of fewer than two values.

    >>> deviation([1.0, 3.0]), deviation([1.0])
    (1.4142135623730951, None)
    """
    return stdev(values) if len(values) > 1 else None
