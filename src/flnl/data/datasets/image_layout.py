"""Where images of classes are below a folder, and which site holds them, by the names of folders."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from flnl.core.errors import UserError
from flnl.data.datasets.site_folders import (
    FolderNames,
    are_sites,
    has_sites,
    refuse_look_alikes,
    refuse_sites_beside_classes,
)
from flnl.data.image_names import MADE_BY_SYSTEMS, images_below
from flnl.storage.written_names import collisions, composed

log = logging.getLogger(__name__)

SITE = "SITE"
"""What messages call the folders of sites."""


@dataclass(frozen=True)
class ImageSplit:
    """The images of ``train`` or ``test``."""

    folder: Path  # the folder that users know it by, for messages
    root: Path  # the folder that ``paths`` begin at
    paths: tuple[str, ...]  # [N], with / on every system
    classes: tuple[str | None, ...]  # [N], the name of the class folder; None: the image is in none
    sites: tuple[str, ...] | None = None  # [N], the name of the site folder; None: there are no site folders

    def of_sites(self) -> ImageSplit:
        """The same images, where each folder is that of a site and has class folders.

        Raises:
            UserError: naming an image that is in none.
        """
        if shallow := next((path for path in self.paths if path.count("/") < 2), None):
            raise UserError(
                f"dataset.sites: {self.folder / shallow} is not in {self.folder}/SITE/CLASS; move it there, or set "
                "dataset.sites=false if there are no sites"
            )
        parts = [path.split("/", 2) for path in self.paths]
        return replace(self, classes=tuple(p[1] for p in parts), sites=tuple(p[0] for p in parts))

    def classes_at(self) -> dict[str, set[str]]:
        """The names of class folders that are beside each other, by the folder that has them."""
        found = defaultdict[str, set[str]](set)
        last = () if self.root == self.folder else (self.folder.name,)  # in SITE/train
        for site, name in zip(self.sites or [None] * len(self.paths), self.classes, strict=True):
            if name is not None:
                found[str(self.folder if site is None else self.root.joinpath(site, *last))].add(name)
        return found

    def in_one_spelling(self) -> ImageSplit:
        """The same images, with one name for class folders of several sites that differ in how accents are composed.

        Raises:
            UserError: if such folders are beside each other.
        """
        at = self.classes_at()
        for folder, names in at.items():
            for one, other in collisions(sorted(names)):
                raise UserError(
                    f"dataset.root: {folder} has two folders {one!r} that differ only in how accents are composed "
                    f"({one!a}, {other!a}): move the images into one"
                )
        several = {name for pair in collisions(sorted(set().union(*at.values()))) for name in pair}
        return replace(self, classes=tuple(composed(name) if name in several else name for name in self.classes))


def read_layout(
    root: Path, sites: bool | Literal["auto"], *, class_folders: bool = True
) -> tuple[ImageSplit, ImageSplit]:
    """The images for training and for testing.

    They are in ``train/CLASS`` and ``test/CLASS``; or those of several sites in ``train/SITE/CLASS`` or in
    ``SITE/train/CLASS``, where the test images may also be in ``test/CLASS``. Folders may be nested further.

    Args:
        root: the folder of ``train`` and ``test``, or of the sites.
        sites: whether the folders of ``train`` are sites; auto: if their names tell (``site_folders.are_sites``).
        class_folders: whether the labels for training are those of folders; else ``train`` may have any folders.

    Raises:
        UserError: if there are no images, a folder cannot be read, class folders have equal names, or names do not tell
            sites from classes.
    """
    train = _of_each(root, "train") if sites else None
    if train is not None:
        test = _of_each(root, "test") or _split(root, "test")
    else:
        train, test = _split(root, "train"), _split(root, "test")
    names, others = FolderNames.of(train.folder, train.paths), FolderNames.of(test.folder, test.paths)
    if train.sites is None and (sites is True or (sites == "auto" and are_sites(names, others))):
        train = train.of_sites()
    if train.sites is not None:
        if test.sites is None and has_sites(others, _composed(train.sites), _composed(train.classes)):
            test = test.of_sites()
    elif sites == "auto":
        if class_folders:
            refuse_sites_beside_classes(names, names.outer | others.outer, others.outer)
        refuse_sites_beside_classes(others, others.outer, names.outer if class_folders else None)
    train, test = train.in_one_spelling(), test.in_one_spelling()
    if train.sites is not None and class_folders:
        refuse_look_alikes((train.classes_at(), test.classes_at()))
    return train, test


def _composed(names: Sequence[str | None]) -> set[str]:
    return {composed(name) for name in dict.fromkeys(names) if name is not None}


def _of_each(root: Path, split: str) -> ImageSplit | None:
    """The images of ``SITE/split`` of all sites that have it; None if there is none, or a folder of all."""
    owners = _with(root, split)
    if owners and (root / split).is_dir():
        log.warning("%s and %s are both there: only the first is read", root / split, root / owners[0] / split)
        return None
    if not owners:
        return None
    found = [(owner, path) for owner in owners for path in _listing(root / owner, split)]
    parts = [path.split("/", 1) for _, path in found]
    return ImageSplit(
        folder=root / SITE / split,
        root=root,
        paths=tuple(f"{owner}/{split}/{path}" for owner, path in found),
        classes=tuple(part[0] if len(part) > 1 else None for part in parts),
        sites=tuple(owner for owner, _ in found),
    )


def _with(root: Path, split: str) -> list[str]:
    """The names of folders below ``root`` that have a folder ``split``."""
    try:
        found = (path.parent.name for path in root.glob(f"[!.]*/{split}") if path.is_dir())
        return sorted(name for name in found if name not in {"train", "test", *MADE_BY_SYSTEMS})
    except OSError as error:
        raise UserError(f"dataset.root: {error.filename} cannot be read ({error.strerror})") from error


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
