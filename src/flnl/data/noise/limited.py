"""The mean of rates that are drawn around a configured rate and limited to [0, 1]."""

from math import erf, erfc, exp, expm1, pi, sqrt


def truncated_normal(mean: float, deviation: float) -> float:
    """The mean of N(mean, deviation^2), truncated to [0, 1]; ``mean`` is in [0, 1].

    >>> round(truncated_normal(0.0, 0.1), 4), round(truncated_normal(0.4, 0.1), 4)
    (0.0798, 0.4)
    """
    if mean > 0.5:
        return 1 - truncated_normal(1 - mean, deviation)
    if deviation == 0 or mean == 0.5:
        return mean
    low, high = -mean / deviation / sqrt(2), (1 - mean) / deviation / sqrt(2)
    fall = -expm1((low - high) * (low + high))  # of the density, from 0 to 1
    return mean + deviation * sqrt(2 / pi) * exp(-low * low) * fall / (erf(high) - erf(low))


def clipped_normal(mean: float, deviation: float) -> float:
    """The mean of N(mean, deviation^2), clipped to [0, 1].

    >>> round(clipped_normal(0.3, 0.2), 4), clipped_normal(0.3, 0.0)
    (0.3058, 0.3)
    """
    if deviation == 0:
        return mean
    return mean + deviation * (_excess(mean / deviation) - _excess((1 - mean) / deviation))


def clipped_uniform(middle: float, reach: float) -> float:
    """The mean of U(middle - reach, middle + reach), clipped to [0, 1]; ``middle`` is in [0, 1].

    >>> round(clipped_uniform(0.0, 0.05), 4), clipped_uniform(0.4, 0.05)
    (0.0125, 0.4)
    """
    below, above = max(reach - middle, 0.0), max(reach - (1 - middle), 0.0)
    return middle if reach == 0 else middle + (below**2 - above**2) / (4 * reach)


def _excess(z: float) -> float:
    """The mean of max(Z - z, 0) of a standard normal Z."""
    return exp(-z * z / 2) / sqrt(2 * pi) - z * erfc(z / sqrt(2)) / 2 if z < 40 else 0.0  # z may be infinite
