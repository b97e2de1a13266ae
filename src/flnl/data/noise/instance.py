"""Part-dependent label noise: the pixels of an image determine the distribution of its wrong label.

The scale of the pixels is part of the definition, so it is a field, independent of how images are stored.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.core.ranges import NonNegative, Share
from flnl.core.streams import stream
from flnl.data.dataset import Dataset
from flnl.data.noise import limited
from flnl.data.noise.transition import true_labels

CHUNK, CHUNK_VALUES = 4096, 2**25
"""Number of images read at a time, and at most so many values of them: 256 MiB as float64."""


@dataclass(frozen=True)
class Instance:
    """Xia et al. (2020), part-dependent noise (also "IDN", "PDN").

    A sample's rate is q ~ N(eta, spread^2), truncated to [0, 1]; with spread 0 it is eta. With W[y] ~ N(0, 1)^{d x C},
    a = x W[y] and a_y = -inf, the given label is drawn from q softmax(a) + (1 - q) e_y. ``pixels: raw`` uses the stored
    pixels, 0...255 of images, where the softmax is nearly one-hot and the wrong label nearly a function of the image;
    ``unit`` divides by the largest pixel (255, 16 for digits, 1 for floats) and ``normalized`` standardises, which
    makes the softmax much flatter. ``projection: shared`` uses one W for all classes (CORES).
    """

    eta: Share
    spread: NonNegative
    pixels: Literal["raw", "unit", "normalized"]
    projection: Literal["per_class", "shared"]

    @property
    def nominal(self) -> float:
        """The configured rate; near 0 and 1, truncation moves the mean of q away from it."""
        return self.eta

    @property
    def expected(self) -> float:
        """The mean of q."""
        return limited.truncated_normal(self.eta, self.spread)

    def sample_rates(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Each sample's q, [count], by the inverse of the truncated distribution function."""
        from scipy.special import ndtr, ndtri  # composing a configuration should not import scipy

        u = rng.random(count)
        if self.spread == 0:
            return np.full(count, self.eta, np.float64)
        low, high = ndtr((0 - self.eta) / self.spread), ndtr((1 - self.eta) / self.spread)
        q = self.eta + self.spread * ndtri(low + (high - low) * u)
        return np.asarray(np.clip(q, 0.0, 1.0), np.float64)

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """The given labels.

        Raises:
            UserError: if samples are texts.
        """
        if dataset.transform.kind == "tokens":
            raise UserError(
                "noise=instance follows values of pixels or columns, and the numbers of words are none: set another "
                "noise, as noise=symmetric"
            )
        truth, rng = true_labels(dataset), stream(seed, "noise")
        q, u = self.sample_rates(len(truth), rng), rng.random(len(truth))
        given = truth.copy()
        size = int(np.prod(self._read(dataset, np.arange(1)).shape[1:]))
        several = max(1, min(CHUNK, CHUNK_VALUES // size))
        for y in np.unique(truth):
            which = 0 if self.projection == "shared" else int(y)
            W = stream(seed, "noise.projection", which).standard_normal((size, dataset.num_classes))
            members = np.flatnonzero(truth == y)
            for index in np.split(members, range(several, len(members), several)):
                p = q[index, None] * confusion(self._read(dataset, index) @ W, int(y))
                p[:, y] = 1 - q[index]
                edges = np.cumsum(p, axis=1)
                given[index] = (edges / edges[:, -1:] <= u[index, None]).sum(axis=1)
        return given

    def _read(self, dataset: Dataset, index: Indices) -> NDArray[np.float64]:
        """Flat inputs [n, d] at the configured scale."""
        import torch

        images = dataset.train.read(torch.from_numpy(index))
        if self.pixels == "normalized":
            images = dataset.transform.normalize(images)
        flat = images.flatten(1).double().numpy()
        return flat / dataset.transform.scale if self.pixels == "unit" else flat


def confusion(a: NDArray[np.float64], y: int) -> NDArray[np.float64]:
    """Softmax of ``a`` [n, C] over the classes other than ``y``.

    >>> confusion(np.array([[0.0, 5.0, 0.0]]), 1).tolist()
    [[0.5, 0.0, 0.5]]
    """
    a = a.copy()
    a[:, y] = -np.inf
    e = np.exp(a - a.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True), np.float64)
