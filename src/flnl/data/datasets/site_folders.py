"""Whether folders of images are sites or classes, by their names."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from flnl.console.words import some
from flnl.core.errors import UserError
from flnl.storage.written_names import composed

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FolderNames:
    """The names of the outer folders of a split's images, and of those in them, with accents composed."""

    folder: Path  # of the split, for messages
    inside: Mapping[str, frozenset[str]]  # by outer folder, the folders in it
    loose: Mapping[str, str]  # by outer folder, an image in it that is in none of these; "": one in no folder

    @classmethod
    def of(cls, folder: Path, paths: Iterable[str]) -> FolderNames:
        """The names in ``paths``, which begin at ``folder``."""
        inside = defaultdict[str, set[str]](set)
        loose: dict[str, str] = {}
        for path in paths:
            *folders, _ = path.split("/")
            outer, *rest = map(composed, folders or [""])
            if folders:
                inside[outer].update(rest[:1])
            if not rest:
                loose.setdefault(outer, path)
        return cls(folder, {name: frozenset(names) for name, names in inside.items()}, loose)

    @property
    def outer(self) -> Set[str]:
        """The outer folders."""
        return self.inside.keys()

    @property
    def inner(self) -> Set[str]:
        """The folders in outer ones."""
        return frozenset().union(*self.inside.values())

    def having(self, inner: str) -> list[str]:
        """The outer folders that have this one."""
        return sorted(outer for outer, names in self.inside.items() if inner in names)


def are_sites(train: FolderNames, test: FolderNames) -> bool:
    """Whether the outer folders of ``train`` are sites.

    If ``test`` has none of these folders, they are sites if there are folders in them that ``test`` has: its classes.
    If it has some, these are classes; or sites, if the folders in them are classes. These are in several sites and in
    ``test``. Where only some are, the names do not tell.

    Raises:
        UserError: if the names do not tell.
    """
    if not train.outer & test.outer:
        return not train.loose and bool(train.inner & test.outer)
    if len(train.inner) < 2 or not train.inner & test.inner or train.loose.keys() >= train.outer:
        return False
    outer, inner = some(sorted(train.outer)), some(sorted(train.inner))
    once = sorted(name for name in train.inner if len(train.having(name)) == 1 < len(train.outer))
    if len(once) == len(train.inner):
        if not (train.loose or test.loose or test.inner - train.inner):
            told = "%s: %s are read as classes, folders in them (%s) as parts; dataset.sites=true if they are sites"
            log.warning(told, train.folder, outer, inner)
        return False
    unlike = [f"{name} is only in {train.having(name)[0]}" for name in once]
    unlike += [f"{name} is only in {test.folder}" for name in sorted(test.inner - train.inner)]
    unlike += [f"{split.folder / path} is in none" for split in (train, test) for path in split.loose.values()]
    if unlike:
        raise UserError(
            f"dataset.sites=auto: {outer} in {train.folder} may be sites, and folders in them ({inner}) classes, but "
            f"{unlike[0]}: set dataset.sites=true if they are sites, or false if they are classes"
        )
    told = "%s: %s are read as sites, folders in them (%s) as classes; dataset.sites=false if it is otherwise"
    log.warning(told, train.folder, outer, inner)
    return True


def has_sites(test: FolderNames, sites: Set[str], classes: Set[str]) -> bool:
    """Whether the outer folders of ``test`` are sites, and not the classes of the sites for training."""
    if not test.outer & classes and test.inner & classes:
        return True
    return not test.loose and test.outer <= sites and bool(test.inner & classes or not test.outer & classes)


def refuse_sites_beside_classes(split: FolderNames, classes: Set[str], others: Set[str] | None) -> None:
    """Refuse a folder of classes that seems to be a site: it has folders of their names.

    Args:
        split: of which the outer folders are classes.
        classes: all names of classes.
        others: those of the other split; None: they need not be the same.

    Raises:
        UserError: naming it.
    """
    for name in sorted(split.outer):
        alike = split.inside[name] & classes - {name}
        if len(alike) > 1 or (alike and others is not None and name not in others):
            raise UserError(
                f"dataset.sites=auto: {split.folder / name} has folders that are named as classes "
                f"({some(sorted(alike))}), as those of a site: move its images into {split.folder}/CLASS, or all into "
                f"{split.folder}/SITE/CLASS; dataset.sites=false reads {name} as a class"
            )


def refuse_look_alikes(places: Iterable[Mapping[str, Collection[str]]]) -> None:
    """Refuse classes of several sites that differ only in case, or in blanks at the ends.

    Where one folder has both, they are two classes.

    Args:
        places: for each split, the classes that each of its folders has.

    Raises:
        UserError: naming two.
    """
    beside = [(where, frozenset(map(composed, names))) for split in places for where, names in split.items()]
    place: dict[str, str] = {}
    known: dict[str, str] = {}
    for where, names in beside:
        for name in sorted(names):
            place.setdefault(name, where)
            other = known.setdefault(name.strip().casefold(), name)
            if other != name and not any({name, other} <= both for _, both in beside):
                raise UserError(
                    f"dataset.root: the folders {other!r} in {place[other]} and {name!r} in {where} differ only in "
                    "case or blanks: give a class one name at all sites"
                )
