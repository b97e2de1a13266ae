"""Samplers that draw clients uniformly, or visit each client once per pass."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from flnl.core.errors import UserError
from flnl.core.parts import ClientSampler, Sampling
from flnl.core.ranges import Neutral, PositiveShare
from flnl.core.streams import stream
from flnl.numerics.rounding import cohort_size


def draw_clients(sampling: Sampling, candidates: Sequence[int], count: int) -> list[int]:
    """Draw at most ``count`` of ``candidates``, uniformly and without replacement."""
    chosen = sampling.stream("cohort").choice(len(candidates), min(count, len(candidates)), replace=False)
    return [candidates[i] for i in chosen]


@dataclass(frozen=True)
class Uniform(ClientSampler):
    """Draws clients uniformly and without replacement, again in each round (McMahan et al. 2017)."""

    fraction: PositiveShare

    def __call__(self, sampling: Sampling) -> list[int]:
        return draw_clients(sampling, sampling.clients, self.size(len(sampling.clients)))

    def size(self, clients: int) -> int:
        return cohort_size(self.fraction, clients)


@dataclass(frozen=True)
class OnePass(ClientSampler):
    """Visits every client once per pass, in a new random order, in groups of a ``fraction`` of the clients.

    This is FedCorr's fraction scheduling (Sec. 3.2): with groups of one, the model passes from client to client.
    ``fraction=null`` means 1/N. With ``start=parallel_average``, all clients of a pass start from the same model, one
    of the interpretations of Algorithm 1.

    ``cohorts=partition`` divides the clients into groups. ``independent`` draws each group separately, so that a pass
    has as many rounds but visits some clients repeatedly and others not at all: FedDiv's conversion of iterations to
    rounds (supplement), and what FedCorr's released code does with groups of more than one.
    """

    fraction: PositiveShare | None
    start: Literal["chain", "parallel_average"]
    cohorts: Annotated[Literal["partition", "independent"], Neutral("partition")]

    def __post_init__(self) -> None:
        if self.start == "parallel_average" and self.fraction is not None:
            raise UserError(
                f"fraction={self.fraction} divides a pass into groups, but start={self.start} trains all clients at "
                "once: remove one of them"
            )

    def __call__(self, sampling: Sampling) -> list[int]:
        """The next group of the current pass."""
        count, size = len(sampling.clients), self.size(len(sampling.clients))
        if self.cohorts == "independent":
            return draw_clients(sampling, sampling.clients, size)
        groups = math.ceil(count / size)
        group = sampling.clock.stage_round % groups
        first = sampling.clock.round - group  # global round of the start of this pass; orders differ between stages
        order = stream(sampling.seed, "pass", first).permutation(count)
        return [sampling.clients[i] for i in order[group * size : (group + 1) * size]]

    def size(self, clients: int) -> int:
        if self.start == "parallel_average":
            return clients
        return 1 if self.fraction is None else cohort_size(self.fraction, clients)
