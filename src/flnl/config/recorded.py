"""The configuration that repeats a run, from its record: restricted to what a file may choose."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from flnl.config import compose, identity
from flnl.config.check import faults_of
from flnl.config.identity import PLACES
from flnl.config.registry import restored, restored_method, restored_training
from flnl.config.schema import METHOD
from flnl.core.errors import UserError

GROUPS = ("dataset", "partition", "noise", "model")
"""The groups whose parts a record chooses, besides the method."""
VALUES = (
    *("seed", "data_seed", "device", "precision", "threads", "memory_format", "client_memory", "centralized"),
    *("rounds", "fraction", "on_nonfinite", "fault", "shift", "train", "eval", "audit"),
)
"""Other keys whose values a record chooses. All others say where the run writes, and who runs its clients."""

FROM_CWD = ("dataset.root", "partition.path", "noise.root", "noise.path")
"""Those of ``PLACES`` whose relative paths begin where the run was started; the others begin at ``dataset.root``."""


def places_of(words: Sequence[str]) -> dict[str, str]:
    """Where a run's data lie here, by key, from texts such as ``dataset.root=/data``.

    Raises:
        UserError: for what says no such thing.
    """
    found = {}
    for word in words:
        key, _, text = word.partition("=")
        if key not in PLACES or not text:
            raise UserError(
                f"{word}: should say where the run's data lie here, as in dataset.root=FOLDER; there are "
                f"{', '.join(PLACES)}"
            )
        try:
            value = OverridesParser.create().parse_override(word).value()
        except HydraException:
            value = text
        found[key] = value if isinstance(value, str) else text
    return found


def placed(parts: Mapping[str, Any], folder: str, places: Mapping[str, str], source: str) -> dict[str, Any]:
    """The parts of a run's data with paths that lead to files from any folder.

    Args:
        parts: those of its data set, partition and noise.
        folder: where its relative paths began.
        places: where its data lie here, by key.
        source: the record's file, for messages.

    Raises:
        UserError: if a place is of a key that the run does not have.
    """
    found = {group: dict(part) for group, part in parts.items()}
    for key in PLACES:
        group, _, name = key.partition(".")
        value = found[group].get(name)
        if key in places:
            if name not in found[group]:
                raise UserError(f"{key}={places[key]}: the run of {source} has no {key}")
            if key == "dataset.root" and found["noise"].get("root") == value:
                found["noise"]["root"] = places[key]  # as conf/noise has it
            found[group][name] = places[key]
        elif key in FROM_CWD and isinstance(value, str):
            found[group][name] = _from(folder, value)
    return found


def _from(folder: str, path: str) -> str:
    """A path that began in ``folder``: there if it is there, else as it is."""
    there = os.path.join(folder, path) if os.path.isabs(folder) else path  # noqa: PTH117, PTH118
    return there if os.path.exists(there) else path  # noqa: PTH110 (none of these raises)


def whereabouts(plain: Mapping[str, Any], folder: str | None = None) -> dict[str, str]:
    """Where a configuration's data lie (``identity.places``), in absolute paths as far as these can be told.

    Args:
        plain: the configuration, resolved.
        folder: where its relative paths begin, as a record has it; None for the current folder.
    """
    start = str(Path.cwd()) if folder is None else folder
    return {
        key: os.path.normpath(os.path.join(start, os.path.expanduser(place))) if key in FROM_CWD else place  # noqa: PTH111, PTH118
        for key, place in identity.places(plain).items()
    }


def recorded_configuration(
    config: Mapping[str, Any],
    source: str,
    places: Sequence[Path] = (),
    trusted: Sequence[str] = (),
    base: DictConfig | None = None,
) -> DictConfig:
    """The configuration of a run, whatever it does not choose as in ``base``. Nothing in it is an interpolation.

    Args:
        config: what the record says.
        source: the record's file, for messages.
        places: folders, besides ``conf/``, with configuration files that name the classes of the run's parts.
        trusted: dotted paths of code of the user's own that the record may name.
        base: a composed configuration; by default that of a run without overrides.

    Raises:
        UserError: naming a value that a file may not choose.
    """
    parts: dict[str, Any] = {name: restored(name, config.get(name), source, places, trusted) for name in GROUPS}
    method = restored_method(config.get("method"), source, places)
    parts["method"] = {key: value for key, value in method.items() if key in METHOD}  # short keys refer to parts
    values = {key: config[key] for key in VALUES if key in config}
    if "train" in values:
        values["train"] = restored_training(values["train"], source, places)
    if faults := faults_of(values):
        raise UserError(f"{source}: {faults}")
    name = (config.get("protocol") or {}).get("name")
    values["protocol"] = {"name": name if isinstance(name, str) and "${" not in name else None}  # its values are used
    return OmegaConf.create({**compose.resolved(compose.load() if base is None else base), **values, **parts})
