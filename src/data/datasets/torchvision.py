"""MNIST, Fashion-MNIST, SVHN, CIFAR-10 and CIFAR-100, in the folders and formats that torchvision reads and writes.

The files are read here, not by torchvision: as whole arrays, with a limit on waiting, and with CIFAR's pickles kept
from running code. Order of samples, pixels and labels are torchvision's.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from src.data.dataset import Dataset, Labels
from src.data.datasets.assemble import assemble
from src.data.datasets.download import Access, Published, expand, provide
from src.data.images import TensorImages
from src.data.transforms import IMAGENET, Transform
from src.errors import UserError
from src.ranges import Positive, PositiveCount

DIGITS = tuple("0123456789")

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Cifar:
    """CIFAR-10 or CIFAR-100: 50,000 and 10,000 colour images of 32x32; crops padded by 4 and mirror images."""

    name: Literal["cifar10", "cifar100"]
    root: str
    download: bool
    mirror: str | None
    verify: bool
    timeout: Positive  # seconds
    normalize: Literal["default", "imagenet"]
    augment: bool
    train_size: PositiveCount | None
    test_size: PositiveCount | None

    def __call__(self) -> Dataset:
        """The data set; the labels are the truth."""
        form = _CIFAR[self.name]
        folder = expand(self.root) / form.folder
        published = Published(
            title=form.title,
            folder=folder.parent,
            bases=("https://www.cs.toronto.edu/~kriz",),
            md5={form.archive: form.archive_md5},
        )
        files = {**form.train, **form.test, form.meta: form.meta_md5}
        access = Access(self.download, self.mirror, self.verify, self.timeout)
        provide({folder / name: md5 for name, md5 in files.items()}, published, access)

        classes = tuple(_unpickle(folder / form.meta, form.meta_key)[form.meta_key])
        train, truth = _cifar_split([folder / name for name in form.train], form.labels, len(classes))
        test, test_labels = _cifar_split([folder / name for name in form.test], form.labels, len(classes))
        mean, std = IMAGENET if self.normalize == "imagenet" else form.normalization
        return assemble(
            name=self.name,
            classes=classes,
            train=TensorImages(torch.from_numpy(train)),
            test=TensorImages(torch.from_numpy(test)),
            test_labels=test_labels,
            transform=Transform((32, 32), mean, std, padding=4 if self.augment else 0, flip=self.augment),
            truth=truth,
            train_size=self.train_size,
            test_size=self.test_size,
        )


@dataclass(frozen=True)
class Mnist:
    """MNIST or Fashion-MNIST: 60,000 and 10,000 grey images of 28x28, without augmentation."""

    name: Literal["mnist", "fashion_mnist"]
    root: str
    download: bool
    mirror: str | None
    verify: bool
    timeout: Positive  # seconds
    train_size: PositiveCount | None
    test_size: PositiveCount | None

    def __call__(self) -> Dataset:
        """The data set; the labels are the truth."""
        form = _MNIST[self.name]
        folder = expand(self.root) / form.folder / "raw"
        published = Published(form.title, folder, form.bases, form.archives)
        wanted = {folder / name.removesuffix(".gz"): md5 for name, md5 in zip(form.archives, form.md5, strict=True)}
        provide(wanted, published, Access(self.download, self.mirror, self.verify, self.timeout))

        train_images, train_labels, test_images, test_labels = (_idx(path) for path in wanted)
        return assemble(
            name=self.name,
            classes=form.classes,
            train=TensorImages(torch.from_numpy(train_images[:, None])),
            test=TensorImages(torch.from_numpy(test_images[:, None])),
            test_labels=_labels(test_labels, len(test_images), 10, folder / "t10k-labels-idx1-ubyte"),
            transform=Transform((28, 28), *form.normalization),
            truth=_labels(train_labels, len(train_images), 10, folder / "train-labels-idx1-ubyte"),
            train_size=self.train_size,
            test_size=self.test_size,
        )


@dataclass(frozen=True)
class Svhn:
    """SVHN, cropped digits: 73,257 and 26,032 colour images of 32x32; crops padded by 4, no mirror images of digits."""

    name: Literal["svhn"]
    root: str
    download: bool
    mirror: str | None
    verify: bool
    timeout: Positive  # seconds
    augment: bool
    train_size: PositiveCount | None
    test_size: PositiveCount | None

    def __call__(self) -> Dataset:
        """The data set; the labels are the truth."""
        folder = expand(self.root)
        md5 = {
            "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        }
        published = Published("SVHN", folder, ("http://ufldl.stanford.edu/housenumbers",), md5)
        wanted: dict[Path, str | None] = {folder / name: value for name, value in md5.items()}
        provide(wanted, published, Access(self.download, self.mirror, self.verify, self.timeout))

        (train, truth), (test, test_labels) = (_svhn_split(path) for path in wanted)
        return assemble(
            name=self.name,
            classes=DIGITS,
            train=TensorImages(torch.from_numpy(train)),
            test=TensorImages(torch.from_numpy(test)),
            test_labels=test_labels,
            transform=Transform(
                (32, 32), (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), padding=4 if self.augment else 0
            ),
            truth=truth,
            train_size=self.train_size,
            test_size=self.test_size,
        )


@dataclass(frozen=True)
class _CifarForm:
    """What differs between the two; the checksums are torchvision's."""

    title: str
    folder: str
    archive: str
    archive_md5: str
    train: Mapping[str, str]
    test: Mapping[str, str]
    labels: str  # key of the labels in a batch
    meta: str
    meta_md5: str
    meta_key: str
    normalization: tuple[tuple[float, float, float], tuple[float, float, float]]


