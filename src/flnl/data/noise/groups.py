"""FNBench's noise: groups of clients, with rates that rise from client to client."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, Literal, get_args

import numpy as np
from annotated_types import MinLen
from pydantic import AfterValidator

from flnl.core.errors import UserError
from flnl.core.images import Labels
from flnl.core.ranges import Count
from flnl.data.dataset import Dataset
from flnl.data.noise import Rates
from flnl.data.noise.maps import class_map
from flnl.numerics.label_flips import exactly, redraw, remap
from flnl.numerics.rounding import whole

Kind = Literal["symmetric", "pairflip", "clean"]


def _is_group(written: Sequence[Any]) -> Sequence[Any]:
    try:
        kind, clients, *rates = written
        counts = clients is None or (type(clients) is int and clients > 0)
        if kind in get_args(Kind) and counts and len(rates) == 2 and all(0 <= rate <= 1 for rate in rates):
            return written
    except (TypeError, ValueError):
        pass
    raise ValueError(
        "must be [kind, clients, low, high]: symmetric, pairflip or clean, a number or null, and rates in 0..1"
    )


Group = Annotated[Sequence[Any], AfterValidator(_is_group)]
"""Kind, number of clients (None: an equal part of those that no group counts), first and last rate."""


@dataclass(frozen=True)
class GroupRamp:
    """Each group is a number of clients in a row; client i of g has the rate low + i (high - low)/g.

    int(rate n_k) of its labels change: to another class (symmetric), to the class before (pairflip), or none (clean).
    ``end: include`` has g - 1 in place of g, so that the last client reaches high. The order of clients is that of the
    partition, so where sizes fall or rise in it, rates go with them.

    FNBench's program seeds Python's generator with the same number before every client: clients of equal size have the
    same positions changed, and a higher rate changes those of a lower one and more. ``shared_seed`` is this number;
    positions are counted in the order of the data set, not in that of the program's lists.
    """

    groups: Annotated[Sequence[Group], MinLen(1)]
    end: Literal["exclude", "include"]
    shared_seed: Count | None

    @property
    def nominal(self) -> float | None:
        """The mean of the groups' middles by clients; None if some groups count theirs and others do not."""
        counts = [clients for _, clients, _, _ in self.groups]
        if None in counts and any(counts):
            return None
        middles = [0.0 if kind == "clean" else (low + high) / 2 for kind, _, low, high in self.groups]
        return float(np.average(middles, weights=[count or 1 for count in counts]))

    def rates(self, num_clients: int, seed: int) -> Rates:
        """The rates [K], whatever the seed.

        Raises:
            UserError: if the groups have another number of clients.
        """
        ramps = [
            np.zeros(size) if kind == "clean" else np.linspace(low, high, size, endpoint=self.end == "include")
            for size, (kind, _, low, high) in zip(self._sizes(num_clients), self.groups, strict=True)
        ]
        return np.concatenate(ramps)

    def of(self, client: int, num_clients: int) -> "_Changes":
        """What changes the labels of a client."""
        group = int(np.searchsorted(np.cumsum(self._sizes(num_clients)), client, side="right"))
        return _Changes(self.groups[group][0], self.shared_seed)

    def __call__(self, labels: Labels, rate: float, dataset: Dataset, rng: np.random.Generator, /) -> Labels:
        """Draw the given labels of a client of the first group."""
        return _Changes(self.groups[0][0], self.shared_seed)(labels, rate, dataset, rng)

    def _sizes(self, num_clients: int) -> list[int]:
        """The number of clients of each group."""
        counts = [clients for _, clients, _, _ in self.groups]
        rest, open_ended = num_clients - sum(filter(None, counts)), counts.count(None)
        if rest < 0 or (rest > 0 and not open_ended):
            raise UserError(
                f"noise.groups has {num_clients - rest} clients, and there are {num_clients}: give as many, or null in "
                "place of a number for an equal part of the rest"
            )
        parts = iter(len(part) for part in np.array_split(np.arange(rest), max(open_ended, 1)))
        return [next(parts) if count is None else count for count in counts]


@dataclass(frozen=True)
class _Changes:
    kind: Kind
    shared_seed: int | None

    def __call__(self, labels: Labels, rate: float, dataset: Dataset, rng: np.random.Generator, /) -> Labels:
        if self.shared_seed is not None:
            return self._as_released(labels, rate, dataset.num_classes, Random(self.shared_seed))
        picked = exactly(len(labels), whole(rate * len(labels)), rng)
        if self.kind == "pairflip":
            return remap(labels, picked, class_map("pair_previous", dataset))
        return redraw(labels, picked, np.arange(dataset.num_classes), rng, include_true=False)

    def _as_released(self, labels: Labels, rate: float, classes: int, python: Random) -> Labels:
        order = list(range(len(labels)))
        python.shuffle(order)
        given = labels.copy()
        for i in order[: int(rate * len(labels))]:  # without a guard against binary fractions, as there
            y = int(labels[i])
            if self.kind == "pairflip":
                given[i] = (y - 1) % classes
            else:
                given[i] = python.choice([c for c in range(classes) if c != y])
        return given
