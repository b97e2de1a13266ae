"""Short keys of a method, such as ``method.mu`` for ``method.local.fedprox.mu``.

A part's file is the home of the part's values. A method's file may offer short keys for them: it declares each as an
interpolation of the part's key, and repeats the declarations as keys of the method::

    short: &short
      mu: ${method.local.fedprox.mu}
    <<: *short

So ``method.mu`` reads as the part's value. Once it is set, be it on the command line, in an experiment or in a method's
file, ``connect`` reverses the reference: the part's key becomes ``${method.mu}``.

Both are names of one value, so the last one to be set counts, as for any key: of two files the one that Hydra composes
later (an experiment after the method's file), and the command line after all files. Where one file, or the command
line, sets both, they must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from flnl.config.file_order import last_of
from flnl.config.folders import folders
from flnl.config.groups import bringing, groups
from flnl.config.override_text import key_of, value_of
from flnl.config.protocol import SETTINGS
from flnl.config.schema import METHOD
from flnl.config.written import node_at, text_at
from flnl.core.errors import UserError


def settle(cfg: DictConfig) -> None:
    """Put a logger's file instead of its name, as the command line does: ``logger: csv`` in a preset or an experiment.

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


DECLARATIONS = "short"
"""The key of a method under which its short keys are declared."""


def declared(cfg: DictConfig) -> dict[str, str]:
    """The part's key of every short key, by its name: ``{"mu": "method.local.fedprox.mu"}``.

    Raises:
        UserError: if a declaration does not refer to a part's value, or two refer to the same.
    """
    section = node_at(cfg, f"method.{DECLARATIONS}")
    if section is None:
        return {}
    if not isinstance(section, DictConfig) or not isinstance(section._content, dict):
        raise UserError(
            f"method.{DECLARATIONS} must have a line for each short key, as in mu: ${{method.local.fedprox.mu}}"
        )
    targets: dict[str, str] = {}
    for name in map(str, section._content):
        key = f"method.{DECLARATIONS}.{name}"
        written = text_at(cfg, key)
        target = re.fullmatch(r"\$\{(method\.(\w+)\.[\w.]+)\}", written or "")
        if target is None or target[2] not in METHOD or name in (*METHOD, DECLARATIONS):
            raise UserError(
                f"{key}={node_at(cfg, key)}: must refer to a value of a part, as in mu: ${{method.local.fedprox.mu}}"
            )
        if twice := [other for other, known in targets.items() if known == target[1]]:
            raise UserError(f"{key}: {target[1]} has the short key {twice[0]} already; leave one out")
        targets[name] = target[1]
    return targets


def connect(cfg: DictConfig, overrides: Sequence[str] = ()) -> None:
    """Let every part whose short key was set take its value from there, and settle a file's own choices.

    A short key of a part that was not chosen is taken out. Where the part's own key was set after the short key, by a
    later file or on the command line, the short key takes its value. A second call changes nothing.

    Args:
        cfg: the composed configuration, which is changed.
        overrides: the overrides as typed.

    Raises:
        UserError: if an override sets a short key whose part was not chosen, or if a file or the overrides set a short
            key and the part's own key to different values.
    """
    settle(cfg)
    typed = dict(_set_by(overrides))
    for name, target in declared(cfg).items():
        key, reference = f"method.{name}", f"${{{target}}}"
        if node_at(cfg, target) is None:
            if key in typed:
                raise UserError(f"{typed[key]}: {_not_chosen(cfg, target)}, or leave {key} out")
            with open_dict(cfg.method):
                del cfg.method[DECLARATIONS][name]
                if node_at(cfg, key) is not None:
                    del cfg.method[name]
        elif node_at(cfg, key) is None or (target in typed and key not in typed):
            with open_dict(cfg.method):
                cfg.method[name] = reference
        elif text_at(cfg, key) == reference or text_at(cfg, target) == f"${{{key}}}":
            continue
        elif key not in typed and last_of(key, target, overrides) == target:
            with open_dict(cfg.method):
                cfg.method[name] = reference
        else:
            if target in typed and key in typed and _value(cfg, key) != _value(cfg, target):
                raise UserError(f"{typed[key]} and {typed[target]} set the same value; leave one of them out")
            OmegaConf.update(cfg, target, f"${{{key}}}", merge=False)


def without_declarations(cfg: DictConfig) -> DictConfig:
    """A copy to be shown: what short keys stand for, and what holds of the settings, is seen at the keys themselves."""
    shown = cfg.copy()
    for name in (DECLARATIONS, SETTINGS):
        if node_at(shown, f"method.{name}") is not None:
            with open_dict(shown.method):
                del shown.method[name]
    return shown


def shortest(cfg: DictConfig, key: str) -> str:
    """The short key of a part's key where there is one, or else the key itself."""
    return next((f"method.{name}" for name, target in declared(cfg).items() if target == key), key)


def shortened(cfg: DictConfig, text: str) -> str:
    """A message with short keys instead of parts' own keys, where the method in use declares them."""
    return re.sub(r"\bmethod(?:\.\w+){2,}", lambda key: shortest(cfg, key[0]), text)


def _not_chosen(cfg: DictConfig, target: str) -> str:
    """Why there is no such key, and what a person can do about it."""
    slot, name = target.split(".")[1:3]
    if slot in ("local", "exchange") and node_at(cfg, f"method.{slot}.{name}") is None:
        option = bringing(f"method/{slot}", name) or name
        return f"it stands for {target}, which is not there; add {option} to method/{slot}"
    return f"it stands for {target}, which this choice of method/{slot} does not have; choose another"


def _set_by(overrides: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The keys of the method that are set, each with its override; a whole section sets every key inside it."""
    for override in overrides:
        key = key_of(override)
        if key.startswith("method.") and not override.startswith("~"):
            yield key, override
            if value_of(override).strip().startswith("{"):
                try:
                    section = OverridesParser.create().parse_override(override).value()
                except HydraException:
                    continue
                yield from ((inner, override) for inner in _keys(section, key))


def _keys(section: Any, key: str) -> Iterator[str]:
    if isinstance(section, Mapping):
        for name, value in section.items():
            yield f"{key}.{name}"
            yield from _keys(value, f"{key}.{name}")


def _value(cfg: DictConfig, key: str) -> Any:
    """The resolved value at ``key``, to be compared; a text that says why where there is none."""
    try:
        value = OmegaConf.select(cfg, key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        return f"{key}: {error}"
