"""Classify images with the model of a run.

    flnl predict RUN_DIR IMAGE_OR_FOLDER... [--csv FILE]

Images are prepared as in training: resized to the model's input, converted to its colour channels, not augmented. Pixel
values 0..255 are scaled to the range that the data set stores: the digits use 0..16, so 255 becomes 16. Files that are
not regular, too large or not images are reported and skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flnl.commands import guard
from flnl.commands.parser import Parser, add_config_dir, add_trust
from flnl.console.terminal import print_line, print_table
from flnl.core.errors import UserError
from flnl.data.image_file import MOST_BYTES, MOST_PIXELS
from flnl.data.image_names import SUFFIXES, images_below
from flnl.storage.output_file import check_output, save_output
from flnl.storage.spreadsheet import csv_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from flnl.engine.model_file import ModelFile

BATCH = 256
"""Images decoded and classified at once."""
SHOWN = 3
"""Number of classes shown for each image, the most probable first."""


@dataclass(frozen=True)
class Prediction:
    """One image: its path and its ``SHOWN`` most probable classes, or the reason why it cannot be read."""

    path: str
    top: tuple[tuple[str, float], ...] = ()
    fault: str | None = None


def classify(
    model: ModelFile, paths: Sequence[Path], places: Sequence[Path] = (), trusted: Sequence[str] = ()
) -> Iterator[Prediction]:
    """Classify the images at ``paths``, in their order.

    Args:
        model: the model of a run.
        paths: the images.
        places: folders, besides ``conf/``, with configuration files that name the model's class.
        trusted: dotted paths of networks of the user's own that the model may name.

    Raises:
        UserError: if the model's inputs are not images, or its weights do not fit.
    """
    import numpy as np
    import torch

    from flnl.data.image_file import ImageError, decode, read_bytes
    from flnl.data.images import TensorImages
    from flnl.data.transforms import Transform

    network = model.network(places, trusted)
    if not isinstance(network.transform, Transform) or model.shape[0] not in (1, 3):
        raise UserError(f"this model takes inputs of {'x'.join(map(str, model.shape))}, which are not images")
    channels, height, width = model.shape
    network.transform = replace(network.transform, scale=255.0)
    for start in range(0, len(paths), BATCH):
        part = paths[start : start + BATCH]
        read: list[NDArray[np.uint8]] = []
        faults: dict[Path, str] = {}
        for path in part:
            try:
                read.append(decode(read_bytes(path), (height, width), channels))
            except ImageError as error:
                faults[path] = str(error)
            except Exception as error:  # a broken file can make a decoder raise anything
                faults[path] = (error.strerror if isinstance(error, OSError) else None) or "it cannot be decoded"
        pixels = np.stack(read) if read else np.empty((0, channels, height, width), np.uint8)
        logits = network.outputs(TensorImages(torch.from_numpy(pixels)), torch.arange(len(read)))
        probabilities = iter(torch.softmax(logits.double(), dim=1).unbind())
        for path in part:
            if path in faults:
                yield Prediction(str(path), fault=faults[path])
            else:
                best = next(probabilities).topk(min(SHOWN, len(model.classes)))
                numbers = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                yield Prediction(str(path), tuple((model.classes[i], p) for i, p in numbers))


def named_images(names: Sequence[str]) -> list[Path]:
    """The named files, and all images below the named folders, sorted within each folder.

    Raises:
        UserError: if a path does not exist, or a folder contains no image or cannot be read.
    """
    images: list[Path] = []
    for name in names:
        path = Path(name)
        if not path.exists():
            raise UserError(f"{path} does not exist: name an image or a folder of images")
        if not path.is_dir():
            images.append(path)
            continue
        try:
            found = images_below(path)
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read ({error.strerror})") from error
        below = sorted(path / one for one in (*found.images, *found.special))
        if not below:
            raise UserError(f"there are no images below {path}: their names should end in {', '.join(SUFFIXES)}")
        images += below
    return images


def show(predictions: Sequence[Prediction]) -> None:
    """Print the predictions."""
    rows = [
        (one.path, one.top[0][0], f"{one.top[0][1]:.4f}", ", ".join(f"{name} {p:.4f}" for name, p in one.top))
        for one in predictions
    ]
    print_table(("path", "class", "probability", f"top {SHOWN}"), rows, left=(0, 1, 3))


def save(predictions: Sequence[Prediction], file: Path) -> None:
    """Write the predictions as CSV: ``path``, ``class``, ``probability``, ``class_2``, ``probability_2`` and so on.

    A path or class that a spreadsheet would read as a formula gets a ``'`` before it, which ``spreadsheet.text_of``
    removes.
    """
    count = max((len(one.top) for one in predictions), default=1)
    ranks = ["" if rank == 1 else f"_{rank}" for rank in range(1, count + 1)]
    header = ["path", *(f"{name}{rank}" for rank in ranks for name in ("class", "probability"))]
    rows = ([one.path, *(value for name, p in one.top for value in (name, f"{p:.6g}"))] for one in predictions)
    save_output(f"--csv {file}", file, csv_text([header, *rows]).encode("utf-8", errors="surrogateescape"))


def parser() -> Parser:
    """The arguments of the command."""
    arguments = Parser(prog="flnl predict", description="Classify images with the model of a run.")
    arguments.add_argument("run", metavar="RUN_DIR", type=Path, help="the run's folder, or its model.pt")
    arguments.add_argument(
        "images",
        metavar="IMAGE_OR_FOLDER",
        nargs="+",
        help="images, or folders, searched with their subfolders. Devices, pipes, files of more than"
        f" {MOST_BYTES // 2**20} MiB and images of more than {MOST_PIXELS:,} pixels are reported and skipped",
    )
    arguments.add_argument(
        "--csv",
        metavar="FILE",
        type=Path,
        help="also write the table to FILE; a name that a spreadsheet would read as a formula gets a ' before it",
    )
    add_config_dir(arguments)
    add_trust(arguments)
    return arguments


def predict(arguments: Sequence[str]) -> int:
    """Print the classes of the images.

    Returns:
        The exit code: 1 if no image could be read, else 0.
    """
    request = parser().parse_intermixed_args(arguments)
    if request.csv is not None:
        check_output(f"--csv {request.csv}", request.csv)
    paths = named_images(request.images)
    from flnl.engine.model_file import ModelFile

    model = ModelFile.load(request.run)
    if model.stored != "uint8":
        print_line(
            f"note: {model.dataset} holds numbers, not 8-bit images; pixels 0..255 are scaled to 0..1 for this model",
            to=sys.stderr,
        )
    predictions = list(classify(model, paths, request.config_dir, request.trust))
    read = [one for one in predictions if one.fault is None]
    for one in predictions:
        if one.fault is not None:
            print_line(f"{one.path} cannot be read ({one.fault})", to=sys.stderr)
    if len(read) < len(predictions):
        print(f"{len(predictions) - len(read)} of {len(predictions)} images could not be read", file=sys.stderr)
    if not read:
        return 1
    show(read)
    if request.csv is not None:
        save(read, request.csv)
    return 0


main = guard.entry("predict", predict)
