"""Classify images with the model of a run.

    flnl predict RUN_DIR IMAGE_OR_FOLDER... [--csv FILE]

Images are read as in training: resized to the model's inputs, in its colours, without augmentation. Their pixels are
taken as 0..255 and brought to the range that the data set stores: the digits' is 0..16, so 255 is their 16. What is no
regular file, too large or no image is named and left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from flnl.cli import guard
from flnl.cli.parser import Parser, add_config_dir
from flnl.core.errors import UserError
from flnl.core.terminal import cell, print_line, visible
from flnl.data.image_file import MOST_BYTES, MOST_PIXELS
from flnl.storage.spreadsheet import csv_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from flnl.engine.model_file import ModelFile

BATCH = 256
"""Images decoded at once."""
SHOWN = 3
"""Classes named for each image, the most probable first."""


@dataclass(frozen=True)
class Prediction:
    """One image: its path and its ``SHOWN`` most probable classes, or why it cannot be read."""

    path: str
    top: tuple[tuple[str, float], ...] = ()
    fault: str | None = None


def classify(model: ModelFile, paths: Sequence[Path], places: Sequence[Path] = ()) -> Iterator[Prediction]:
    """The classes of the images at ``paths``, in their order.

    ``places`` are folders with configuration files that name the model's class, besides ``conf/``.

    Raises:
        UserError: if the model's inputs are no images, or its weights do not fit.
    """
    import numpy as np
    import torch

    from flnl.data.image_file import ImageError, decode, read_bytes
    from flnl.data.images import TensorImages

    channels, height, width = model.shape
    if channels not in (1, 3):
        raise UserError(f"this model takes inputs of {channels}x{height}x{width}, which are no images")
    network = model.network(places)
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
            except Exception as error:  # a broken file makes a decoder fail in any way
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


def images_below(names: Sequence[str]) -> list[Path]:
    """The files named, and all images below the folders named, sorted within each.

    Raises:
        UserError: if one is not there, or a folder has no image.
    """
    from flnl.data.datasets.image_folder import SUFFIXES

    found: list[Path] = []
    for name in names:
        path = Path(name)
        if not path.exists():
            raise UserError(f"{path} is not there: name an image or a folder of images")
        if not path.is_dir():
            found.append(path)
            continue
        below = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
        below = [p for p in below if not p.is_dir()]
        if not below:
            raise UserError(
                f"there are no images below {path}: their names should end in {', '.join(sorted(SUFFIXES))}"
            )
        found += below
    return found


def show(predictions: Sequence[Prediction]) -> None:
    """A table on a terminal; lines with tabs elsewhere."""
    from rich.console import Console
    from rich.table import Table

    header = ("path", "class", "probability", f"top {SHOWN}")
    rows = [
        (found.path, found.top[0][0], f"{found.top[0][1]:.4f}", ", ".join(f"{name} {p:.4f}" for name, p in found.top))
        for found in predictions
    ]
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        for row in (header, *rows):
            print("\t".join(map(visible, row)))
        return
    table = Table()
    for name in header:
        table.add_column(name, overflow="fold", justify="right" if name == "probability" else "left")
    for row in rows:
        table.add_row(*map(cell, row))
    console.print(table)


def save(predictions: Sequence[Prediction], file: Path) -> None:
    """The same as CSV: ``path``, ``class``, ``probability``, then ``class_2``, ``probability_2`` and so on.

    A path or class that a spreadsheet would take for a formula has a mark before it: ``spreadsheet.text_of``.

    Raises:
        UserError: if it cannot be written.
    """
    from flnl.storage.output_file import write_output

    count = max((len(found.top) for found in predictions), default=1)
    ranks = ["" if rank == 1 else f"_{rank}" for rank in range(1, count + 1)]
    header = ["path", *(f"{name}{rank}" for rank in ranks for name in ("class", "probability"))]
    rows = ([found.path, *(value for name, p in found.top for value in (name, f"{p:.6g}"))] for found in predictions)
    try:
        write_output(file, csv_text([header, *rows]).encode("utf-8", errors="surrogateescape"))
    except OSError as error:
        raise UserError(f"--csv {file} cannot be written ({error.strerror})") from error


def parser() -> Parser:
    """What the command takes."""
    words = Parser(prog="flnl predict", description="Classify images with the model of a run.")
    words.add_argument("run", metavar="RUN_DIR", type=Path, help="the run's folder, or its model.pt")
    words.add_argument(
        "images",
        metavar="IMAGE_OR_FOLDER",
        nargs="+",
        help="images; of a folder, all that lie below. Devices, pipes, files of more than"
        f" {MOST_BYTES // 2**20} MiB and images of more than {MOST_PIXELS:,} pixels are named and left out",
    )
    words.add_argument(
        "--csv",
        metavar="FILE",
        type=Path,
        help="write the table there, too; a ' stands before a name that a spreadsheet would take for a formula",
    )
    add_config_dir(words)
    return words


def predict(words: Sequence[str]) -> int:
    """Print what the images are; gives the exit code, 1 where none could be read.

    Raises:
        UserError: for what the user can mend.
    """
    asked = parser().parse_args(words)
    paths = images_below(asked.images)
    from flnl.engine.model_file import ModelFile

    model = ModelFile.load(asked.run)
    if model.stored != "uint8":
        print_line(
            f"note: {model.dataset} holds numbers, not 8-bit images; pixels of 0..255 are given to it as 0..1",
            to=sys.stderr,
        )
    found = list(classify(model, paths, asked.config_dir))
    read = [one for one in found if one.fault is None]
    for one in found:
        if one.fault is not None:
            print_line(f"{one.path} cannot be read ({one.fault})", to=sys.stderr)
    if len(read) < len(found):
        print(f"{len(found) - len(read)} of {len(found)} images could not be read", file=sys.stderr)
    if not read:
        return 1
    show(read)
    if asked.csv is not None:
        save(read, asked.csv)
    return 0


def main() -> None:
    """What ``flnl predict`` runs."""
    guard.guarded(lambda: sys.exit(predict(sys.argv[1:])), overrides=False)


if __name__ == "__main__":
    main()
