"""Clean samples that the server holds: a share of the test set, for methods that score models on it."""

import numpy as np

from flnl.core.images import Indices, Labels
from flnl.core.ranges import Share
from flnl.core.streams import stream
from flnl.numerics.label_flips import whole


def held_by_server(labels: Labels, share: Share) -> Indices:
    """Positions, ascending, of ``share`` of each class of the test ``labels`` [M], rounded down.

    The same for every run of a data set, whatever its seed (FedES, Sec. 5.1, takes a fifth): so runs with and without
    a use for them are scored on the same rest.
    """
    some = [stream(0, "benchmark", c).permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    chosen = [index[: whole(share * len(index))] for index in some]
    return np.sort(np.concatenate([*chosen, np.zeros(0, np.int64)])).astype(np.int64)
