"""A weight that rises linearly at the beginning of training."""

from __future__ import annotations


def linear_ramp(done: float, length: float) -> float:
    """``done / length``, at least 0 and at most 1; 1 if ``length`` is 0. Both are in one unit, such as rounds.

    >>> [linear_ramp(t, 16) for t in (-1, 0, 4, 20)], linear_ramp(-1, 0)
    ([0.0, 0.0, 0.25, 1.0], 1.0)
    """
    return 1.0 if length <= 0 or done >= length else max(0.0, done / length)
