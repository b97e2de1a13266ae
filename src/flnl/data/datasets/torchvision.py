"""MNIST, Fashion-MNIST, SVHN, CIFAR-10 and CIFAR-100, through torchvision.

URLs, checksums and readers are torchvision's. Downloading is ours: torchvision's has no timeout, no mirrors, and cannot
accept files that differ from the published ones. Reading CIFAR's pickles is ours, since torchvision executes any code
that they name.
"""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.images import IMAGENET, Labels
from flnl.core.ranges import FromFiles, Neutral, PathText, Positive, PositiveCount
from flnl.data.array_pickle import read_array_pickle
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import assemble, refuse_first_of_groups
from flnl.data.datasets.download import Access, Package, Published, expand, provide
from flnl.data.images import TensorImages
from flnl.data.owners import LEFT_OUT, Owners
from flnl.data.transforms import Transform

DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class _Fetched:
    name: str
    root: PathText
    download: Annotated[bool, FromFiles(False)]
    mirror: Annotated[PathText | None, FromFiles(None)]
    verify: bool
    timeout: Positive  # seconds
    train_size: PositiveCount | None
    test_size: PositiveCount | None

    def _provide(self, files: Mapping[Path, str], published: Published, **more: Callable[[Path], bool]) -> None:
        provide(files, published, Access(self.download, self.mirror, self.verify, self.timeout), **more)

    def _assembled(
        self, splits: Sequence[tuple[Tensor, Labels]], classes: Sequence[str], transform: Transform, **more: Any
    ) -> Dataset:
        (train, truth), (test, test_labels) = splits
        return assemble(
            name=self.name,
            classes=classes,
            train=TensorImages(train),
            test=TensorImages(test),
            test_labels=test_labels,
            transform=transform,
            truth=truth,
            train_size=self.train_size,
            test_size=self.test_size,
            **more,
        )


@dataclass(frozen=True)
class Cifar(_Fetched):
    """CIFAR-10 or CIFAR-100: 50,000 and 10,000 colour images of 32x32; random crops padded by 4, random flips."""

    name: Literal["cifar10", "cifar100"]
    normalize: Literal["default", "imagenet"]
    augment: bool

    def __call__(self) -> Dataset:
        """Load the data set; the labels are the truth."""
        from torchvision import datasets

        kind: Any = datasets.CIFAR10 if self.name == "cifar10" else datasets.CIFAR100
        root = expand(self.root)
        folder = root / kind.base_folder
        base, _, archive = kind.url.rpartition("/")
        title = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}[self.name]
        published = Published(title, root, (base,), {archive: kind.tgz_md5})
        files = {**dict(kind.train_list), **dict(kind.test_list), kind.meta["filename"]: kind.meta["md5"]}
        self._provide({folder / name: md5 for name, md5 in files.items()}, published, same=_has_published_contents)

        with _reading(folder):
            # Files that differ from the published ones were refused above, or are accepted by verify=false.
            classes = _class_names(folder / kind.meta["filename"], kind.meta["key"])
            listed = [[folder / name for name, _ in split] for split in (kind.train_list, kind.test_list)]
            splits = [_split(*_batches(files), len(classes)) for files in listed]
        # CIFAR-10's customary deviation is the mean over images; over all pixels it is (.247, .244, .262).
        ten = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
        hundred = ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))
        mean, std = IMAGENET if self.normalize == "imagenet" else ten if self.name == "cifar10" else hundred
        transform = Transform((32, 32), mean, std, padding=4 if self.augment else 0, flip=self.augment)
        return self._assembled(splits, classes, transform)


