"""Keys that no file has and that may be added: to a stage's training, a network of the user's, a protocol."""

from __future__ import annotations

import collections.abc
import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import get_origin

from omegaconf import DictConfig

from flnl.config.folders import folders
from flnl.config.protocol import CENTRALIZED
from flnl.config.typed_values import field_types
from flnl.config.written import node_at, text_at, texts
from flnl.core.importing import located

KEY = re.compile(r"(method\.stages\.\w+)\.train\.\w+")
PLACE = re.compile(r"method\.stages\.\w+\.train")


def may_be_added(cfg: DictConfig, key: str) -> bool:
    """Whether ``key`` is a value of local training in a stage of the configuration, such as ``train.epochs``.

    The stage may or may not set it yet.
    """
    match = KEY.fullmatch(key)
    return match is not None and isinstance(node_at(cfg, match[1]), DictConfig)


def may_stand_in(package: str, group: str) -> bool:
    """Whether a choice of ``group``, such as ``train/optimizer``, may be added to a stage, at ``package``.

    >>> may_stand_in("method.stages.usual.train", "train/optimizer"), may_stand_in("elsewhere", "train/optimizer")
    (True, False)
    """
    return group.startswith("train/") and PLACE.fullmatch(package) is not None


def may_be_named(cfg: DictConfig, key: str) -> bool:
    """Whether ``key`` is an argument of a network of the user's, or asked of a protocol; it may be set or not."""
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
