"""Hydra's work for tests: files are chosen and merged once a process, values are set on a copy.

Composing takes a quarter of a second, and nearly every test composes; a command composes twice. ``compose_in_parts``
stands in for ``hydra.compose``. The commands in ``tests/cli`` run Hydra itself, which then remembers its slow
steps: what a file holds, the defaults list of the groups that were chosen, and the merge of their files. An
interpolation and an override are parsed once.
``tests/conf/test_composing.py`` compares the results with Hydra's own; the processes that tests start remember nothing.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import hydra
import pytest
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import ConfigRepository, IConfigRepository
from hydra._internal.defaults_list import DefaultsList, Overrides, create_defaults_list
from hydra.core.default_element import ResultDefault
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig
from omegaconf.grammar_parser import parse

from flnl.config.folders import CONF
from flnl.config.override_text import group_of

_COMPOSED: dict[tuple[str, ...], DictConfig] = {}


def compose_in_parts(
    config_name: str | None = None, overrides: list[str] | None = None, return_hydra_config: bool = False
) -> DictConfig:
    """What ``hydra.compose`` gives for the same arguments."""
    words = overrides or []
    values = [word for word in words if not group_of(word)]
    if return_hydra_config or any(word.lstrip("+~").startswith("hydra") for word in values):  # of where to search
        return hydra.compose(config_name, words, return_hydra_config)
    parsed: Any = OverridesParser.create().parse_overrides(values)
    key = (str(CONF), str(config_name), *(word for word in words if group_of(word)))
    if key not in _COMPOSED:
        _COMPOSED[key] = hydra.compose(config_name, list(key[2:]))
    found = copy.deepcopy(_COMPOSED[key])
    ConfigLoaderImpl._apply_overrides_to_config(parsed, found)
    return found


_FILES: dict[tuple[object, ...], ConfigResult | None] = {}
_LISTS: dict[tuple[object, ...], DefaultsList] = {}
_MERGED: dict[tuple[object, ...], DictConfig] = {}
_PARSED: dict[tuple[str, str], Any] = {}
_load = ConfigRepository.load_config
_parse_rule = OverridesParser.parse_rule
_merge = ConfigLoaderImpl._compose_config_from_defaults_list


def _sources(repo: IConfigRepository) -> tuple[str, ...] | None:
    """Where Hydra searches; None if that is not only ``conf/`` and packages, so that a test may write files there."""
    sources = repo.get_sources()
    known = all(source.scheme() != "file" or source.path == str(CONF) for source in sources)
    return tuple(f"{source.scheme()}://{source.path}" for source in sources) if known else None


def _remembered_file(repo: ConfigRepository, config_path: str) -> ConfigResult | None:
    """What Hydra's repository loads."""
    if (sources := _sources(repo)) is None:
        return _load(repo, config_path)
    key = (sources, config_path)
    if key not in _FILES:
        _FILES[key] = _load(repo, config_path)
    return copy.deepcopy(_FILES[key])


def _remembered_list(
    repo: IConfigRepository, config_name: str | None, overrides_list: list[Override], **how: bool
) -> DefaultsList:
    """What ``create_defaults_list`` gives; the overrides of values play no part in it but are carried along."""
    if (sources := _sources(repo)) is None:
        return create_defaults_list(repo, config_name, overrides_list, **how)
    values = Overrides(repo, overrides_list).config_overrides
    choices = [one.input_line for one in overrides_list if not any(one is value for value in values)]
    key = (sources, config_name, *choices, *sorted(how.items()))
    if key not in _LISTS:
        _LISTS[key] = create_defaults_list(repo, config_name, overrides_list, **how)
    return replace(_LISTS[key], config_overrides=values)


def _remembered_merge(loader: ConfigLoaderImpl, defaults: Sequence[ResultDefault], repo: IConfigRepository) -> Any:
    """What Hydra's loader merges from the files of a defaults list."""
    if (sources := _sources(repo)) is None:
        return _merge(loader, list(defaults), repo)
    key = (sources, *((one.config_path, one.package, one.primary) for one in defaults))
    if key not in _MERGED:
        _MERGED[key] = _merge(loader, list(defaults), repo)
    return copy.deepcopy(_MERGED[key])


def _remembered_rule(parser: OverridesParser, s: str, rule_name: str) -> Any:
    """What Hydra's parser of overrides makes of a word; the functions that it knows are always the same."""
    if (s, rule_name) not in _PARSED:
        _PARSED[s, rule_name] = _parse_rule(parser, s, rule_name)
    return copy.deepcopy(_PARSED[s, rule_name])


def remember(patch: pytest.MonkeyPatch) -> None:
    """Let Hydra and OmegaConf remember what files say, until ``patch`` is undone."""
    patch.setattr(ConfigRepository, "load_config", _remembered_file)
    patch.setattr(config_loader_impl, "create_defaults_list", _remembered_list)
    patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", _remembered_merge)
    patch.setattr(OverridesParser, "parse_rule", _remembered_rule)
    patch.setattr("omegaconf.base.parse", cache(parse))


def forget(patch: pytest.MonkeyPatch) -> None:
    """Hydra and OmegaConf as they are, until ``patch`` is undone."""
    patch.setattr(ConfigRepository, "load_config", _load)
    patch.setattr(config_loader_impl, "create_defaults_list", create_defaults_list)
    patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", _merge)
    patch.setattr(OverridesParser, "parse_rule", _parse_rule)
    patch.setattr("omegaconf.base.parse", parse)
