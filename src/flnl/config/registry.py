"""The classes that files may name: those that configuration files name.

A file written by a run (its record, its model, a checkpoint) says which part it means by a stored name. The name is
looked up among the classes that the files of one configuration group name, in ``conf/`` and in folders that the user's
command adds, and its values are checked as those of the command line are. So no file can have other code run, a part
may move to another module, and a new part needs no entry anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

from omegaconf import OmegaConf

from flnl.config.check import faults_of
from flnl.config.folders import folders
from flnl.config.schema import METHOD
from flnl.config.typed_values import field_types
from flnl.core.errors import UserError
from flnl.core.importing import located
from flnl.core.ranges import FromFiles, NamesCode

T = TypeVar("T")

PACKAGE = "flnl"
"""The package whose classes are stored by their bare names; any other class is stored with its path."""
FIRST_PACKAGE = "src"
"""What the package was called when records of the first format were written."""
GROUP = re.compile(r"[a-z_]+(/[a-z_]+)?")
DEPTH = 32
"""Levels of mappings and lists in a node that a file holds."""


def stored_name(target: str, package: str = PACKAGE) -> str:
    """What files call the class at the path ``target``: its bare name where it is one of this package's.

    >>> stored_name("flnl.models.cnn.CNN"), stored_name("src.nets.CNN"), stored_name("CNN")
    ('CNN', 'src.nets.CNN', 'CNN')
    """
    first, _, rest = target.partition(".")
    return rest.rpartition(".")[2] if first == package and rest else target


def recorded_name(target: str) -> str:
    """As ``stored_name``, of what a record holds: at first the package was called ``src``."""
    return stored_name(stored_name(target), FIRST_PACKAGE)


def named(node: Any, name: Callable[[str], str] = stored_name) -> Any:
    """A configuration node with the ``name`` of each class instead of its path."""
    if isinstance(node, Mapping):
        return {k: name(str(v)) if k == "_target_" else named(v, name) for k, v in node.items()}
    return [named(v, name) for v in node] if isinstance(node, list) else node


def targets(group: str, places: Sequence[Path] = ()) -> dict[str, str]:
    """The classes that the files of a group name: paths by stored name. ``places`` are searched besides ``folders``.

    Raises:
        UserError: if two classes of the group would have one name.
    """
    classes: dict[str, str] = {}
    for file, content in _contents(group, places):
        for path in _values(content, "_target_"):
            if classes.setdefault(stored_name(path), path) != path:
                raise UserError(f"{file}: {path} and {classes[stored_name(path)]} would both be stored as one name")
    return classes


def _contents(group: str, places: Sequence[Path]) -> Iterator[tuple[Path, Any]]:
    """The files of a group in ``folders`` and ``places``, and what each says.

    Raises:
        ValueError: if this cannot be a group: it is a path below these folders.
    """
    if not GROUP.fullmatch(group):
        raise ValueError("no group has such a name")
    for file in (file for place in (*folders(), *places) for file in sorted((place / group).rglob("*.yaml"))):
        about = file.stat()
        yield file, _content(file, about.st_mtime_ns, about.st_size)


@cache
def _content(file: Path, changed: int, size: int) -> Any:
    """What a file says, which was ``changed`` last at this time: hundreds are read for one method."""
    return OmegaConf.to_container(OmegaConf.load(file))


def _values(node: Any, key: str) -> Iterator[str]:
    """The values of a key anywhere in a node."""
    if isinstance(node, Mapping):
        if key in node:
            yield str(node[key])
        for value in node.values():
            yield from _values(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from _values(value, key)


def restored(
    group: str, node: Any, source: str, places: Sequence[Path] = (), trusted: Sequence[str] = ()
) -> dict[str, Any]:
    """A node of a configuration group that was read from a file, fit to be built.

    Args:
        group: the group that it belongs to, as in ``model``.
        node: what the file says, with stored names (or paths of this package's classes, as they were at first).
        source: the file, for messages.
        places: folders with configuration files, besides those of the command.
        trusted: dotted paths of code that the file may name, besides those that configuration files of the group name.

    Raises:
        UserError: if it names a class that no file of the group names, or code that is not trusted, has a value that
            the class does not take, or holds what only a command line may say.
    """
    part = restored_part(group, node, source, places, trusted)
    if faults := faults_of({group: part}):
        raise UserError(f"{source}: {faults}")
    return part


def restored_part(
    group: str, node: Any, source: str, places: Sequence[Path] = (), trusted: Sequence[str] = ()
) -> dict[str, Any]:
    """As ``restored``, of a group that is part of another section, as in ``train/optimizer``.

    Its values are checked with the section that it becomes part of.

    Raises:
        UserError: if it names a class that no file of the group names, or code that is not trusted, or holds what only
            a command line may say.
    """
    part = _withheld(_restored(node, targets(group, places), f"{source}: {group}"))
    if not isinstance(part, dict) or "_target_" not in part:
        raise UserError(f"{source}: {group} names no class")
    for key in _annotated(part, NamesCode):
        known = {*trusted, *(value for _, content in _contents(group, places) for value in _values(content, key))}
        if not isinstance(value := part.get(key), str) or value not in known:
            raise UserError(
                f"{source}: {group}.{key}={part.get(key)} is code that a file cannot choose; if you trust it, name it: "
                f"--trust {part.get(key)} of flnl predict or flnl rerun, trust= of flnl.load_model, or a file in "
                f"--config-dir that has {key}: {part.get(key)}"
            )
    return part


def restored_method(node: Any, source: str, places: Sequence[Path] = ()) -> Any:
    """As ``restored``, of a method: each part is looked up among those of its slot, then among all that methods name.

    Some parts stand in files of stages alone, and some hold what is another part's, as an optimiser. The values of
    parts are checked with the configuration that the method becomes part of.

    Raises:
        UserError: if it names a class that no file of a method names, or holds what only a command line may say.
    """
    anywhere = {
        stored_name(path): path
        for group in ("method", "train/optimizer")
        for _, content in _contents(group, places)
        for path in _values(content, "_target_")
    }
    slots = {slot: {**anywhere, **targets(f"method/{slot}", places)} for slot in METHOD}

    def parts(of: Any) -> dict[str, Any]:
        """Those of the method, or of one of its stages, and values that are no parts."""
        if not isinstance(of, Mapping):
            raise UserError(f"{source}: method is no mapping of parts")
        return {
            str(key): restored_training(value, source, places)
            if key == "train"
            else _withheld(_restored(value, slots.get(key, anywhere), f"{source}: method.{key}"))
            for key, value in of.items()
            if key != "stages"
        }

    values = parts(node)
    if isinstance(stages := node.get("stages"), Mapping):
        values["stages"] = {name: parts(stage) for name, stage in stages.items()}
    return values


def restored_training(node: Any, source: str, places: Sequence[Path] = ()) -> Any:
    """As ``restored``, of settings of training, a run's or a stage's: an optimiser is one of its group.

    Raises:
        UserError: if it names a class that no file of the group names, or holds what only a command line may say.
    """
    if not isinstance(node, Mapping):
        return node
    return {
        key: restored_part("train/optimizer", value, source, places)
        if key == "optimizer" and value is not None
        else _withheld(_restored(value, {}, f"{source}: train.{key}"))
        for key, value in node.items()
    }


def _restored(node: Any, known: Mapping[str, str], where: str, depth: int = 0) -> Any:
    if depth > DEPTH:
        raise UserError(f"{where[:80]} ... is nested too deeply")
    if isinstance(node, str) and "${" in node:
        raise UserError(f"{where} holds {node!r}: interpolations are for the command line")
    if isinstance(node, list):
        return [_restored(value, known, where, depth + 1) for value in node]
    if not isinstance(node, Mapping):
        return node
    values: dict[str, Any] = {}
    for key, value in node.items():
        if key == "_target_":
            values[key] = _path(str(value), known, where)
        elif str(key).startswith("_") and not (key == "_partial_" and isinstance(value, bool)):
            raise UserError(f"{where} has {key}, which only the command line may say")
        else:
            values[key] = _restored(value, known, f"{where}.{key}", depth + 1)
    return values


def _withheld(node: Any) -> Any:
    """A node without what only a command line may set."""
    if not isinstance(node, dict):
        return [_withheld(value) for value in node] if isinstance(node, list) else node
    values = {key: _withheld(value) for key, value in node.items()}
    for key, withheld in _annotated(values, FromFiles).items():
        if key in values:
            values[key] = withheld.value
    return values


def withheld(part: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    """What a ``node`` from a file says, by key, that ``restored`` has left out of the ``part`` that it made of it.

    Only a command line may say such things: the pretrained weights that a model starts from, for one.
    """
    values = {key: node.get(key, kept.value) for key, kept in _annotated(part, FromFiles).items()}
    return {key: value for key, value in values.items() if value != part.get(key, value)}


def _annotated(node: Mapping[str, Any], kind: type[T]) -> dict[str, T]:
    """The fields of a part that have an annotation of this kind, and the annotation of each."""
    part = located(node["_target_"]) if "_target_" in node else None
    hints = field_types(part) if part is not None and is_dataclass(part) else {}
    found = {key: [one for one in get_args(hint)[1:] if isinstance(one, kind)] for key, hint in hints.items()}
    return {key: annotations[0] for key, annotations in found.items() if annotations}


def _path(text: str, known: Mapping[str, str], where: str) -> str:
    for name in (stored_name(text), recorded_name(text)):
        for candidate, path in known.items():
            if candidate.casefold() == name.casefold():
                return path
    raise UserError(
        f"{where} names {name!r}, which no configuration file of that group has; there are "
        f"{', '.join(sorted(known))} (a folder with others can be named on the command line)"
    )


def option_of(group: str, fits: Callable[[type], bool]) -> str | None:
    """The first option of a group that names a class which ``fits``; None where there is none."""
    for place in folders():
        for file in sorted((place / group).rglob("*.yaml")):
            kinds = map(located, _values(OmegaConf.to_container(OmegaConf.load(file)), "_target_"))
            if any(kind is not None and fits(kind) for kind in kinds):
                return file.relative_to(place / group).with_suffix("").as_posix()
    return None
