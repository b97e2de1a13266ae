"""Animal-10N: animals in five pairs that people confuse, labelled by people, about 8 % of them wrongly."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import IMAGENET, Labels
from flnl.core.ranges import FromFiles, PathText, PositiveCount, Share
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import chosen
from flnl.data.datasets.download import expand
from flnl.data.datasets.listed import Listed, assembled
from flnl.data.image_names import images_below
from flnl.data.images import ImageFiles
from flnl.data.transforms import Transform

CLASSES = ("cat", "lynx", "wolf", "coyote", "cheetah", "jaguar", "chimpanzee", "orangutan", "hamster", "guinea pig")
SIZES = {"training": 50_000, "testing": 5_000}


@dataclass(frozen=True)
class Animal10N:
    """The raw images below ``root``: ``training/3_img_12.jpg`` is of class 3, and so in ``testing``.

    Images are of 64x64 pixels. The true labels of the training set are unknown. A sample's id is its file's name.
    """

    name: Literal["animal10n"]
    root: PathText
    verify: bool
    augment: bool
    in_memory: bool
    threads: PositiveCount
    train_size: PositiveCount | None
    test_size: PositiveCount | None
    fingerprint: Literal["contents", "names"]
    cache: Annotated[str | None, FromFiles(None)]
    noise_rate: Share | None  # estimated share of wrong labels, for methods that are given one; changes no data

    def __call__(self) -> Dataset:
        """Load the data set.

        Raises:
            UserError: if folders, names and images do not match.
        """
        root = expand(self.root)
        train = self._split(root / "training", "train", self.train_size)
        test = self._split(root / "testing", "test", self.test_size)
        mean, std = IMAGENET
        data = assembled(self.name, CLASSES, train, test, Transform((64, 64), mean, std, flip=self.augment))
        return replace(data, train=train[0].in_memory(), test=test[0].in_memory()) if self.in_memory else data

    def _split(self, folder: Path, split: str, size: int | None) -> tuple[ImageFiles, Labels]:
        if not folder.is_dir():
            raise UserError(
                f"dataset.root: there is no folder {folder}: request Animal-10N at https://dm.kaist.ac.kr/datasets/"
                "animal-10n and unpack its raw images so that training and testing are beside each other"
            )
        names = [path.as_posix() for path in images_below(folder).images]
        listed = Listed("Animal-10N", self.verify, self.threads, self.fingerprint, self.cache)
        expected = SIZES[folder.name]
        listed.expect(len(names) == expected, f"{folder} has {len(names)} images, not {expected}")
        labels = np.array([_label(folder, name) for name in names], np.int64)
        keep = chosen(labels, split, size)
        return listed.images(
            folder, names, labels, size=64, crop_from=64, keep=keep, named_by=f"the folder {folder.name}"
        )


def _label(folder: Path, name: str) -> int:
    """The class of a file, the digits before the first underscore of its name.

    Raises:
        UserError: if there are none, or there is no such class.
    """
    digits = name.partition("_")[0]
    if not (digits.isdecimal() and int(digits) < len(CLASSES)):
        raise UserError(f"dataset.root: {folder / name} does not begin with a class, as in 3_img_12.jpg for class 3")
    return int(digits)
