"""User-defined arrays: one ``.npz`` file with inputs and labels for training and testing.

If the file can be interpreted in two ways, nothing is guessed: the error names the key that decides.
"""

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.images import Labels
from flnl.core.ranges import Count, Neutral, PathText, PositiveCount
from flnl.core.special import refuse_special
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import assemble
from flnl.data.datasets.download import expand
from flnl.data.datasets.label_file import FROM_ROOT, LabelFile, choose_labels, read_label_file
from flnl.data.images import TensorImages
from flnl.data.owners import Owners
from flnl.data.transforms import Transform
from flnl.data.votes import Vote

Content = Mapping[str, NDArray[Any]]
MOST_CLASSES = 100_000
"""With a label file, whose labels are not known yet, a larger label is refused as a mistake."""


@dataclass(frozen=True)
class Arrays:
    """``x_train``, ``y_train``, ``x_test``, ``y_test``; optional ``y_given``, ``owners``, ``ids`` and ``classes``.

    Inputs of type uint8 are images and are divided by 255; numbers of any other type are used unchanged, as float32.

    Their shape: [N, H, W] is grey. [N, H, W, C] and [N, C, H, W] are distinguished by the position of a 1 or 3; if it
    is in both or neither, ``layout`` decides. [N, D] needs ``shape`` [C, H, W], with the values in that order; [1, 1,
    D] for features that are not images.

    Labels are 0..C-1. ``truth`` says where the correct labels of the training set are: ``y_train``, the column ``true``
    of a label file (``csv``), or ``none``. The labels for training are those of the label file (its columns: id, that
    of ``ids`` or else a sample's position from 0; label; true; client), or else ``y_given``, or else ``y_train``. The
    clients are those of the label file, if it has that column, or else ``owners``, which may be called ``clients``.
    """

    name: str
    root: PathText
    file: PathText  # a relative path begins at root
    labels: PathText | None  # a relative path begins at root
    truth: Literal["y_train", "csv", "none"]
    layout: Literal["auto", "NHWC", "NCHW"]
    shape: list[int] | None
    normalize: Literal["train", "half", "none"]
    padding: Count
    flip: bool
    train_size: PositiveCount | None
    test_size: PositiveCount | None
    vote: Annotated[Vote, Neutral("first")] = "first"  # records of earlier versions lack this key

    def __call__(self) -> Dataset:
        """Load the data set.

        Raises:
            UserError: if arrays, label file and configuration do not match.
        """
        root = expand(self.root)
        path = root / Path(self.file).expanduser()
        arrays = load(path)
        train, test = (self._pixels(arrays[name], f"{name} of {path}") for name in ("x_train", "x_test"))
        if (train.dtype, train.shape[1:]) != (test.dtype, test.shape[1:]):
            raise UserError(
                f"dataset.file: x_train and x_test of {path} are {_form(train)} and {_form(test)}; they must agree"
            )
        labels = None if self.labels is None else root / Path(self.labels).expanduser()
        scale = 255.0 if train.dtype == torch.uint8 else 1.0
        mean, std = self._normalization(train, scale)
        return assemble(
            name=self.name,
            train=TensorImages(train),
            test=TensorImages(test),
            transform=Transform(
                (train.shape[2], train.shape[3]), mean, std, scale=scale, padding=self.padding, flip=self.flip
            ),
            train_size=self.train_size,
            test_size=self.test_size,
            **labelled(arrays, path, (len(train), len(test)), labels, self.truth, self.vote),
        )

    def _pixels(self, array: NDArray[Any], what: str) -> Tensor:
        """Inputs [N, C, H, W] of uint8 or float32."""
        if array.dtype.kind not in "biuf":
            raise UserError(f"dataset.file: {what} has values of type {array.dtype}, which are not numbers")
        if array.dtype != np.uint8:
            with np.errstate(over="ignore"):  # values beyond float32 become infinite, which is checked below
                array = array.astype(np.float32)
            if not np.isfinite(array).all():
                raise UserError(f"dataset.file: {what} has values that are not finite as float32 (NaN or infinite)")
        pixels = torch.from_numpy(np.ascontiguousarray(self._arranged(array, what)))
        if pixels.numel() == 0:
            raise UserError(f"dataset.file: {what} is empty, its shape is {array.shape}")
        return pixels

    def _arranged(self, array: NDArray[Any], what: str) -> NDArray[Any]:
        """The array as [N, C, H, W], by the rule in the class's docstring."""
        if array.ndim == 2:
            if self.shape is None or len(self.shape) != 3 or int(np.prod(self.shape)) != array.shape[1]:
                d = array.shape[1]
                raise UserError(
                    f"dataset.shape={self.shape}: {what} is flat, {array.shape}; set it to [C,H,W] with {d} values in"
                    f" all, or to [1,1,{d}] for features that are not images"
                )
            return array.reshape(-1, *self.shape)
        if array.ndim == 3:
            return array[:, None]
        if array.ndim != 4:
            raise UserError(
                f"dataset.file: {what} has shape {array.shape}; it should be [N,D], [N,H,W], [N,H,W,C] or [N,C,H,W]"
            )
        first, last = array.shape[1] in {1, 3}, array.shape[3] in {1, 3}
        if self.layout == "auto" and first == last:
            raise UserError(f"dataset.layout: {what} has shape {array.shape}, which may be either: set NHWC or NCHW")
        return array.transpose(0, 3, 1, 2) if self.layout == "NHWC" or (self.layout == "auto" and last) else array

    def _normalization(self, train: Tensor, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation per channel."""
        channels = train.shape[1]
        if self.normalize != "train":
            value = (0.5, 0.5) if self.normalize == "half" else (0.0, 1.0)
            return (value[0],) * channels, (value[1],) * channels
        values = train.transpose(0, 1).reshape(channels, -1).numpy()
        mean = values.mean(axis=1, dtype=np.float64) / scale
        std = values.std(axis=1, dtype=np.float64) / scale
        return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())  # a constant channel stays finite


def load(path: Path) -> Content:
    """Load the arrays of the file.

    Raises:
        UserError: if the file cannot be read without running code, or an array is missing.
    """
    try:
        refuse_special(path)
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise ValueError("it is a single array")
            content = {name: loaded[name] for name in loaded.files}
            if strange := [name for name, array in content.items() if not isinstance(array, np.ndarray)]:
                raise ValueError(f"{strange[0]} is not an array")
    except FileNotFoundError as error:
        raise UserError(
            f"dataset.file: {path} does not exist; write it with numpy.savez(file, x_train=..., y_train=...,"
            f" x_test=..., y_test=...){FROM_ROOT}"
        ) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"dataset.file: {path} cannot be read ({error}); it should be an .npz file of plain arrays, as numpy.savez"
            " writes"
        ) from error
    for name in ("x_train", "x_test", "y_test"):
        if name not in content:
            raise UserError(
                f"dataset.file: {path} has no array {name!r}, only {', '.join(sorted(content)) or 'nothing'}"
            )
    return content


def labelled(
    arrays: Content, path: Path, sizes: tuple[int, int], file: Path | None, truth: str, vote: Vote
) -> dict[str, Any]:
    """Classes, labels, clients and names of samples, as arguments of ``assemble``; see ``Arrays``.

    Args:
        arrays: the content of the file.
        path: the file, for messages.
        sizes: the number of samples for training and for testing.
        file: the label file, if there is one.
        truth: where the correct labels are.
        vote: which of several labels of the label file is given.

    Raises:
        UserError: if labels, clients and samples do not match.
    """
    count, tested = sizes
    ids = _ids(arrays["ids"], count, path) if "ids" in arrays else None
    classes = classes_of(arrays, path, more=file is not None)
    y_train = labels_of(arrays, "y_train", count, classes, path) if "y_train" in arrays else None
    table = None
    if file is not None:
        table = read_label_file(file, "id", ids or tuple(map(str, range(count))), classes, vote)
    elif "y_given" in arrays:
        table = LabelFile(labels_of(arrays, "y_given", count, classes, path), None, None)
    right, given = choose_labels(truth, "y_train", y_train, table, vote)
    owners = table.owners if table else None
    if "owners" in arrays and "clients" in arrays:
        raise UserError(f"dataset.file: {path} has both owners and clients, which are two names of one thing")
    for name in ("owners", "clients"):
        if owners is None and name in arrays:
            owners = _owners(arrays[name], count, f"dataset.file: {name} of {path}")
    return {
        "classes": classes,
        "test_labels": labels_of(arrays, "y_test", tested, classes, path),
        "truth": right,
        "given": given,
        "owners": owners,
        "people": table.people if table else None,
        "ids": ids,
    }


def classes_of(arrays: Content, path: Path, *, more: bool) -> tuple[str, ...]:
    """The names of the classes; their numbers if the file has no names. ``more``: a label file may have others."""
    if "classes" in arrays:
        names = tuple(texts_of(arrays["classes"].reshape(-1), f"dataset.file: classes of {path}"))
        if len(set(names)) != len(names):
            raise UserError(f"dataset.file: two classes of {path} have the same name")
    else:
        labels = [_whole(arrays, name, path).ravel() for name in ("y_train", "y_given", "y_test") if name in arrays]
        held = sorted({label for y in labels for label in np.unique(y[y >= 0]).tolist()})
        gap = next((i for i, label in enumerate(held) if i != label), None)
        if gap is not None and not (more and held[-1] < MOST_CLASSES):
            raise UserError(
                f"dataset.file: {path} has a label {held[-1]} and no {gap}; labels should be 0..C-1, without gaps, or"
                " all classes should have names: an array 'classes'"
            )
        names = tuple(str(i) for i in range(held[-1] + 1 if held else 0))
    if len(names) < 2:
        raise UserError(f"dataset.file: {path} has {len(names)} class; at least two are needed")
    return names


def labels_of(arrays: Content, name: str, count: int, classes: tuple[str, ...], path: Path) -> Labels:
    """Labels as int64 [count].

    Raises:
        UserError: if they are not ``count`` whole numbers in 0..C-1.
    """
    labels = _whole(arrays, name, path)
    if labels.shape != (count,):
        raise UserError(
            f"dataset.file: {name} of {path} is {labels.dtype} {labels.shape}; it should be {count} whole numbers,"
            " one per sample"
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise UserError(
            f"dataset.file: {name}[{wrong[0]}] of {path} is {labels[wrong[0]]}; labels should be 0..{len(classes) - 1}"
        )
    return labels.astype(np.int64)


def _whole(arrays: Content, name: str, path: Path) -> NDArray[Any]:
    """The labels of this name.

    Raises:
        UserError: if they are no whole numbers.
    """
    labels = arrays[name]
    if labels.dtype.kind not in "iu":
        raise UserError(
            f"dataset.file: {name} of {path} is {labels.dtype} {labels.shape}; it should be whole numbers, one a sample"
        )
    return labels


def _owners(array: NDArray[Any], count: int, where: str) -> Owners:
    """The natural clients [count]."""
    if array.shape != (count,) or array.dtype.kind not in "iuUS":
        raise UserError(f"{where} is {array.dtype} {array.shape}; it should be {count} names or numbers from 0")
    try:
        return Owners.of(texts_of(array, where), where)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


def _ids(array: NDArray[Any], count: int, path: Path) -> tuple[str, ...]:
    """The names of the training samples [count]."""
    where = f"dataset.file: ids of {path}"
    if array.shape != (count,) or array.dtype.kind not in "iuUS":
        raise UserError(f"{where} is {array.dtype} {array.shape}; it should be {count} names, one a training sample")
    ids = texts_of(array, where)
    seen: set[str] = set()
    for one in ids:
        if one in seen:
            raise UserError(f"{where}: two samples have the id {one!r}")
        seen.add(one)
    return tuple(ids)


def texts_of(array: NDArray[Any], where: str) -> list[str]:
    """Names or numbers [n] as text; bytes are UTF-8.

    Raises:
        UserError: if they are bytes of another encoding.
    """
    try:
        return [one.decode() if isinstance(one, bytes) else str(one) for one in array.tolist()]
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is {array.dtype} and not encoded as UTF-8; store text") from error


def _form(pixels: Tensor) -> str:
    """Type and shape, for an error message."""
    return f"{str(pixels.dtype).removeprefix('torch.')} {list(pixels.shape[1:])}"
