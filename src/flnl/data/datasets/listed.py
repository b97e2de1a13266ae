"""Published folders of images in which lists or file names give the labels: what their readers share."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import assemble
from flnl.data.datasets.download import expand
from flnl.data.images import ImageFiles, file_sizes
from flnl.data.transforms import Transform

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listed:
    """How images are read, and whether they must be as published.

    The fingerprint covers paths and contents of the files, or with ``names`` paths and sizes. ``cache`` is the folder
    where digests of files are cached.
    """

    title: str  # of the data set, for the log
    verify: bool
    threads: int
    fingerprint: Literal["contents", "names"]
    cache: str | None

    def expect(self, holds: bool, finding: str) -> None:
        """Refuse a data set that differs from the published one; without ``verify``, log a warning instead."""
        if holds:
            return
        if self.verify:
            raise UserError(
                f"dataset.root: {finding}; repair it, or set dataset.verify=false to use the files as they are"
            )
        log.warning("%s: %s; using the files as they are", self.title, finding)

    def images(
        self,
        folder: Path,
        paths: Sequence[str],
        labels: Labels,
        *,
        size: int,
        crop_from: int,
        keep: Indices | None,
        named_by: str,
    ) -> tuple[ImageFiles, Labels]:
        """Those of ``paths`` below ``folder`` that are there, and their labels.

        Args:
            folder: where paths begin.
            paths: [N].
            labels: [N].
            size: side of the network's inputs.
            crop_from: side of the images that random crops are taken from.
            keep: the positions that are wanted; None for all. No other file is looked for.
            named_by: what names the images, for the message if there is none.

        Raises:
            UserError: if images are missing under ``verify``, or all are.
        """
        keep = np.arange(len(paths)) if keep is None else keep
        chosen = [paths[i] for i in keep.tolist()]
        sizes = file_sizes(folder, chosen)
        absent = np.flatnonzero(sizes == 0)
        if len(absent):
            first = folder / chosen[absent[0]]
            self.expect(False, f"{len(absent)} of {len(chosen)} images are missing or empty, the first is {first}")
            there = np.flatnonzero(sizes)
            keep, chosen, sizes = keep[there], [chosen[i] for i in there.tolist()], sizes[there]
        if not chosen:
            raise UserError(f"dataset.root: {folder} has none of the images that {named_by} should name")
        images = ImageFiles(
            root=folder,
            paths=tuple(chosen),
            file_sizes=sizes,
            size=(size, size),
            augmented_size=(crop_from, crop_from),
            threads=self.threads,
            known_by=self.fingerprint,
            cache=None if self.cache is None else expand(self.cache),
        )
        return images, labels[keep]


def assembled(
    name: str,
    classes: Sequence[str],
    train: tuple[ImageFiles, Labels],
    test: tuple[ImageFiles, Labels],
    transform: Transform,
) -> Dataset:
    """Images with given labels for training, whose truth is unknown, and with right ones for testing.

    A sample's id is its path. The images are those that are wanted already, reduced before they were looked for.
    """
    for images, _ in (train, test):
        images.demand_one()
    return assemble(
        name=name,
        classes=classes,
        train=train[0],
        test=test[0],
        test_labels=test[1],
        transform=transform,
        truth=None,
        given=train[1],
        ids=train[0].paths,
        train_size=None,
        test_size=None,
    )


def lines_of(file: Path, otherwise: str) -> list[str]:
    """The lines of a list, without blank ones.

    Raises:
        UserError: if it does not exist or cannot be read; the message ends with what to do ``otherwise``.
    """
    try:
        if file.exists() and not file.is_file():
            raise OSError("it is not a regular file")
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"dataset.root: {file} cannot be read: {otherwise}") from error
    return [line.strip() for line in lines if line.strip()]


def labelled_paths(file: Path, lines: Sequence[str], classes: int) -> list[tuple[str, int]]:
    """The paths and labels of lines such as ``images/0/1.jpg 3``.

    Raises:
        UserError: naming the first line that is none.
    """
    found = []
    for number, line in enumerate(lines, start=1):
        path, _, value = line.rpartition(" ")
        if not (path and value.isdecimal() and int(value) < classes):
            raise UserError(
                f"dataset.root: line {number} of {file} is {line!r}, not a path and a label in 0..{classes - 1}"
            )
        found.append((path.rstrip(), int(value)))
    return found