@dataclass(frozen=True)
class Mnist(_Fetched):
    """MNIST or Fashion-MNIST: 60,000 and 10,000 grey images of 28x28, without augmentation."""

    name: Literal["mnist", "fashion_mnist"]
    # Records of earlier versions lack the keys that follow.
    train_sample: Annotated[PositiveCount | None, Neutral(None)] = None
    groups: Annotated[Literal["writers"] | None, Neutral(None)] = None

    def __call__(self) -> Dataset:
        """Load the data set; the labels are the truth.

        Raises:
            UserError: if files are missing or not the published ones, or there are no such groups.
        """
        from torchvision import datasets

        if self.groups is not None:
            if self.name != "mnist":
                raise UserError(
                    f"dataset.groups={self.groups}: {self.name} comes without writers; dataset=mnist has some"
                )
            refuse_first_of_groups(self.train_size)
        kind: Any = datasets.MNIST if self.name == "mnist" else datasets.FashionMNIST
        root = expand(self.root)
        folder = root / kind.__name__ / "raw"
        archives = dict(kind.resources)
        bases, package = [base.rstrip("/") for base in kind.mirrors], None if self.name == "mnist" else FASHION_PACKAGE
        published = Published(kind.__name__, folder, bases, archives, package)
        contents = MNIST_CONTENTS if self.name == "mnist" else FASHION_CONTENTS
        self._provide({folder / name: md5 for name, md5 in contents.items()}, published)

        with _reading(folder):
            # Without this, torchvision would read files that its earlier versions have processed.
            reader: Any = type(kind.__name__, (kind,), {"_check_legacy_exist": lambda _: False})
            sets = [reader(root, train=flag) for flag in (True, False)]
            splits = [_split(s.data.numpy()[:, None], s.targets, 10, 28) for s in sets]
        owners = None if self.groups is None else _writers(folder / TRAIN_LABELS)
        normalization = ((0.1307,), (0.3081,)) if self.name == "mnist" else ((0.2860,), (0.3530,))
        return self._assembled(
            splits,
            DIGITS if self.name == "mnist" else tuple(kind.classes),
            Transform((28, 28), *normalization),
            owners=owners,
            # The test images are of other people.
            test_owners=None if owners is None else np.full(len(splits[1][1]), LEFT_OUT, np.int64),
            train_sample=self.train_sample,
        )


@dataclass(frozen=True)
class Svhn(_Fetched):
    """SVHN, cropped digits: 73,257 and 26,032 colour images of 32x32; random crops padded by 4.

    ``flip`` also flips digits at random, as FedNoisy's program does.
    """

    name: Literal["svhn"]
    augment: bool
    flip: Annotated[bool, Neutral(False)] = False

    def __call__(self) -> Dataset:
        """Load the data set; the labels are the truth, with the files' label 10 for the digit 0 changed to 0."""
        from torchvision import datasets

        root = expand(self.root)
        listed = [datasets.SVHN.split_list[split] for split in ("train", "test")]
        files = {name: md5 for _, name, md5 in listed}
        published = Published("SVHN", root, (listed[0][0].rpartition("/")[0],), files)
        self._provide({root / name: md5 for name, md5 in files.items()}, published)

        with _reading(root):
            reader: Any = type("SVHN", (datasets.SVHN,), {"_check_integrity": lambda _: True})
            sets = [reader(root, split=split) for split in ("train", "test")]
            splits = [_split(s.data, s.labels, 10) for s in sets]
        mean, std = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
        flip = self.augment and self.flip
        transform = Transform((32, 32), mean, std, padding=4 if self.augment else 0, flip=flip)
        return self._assembled(splits, DIGITS, transform)


TRAIN_LABELS = "train-labels-idx1-ubyte"
MNIST_CONTENTS = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    TRAIN_LABELS: "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}
FASHION_CONTENTS = {
    "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    TRAIN_LABELS: "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
}
"""MD5 of the unpacked files. torchvision has those of the archives, which Debian repacks."""

FASHION_PACKAGE = Package("dataset-fashion-mnist", Path("/usr/share/datasets/fashion-mnist"))


WRITERS = Path(__file__).with_name("mnist_writers.u16.xz")
"""The writer of each of MNIST's training images, uint16 [60000], little endian: 539 people by NIST's numbers, up to
2349. From the labels of QMNIST (Yadav and Bottou, 2019), whose licence is BSD."""


