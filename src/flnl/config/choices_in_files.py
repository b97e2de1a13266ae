"""Choices that a file makes as the command line does: ``logger: csv`` in a preset or an experiment."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf, open_dict

from flnl.config.folders import folders
from flnl.config.groups import groups
from flnl.config.written import text_at
from flnl.core.errors import UserError


def settle(cfg: DictConfig) -> None:
    """Put a logger's file instead of its name.

    Files of other groups set more than their section, which cannot be done once all files are composed.

    Raises:
        UserError: for the name of another group's option; the message says how a file chooses it.
    """
    named = {str(group): name for group in cfg if (name := text_at(cfg, str(group))) is not None and "$" not in name}
    for group, files in groups(folders()).items() if named else ():
        name = named.get(group)
        if name in files and group == "logger":
            with open_dict(cfg):
                cfg[group] = OmegaConf.load(files[name])
        elif name in files:
            raise UserError(f"{group}: {name} in a file: write it as defaults: [override /{group}: {name}, _self_]")
