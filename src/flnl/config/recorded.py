"""The configuration that repeats a run, from its record: restricted to what a file may choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from flnl.config import compose
from flnl.config.check import faults_of
from flnl.config.registry import restored, restored_method, restored_training
from flnl.config.schema import METHOD
from flnl.core.errors import UserError

GROUPS = ("dataset", "partition", "noise", "model")
"""The groups whose parts a record chooses, besides the method."""
VALUES = (
    *("seed", "data_seed", "device", "precision", "threads", "memory_format", "client_memory", "centralized"),
    *("rounds", "fraction", "on_nonfinite", "train", "eval", "audit"),
)
"""Other keys whose values a record chooses. All others say where the run writes, and who runs its clients."""


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
