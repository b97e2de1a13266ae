"""A weight that rises linearly at the beginning of training."""

from __future__ import annotations


def linear_ramp(done: float, length: float) -> float:
    """``min(1, done / length)``; 1 if ``length`` is 0. Both are in one unit, such as rounds.

    >>> [linear_ramp(t, 16) for t in (0, 4, 20)], linear_ramp(0, 0)
    ([0.0, 0.25, 1.0], 1.0)
    """
    return 1.0 if done >= length else done / length
