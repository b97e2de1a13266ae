"""User-defined images: a folder for each class, or one folder and a file of labels.

Small sets are decoded once and kept in memory, large ones are decoded batch by batch; the pixels are the same.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import IMAGENET, Labels
from flnl.core.ranges import Count, FromFiles, NonNegative, PathText, PositiveCount
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import assemble
from flnl.data.datasets.download import expand
from flnl.data.datasets.label_file import choose_labels, named_labels, read_label_file
from flnl.data.image_names import images_below
from flnl.data.images import ImageFiles, file_sizes
from flnl.data.transforms import Transform

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageFolder:
    """Images in ``root/train`` and ``root/test``, a folder for each class in both.

    ``labels`` is a CSV file with the labels for training (columns: path below ``train``, label, and if known true and
    client). ``truth`` says where the correct labels are: in the class ``folder``, in the ``csv`` file's column
    ``true``, or nowhere (``none``). If a file gives the labels and the folders are not the truth, ``train`` may have
    any folders or none, and the classes are those of ``test``; if it has a folder for each of these, its other folders
    that the file names as labels are classes, too. A sample's id is its path below ``train``, with ``/`` on
    every system.

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

    def __call__(self) -> Dataset:
        """Load the data set.

        Raises:
            UserError: if folders, label file and configuration do not match.
        """
        root = expand(self.root)
        if self.crop_from is not None and self.crop_from < self.image_size:
            raise UserError(
                f"dataset.crop_from={self.crop_from} is smaller than dataset.image_size={self.image_size}, the crop"
                " that is taken from it"
            )
        train_paths, test_paths = _listing(root, "train"), _listing(root, "test")
        class_folders = self.labels is None or self.truth == "folder"  # whether train has them; test always does
        file = None if self.labels is None else root / Path(self.labels).expanduser()
        if file is None or class_folders:
            classes = _classes(root / "train", train_paths)
        else:
            classes = _with_labels(_classes(root / "test", test_paths), train_paths, file)
        folder_labels = _folder_labels(root / "train", train_paths, classes) if class_folders else None
        table = None if file is None else read_label_file(file, "path", train_paths, classes)
        truth, given = choose_labels(self.truth, "folder", folder_labels, table)
        dataset = assemble(
            name=self.name,
            classes=classes,
            train=self._files(root / "train", train_paths, self.crop_from or self.image_size),
            test=self._files(root / "test", test_paths, self.image_size),
            test_labels=_folder_labels(root / "test", test_paths, classes),
            transform=self._transform(),
            truth=truth,
            given=given,
            clients=table.clients if table else None,
            ids=train_paths,
            train_size=self.train_size,
            test_size=self.test_size,
        )
        if not self._fits(len(dataset.train), len(dataset.test)):
            return dataset
        assert isinstance(dataset.train, ImageFiles)
        assert isinstance(dataset.test, ImageFiles)
        return replace(dataset, train=dataset.train.in_memory(), test=dataset.test.in_memory())

    def _files(self, folder: Path, paths: Sequence[str], crop_from: int) -> ImageFiles:
        return ImageFiles(
            root=folder,
            paths=paths,
            file_sizes=file_sizes(folder, paths),
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


def _listing(root: Path, split: str) -> tuple[str, ...]:
    """The images below a folder, as relative paths; what else is there is logged and left out, but for hidden files.

    Raises:
        UserError: if there are none, or a folder cannot be read.
    """
    folder = root / split
    try:
        found = images_below(folder)
    except OSError as error:
        raise UserError(f"dataset.root: {error.filename} cannot be read ({error.strerror})") from error
    if found.special:
        more = f", and so are {len(found.special) - 1} more" if len(found.special) > 1 else ""
        log.warning("%s is not a regular file and is left out%s", folder / found.special[0], more)
    if found.others:
        names = ", ".join(sorted(suffix or "none" for suffix in found.others))
        count = found.others.total()
        log.warning("%s: files without the suffix of an image are left out: %d (%s)", folder, count, names)
    if not found.images:
        raise UserError(
            f"dataset.root: there are no images below {folder}: put them into"
            f" {folder}/CLASS/NAME.jpg, and set dataset.root to {'this' if root.is_dir() else 'the'} folder that has"
            " train and test"
        )
    return tuple(path.as_posix() for path in found.images)


def _classes(folder: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """The names of the class folders, sorted.

    Raises:
        UserError: if an image is in no class folder, or there is only one class.
    """
    loose = [path for path in paths if "/" not in path]
    if loose:
        raise UserError(
            f"dataset.root: {folder / loose[0]} is in no class folder: move it to {folder}/CLASS, or, if it is for"
            " training, set dataset.labels to a CSV file that gives the labels and dataset.truth=none"
        )
    classes = tuple(sorted({path.split("/", 1)[0] for path in paths}))
    if len(classes) < 2:
        raise UserError(f"dataset.root: {folder} has images of one class only ({classes[0]}): at least two are needed")
    return classes


def _with_labels(classes: tuple[str, ...], train_paths: Sequence[str], file: Path) -> tuple[str, ...]:
    """The classes of ``test`` and those without a test image: class folders of ``train`` that are labels in ``file``.

    Raises:
        UserError: if the file cannot be read.
    """
    folders = {path.split("/", 1)[0] for path in train_paths if "/" in path}
    if not folders > set(classes):  # these are no class folders, or there are no others
        return classes
    return tuple(sorted({*classes, *(folders & named_labels(file, "path"))}))


def _folder_labels(folder: Path, paths: Sequence[str], classes: Sequence[str]) -> Labels:
    """The class of each image by its folder, [N].

    Raises:
        UserError: if a folder is not one of the classes.
    """
    numbers = {name: i for i, name in enumerate(classes)}
    names = [path.split("/", 1)[0] for path in paths]
    for name in names:
        if name not in numbers:
            raise UserError(
                f"dataset.root: {folder / name} is none of the classes ({', '.join(classes[:5])}"
                f"{', ...' if len(classes) > 5 else ''}): train and test need the same folders"
            )
    return np.array([numbers[name] for name in names], np.int64)
