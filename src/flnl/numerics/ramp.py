"""Weights that rise in training."""

from __future__ import annotations

import math


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


def exponential_ramp(time: float, begin: float, end: float, most: float) -> float:
    """``a exp(-5 (1 - (t - b) / (e - b))²)`` from time b on; before it, the value at b; from e on, a.

    It is 0.0067 a at b (Laine and Aila, ICLR 2017; FedNoRo, Sec. 3.3).

    >>> [f"{exponential_ramp(t, 10, 49, 0.8):.4f}" for t in (10, 30, 49, 80)]
    ['0.0054', '0.2442', '0.8000', '0.8000']
    """
    if time >= end:
        return most
    share = (time - begin) / (end - begin) if time > begin else 0.0
    return most * math.exp(-5 * (1 - share) ** 2)
