"""Samplers that draw clients uniformly, or visit each of them once."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flnl.core.errors import UserError
from flnl.core.parts import ClientSampler, Sampling
from flnl.core.ranges import PositiveShare
from flnl.core.streams import stream

log = logging.getLogger(__name__)


def cohort_size(fraction: float, clients: int) -> int:
    """``max(⌊γN⌋, 1)``; the product is nudged, since 0.29 · 100 is 28.999… in binary.

    >>> cohort_size(0.29, 100)
    29
    """
    return max(int(fraction * clients + 1e-9), 1)


def draw_clients(sampling: Sampling, candidates: Sequence[int], count: int) -> list[int]:
    """At most ``count`` of ``candidates``, uniformly and without replacement."""
    chosen = sampling.stream("cohort").choice(len(candidates), min(count, len(candidates)), replace=False)
    return [candidates[i] for i in chosen]


@dataclass(frozen=True)
class Uniform(ClientSampler):
    """A fresh uniform draw without replacement each round (McMahan et al. 2017)."""

    fraction: PositiveShare

    def __call__(self, sampling: Sampling) -> list[int]:
        """``max(⌊γN⌋, 1)`` clients."""
        return draw_clients(sampling, sampling.clients, self.size(len(sampling.clients)))

    def size(self, clients: int) -> int:
        """``max(⌊γN⌋, 1)``."""
        return cohort_size(self.fraction, clients)


@dataclass(frozen=True)
class OnePass(ClientSampler):
    """Every client once a pass, in a fresh random order cut into groups of ``fraction`` of them.

    FedCorr's fraction scheduling (Sec. 3.2): with groups of one, the model is handed from client to client.
    ``fraction=null`` means 1/N. ``start=parallel_average`` has all clients of a pass start from the same model, one
    of the readings of Algorithm 1.
    """

    fraction: PositiveShare | None
    start: Literal["chain", "parallel_average"]

    def __post_init__(self) -> None:
        if self.start == "parallel_average" and self.fraction is not None:
            raise UserError(
                f"method.gamma1={self.fraction} cuts a pass into groups, and method.stage1=parallel_average takes it "
                "whole: leave one of them out"
            )

    def __call__(self, sampling: Sampling) -> list[int]:
        """The next group of this pass."""
        count, size = len(sampling.clients), self.size(len(sampling.clients))
        groups = math.ceil(count / size)
        group = sampling.stage_round % groups
        first = sampling.round - group  # the global round in which this pass began, so that stages do not repeat orders
        order = stream(sampling.seed, "pass", first).permutation(count)
        return [sampling.clients[i] for i in order[group * size : (group + 1) * size]]

    def size(self, clients: int) -> int:
        """Clients in a group."""
        if self.start == "parallel_average":
            return clients
        return 1 if self.fraction is None else cohort_size(self.fraction, clients)
