"""What a person may have meant by a key that does not exist."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import fields

from omegaconf import DictConfig, OmegaConf

from flnl.config.folders import CONF
from flnl.config.identity import flatten
from flnl.config.protocol import SETTINGS
from flnl.config.short_keys import DECLARATIONS, shortest
from flnl.console.suggestions import closest

ORDER = ("", "train", "method", "partition", "noise", "dataset", "model", "eval")
"""Sections of the configuration in which the last part of a key is sought first; those of single runs' keys are ""."""
DECLARED = (f"method.{DECLARATIONS}.", f"method.{SETTINGS}.")
LAST = "protocol"
"""The section whose values are there for others to take."""
LAUNCHERS = {
    "joblib": ("hydra_plugins.hydra_joblib_launcher.config", "JobLibLauncherConf"),
    "submitit_slurm": ("hydra_plugins.hydra_submitit_launcher.config", "SlurmQueueConf"),
}
"""The settings of launchers that are not Hydra's own."""


def nearest(key: str, chosen: DictConfig) -> str | None:
    """The key, or the choice such as ``train/optimizer=``, that comes nearest to ``key``; None if none is near.

    Args:
        key: a dotted key that does not exist.
        chosen: the configuration in which it was sought.
    """
    known = [name for name, _ in flatten(OmegaConf.to_container(chosen)) if not name.startswith(DECLARED)]
    if "." not in key:
        if group := _group(key):
            return f"{group}="
        if same := [name for name in known if name.rpartition(".")[2] == key]:
            return _first(same, chosen)
    sections = sorted({name[: name.rfind(".")] for name in known if "." in name})
    if close := closest(key, [*known, *sections]):
        return shortest(chosen, close)
    leaf = key.rpartition(".")[2]
    leaves = [name for name in known if name.rpartition(".")[2] == leaf]
    if not leaves and "." not in key:
        near = closest(leaf, {name.rpartition(".")[2] for name in known}, cutoff=0.75)
        if near is None and (group := _group(leaf, cutoff=0.7)):
            return f"{group}="
        leaves = [name for name in known if name.rpartition(".")[2] == near]
    return _first(leaves, chosen) if leaves else None


def of_a_launcher(key: str) -> str | None:
    """The launcher to choose for a key of ``hydra.launcher``; None if no launcher has it."""
    leaf = key.removeprefix("hydra.launcher.")
    for launcher, (module, name) in LAUNCHERS.items():
        try:
            settings = getattr(importlib.import_module(module), name)
        except ImportError:
            continue
        if leaf in {field.name for field in fields(settings)}:
            return launcher
    return None


def _group(word: str, cutoff: float = 1.0) -> str | None:
    """The group of parts, such as ``train/optimizer``, whose last name is ``word`` or near it."""
    groups = {path.name: f"{top}/{path.name}" for top in ("method", "train") for path in (CONF / top).iterdir()}
    folders = {name: group for name, group in groups.items() if (CONF / group).is_dir() and name != "parts"}
    close = closest(word, folders, cutoff)
    return None if close is None else folders[close]


def _first(names: Sequence[str], chosen: DictConfig) -> str:
    """The likeliest of keys with the same last part: a short key instead of a part's own."""

    def rank(name: str) -> tuple[bool, int, int]:
        section = name.partition(".")[0] if "." in name else ""
        return section == LAST, ORDER.index(section) if section in ORDER else len(ORDER), name.count(".")

    return min((shortest(chosen, name) for name in names), key=rank)
