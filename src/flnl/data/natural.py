"""Partitions by whose the samples are: a data set's own groups, such as the writers of digits, whole and never cut."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import Indices
from flnl.core.ranges import PositiveCount
from flnl.data.owners import LEFT_OUT
from flnl.data.partition import Pool, Split

Join = Literal["balanced", "dealt"]


@dataclass(frozen=True)
class Natural:
    """The data set's groups as clients, in the order of their names; those without samples do not count.

    The steps: ``choose`` draws so many groups, and the others are left out. Groups of fewer than ``minimum`` samples
    are kept, dropped, or joined with each other (balanced) into as many clients of on average ``minimum`` samples as
    there can be. Then whole groups are joined into ``num_clients`` clients: ``balanced``, the largest first, each to
    the client with the fewest samples, ties to the lower number; or ``dealt``, a random order cut into equally many
    groups. Clients of several groups are called by their numbers.
    """

    groups: Literal["writers"]  # which groups a data set of several kinds reads; its own key refers to this one
    num_clients: PositiveCount | None
    join: Join
    choose: PositiveCount | None
    minimum: PositiveCount
    small: Literal["keep", "drop", "join"]

    natural: ClassVar[bool] = True

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Join the groups.

        Raises:
            UserError: if the data set has no groups, or too few.
        """
        if pool.clients is None:
            raise UserError(
                "partition=writers takes the groups that a data set comes with, and this one has none: digits, mnist "
                "and femnist have writers, dataset=image_folder sites and dataset=arrays clients"
            )
        names = pool.client_names or tuple(map(str, range(int(pool.clients.max(initial=LEFT_OUT)) + 1)))
        held = [group for group in np.unique(pool.clients).tolist() if group != LEFT_OUT]
        if self.choose is not None:
            _enough("choose", self.choose, len(held), "groups")
            held = sorted(rng.choice(held, self.choose, replace=False).tolist())
        sizes = np.bincount(pool.clients[pool.clients != LEFT_OUT], minlength=len(names))
        parts = self._with_small(held, sizes)
        if not parts:
            raise UserError(
                f"partition.minimum={self.minimum} leaves no group: the largest of {len(held)} has "
                f"{max(sizes[held].tolist())} samples"
            )
        if self.num_clients is not None:
            _enough("num_clients", self.num_clients, len(parts), "groups, and none is cut")
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
        client_of = np.full(len(names) + 1, LEFT_OUT, np.int64)  # LEFT_OUT reads the last one
        for client, part in enumerate(parts):
            client_of[part] = client
        single = all(len(part) == 1 for part in parts)
        return Split(client_of[pool.clients], len(parts), tuple(names[part[0]] for part in parts) if single else None)

    def _with_small(self, held: list[int], sizes: Indices) -> list[list[int]]:
        """The groups of each client before they are joined into ``num_clients``."""
        if self.small == "keep":
            return [[group] for group in held]
        large = [[group] for group in held if sizes[group] >= self.minimum]
        small = [group for group in held if sizes[group] < self.minimum]
        count = int(sizes[small].sum()) // self.minimum if self.small == "join" else 0
        if not count:
            return large
        place = balanced(sizes[small].tolist(), count)
        return [*large, *([small[i] for i in np.flatnonzero(place == client)] for client in range(count))]


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
