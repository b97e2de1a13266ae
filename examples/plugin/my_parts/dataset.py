"""Striped images, made when they are needed."""

from dataclasses import dataclass

import numpy as np
import torch

from flnl.core.ranges import PositiveCount
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import assemble
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform

CLASSES = ("horizontal", "vertical", "falling", "rising")


@dataclass(frozen=True)
class Stripes:
    """Grey images of 12x12 with noisy stripes in four directions. The same images in every run: no seed draws them."""

    name: str
    train_size: PositiveCount
    test_size: PositiveCount

    def __call__(self) -> Dataset:
        """The data set; its labels are the truth."""
        pixels, labels = _drawn(self.train_size + self.test_size)
        train, test = np.split(np.arange(len(labels)), [self.train_size])
        return assemble(
            name=self.name,
            classes=CLASSES,
            train=TensorImages(pixels[train]),
            test=TensorImages(pixels[test]),
            test_labels=labels[test],
            transform=Transform(size=(12, 12), mean=(0.5,), std=(0.3,), scale=255.0),
            truth=labels[train],
            train_size=None,
            test_size=None,
        )


def _drawn(count: int) -> tuple[torch.Tensor, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Images, uint8 [n, 1, 12, 12], and their classes, int64 [n]."""
    rng = np.random.default_rng(2026)
    labels = np.arange(count, dtype=np.int64) % len(CLASSES)
    row, column = np.mgrid[:12, :12]
    along = np.stack([row, column, row + column, row - column])[labels]
    waves = 0.5 + 0.5 * np.sin(0.9 * along + rng.uniform(0, 2 * np.pi, count)[:, None, None])
    grey = np.clip(waves + rng.normal(0, 0.25, waves.shape), 0, 1)
    return torch.from_numpy((255 * grey).astype(np.uint8)[:, None]), labels
