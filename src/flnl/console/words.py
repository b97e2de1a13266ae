"""Numbers, probabilities and names in sentences."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, thing: str) -> str:
    """The number of things.

    >>> counted(1, "seed"), counted(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def probability(p: float) -> str:
    """A p-value in a sentence.

    >>> probability(0.0123), probability(1e-9)
    ('p = 0.012', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def some(names: Sequence[str], most: int = 5) -> str:
    """The first ``most`` names, and whether there are more.

    >>> some(["a", "b"]), some(["a", "b", "c"], most=2)
    ('a, b', 'a, b, ...')
    """
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
