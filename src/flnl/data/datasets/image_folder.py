"""User-defined images: a folder for each class, also of several sites, or one folder and a file of labels.

Small sets are decoded once and kept in memory, large ones are decoded batch by batch; the pixels are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from flnl.console.words import some
from flnl.core.errors import UserError
from flnl.core.images import IMAGENET, Labels
from flnl.core.ranges import Count, FromFiles, Neutral, NonNegative, PathText, PositiveCount
from flnl.data.dataset import Dataset
from flnl.data.datasets import crops
from flnl.data.datasets.assemble import assemble
from flnl.data.datasets.download import expand
from flnl.data.datasets.image_layout import ImageSplit, read_layout
from flnl.data.datasets.label_file import choose_labels, named_labels, read_label_file
from flnl.data.images import ImageFiles, file_sizes
from flnl.data.owners import Owners
from flnl.data.transforms import Transform
from flnl.data.votes import Vote
from flnl.storage.written_names import WrittenNames, composed


@dataclass(frozen=True)
class ImageFolder:
    """Images in ``root/train`` and ``root/test``, a folder for each class in both, or for each site and class.

    ``sites`` says whether the folders of ``train`` are sites, which are the clients for ``partition=file``; see
    ``read_layout``, also for ``SITE/train``.

    ``labels`` is a CSV file with the labels for training (columns: path below ``train``, label, and if known true and
    client). ``truth`` says where the correct labels are: in the class ``folder``, in the ``csv`` file's column
    ``true``, or nowhere (``none``). If a file gives the labels and the folders are not the truth, ``train`` may have
    any folders or none, and the classes are those of ``test``; if it has a folder for each of these, its other folders
    that the file names as labels are classes, too. A sample's id is its path below ``train``, or below ``root`` for
    ``SITE/train``, with ``/`` on every system.

    The fingerprint covers paths and contents of the files, or with ``names`` paths and sizes, whether or not the images
    are held in memory. ``cache`` is the folder where digests of files are cached.
    """

    name: str
    root: PathText
    labels: PathText | None  # a relative path begins at root
    truth: Literal["folder", "csv", "none"]
    image_size: PositiveCount
    crop_from: PositiveCount | None  # training images are resized to this before a crop of image_size is taken
    padding: Count
    flip: bool
    color: Literal["rgb", "grey"]
    normalize: Literal["imagenet", "half"]
    in_memory: bool | Literal["auto"]
    memory_limit: NonNegative  # GiB
    threads: PositiveCount
    train_size: PositiveCount | None
    test_size: PositiveCount | None
    fingerprint: Literal["contents", "names"] = "contents"  # records of earlier versions lack this key and the next
    cache: Annotated[str | None, FromFiles(None)] = None
    sites: Annotated[bool | Literal["auto"], Neutral("auto")] = "auto"
    vote: Annotated[Vote, Neutral("first")] = "first"

    def __call__(self) -> Dataset:
        """Load the data set.

        Raises:
            UserError: if folders, label file and configuration do not match.
        """
        root = expand(self.root)
        if self.crop_from is not None:
            crops.check(self.image_size, self.crop_from)
        class_folders = self.labels is None or self.truth == "folder"  # whether train has them; test always does
        train, test = read_layout(root, self.sites, class_folders=class_folders)
        file = None if self.labels is None else root / Path(self.labels).expanduser()
        classes = _classes(train) if file is None or class_folders else _with_labels(_classes(test), train, file)
        way = _way(train)
        folder_labels = _folder_labels(train, classes, way) if class_folders else None
        table = None if file is None else read_label_file(file, "path", train.paths, classes, self.vote)
        truth, given = choose_labels(self.truth, "folder", folder_labels, table, self.vote)
        owners = table.owners if table else None
        if owners is None and train.sites is not None:
            owners = _owners(train.sites, self.root)
        dataset = assemble(
            name=self.name,
            classes=classes,
            train=self._files(train, self.crop_from or self.image_size),
            test=self._files(test, self.image_size),
            test_labels=_folder_labels(test, classes, way),
            transform=self._transform(),
            truth=truth,
            given=given,
            owners=owners,
            people=table.people if table else None,
            ids=train.paths,
            train_size=self.train_size,
            test_size=self.test_size,
        )
        assert isinstance(dataset.train, ImageFiles)
        assert isinstance(dataset.test, ImageFiles)
        if not self._fits(len(dataset.train), len(dataset.test)):
            dataset.train.demand_one()
            dataset.test.demand_one()
            return dataset
        return replace(dataset, train=dataset.train.in_memory(), test=dataset.test.in_memory())

    def _files(self, split: ImageSplit, crop_from: int) -> ImageFiles:
        return ImageFiles(
            root=split.root,
            paths=split.paths,
            file_sizes=file_sizes(split.root, split.paths),
            size=(self.image_size, self.image_size),
            augmented_size=(crop_from, crop_from),
            channels=3 if self.color == "rgb" else 1,
            threads=self.threads,
            known_by=self.fingerprint,
            cache=None if self.cache is None else expand(self.cache),
        )

    def _transform(self) -> Transform:
        mean: tuple[float, ...]
        std: tuple[float, ...]
        mean, std = IMAGENET if self.normalize == "imagenet" else ((0.5,) * 3, (0.5,) * 3)
        if self.color == "grey":  # the mean of the channels
            mean, std = (sum(mean) / 3,), (sum(std) / 3,)
        return Transform((self.image_size, self.image_size), mean, std, padding=self.padding, flip=self.flip)

    def _fits(self, train: int, test: int) -> bool:
        """Whether to hold the images in memory."""
        if self.in_memory != "auto":
            return self.in_memory
        values = (train + test) * self.image_size**2
        if self.crop_from not in {None, self.image_size}:
            values += train * (self.crop_from or 0) ** 2
        return values * (3 if self.color == "rgb" else 1) <= self.memory_limit * 2**30


def _classes(split: ImageSplit) -> tuple[str, ...]:
    """The names of the class folders, sorted.

    Raises:
        UserError: if an image is in no class folder, or there is only one class.
    """
    folder, names = split.folder, split.classes
    if None in names:
        loose = split.root / split.paths[names.index(None)]
        raise UserError(
            f"dataset.root: {loose} is in no class folder: move it to {folder}/CLASS, or, if it is for"
            " training, set dataset.labels to a CSV file that gives the labels and dataset.truth=none"
        )
    classes = tuple(sorted({name for name in names if name is not None}))
    if len(classes) < 2:
        raise UserError(f"dataset.root: {folder} has images of one class only ({classes[0]}): at least two are needed")
    return classes


def _with_labels(classes: tuple[str, ...], train: ImageSplit, file: Path) -> tuple[str, ...]:
    """The classes of ``test`` and those without a test image: class folders of ``train`` that are labels in ``file``.

    Raises:
        UserError: if the file cannot be read.
    """
    folders = {composed(name): name for name in train.classes if name is not None}
    if not folders.keys() > set(map(composed, classes)):  # these are no class folders, or there are no others
        return classes
    known, labels = set(map(composed, classes)), set(map(composed, named_labels(file, "path")))
    return tuple(sorted({*classes, *(folders[name] for name in folders.keys() & labels - known)}))


def _owners(sites: Sequence[str], root: str) -> Owners:
    """The clients of sites [N].

    Raises:
        UserError: if the name of a folder is none of a client.
    """
    try:
        return Owners.of(sites, f"dataset.root={root}")
    except ValueError as error:
        raise UserError(f"dataset.root={root}: {error}: rename the folder of this site") from None


def _way(train: ImageSplit) -> str:
    """What to do about a folder of ``test`` that is none of the classes."""
    if train.sites is not None:
        return "the images of test are in test/CLASS, or in folders of sites as those of train"
    nested = all(path.count("/") > 1 for path in train.paths)
    return "train and test need the same folders" + ("; if those of train are sites, set dataset.sites=true" * nested)


def _folder_labels(split: ImageSplit, classes: Sequence[str], way: str) -> Labels:
    """The class of each image by its folder, [N].

    Raises:
        UserError: if a folder is not one of the classes, with the ``way`` out of it.
    """
    known = WrittenNames(classes)
    numbers = {name: known.find(name or "") for name in dict.fromkeys(split.classes)}
    for name, number in numbers.items():
        if number is None:
            path = split.root / split.paths[split.classes.index(name)]
            what = "in no class folder" if name is None else f"in {name!r}, which is none of the classes"
            raise UserError(f"dataset.root: {path} is {what} ({some(classes)}): {way}")
    return np.array([numbers[name] for name in split.classes], np.int64)
