"""Scikit-learn's handwritten digits: 1,797 real images that come with the library, so nothing is downloaded.

A federation trains on them in seconds, and methods still differ.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from flnl.core.ranges import PositiveCount
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import assemble
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform


@dataclass(frozen=True)
class Digits:
    """Images of 8x8 with grey values 0..16, 10 classes; stored exactly, without augmentation.

    There is no official split. This one is deterministic: of the samples sorted by class, in the library's order within
    a class, every fifth, starting with the first, is for testing. It gives 1,437 training and 360 test samples with
    equal class proportions.
    """

    name: Literal["digits"]
    train_size: PositiveCount | None
    test_size: PositiveCount | None

    def __call__(self) -> Dataset:
        """Load the data set; the labels are the truth."""
        from sklearn.datasets import load_digits

        source = load_digits()
        labels = source.target.astype(np.int64)
        pixels = torch.from_numpy(source.images.astype(np.uint8)[:, None])
        test = np.sort(np.argsort(labels, kind="stable")[::5])
        train = np.setdiff1d(np.arange(len(labels)), test)
        return assemble(
            name=self.name,
            classes=tuple("0123456789"),
            train=TensorImages(pixels[train]),
            test=TensorImages(pixels[test]),
            test_labels=labels[test],
            # Mean and standard deviation of all pixels, divided by 16.
            transform=Transform(size=(8, 8), mean=(0.3053,), std=(0.3760,), scale=16.0),
            truth=labels[train],
            train_size=self.train_size,
            test_size=self.test_size,
        )
