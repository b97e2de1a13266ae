"""Mappings of a part that take any key, such as the arguments of a network of the user's own, ``model.args``."""

from __future__ import annotations

import collections.abc
from dataclasses import is_dataclass
from typing import get_origin

from omegaconf import DictConfig

from flnl.config.check import field_types
from flnl.config.located import located
from flnl.config.written import text_at


def may_be_named(cfg: DictConfig, key: str) -> bool:
    """Whether ``key`` is in such a mapping of a part in the configuration; it may be set there yet or not."""
    names = key.split(".")
    for length in range(1, len(names) - 1):
        target = text_at(cfg, ".".join((*names[:length], "_target_")))
        if target is None:
            continue
        kind = located(target)
        hint = field_types(kind).get(names[length]) if kind is not None and is_dataclass(kind) else None
        return get_origin(hint) is collections.abc.Mapping
    return False
