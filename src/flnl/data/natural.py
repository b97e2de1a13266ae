"""Partitions by whose the samples are: a data set's own groups, such as the writers of digits, whole and never cut."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import Indices
from flnl.core.ranges import PathText, PositiveCount
from flnl.data.annotators import read_annotators
from flnl.data.owners import LEFT_OUT, Owners
from flnl.data.partition import Pool, Split

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Joined:
    """Clients of whole groups, in the order of the groups' names; those without samples do not count.

    The steps: ``choose`` takes so many groups, ``drawn`` or the ``largest`` (ties: the first), and the others are left
    out. Groups of fewer than ``minimum`` samples are kept, dropped, or joined with each other (balanced) into as many
    clients of on average ``minimum`` samples as there can be. Then whole groups are joined into ``num_clients``
    clients: ``balanced``, the largest first, each to the client with the fewest samples, ties to the lower number; or
    ``dealt``, a random order cut into equally many groups. Clients of several groups are called by their numbers.
    """

    num_clients: PositiveCount | None
    join: Literal["balanced", "dealt"]
    choose: PositiveCount | None
    chosen: Literal["drawn", "largest"]
    minimum: PositiveCount
    small: Literal["keep", "drop", "join"]

    def _split(self, owners: Owners, rng: np.random.Generator) -> Split:
        """The clients.

        Raises:
            UserError: if there are too few groups.
        """
        held = [group for group in np.unique(owners.number).tolist() if group != LEFT_OUT]
        sizes = np.bincount(owners.number[owners.number != LEFT_OUT], minlength=len(owners.names))
        if self.choose is not None:
            _enough("choose", self.choose, len(held), "groups")
            if self.chosen == "drawn":
                held = sorted(rng.choice(held, self.choose, replace=False).tolist())
            else:
                held = sorted(sorted(held, key=lambda group: -sizes[group])[: self.choose])
        parts = self._with_small(held, sizes)
        if not parts:
            raise UserError(
                f"partition.minimum={self.minimum} leaves no group: the largest of {len(held)} has "
                f"{max(sizes[held].tolist())} samples"
            )
        if self.num_clients is not None:
            _enough("num_clients", self.num_clients, len(parts), "groups, and none is cut; null is a client for each")
            if self.num_clients < len(parts):
                totals = [int(sizes[part].sum()) for part in parts]
                place = (
                    balanced(totals, self.num_clients)
                    if self.join == "balanced"
                    else dealt(rng.permutation(len(parts)), self.num_clients)
                )
                parts = [
                    [group for i in np.flatnonzero(place == client) for group in parts[i]]
                    for client in range(self.num_clients)
                ]
        client_of = np.full(len(owners.names) + 1, LEFT_OUT, np.int64)  # LEFT_OUT reads the last one
        for client, part in enumerate(parts):
            client_of[part] = client
        single = all(len(part) == 1 for part in parts)
        names = tuple(owners.names[part[0]] for part in parts) if single else None
        return Split(client_of[owners.number], len(parts), names)

    def _with_small(self, held: list[int], sizes: Indices) -> list[list[int]]:
        """The groups of each client before they are joined into ``num_clients``."""
        if self.small == "keep":
            if self.minimum > 1:
                log.warning("partition.minimum=%d does nothing with partition.small=keep", self.minimum)
            return [[group] for group in held]
        large = [[group] for group in held if sizes[group] >= self.minimum]
        small = [group for group in held if sizes[group] < self.minimum]
        count = int(sizes[small].sum()) // self.minimum if self.small == "join" else 0
        if not count:
            return large
        place = balanced(sizes[small].tolist(), count)
        return [*large, *([small[i] for i in np.flatnonzero(place == client)] for client in range(count))]


@dataclass(frozen=True)
class Natural(Joined):
    """The data set's own groups, such as writers."""

    groups: Literal["writers"]  # what a data set of several kinds of groups reads; its own key refers to this one

    natural: ClassVar[bool] = True

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Join the groups.

        Raises:
            UserError: if the data set has no groups, or too few.
        """
        if pool.clients is None:
            raise UserError(
                "partition=writers takes the groups that a data set comes with, and this one has none: digits, mnist "
                "and femnist have writers, dataset=image_folder sites, dataset=arrays clients, and dataset=table and "
                "dataset=text those of the column that dataset.client names"
            )
        names = pool.client_names or tuple(map(str, range(int(pool.clients.max(initial=LEFT_OUT)) + 1)))
        return self._split(Owners(pool.clients, names), rng)


@dataclass(frozen=True)
class Annotators(Joined):
    """Who labelled CIFAR-100's training images, from the side file of CIFAR-100N (see ``read_annotators``)."""

    path: PathText

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Join the people.

        Raises:
            UserError: if the file is missing or is another one.
        """
        owners = read_annotators(Path(self.path).expanduser())
        count, position = len(owners.number), np.arange(len(pool.labels))
        if pool.ids is not None and all(name.isdecimal() for name in pool.ids):
            position = np.array([int(name) for name in pool.ids], np.int64)
        elif len(position) != count:
            raise UserError(f"partition.path={self.path} is of {count} images, and the data set has {len(position)}")
        if position.max(initial=0) >= count:
            raise UserError(
                f"partition.path={self.path} is of {count} images, and the data set has one {position.max()}"
            )
        return self._split(Owners(owners.number[position], owners.names), rng)

    def files(self) -> tuple[Path, ...]:
        """The files that the outcome depends on."""
        return (Path(self.path).expanduser(),)


def _enough(key: str, wanted: int, there: int, what: str) -> None:
    if wanted > there:
        raise UserError(f"partition.{key}={wanted}, but there are {there} {what}")


def balanced(sizes: list[int], num_clients: int) -> Indices:
    """The client [G] of each group: the largest first, each to the client with the fewest samples so far.

    Ties of groups and of clients go to the lower number.

    >>> balanced([5, 9, 4], 2).tolist()
    [1, 0, 1]
    """
    client, total = np.empty(len(sizes), np.int64), np.zeros(num_clients, np.int64)
    for group in np.argsort(-np.asarray(sizes, np.int64), kind="stable"):
        client[group] = total.argmin()
        total[client[group]] += sizes[group]
    return client


def dealt(order: Indices, num_clients: int) -> Indices:
    """The client [G] of each group: ``order`` [G] cut into runs, of which the first are longer by one.

    >>> dealt(np.array([2, 0, 1]), 2).tolist()
    [0, 1, 0]
    """
    client = np.empty(len(order), np.int64)
    for number, part in enumerate(np.array_split(order, num_clients)):
        client[part] = number
    return client
