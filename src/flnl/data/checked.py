"""Checks of what partitions and noise return, which may be parts of a user's own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels


def integers(part: str, value: Any, length: int, *, least: int, most: int, what: str) -> Indices:
    """An array of integers [length] from ``least`` to ``most``.

    Args:
        part: what returned it, such as "noise (Tired), client 3".
        value: what was returned.
        length: the number of samples.
        least: the smallest value that is possible.
        most: the largest.
        what: the name of a value, such as "label".

    Raises:
        UserError: if it is anything else.
    """
    wanted = f"{what}s from {least} to {most}, as integers [{length}]"
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or value.shape != (length,):
        raise UserError(f"{part} returned {_described(value)}; should be {wanted}")
    wrong = (value < least) | (value > most)
    if wrong.any():
        first = int(wrong.argmax())
        raise UserError(f"{part} returned {what} {value[first]} for sample {first}; should be {wanted}")
    return value.astype(np.int64, copy=False)


def labels(part: object, value: Any, length: int, classes: int, client: int | None = None) -> Labels:
    """Given labels [length] from a noise ``part``; of one client, or of all if ``client`` is None.

    Raises:
        UserError: if they are no labels.
    """
    name = f"noise ({type(part).__name__})" + ("" if client is None else f", client {client},")
    return integers(name, value, length, least=0, most=classes - 1, what="label")


def rates(part: object, value: Any, clients: int) -> NDArray[np.float64]:
    """The rate of each client [clients] from a noise ``part``.

    Raises:
        UserError: if they are not as many numbers.
    """
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu" or value.shape != (clients,):
        raise UserError(
            f"noise ({type(part).__name__}).rates returned {_described(value)}; should be numbers [{clients}]"
        )
    return value


def _described(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
