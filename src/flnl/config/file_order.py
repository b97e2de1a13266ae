"""Which of two keys a file sets last, in the order in which Hydra composes the files of a configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from flnl.config.folders import CONF, added_by, folders
from flnl.config.override_text import choices_of
from flnl.config.schema import METHOD, NO_GROUPS
from flnl.config.written import node_at
from flnl.core.errors import UserError

HOMES = tuple(f"method/{slot}/" for slot in METHOD)
"""The folders of parts' files, where their defaults stand."""


def last_of(short: str, target: str, overrides: Sequence[str]) -> str | None:
    """The key of a method that the later file sets, where files outside of the part's own folder set both keys.

    Args:
        short: a short key, as in ``method.mu``; its declaration does not count.
        target: the part's key that it stands for. The files of ``method/SLOT/``, the homes of defaults, do not count.
        overrides: the overrides as typed, which choose files.

    Returns:
        ``short`` or ``target``; None if files do not set both, or if the last file sets both to one value.

    Raises:
        UserError: if the last file sets both, to different values.
    """
    places = _places(overrides)
    if not _may_be_set(target, places):
        return None
    values: dict[str, tuple[str, Any]] = {}
    for path, file, package in _files(overrides, places):
        if path.startswith(HOMES):
            continue
        content = _content(file)
        here = {key: value for key in (short, target) if (value := _value(content, package, key)) is not None}
        here = {key: value for key, value in here.items() if value != f"${{{target if key == short else short}}}"}
        for key, value in here.items():
            values.pop(key, None)
            values[key] = (path, value)
    if len(values) < 2:
        return None
    (first, one), (last, other) = values.values()
    if first == last and one != other:
        both = " and ".join(f"{key}={value}" for key, (_, value) in values.items())
        raise UserError(f"{last}.yaml: {both} set the same value; leave one of them out")
    return None if first == last else list(values)[-1]


def files(overrides: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """The files that ``overrides`` choose, in the order in which they are composed, each with the key it stands at."""
    yield from ((file, package) for _, file, package in _files(overrides, _places(overrides)))


def _files(overrides: Sequence[str], places: Sequence[Path]) -> Iterator[tuple[str, Path, str]]:
    """The same, each with its path below its folder first, without suffix; Hydra's own files are left out."""
    for path, package in _order(choices_of(overrides, places), tuple(map(str, places[1:]))):
        file = next((file for place in places if (file := place / f"{path}.yaml").is_file()), None)
        if file is not None:
            yield path, file, package


def _content(file: Path) -> DictConfig:
    """What a file holds, to be read only. It is parsed again if it has changed."""
    status = file.stat()
    return _parsed(file, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1000)
def _parsed(file: Path, mtime_ns: int, size: int) -> DictConfig:
    content = OmegaConf.load(file)
    assert isinstance(content, DictConfig)
    return content


def _value(content: DictConfig, package: str, key: str) -> Any:
    """What a file that stands at ``package`` says of ``key``, unresolved; None if it says nothing."""
    inside = f"{package}." if package else ""
    node: Any = node_at(content, key.removeprefix(inside)) if key.startswith(inside) else None
    if node is None:
        return None
    return OmegaConf.to_container(node, resolve=False) if OmegaConf.is_config(node) else node._value()


def _may_be_set(target: str, places: Sequence[Path]) -> bool:
    """Whether the text of any file outside of the parts' folders has the last name of ``target`` as a key.

    This takes milliseconds; to compose the list of files takes as long as to compose the configuration.
    """
    key = re.compile(rf"""(?:^|[{{,])\s*(?:[\w"'.]*\.)?["']?{re.escape(target.rpartition(".")[2])}["']?\s*:""", re.M)
    outside = (*HOMES, *(f"{group}/" for group in NO_GROUPS))
    return any(
        key.search(file.read_text(errors="replace"))
        for place in places
        for file in place.rglob("*.yaml")
        if not file.relative_to(place).as_posix().startswith(outside)
    )


@cache
def _order(choices: tuple[str, ...], added: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The files composed from ``CONF`` and the folders ``added``, in order: path without suffix, and package."""
    name = "config"
    if HydraConfig.initialized():
        name = str(HydraConfig.get().job.config_name or name)
    searched = create_config_search_path(str(CONF))
    for place in added:  # not by an override: Hydra would look for a base of the user's without it
        searched.append("added", f"file://{place}")
    files = ConfigLoaderImpl(searched).compute_defaults_list(name, [*choices], RunMode.RUN).defaults
    return tuple((file.config_path, file.package or "") for file in files if file.config_path is not None)


def _places(overrides: Sequence[str]) -> list[Path]:
    """``folders()`` and those of the search path among ``overrides``."""
    return list(dict.fromkeys(place.resolve() for place in [*folders(), *added_by(overrides)]))