_CIFAR = {
    "cifar10": _CifarForm(
        title="CIFAR-10",
        folder="cifar-10-batches-py",
        archive="cifar-10-python.tar.gz",
        archive_md5="c58f30108f718f92721af3b95e74349a",
        train={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        test={"test_batch": "40351d587109b95175f43aff81a1287e"},
        labels="labels",
        meta="batches.meta",
        meta_md5="5ff9c542aee3614f3951f8cda6e48888",
        meta_key="label_names",
        # The usual constants. Their deviation is the mean of the images' own; over all pixels it is (.247, .244, .262).
        normalization=((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    ),
    "cifar100": _CifarForm(
        title="CIFAR-100",
        folder="cifar-100-python",
        archive="cifar-100-python.tar.gz",
        archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
        train={"train": "16019d7e3df5f24257cddd939b257f8d"},
        test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
        labels="fine_labels",
        meta="meta",
        meta_md5="7973b15100ade9c7d40fb424638fde48",
        meta_key="fine_label_names",
        normalization=((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    ),
}


@dataclass(frozen=True)
class _MnistForm:
    """What differs between the two; the archives' checksums are torchvision's."""

    title: str
    folder: str
    bases: tuple[str, ...]
    archives: Mapping[str, str]  # images and labels for training, images and labels for testing
    md5: tuple[str | None, ...]  # of what is in them
    classes: tuple[str, ...]
    normalization: tuple[tuple[float], tuple[float]]


_MNIST = {
    "mnist": _MnistForm(
        title="MNIST",
        folder="MNIST",
        bases=("https://ossci-datasets.s3.amazonaws.com/mnist", "http://yann.lecun.com/exdb/mnist"),
        archives={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        md5=(
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        classes=DIGITS,
        normalization=((0.1307,), (0.3081,)),
    ),
    "fashion_mnist": _MnistForm(
        title="Fashion-MNIST",
        folder="FashionMNIST",
        bases=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",),
        archives={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        md5=(None, None, None, None),  # only the archives' checksums are published
        classes=(
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        normalization=((0.2860,), (0.3530,)),
    ),
}


class _ArrayUnpickler(pickle.Unpickler):
    """Reads arrays, lists and text; refuses everything a pickle could run."""

    def find_class(self, module: str, name: str) -> Any:
        """The few functions that rebuild an array."""
        parts = module.split(".")
        if (parts[0] == "numpy" and name in {"_reconstruct", "ndarray", "dtype", "scalar"}) or (
            (module, name) == ("_codecs", "encode")
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no image file needs")


def _unpickle(path: Path, *keys: str) -> dict[str, Any]:
    """The dictionary in a CIFAR file, which has to have ``keys``."""

    def load(file: IO[bytes]) -> dict[str, Any]:
        content = _ArrayUnpickler(file, encoding="latin1").load()
        missing = [key for key in keys if key not in content]
        if missing:
            raise ValueError(f"it has no {missing[0]!r}")
        return dict(content)

    with path.open("rb") as file:
        try:
            return load(file)
        except Exception as error:  # a broken pickle fails in any way
            raise _broken(path, error) from error


def _cifar_split(paths: list[Path], key: str, classes: int) -> tuple[Pixels, Labels]:
    """Images uint8 [N, 3, 32, 32] and labels [N] of some batches, in their order."""
    batches = [(path, _unpickle(path, "data", key)) for path in paths]
    for path, batch in batches:
        if not (isinstance(batch["data"], np.ndarray) and batch["data"].dtype == np.uint8 and batch["data"].ndim == 2):
            raise _broken(path, "'data' is no array of uint8 [N, 3072]")
        if batch["data"].shape[1] != 3 * 32 * 32:
            raise _broken(path, f"an image has {batch['data'].shape[1]} values, not 3072")
    labels = [_labels(batch[key], len(batch["data"]), classes, path) for path, batch in batches]
    return np.concatenate([batch["data"] for _, batch in batches]).reshape(-1, 3, 32, 32), np.concatenate(labels)


def _idx(path: Path) -> Pixels:
    """An array of uint8 in the IDX format: two zero bytes, type 8, number of dimensions, sizes as big-endian int32."""
    content = path.read_bytes()
    dimensions = 3 if "images" in path.name else 1
    begin = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < begin:
        raise _broken(path, f"it does not begin as an IDX file of bytes in {dimensions} dimensions")
    shape = tuple(np.frombuffer(content, ">i4", dimensions, offset=4).tolist())
    if len(content) - begin != np.prod(shape):
        raise _broken(path, f"it promises {shape} bytes and has {len(content) - begin}")
    return np.frombuffer(bytearray(content), np.uint8, offset=begin).reshape(shape)


def _svhn_split(path: Path) -> tuple[Pixels, Labels]:
    """Images uint8 [N, 3, 32, 32] and labels [N]; the file's label 10 is the digit 0."""
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
        pixels = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))
        labels = content["y"].reshape(-1).astype(np.int64)
    except Exception as error:  # a broken file fails in any way
        raise _broken(path, error) from error
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (3, 32, 32):
        raise _broken(path, f"its images are {pixels.dtype} {pixels.shape[1:]}, not uint8 (3, 32, 32)")
    labels[labels == 10] = 0
    return pixels, _labels(labels, len(pixels), 10, path)


def _labels(values: Any, count: int, classes: int, path: Path) -> Labels:
    """Labels as int64 [count], checked."""
    labels = np.asarray(values)
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        raise _broken(path, f"it has labels of shape {labels.shape} for {count} images")
    if count and not (labels.min() >= 0 and labels.max() < classes):
        raise _broken(path, f"a label is not in 0..{classes - 1}")
    return labels.astype(np.int64)


def _broken(path: Path, reason: object) -> UserError:
    return UserError(
        f"dataset.root: {path} cannot be read ({' '.join(str(reason).split())}): delete it and fetch it again with"
        " dataset.download=true"
    )
