"""FEMNIST (LEAF, Caldas et al., 2018): letters and digits by who wrote them, as LEAF's scripts leave them."""

import json
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.core.images import Labels
from flnl.core.ranges import PathText, PositiveCount
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import assemble
from flnl.data.datasets.download import expand
from flnl.data.images import TensorImages
from flnl.data.owners import LEFT_OUT, Owners
from flnl.data.transforms import Transform

CLASSES = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
SIDE = 28


@dataclass(frozen=True)
class Femnist:
    """Grey images of 28x28 of 62 classes: 0-9, A-Z, a-z, on a white ground; the natural clients are the writers.

    In ``root`` are the folders ``train`` and ``test`` of LEAF's ``data/femnist/data``, each with JSON files:
    ``users``, ``num_samples``, and ``user_data`` with ``x`` (lists of 784 values in [0, 1]) and ``y`` of each user.
    LEAF divides the samples of each writer (``-t sample``), or the writers (``-t user``), so that those of the test set
    are no clients. Values are stored as whole 255ths.
    """

    name: str
    root: PathText
    train_sample: PositiveCount | None
    test_size: PositiveCount | None

    def __call__(self) -> Dataset:
        """Load the data set; the labels are the truth.

        Raises:
            UserError: if a file is missing or has another form.
        """
        root = expand(self.root)
        train, test = _read(root / "train"), _read(root / "test")
        owners = Owners.of(train.writers, f"dataset.root={self.root}")
        number = {name: i for i, name in enumerate(owners.names)}
        unknown = dict.fromkeys(test.writers, LEFT_OUT)
        mean, std = train.pixels.mean(dtype=np.float64) / 255, train.pixels.std(dtype=np.float64) / 255
        return assemble(
            name=self.name,
            classes=CLASSES,
            train=TensorImages(torch.from_numpy(train.pixels)),
            test=TensorImages(torch.from_numpy(test.pixels)),
            test_labels=test.labels,
            transform=Transform((SIDE, SIDE), (float(mean),), (float(std) or 1.0,)),
            truth=train.labels,
            owners=owners,
            test_owners=np.array([(unknown | number)[name] for name in test.writers], np.int64),
            train_size=None,
            train_sample=self.train_sample,
            test_size=self.test_size,
        )


@dataclass(frozen=True, eq=False)
class _Split:
    pixels: NDArray[np.uint8]  # [N, 1, 28, 28]
    labels: Labels  # [N]
    writers: list[str]  # [N]


def _read(folder: Path) -> _Split:
    """All files of a folder, in the order of their names.

    Raises:
        UserError: if there are none, or one has another form.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UserError(
            f"dataset.root: {folder} has no .json files; make them with LEAF's data/femnist/preprocess.sh -t sample "
            "(github.com/TalwalkarLab/leaf), and set dataset.root to its folder data, which has train and test"
        )
    pixels, labels, writers = [], [], list[str]()
    for file in files:
        for writer, x, y in _users(file):
            pixels.append(x)
            labels.append(y)
            writers += [writer] * len(y)
    if not writers:
        raise UserError(f"dataset.root: the files in {folder} have no samples")
    return _Split(np.concatenate(pixels), np.concatenate(labels), writers)


def _users(file: Path) -> Iterator[tuple[str, NDArray[np.uint8], Labels]]:
    """Each writer of a file with images [n, 1, 28, 28] and labels [n].

    Raises:
        UserError: if the file has another form.
    """
    try:
        content: Mapping[str, Any] = json.loads(file.read_bytes())
        for writer, count in zip(content["users"], content["num_samples"], strict=True):
            data = content["user_data"][writer]
            x, y = np.array(data["x"], np.float64), np.array(data["y"], np.int64)
            if x.size == 0 and count == 0:
                continue
            if x.shape != (count, SIDE * SIDE) or y.shape != (count,):
                raise ValueError(f"{writer} has x of {list(x.shape)} and y of {list(y.shape)} for {count} samples")
            if not (x.min() >= 0 and x.max() <= 1):
                raise ValueError(f"{writer} has values that are not in [0, 1]")
            if not (y.min() >= 0 and y.max() < len(CLASSES)):
                raise ValueError(f"{writer} has labels that are not in 0..{len(CLASSES) - 1}")
            yield str(writer), np.rint(x * 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE), y
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"dataset.root: {file} is no file of LEAF's FEMNIST ({reason})") from error
