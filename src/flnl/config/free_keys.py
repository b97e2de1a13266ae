"""Sections that take keys which no file has: arguments of a network of one's own, a protocol's words on a method."""

from __future__ import annotations

import collections.abc
import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import get_origin

from omegaconf import DictConfig

from flnl.config.check import field_types
from flnl.config.folders import folders
from flnl.config.located import located
from flnl.config.protocol import CENTRALIZED
from flnl.config.written import text_at, texts


def may_be_named(cfg: DictConfig, key: str) -> bool:
    """Whether ``key`` is in such a section of the configuration; it may be set there yet or not."""
    names = key.split(".")
    if names[0] == "protocol":
        return _asked(cfg, names[1:])
    for length in range(1, len(names) - 1):
        target = text_at(cfg, ".".join((*names[:length], "_target_")))
        if target is None:
            continue
        kind = located(target)
        hint = field_types(kind).get(names[length]) if kind is not None and is_dataclass(kind) else None
        return get_origin(hint) is collections.abc.Mapping
    return False


def _asked(cfg: DictConfig, names: Sequence[str]) -> bool:
    """Whether the configuration asks its protocol for these: a key, or one for a method by name."""
    *method, key = names
    if len(method) > 1 and method[-1] == CENTRALIZED:
        del method[-1]
    if len(method) == 1:
        return any((place / "method" / f"{method[0]}.yaml").is_file() for place in folders())
    return not method and any(re.search(rf"\$\{{protocol:{re.escape(key)}\b", text) for _, text in texts(cfg))
