"""Hydra's ``compose`` for tests: files are chosen and merged once a process, values are set on a copy.

Composing takes a quarter of a second, and nearly every test composes. ``tests/conf/test_composing.py`` compares the
result with Hydra's own; the commands in ``tests/cli`` do not pass through here.
"""

import copy
from typing import Any

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from flnl.config import resolvers
from flnl.tables.identity import _chooses

_COMPOSED: dict[tuple[str, ...], DictConfig] = {}


def compose_in_parts(
    config_name: str | None = None, overrides: list[str] | None = None, return_hydra_config: bool = False
) -> DictConfig:
    """What ``hydra.compose`` gives for the same arguments."""
    words = overrides or []
    values = [word for word in words if not _chooses(word)]
    if return_hydra_config or any(word.lstrip("+~").startswith("hydra") for word in values):  # of where to search
        return hydra.compose(config_name, words, return_hydra_config)
    parsed: Any = OverridesParser.create().parse_overrides(values)
    key = (str(resolvers.CONF), str(config_name), *(word for word in words if _chooses(word)))
    if key not in _COMPOSED:
        _COMPOSED[key] = hydra.compose(config_name, list(key[2:]))
    found = copy.deepcopy(_COMPOSED[key])
    ConfigLoaderImpl._apply_overrides_to_config(parsed, found)
    return found
