"""Small data sets that noise is tested on. Images do not matter unless a test says what is in them."""

from typing import Any

import numpy as np
import torch

from flnl.core.images import Labels
from flnl.data.dataset import Dataset
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform


def labelled(labels: Labels, classes: int, name: str = "synthetic", pixels: Any = None, **more: Any) -> Any:
    """A data set whose truth is ``labels``, unless ``more`` says otherwise."""
    images = TensorImages(torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8) if pixels is None else pixels)
    return Dataset(
        name=name,
        classes=tuple(map(str, range(classes))),
        train=images,
        test=images,
        test_labels=labels,
        transform=Transform((1, 1), (0.0,), (1.0,)),
        **{"truth": labels, "fingerprint": f"{name}{len(labels)}", **more},
    )


def balanced(per_class: int, classes: int = 10, name: str = "synthetic") -> Any:
    truth = np.random.default_rng(0).permutation(np.repeat(np.arange(classes), per_class))
    return labelled(truth, classes, name)


def share(given: Labels, truth: Labels) -> float:
    return float((given != truth).mean())


def transition(given: Labels, truth: Labels, classes: int) -> Any:
    counts = np.zeros((classes, classes))
    np.add.at(counts, (truth, given), 1)
    return counts / counts.sum(axis=1, keepdims=True)
