"""Weights that rise linearly in training."""

from __future__ import annotations


def linear_ramp(done: float, length: float) -> float:
    """``done / length``, at least 0 and at most 1; 1 if ``length`` is 0. Both are in one unit, such as rounds.

    >>> [linear_ramp(t, 16) for t in (-1, 0, 4, 20)], linear_ramp(-1, 0)
    ([0.0, 0.0, 0.25, 1.0], 1.0)
    """
    return 1.0 if length <= 0 or done >= length else max(0.0, done / length)


def ramped(beta: float, step: int, *, start: int = 10, length: int = 30) -> float:
    """The ramp of β: 0 before ``start``, linear from 0 to β over ``length`` steps, then β (CORES).

    >>> [round(ramped(2.0, epoch), 3) for epoch in (0, 10, 11, 39, 99)]
    [0.0, 0.0, 0.069, 2.0, 2.0]
    """
    if length == 1:
        return beta * (step >= start)
    return beta * min(1.0, max(0.0, (step - start) / (length - 1)))
