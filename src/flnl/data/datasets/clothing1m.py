"""Clothing1M: a million images from shops, labelled by surrounding text, so about 40 % of the labels are wrong.

The true labels of the training set are unknown; only the test set is clean.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import IMAGENET, Labels
from flnl.core.ranges import FromFiles, Neutral, PathText, PositiveCount, Share
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import chosen
from flnl.data.datasets.download import expand
from flnl.data.datasets.listed import Listed, assembled, labelled_paths, lines_of
from flnl.data.images import ImageFiles
from flnl.data.transforms import Transform

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
    train_sample: Annotated[PositiveCount | None, Neutral(None)] = None

    def __call__(self) -> Dataset:
        """Load the data set; the given labels are the noisy ones, and there is no truth.

        Raises:
            UserError: if lists, labels and images do not match.
        """
        root = expand(self.root)
        train = self._split(root, "noisy_train", "noisy")
        test = self._split(root, "clean_test", "clean")
        # The second pair is computed on this data set, as in DivideMix.
        mean, std = IMAGENET if self.normalize == "imagenet" else ((0.6959, 0.6537, 0.6371), (0.3113, 0.3192, 0.3214))
        return assembled(self.name, CLASSES, train, test, Transform((224, 224), mean, std, flip=self.augment))

    def _split(self, root: Path, split: str, kind: str) -> tuple[ImageFiles, Labels]:
        """The images of a key list, and their labels [n] from the label file of ``kind`` (noisy or clean).

        Some images have both a noisy and a clean label; reading both files into one table would mix them.
        """
        paths = [_below_images(line) for line in _lines(root, f"{split}_key_list.txt")]
        self._listed.expect(
            len(paths) == SIZES[split], f"{split}_key_list.txt has {len(paths)} lines, not {SIZES[split]}"
        )
        labels = _look_up(paths, _label_file(root, f"{kind}_label_kv.txt"), f"{kind}_label_kv.txt")
        folder = root / "images" if (root / "images").is_dir() else root
        training = split == "noisy_train"
        keep = (
            chosen(labels, "train", self.train_size, self.train_sample)
            if training
            else chosen(labels, "test", self.test_size)
        )
        return self._listed.images(
            folder,
            paths,
            labels,
            size=224,
            crop_from=256 if self.augment and training else 224,
            keep=keep,
            named_by=f"{split}_key_list.txt",
        )

    @property
    def _listed(self) -> Listed:
        return Listed("Clothing1M", self.verify, self.threads, self.fingerprint, self.cache)


def _lines(root: Path, name: str) -> list[str]:
    how = "request Clothing1M at https://github.com/Cysu/noisy_label and unpack it so that its lists are beside its "
    return lines_of(root / name, f"{how}folder images")


def _below_images(key: str) -> str:
    """A key as a path below ``images``; the lists of some copies include that folder, others do not."""
    return key.removeprefix("./").removeprefix("images/")


def _label_file(root: Path, name: str) -> Mapping[str, int]:
    """Labels by path below ``images``, from lines of a path and a number."""
    found = labelled_paths(root / name, _lines(root, name), len(CLASSES))
    return {_below_images(key): label for key, label in found}


def _look_up(paths: Sequence[str], labels: Mapping[str, int], name: str) -> Labels:
    """The label of each path, [n].

    Raises:
        UserError: if a path has none.
    """
    try:
        return np.array([labels[path] for path in paths], np.int64)
    except KeyError as error:
        raise UserError(f"dataset.root: {name} has no label for {error.args[0]}, which a key list names") from error
