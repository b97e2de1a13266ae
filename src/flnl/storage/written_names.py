"""Names as files write them: with a spreadsheet's mark, accents composed otherwise, paths of another system."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence

from flnl.storage.spreadsheet import text_of

_SEVERAL = -1
"""The position of a name that may mean two."""


def composed(name: str) -> str:
    """The name with its accents composed (Unicode's NFC), by which names are equal that look equal.

    >>> composed("cafe\u0301") == "caf\u00e9"
    True
    """
    return unicodedata.normalize("NFC", name)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Different names, ascending: by their values if all are numbers, else by their characters.

    >>> in_order(["10", "9"]), in_order(["10", "9", "a"])
    (('9', '10'), ('10', '9', 'a'))
    """
    names = [*names]
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if all(map(str.isdecimal, names)) else None))


class WrittenNames:
    r"""Known names, found by what a file writes for them.

    A name is looked up as it stands; then without the ``'`` that a spreadsheet needs before a formula; then, if the
    names are paths, with ``/`` between folders and from the folder ``below``. At each of these steps, accents may be
    composed otherwise, unless two known names differ in nothing else.

    >>> WrittenNames(["caf\u00e9/1.jpg"], below="train").find("train\\cafe\u0301\\1.jpg")
    0
    """

    def __init__(self, names: Sequence[str], *, below: str | None = None) -> None:
        self._place = {name: place for place, name in enumerate(names)}
        self._below = below
        self._composed: dict[str, int] = {}
        for name, place in self._place.items():
            other = self._composed.setdefault(composed(name), place)
            if other != place:
                self._composed[composed(name)] = _SEVERAL

    def find(self, written: str) -> int | None:
        """The position of the name that is written so; None if there is none."""
        if (place := self._place.get(written)) is not None:
            return place
        for form in self._forms(written):
            place = self._place.get(form, self._composed.get(composed(form), _SEVERAL))
            if place != _SEVERAL:
                return place
        return None

    def _forms(self, written: str) -> Iterator[str]:
        yield written
        yield text_of(written)
        if self._below is not None:
            path = text_of(written).replace("\\", "/").removeprefix("./")
            yield path
            yield path.removeprefix(f"{self._below}/")


def collisions(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of names that differ only in how accents are composed."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(composed(name), name)
        if other != name:
            yield other, name
