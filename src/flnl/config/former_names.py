"""Former names of options: a line ``# formerly: lid`` at the head of an option's file.

A former name is still accepted wherever an option is chosen: on a command line and in the defaults of a file. Hydra
then reads the option under its name, and a line on standard error tells it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from flnl.config.groups import groups
from flnl.console.terminal import print_line


def former_names() -> Iterator[tuple[str, str, str]]:
    """Every group with former names: the group, the former name, and the name now."""
    for group, files in groups().items():
        for option, file in files.items():
            if found := re.match(r"(?:#.*\n)*?# formerly: (\w+)\n", file.read_text(encoding="utf-8")):
                yield group, found[1], option


@cache
def _named_now(group: str, former: str, option: str) -> str:
    """The path of an option whose former name was used; the first time that a command does, it is told."""
    print_line(f"{group}: {former} is now called {option}", to=sys.stderr)
    return f"/{group}/{option}"


def register_former_names() -> None:
    """Make former names known to Hydra, as options that take everything from another one."""
    OmegaConf.register_new_resolver("named_now", _named_now, replace=True)
    for group, former, option in former_names():
        node = {"defaults": [f"/${{named_now:{group},{former},{option}}}@_here_"]}
        ConfigStore.instance().store(former, node, group=group)
