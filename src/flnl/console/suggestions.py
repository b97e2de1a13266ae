"""What a person may have meant by a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name that is spelled most like ``word``; None if none is at least ``cutoff`` like it, from 0 to 1.

    >>> closest("fedcor", ["fedavg", "fedcorr"])
    'fedcorr'
    """
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)), None)


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """The question whether the closest name was meant; ``otherwise`` if none is close.

    >>> did_you_mean("fedcor", ["fedavg", "fedcorr"])
    'did you mean fedcorr?'
    """
    close = closest(word, known)
    return otherwise if close is None else f"did you mean {close}?"


def instead(word: str, known: Iterable[str]) -> str:
    """The closest name, then all that there are.

    >>> instead("fedcor", ["fedavg", "fedcorr"])
    'did you mean fedcorr? there are fedavg, fedcorr'
    """
    names = list(known)
    return " ".join(filter(None, [did_you_mean(word, names), f"there are {', '.join(names)}"]))
