"""The server's clean samples: a share of the test set, for methods that score models on them."""

import numpy as np

from flnl.core.images import Indices, Labels
from flnl.core.ranges import Share
from flnl.core.streams import stream
from flnl.numerics.rounding import whole


def held_by_server(labels: Labels, share: Share) -> Indices:
    """Ascending positions of a ``share`` of each class of the test ``labels`` [M], rounded down.

    They are the same for all runs on a data set, independent of the seed, so that runs of all methods are scored on the
    same remaining samples. FedES (Sec. 5.1) uses a fifth.
    """
    some = [stream(0, "benchmark", c).permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    chosen = [index[: whole(share * len(index))] for index in some]
    return np.sort(np.concatenate([*chosen, np.zeros(0, np.int64)])).astype(np.int64)