def _writers(labels: Path) -> Owners:
    """The writers of MNIST's training images, by the order of the published file of labels.

    Raises:
        UserError: if it is another file, so that images may be in another order.
    """
    with labels.open("rb") as file:
        if (
            hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            != MNIST_CONTENTS[TRAIN_LABELS]
        ):
            raise UserError(
                "dataset.groups=writers names the writers of MNIST's 60,000 training images in the published order, and"
                f" {labels} is not the published file"
            )
    numbers = np.frombuffer(lzma.decompress(WRITERS.read_bytes()), "<u2")
    return Owners.of([*map(str, numbers.tolist())], "dataset.groups=writers")


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Turn any error of a reader into a one-line UserError."""
    try:
        yield
    except Exception as error:  # a broken file can raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"dataset.root: the files in {folder} cannot be read ({reason}): delete them and fetch them again with "
            "dataset.download=true"
        ) from error


CIFAR10_CONTENTS = {
    "data_batch_1": "58edc6c92b28f7a3370910e654d108f406ee7a9175116b59d1747d32562fe7ba",
    "data_batch_2": "5fab0fd3d06865698958e00beabbd8ac98ad2cb075cd16965e043e337ddfca49",
    "data_batch_3": "c5306a8fc165c35aaa2b775f2b8f564f94901cb4661dcb77d573054428f1ba9f",
    "data_batch_4": "74b1d7e49db4ea94ccf9c19f5bf0b757a66bce45b6ea6288069d8f5fa20d6054",
    "data_batch_5": "491b7c1ce0390c47d3eec76a988c6df8dbf34e08672b7f7beba010bf2c559190",
    "test_batch": "e9ce868384d122c066e9849ebc6865a6ca2dcecb18a66cc97fb8752e21ba259a",
    "batches.meta": "bb3914949cecedee6d1257f7f5fdb8f43fa3b2c8095fd1763161caf1b873fe59",
}
"""SHA-256 of the pixels and labels of CIFAR-10's batches, and of its class names.

Other programs, such as those that convert images, write the same ones into other pickles.
"""


def _has_published_contents(file: Path) -> bool:
    """Whether a file of CIFAR-10 holds the published pixels and labels, or class names; of CIFAR-100 none is known."""
    try:
        held = read_array_pickle(file)
        if "label_names" in held:
            contents = [name.encode() for name in held["label_names"]]
        else:
            contents = [np.asarray(held["data"]).tobytes(), bytes(held["labels"])]
    except Exception:  # a broken file can raise anything; its checksum is wrong already
        return False
    return hashlib.sha256(b"\n".join(contents)).hexdigest() == CIFAR10_CONTENTS.get(file.name)


def _class_names(file: Path, key: str) -> tuple[str, ...]:
    """The names of CIFAR's classes.

    Raises:
        ValueError: if they are not text.
    """
    names = read_array_pickle(file)[key]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"the class names of {file.name} are not text")
    return tuple(names)


def _batches(files: Sequence[Path]) -> tuple[NDArray[Any], list[int]]:
    """Images [N, 3, 32, 32] and labels [N] of CIFAR's batches, concatenated."""
    pixels, labels = [], list[int]()
    for file in files:
        batch = read_array_pickle(file)
        pixels.append(np.asarray(batch["data"]))
        labels.extend(batch["labels"] if "labels" in batch else batch["fine_labels"])
    return np.vstack(pixels).reshape(-1, 3, 32, 32), labels


def _split(pixels: Any, values: Any, classes: int, side: int = 32) -> tuple[Tensor, Labels]:
    """Images uint8 [N, C, ``side``, ``side``] and labels int64 [N] of a split, checked against each other.

    Raises:
        ValueError: if they do not match.
    """
    labels = np.asarray(values, np.int64)
    if pixels.dtype != np.uint8 or labels.shape != (len(pixels),) or pixels.shape[2:] != (side, side):
        raise ValueError(f"{pixels.dtype} images {pixels.shape} with labels {labels.shape}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(f"a label is not in 0..{classes - 1}")
    return torch.from_numpy(np.ascontiguousarray(pixels)), labels
