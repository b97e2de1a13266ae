"""Human labels: CIFAR-10N and CIFAR-100N (Wei et al., 2022).

Labels are assigned to images by position: a file is used only if all of its true labels agree with the data set's.
"""

import hashlib
import logging
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import Labels
from flnl.core.ranges import PathText
from flnl.data.dataset import Dataset

log = logging.getLogger(__name__)

Source = Literal["aggregate", "random1", "random2", "random3", "worst", "fine"]

KEYS: dict[Source, str] = {
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "worst": "worse_label",  # the file's spelling
    "fine": "noisy_label",
}
WRONG: dict[Source, float] = {
    "aggregate": 0.0901,
    "random1": 0.17234,
    "random2": 0.18122,
    "random3": 0.1764,
    "worst": 0.40208,
    "fine": 0.4020,
}
"""Share of wrong labels of each set, counted in the published files. Wei et al. print 0.0903 for ``aggregate``."""
SHA256 = {
    "CIFAR-10_human.pt": "873e69c39cb9b5e97fb6bae2d60bb59b38a5cbc31d2b868f7903dcb2b9dd2310",
    "CIFAR-100_human.pt": "bd2d80409754d420292d622e15e25248ba21e37d27429efac49c8da723f44394",
}
ORIGIN = "https://github.com/UCSC-REAL/cifar-10-100n"


@dataclass(frozen=True)
class Human:
    """Labels that people gave to CIFAR's training images.

    CIFAR-10N has five sets: ``aggregate``, ``random1``, ``random2``, ``random3`` and ``worst``; CIFAR-100N has one,
    ``fine``. The file is in ``root``, or is the one at ``path``. A reduced training set finds its labels by its ids,
    which are positions in the full set.
    """

    source: Source
    root: PathText | None
    path: PathText | None

    @property
    def nominal(self) -> None:
        """None: no rate is configured."""

    @property
    def expected(self) -> float:
        """The share of wrong labels in the whole published set."""
        return WRONG[self.source]

    def file(self) -> Path:
        """The label file."""
        name = "CIFAR-100_human.pt" if self.source == "fine" else "CIFAR-10_human.pt"
        return Path(self.path if self.path is not None else f"{self.root or '.'}/{name}").expanduser()

    def files(self) -> tuple[Path, ...]:
        """The files that the outcome depends on."""
        return (self.file(),)

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """The given labels.

        Raises:
            UserError: if the file is missing, is not a CIFAR-N file, or has another order than the data set.
        """
        classes = 100 if self.source == "fine" else 10
        foreign = self.path is None and "cifar" not in dataset.name.lower()
        if dataset.truth is None or dataset.num_classes != classes or foreign:
            right = {10: "dataset=cifar10", 100: "dataset=cifar100"}[classes]
            raise UserError(
                f"noise.source={self.source} labels the images of {right}, not of {dataset.name}"
                + (": CIFAR-100's one set is noise.source=fine" if dataset.num_classes == 100 else "")
            )
        file = self.file()
        labels = _load(file)
        if missing := {"clean_label", KEYS[self.source]} - labels.keys():
            raise UserError(f"{file} has no {' and no '.join(sorted(missing))}; it has {', '.join(sorted(labels))}")
        clean, given = labels["clean_label"], labels[KEYS[self.source]]
        if clean.ndim != 1 or given.shape != clean.shape:
            raise UserError(
                f"{file} has true labels of shape {list(clean.shape)} and {KEYS[self.source]} of {list(given.shape)}: "
                "one of each for every image is needed"
            )
        if ((given < 0) | (given >= classes)).any():
            raise UserError(f"{file}: {KEYS[self.source]} has a label that is not in 0..{classes - 1}")
        if dataset.ids is not None and all(name.isdecimal() for name in dataset.ids):
            position = np.array([int(name) for name in dataset.ids], np.int64)
            if position.max(initial=0) < len(clean):
                clean, given = clean[position], given[position]
        if len(clean) != len(dataset.truth):
            raise UserError(f"{file} labels {len(clean)} images, and {dataset.name} has {len(dataset.truth)}")
        if (differ := np.flatnonzero(clean != dataset.truth)).size:
            raise UserError(
                f"{file} is in another order than {dataset.name}: {differ.size} of its true labels differ, first at "
                f"image {differ[0]}. CIFAR-N follows the order of the python archives, as torchvision reads them"
            )
        _log_origin(file)
        return given


def _load(file: Path) -> dict[str, Labels]:
    """The label arrays of a file, int64. Only arrays are read, since the file may come from any source."""
    import torch

    from flnl.data.array_pickle import ADMITTED, Array, Kind

    if not file.is_file():
        name = file.name if file.name in SHA256 else " or ".join(SHA256)
        raise UserError(
            f"no human labels at {file.absolute()}: get {name} from {ORIGIN} (folder data) and put it into "
            f"{file.absolute().parent}, or set noise.path to where it is"
        )
    arrays: list[Any] = [*((stand_in, name) for name, stand_in in ADMITTED.items()), Array, Kind]
    try:
        with torch.serialization.safe_globals(arrays):
            content = torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(f"{file} is not a CIFAR-N label file: it holds more than arrays, or is broken") from error
    except Exception as error:  # a broken file can raise anything
        reason = (str(error).splitlines() or ["it ends early"])[0]
        raise UserError(f"{file} is not a CIFAR-N label file: it cannot be read ({reason})") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} is not a CIFAR-N label file: it holds a {type(content).__name__}, not a dictionary")
    labels = {str(key): np.asarray(value) for key, value in content.items()}
    if strange := [key for key, value in labels.items() if value.dtype.kind not in "iu"]:
        raise UserError(f"{file} is not a CIFAR-N label file: {strange[0]} are not whole numbers")
    return {key: value.astype(np.int64) for key, value in labels.items()}


def _log_origin(file: Path) -> None:
    """Log whether the file is a published one."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    if digest in SHA256.values():
        log.debug("%s is the published file (sha256 %s)", file, digest)
    else:
        log.warning(
            "%s is not a published CIFAR-N file (sha256 %s); its true labels are compared all the same", file, digest
        )
