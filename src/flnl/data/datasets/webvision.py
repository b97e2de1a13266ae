"""WebVision: images that Google found for words, so that about a fifth of the labels are wrong; its first classes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import IMAGENET, Labels
from flnl.core.ranges import FromFiles, PathText, PositiveCount, Share
from flnl.data.dataset import Dataset
from flnl.data.datasets import crops
from flnl.data.datasets.assemble import chosen
from flnl.data.datasets.download import expand
from flnl.data.datasets.listed import Listed, assembled, labelled_paths, lines_of
from flnl.data.image_names import images_below
from flnl.data.images import ImageFiles
from flnl.data.transforms import Transform

ALL_CLASSES = 1000
TESTED = 50
"""Test images of each class, in WebVision's validation set and in ImageNet's."""


@dataclass(frozen=True)
class WebVision:
    """The official layout below ``root``, of the small images: ``info``, ``google`` and ``val_images_256``.

    Training uses the Google list, with labels below ``classes``. Testing uses WebVision's validation list, or with
    ``imagenet`` the images of the same classes in that folder, which has a folder for each WordNet id of
    ``info/synsets.txt``: ImageNet's validation set. The true labels of the training set are unknown. A sample's id is
    its path as the list has it.
    """

    name: Literal["webvision"]
    root: PathText
    imagenet: PathText | None
    classes: PositiveCount
    verify: bool
    image_size: PositiveCount
    crop_from: PositiveCount  # training images are resized to this before a crop of image_size is taken
    augment: bool
    threads: PositiveCount
    train_size: PositiveCount | None
    test_size: PositiveCount | None
    fingerprint: Literal["contents", "names"]
    cache: Annotated[str | None, FromFiles(None)]
    noise_rate: Share | None  # estimated share of wrong labels, for methods that are given one; changes no data

    def __call__(self) -> Dataset:
        """Load the data set.

        Raises:
            UserError: if lists, labels and images do not match.
        """
        if self.augment:
            crops.check(self.image_size, self.crop_from)
        root = expand(self.root)
        synsets = [line.split(" ", 1) for line in self._lines("synsets.txt")]
        if len(synsets) < self.classes:
            raise UserError(
                f"dataset.classes={self.classes}: {root / 'info/synsets.txt'} names {len(synsets)} classes; take at "
                "most as many"
            )
        synsets = synsets[: self.classes]
        paths, labels = self._list("train_filelist_google.txt")
        folder = next((f for f in (root, root / "google") if paths and (f / paths[0]).is_file()), root)
        train = self._images(folder, paths, labels, "train")
        test = self._test([wnid for wnid, *_ in synsets])
        mean, std = IMAGENET
        return assembled(
            self.name,
            [(words or [wnid])[0].partition(",")[0] + f" ({wnid})" for wnid, *words in synsets],
            train,
            test,
            Transform((self.image_size,) * 2, mean, std, flip=self.augment),
        )

    def _test(self, wnids: list[str]) -> tuple[ImageFiles, Labels]:
        listed = self._listed
        if self.imagenet is None:
            folder = expand(self.root) / "val_images_256"
            paths, labels = self._list("val_filelist.txt")
        else:
            folder = expand(self.imagenet)
            found = [(f"{wnid}/{path}", c) for c, wnid in enumerate(wnids) for path in _below(folder / wnid)]
            paths, labels = [path for path, _ in found], np.array([c for _, c in found], np.int64)
        expected = TESTED * self.classes
        listed.expect(
            len(paths) == expected, f"{folder} should have {expected} test images, and {len(paths)} are named"
        )
        return self._images(folder, paths, labels, "test")

    def _images(self, folder: Path, paths: list[str], labels: Labels, split: str) -> tuple[ImageFiles, Labels]:
        training = split == "train"
        return self._listed.images(
            folder,
            paths,
            labels,
            size=self.image_size,
            crop_from=self.crop_from if training and self.augment else self.image_size,
            keep=chosen(labels, split, self.train_size if training else self.test_size),
            named_by="the lists in info",
        )

    def _list(self, name: str) -> tuple[list[str], Labels]:
        """The paths of a list, and their labels [n], of the classes that are used."""
        found = labelled_paths(expand(self.root) / "info" / name, self._lines(name), ALL_CLASSES)
        used = [(path, label) for path, label in found if label < self.classes]
        return [path for path, _ in used], np.array([label for _, label in used], np.int64)

    def _lines(self, name: str) -> list[str]:
        how = (
            "get WebVision 1.0 (small images) from https://data.vision.ee.ethz.ch/cvl/webvision and unpack it so that "
        )
        return lines_of(
            expand(self.root) / "info" / name, f"{how}info, google and val_images_256 are beside each other"
        )

    @property
    def _listed(self) -> Listed:
        return Listed("WebVision", self.verify, self.threads, self.fingerprint, self.cache)


def _below(folder: Path) -> list[str]:
    """The images below a folder, sorted.

    Raises:
        UserError: if there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"dataset.imagenet: there is no folder {folder}; it should have a folder for each WordNet id")
    return [path.as_posix() for path in images_below(folder).images]
