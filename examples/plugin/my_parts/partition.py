"""Clients that collected their samples one after the other."""

from dataclasses import dataclass

import numpy as np

from flnl.core.errors import UserError
from flnl.core.ranges import PositiveCount
from flnl.data.partition import Pool, Split


@dataclass(frozen=True)
class InOrder:
    """The samples in the data set's order, cut into equal parts: of video frames, say, or visits to a clinic."""

    num_clients: PositiveCount

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """The owner of each sample.

        Raises:
            UserError: if there are fewer samples than clients.
        """
        samples = len(pool.labels)
        if samples < self.num_clients:
            raise UserError(f"partition.num_clients={self.num_clients}: there are only {samples} samples")
        return Split(np.arange(samples, dtype=np.int64) * self.num_clients // samples, self.num_clients)
