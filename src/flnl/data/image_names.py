"""The images below a folder, found by their names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SUFFIXES = (
    *(".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg"),
    *(".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"),
)
"""The suffixes of images, in lower case; ``flnl.data.image_file`` decides about the content."""


MADE_BY_SYSTEMS = frozenset(
    {
        *("@eaDir", "#recycle", "#snapshot"),  # Synology
        *("@Recycle", "@Recently-Snapshot"),  # QNAP
        *("$RECYCLE.BIN", "System Volume Information", "__MACOSX", "lost+found"),
    }
)
"""Folders of thumbnails, deleted files and snapshots that network storage and operating systems make."""


@dataclass(frozen=True)
class Listing:
    """What is below a folder, without hidden files and folders, and those that systems make."""

    images: tuple[Path, ...]  # below the folder, sorted by folder and name
    special: tuple[Path, ...]  # named as images, but devices, pipes, sockets, or links to nothing
    others: Counter[str]  # how many files have which other suffix


def images_below(folder: Path) -> Listing:
    """The images below a folder, also in folders that are links; a link to a folder above it is not followed.

    Raises:
        OSError: if a folder cannot be read.
    """
    images, special, others = [], [], Counter[str]()
    for path in _files(folder, frozenset()) if folder.is_dir() else ():
        if path.suffix.lower() not in SUFFIXES:
            others[path.suffix.lower()] += 1
        elif path.is_file():
            images.append(path.relative_to(folder))
        else:
            special.append(path.relative_to(folder))
    images.sort(key=lambda path: (path.parts[:-1], path.name))
    return Listing(tuple(images), tuple(sorted(special)), others)


def _files(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    """All files below a folder that are not hidden, without folders that systems make, and those of ``above``."""
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name in MADE_BY_SYSTEMS:
                continue
            if entry.is_dir():
                yield from _files(folder / entry.name, above | {here})
            else:
                yield folder / entry.name
