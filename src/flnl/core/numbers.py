"""Which values are numbers, of those that come from files and configurations."""

from typing import TypeGuard


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number, finite or not. True and False are none, although Python counts with them.

    >>> [is_number(value) for value in (1, 0.5, float("nan"), True, "1", None)]
    [True, True, True, False, False, False]
    """
    return isinstance(value, int | float) and not isinstance(value, bool)
