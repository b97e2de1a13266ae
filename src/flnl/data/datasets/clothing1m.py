"""Clothing1M: a million images from shops, labelled by surrounding text, so about 40 % of the labels are wrong.

The true labels of the training set are unknown; only the test set is clean.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import IMAGENET, Labels
from flnl.core.ranges import FromFiles, PathText, PositiveCount, Share
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import assemble, balanced
from flnl.data.datasets.download import expand
from flnl.data.images import ImageFiles, file_sizes
from flnl.data.transforms import Transform

log = logging.getLogger(__name__)

CLASSES = (
    "T-shirt",
    "Shirt",
    "Knitwear",
    "Chiffon",
    "Sweater",
    "Hoodie",
    "Windbreaker",
    "Jacket",
    "Down Coat",
    "Suit",
    "Shawl",
    "Dress",
    "Vest",
    "Underwear",
)
SIZES = {"noisy_train": 1_000_000, "clean_test": 10_526}
"""Number of images in each key list. A copy with 14,313 test images has its validation and test lists swapped."""


@dataclass(frozen=True)
class Clothing1M:
    """The official layout below ``root``: key lists, label files, and ``images`` (or its ten folders themselves).

    Training uses the million images with noisy labels, testing the clean test list; the clean training and validation
    lists are not used. Images are decoded batch by batch, resized to 256x256 for random crops of 224x224, and to
    224x224 without a crop for evaluation. A sample's id is its path below ``images``.

    The fingerprint covers paths and contents of the files, or with ``names`` paths and sizes. ``cache`` is the folder
    where digests of files are cached.
    """

    name: Literal["clothing1m"]
    root: PathText
    verify: bool
    normalize: Literal["imagenet", "own"]
    augment: bool
    threads: PositiveCount
    train_size: PositiveCount | None
    test_size: PositiveCount | None
    fingerprint: Literal["contents", "names"] = "contents"  # records of earlier versions lack this key and the next two
    cache: Annotated[str | None, FromFiles(None)] = None
    noise_rate: Share | None = None  # estimated share of wrong labels, for methods that are given one; changes no data

    def __call__(self) -> Dataset:
        """Load the data set; the given labels are the noisy ones, and there is no truth.

        Raises:
            UserError: if lists, labels and images do not match.
        """
        root = expand(self.root)
        train, given = self._split(root, "noisy_train", "noisy", self.train_size, "dataset.train_size")
        test, test_labels = self._split(root, "clean_test", "clean", self.test_size, "dataset.test_size")
        train.demand_one()
        test.demand_one()
        # The second pair is computed on this data set, as in DivideMix.
        mean, std = IMAGENET if self.normalize == "imagenet" else ((0.6959, 0.6537, 0.6371), (0.3113, 0.3192, 0.3214))
        return assemble(
            name=self.name,
            classes=CLASSES,
            train=train,
            test=test,
            test_labels=test_labels,
            transform=Transform((224, 224), mean, std, flip=self.augment),
            truth=None,
            given=given,
            ids=train.paths,
            train_size=None,  # reduced already, before looking for a million files
            test_size=None,
        )

    def _split(self, root: Path, split: str, kind: str, size: int | None, key: str) -> tuple[ImageFiles, Labels]:
        """The images of a key list, and their labels [n] from the label file of ``kind`` (noisy or clean).

        Some images have both a noisy and a clean label; reading both files into one table would mix them.
        """
        paths = [_below_images(line) for line in _lines(root, f"{split}_key_list.txt")]
        self._expect(len(paths) == SIZES[split], f"{split}_key_list.txt has {len(paths)} lines, not {SIZES[split]}")
        labels = _look_up(paths, _label_file(root, f"{kind}_label_kv.txt"), f"{kind}_label_kv.txt")
        keep = np.arange(len(paths)) if size is None else balanced(labels, size, key)
        folder = root / "images" if (root / "images").is_dir() else root
        chosen = [paths[i] for i in keep.tolist()]
        sizes = file_sizes(folder, chosen)
        absent = np.flatnonzero(sizes == 0)
        if len(absent):
            first = folder / chosen[absent[0]]
            self._expect(False, f"{len(absent)} of {len(chosen)} images are missing or empty, the first is {first}")
            there = np.flatnonzero(sizes)
            keep, chosen, sizes = keep[there], [chosen[i] for i in there.tolist()], sizes[there]
        if not chosen:
            raise UserError(f"dataset.root: {root} has none of the images that {split}_key_list.txt should name")
        return (
            ImageFiles(
                root=folder,
                paths=tuple(chosen),
                file_sizes=sizes,
                size=(224, 224),
                augmented_size=(256, 256) if self.augment and split == "noisy_train" else (224, 224),
                threads=self.threads,
                known_by=self.fingerprint,
                cache=None if self.cache is None else expand(self.cache),
            ),
            labels[keep],
        )

    def _expect(self, holds: bool, finding: str) -> None:
        """Refuse a data set that differs from the published one; without ``verify``, log a warning instead."""
        if holds:
            return
        if self.verify:
            raise UserError(
                f"dataset.root: {finding}; repair it, or set dataset.verify=false to use the files as they are"
            )
        log.warning("Clothing1M: %s; using the files as they are", finding)


def _lines(root: Path, name: str) -> list[str]:
    """The lines of a list, without blank ones.

    Raises:
        UserError: if it does not exist or cannot be read.
    """
    try:
        if (root / name).exists() and not (root / name).is_file():
            raise OSError("it is not a regular file")
        lines = (root / name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"dataset.root: {root / name} cannot be read: request Clothing1M at"
            " https://github.com/Cysu/noisy_label and unpack it so that its lists are beside its folder images"
        ) from error
    return [line.strip() for line in lines if line.strip()]


def _below_images(key: str) -> str:
    """A key as a path below ``images``; the lists of some copies include that folder, others do not."""
    return key.removeprefix("./").removeprefix("images/")


def _label_file(root: Path, name: str) -> Mapping[str, int]:
    """Labels by path below ``images``, from lines of a path and a number."""
    labels: dict[str, int] = {}
    for number, line in enumerate(_lines(root, name), start=1):
        key, _, value = line.rpartition(" ")
        if not (key and value.isdecimal() and int(value) < len(CLASSES)):
            raise UserError(
                f"dataset.root: line {number} of {root / name} is {line!r}, not a path and a label in"
                f" 0..{len(CLASSES) - 1}"
            )
        labels[_below_images(key.rstrip())] = int(value)
    return labels


def _look_up(paths: Sequence[str], labels: Mapping[str, int], name: str) -> Labels:
    """The label of each path, [n].

    Raises:
        UserError: if a path has none.
    """
    try:
        return np.array([labels[path] for path in paths], np.int64)
    except KeyError as error:
        raise UserError(f"dataset.root: {name} has no label for {error.args[0]}, which a key list names") from error
