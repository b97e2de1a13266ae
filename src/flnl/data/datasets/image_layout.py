"""Where images of classes are below a folder, and which site holds them, by the names of folders."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from flnl.core.errors import UserError
from flnl.data.image_names import MADE_BY_SYSTEMS, images_below
from flnl.storage.written_names import collisions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageSplit:
    """The images of ``train`` or ``test``."""

    folder: Path  # the folder that users know it by, for messages
    root: Path  # the folder that ``paths`` begin at
    paths: tuple[str, ...]  # [N], with / on every system
    classes: tuple[str | None, ...]  # [N], the name of the class folder; None: the image is in none
    sites: tuple[str, ...] | None = None  # [N], the name of the site folder; None: there are no site folders

    def of_sites(self) -> ImageSplit:
        """The same images, if their folders are those of sites, each with class folders."""
        parts = [path.split("/", 2) for path in self.paths]
        return replace(self, classes=tuple(p[1] for p in parts), sites=tuple(p[0] for p in parts))


def read_layout(root: Path, sites: bool | Literal["auto"]) -> tuple[ImageSplit, ImageSplit]:
    """The images for training and for testing.

    They are in ``train/CLASS`` and ``test/CLASS``; or those of several sites in ``train/SITE/CLASS`` or in
    ``SITE/train/CLASS``, where the test images may also be in ``test/CLASS``. Folders may be nested further.

    Args:
        root: the folder of ``train`` and ``test``, or of the sites.
        sites: whether the folders of ``train`` are sites; auto: if all have folders, and these are the folders of
            ``test`` or are the same in two sites or more.

    Raises:
        UserError: if there are no images, a folder cannot be read, or two class folders have equal names.
    """
    owners = _with_splits(root) if sites else []
    if owners and (root / "train").is_dir():
        log.warning("%s and %s are both there: only the first is read", root / "train", root / owners[0] / "train")
        owners = []
    if owners:
        train = _of_each(root, owners, "train")
        test = _split(root, "test") if (root / "test").is_dir() else _of_each(root, owners, "test")
    else:
        train, test = _split(root, "train"), _split(root, "test")
        if sites is True and (shallow := next((p for p in train.paths if p.count("/") < 2), None)):
            raise UserError(
                f"dataset.sites=true: {train.folder / shallow} is not in {train.folder}/SITE/CLASS; move it there"
            )
        if sites is True or (sites == "auto" and _are_sites(train.paths, test.paths)):
            train = train.of_sites()
            if _nested(test.paths) and _first(test.paths) <= _first(train.paths):
                test = test.of_sites()
    for split in (train, test):
        for one, other in collisions(sorted({name for name in split.classes if name is not None})):
            raise UserError(
                f"dataset.root: {split.folder} has two folders {one!r} that differ only in how accents are composed "
                f"({one!a}, {other!a}): move the images into one"
            )
    return train, test


def _are_sites(train: Sequence[str], test: Sequence[str]) -> bool:
    """Whether the first folders of ``train`` are sites, by the rule of ``read_layout``."""
    if not _nested(train):
        return False
    inside = defaultdict[str, set[str]](set)  # the sites that have a folder
    for path in train:
        site, name, _ = path.split("/", 2)
        inside[name].add(site)
    if inside.keys() == _first(test) and not _first(train) & _first(test):
        return True
    shared = all(len(sites) > 1 for sites in inside.values()) and len(inside) > 1
    return shared and _nested(test) and _first(test) <= _first(train) and _second(test) <= inside.keys()


def _nested(paths: Sequence[str]) -> bool:
    return all(path.count("/") > 1 for path in paths)


def _first(paths: Sequence[str]) -> set[str]:
    return {path.split("/", 1)[0] for path in paths}


def _second(paths: Sequence[str]) -> set[str]:
    return {path.split("/", 2)[1] for path in paths}


def _with_splits(root: Path) -> list[str]:
    """The names of folders below ``root`` that have a folder ``train``."""
    try:
        found = (path.parent.name for path in root.glob("[!.]*/train") if path.is_dir())
        return sorted(name for name in found if name not in MADE_BY_SYSTEMS)
    except OSError as error:
        raise UserError(f"dataset.root: {error.filename} cannot be read ({error.strerror})") from error


def _of_each(root: Path, owners: Sequence[str], split: str) -> ImageSplit:
    """The images of ``SITE/split`` of all sites."""
    found = [(owner, path) for owner in owners for path in _listing(root / owner, split)]
    parts = [path.split("/", 1) for _, path in found]
    return ImageSplit(
        folder=root / "SITE" / split,
        root=root,
        paths=tuple(f"{owner}/{split}/{path}" for owner, path in found),
        classes=tuple(part[0] if len(part) > 1 else None for part in parts),
        sites=tuple(owner for owner, _ in found),
    )


def _split(root: Path, split: str) -> ImageSplit:
    paths = _listing(root, split)
    parts = [path.split("/", 1) for path in paths]
    folder = root / split
    return ImageSplit(folder, folder, paths, tuple(part[0] if len(part) > 1 else None for part in parts))


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
