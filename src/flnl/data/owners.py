"""Which client holds which sample, by the clients' names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flnl.core.images import Indices
from flnl.storage.spreadsheet import text_of
from flnl.storage.written_names import composed, in_order

log = logging.getLogger(__name__)

LEFT_OUT = -1
"""The owner of a sample that no client holds."""


@dataclass(frozen=True, eq=False)
class Owners:
    """Each sample's client, as a position in ``names``, or ``LEFT_OUT``."""

    number: Indices  # [N]
    names: tuple[str, ...]  # [K], in numeric order if all are numbers, else in the order of their characters

    @classmethod
    def of(cls, written: Sequence[str], source: str, *, leaves_out: bool = False) -> Owners:
        """The clients as they are written for each sample [N].

        Blanks at the ends, a spreadsheet's mark, and how accents are composed make no difference; names that become
        equal by this are logged.

        Args:
            written: what is written for each sample.
            source: the key and file, for messages.
            leaves_out: whether ``-1`` stands for no client.

        Raises:
            ValueError: if one is no name: see ``owner_name``.

        >>> Owners.of(["10", "9", "10"], "file").number.tolist(), Owners.of(["b", "a ", "9"], "file").names
        ([1, 0, 1], ('9', 'a', 'b'))
        """
        name_of: dict[str, str | None] = {}
        spelt: dict[str, str] = {}
        for one in dict.fromkeys(written):
            name = None if leaves_out and one.strip() == str(LEFT_OUT) else owner_name(one)
            name_of[one] = name
            if name is not None and (other := spelt.setdefault(name, one)) != one:
                log.warning("%s: %r and %r are read as one client", source, other, one)
        numbers = {name: i for i, name in enumerate(in_order(spelt))}
        place = {one: LEFT_OUT if name is None else numbers[name] for one, name in name_of.items()}
        return cls(np.array([place[one] for one in written], np.int64), tuple(numbers))

    def numbers_of(self, names: Sequence[str]) -> Indices:
        """The position of each name [n], or ``LEFT_OUT`` of one that is not there."""
        place = {name: i for i, name in enumerate(self.names)}
        return np.array([place.get(name, LEFT_OUT) for name in names], np.int64)

    @property
    def numeric(self) -> bool:
        """Whether all names are numbers from 0."""
        return all(name.isdecimal() for name in self.names)


def called(names: Sequence[str] | None, client: int) -> str:
    """What a client is called: its name, or its number where clients have no ``names``."""
    return str(client) if names is None else names[client]


def owner_name(written: str) -> str:
    """A client's name as it is written in a file: any text but what may be meant for another number.

    Raises:
        ValueError: if it is empty, stands for a missing value, or is an integer in other than plain digits.
    """
    name = composed(text_of(written.strip()))
    if not name or name.lower() == "nan":
        raise ValueError("the client is empty" if not name else f"the client is {written!r}, a missing value")
    if not name.isdecimal():
        try:
            int(name)
        except ValueError:
            return name
        raise ValueError(f"the client is {written!r}; clients are names, or numbers from 0 in plain digits")
    return name
