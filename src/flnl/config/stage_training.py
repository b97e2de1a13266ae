"""Values of local training that a stage sets in place of the run's, such as ``method.stages.usual.train.epochs``."""

from __future__ import annotations

import re

from omegaconf import DictConfig

from flnl.config.written import node_at

KEY = re.compile(r"(method\.stages\.\w+)\.train\.\w+")
PLACE = re.compile(r"method\.stages\.\w+\.train")


def may_be_added(cfg: DictConfig, key: str) -> bool:
    """Whether ``key`` is of such a value, in a stage of the configuration that may or may not set it yet."""
    match = KEY.fullmatch(key)
    return match is not None and isinstance(node_at(cfg, match[1]), DictConfig)


def may_stand_in(package: str, group: str) -> bool:
    """Whether a choice of ``group``, such as ``train/optimizer``, may be added to a stage, at ``package``.

    >>> may_stand_in("method.stages.usual.train", "train/optimizer"), may_stand_in("elsewhere", "train/optimizer")
    (True, False)
    """
    return group.startswith("train/") and PLACE.fullmatch(package) is not None
