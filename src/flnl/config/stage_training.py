"""Values of local training that a stage sets in place of the run's, such as ``method.stages.usual.train.epochs``."""

from __future__ import annotations

import re

from omegaconf import DictConfig

from flnl.config.written import node_at

KEY = re.compile(r"(method\.stages\.\w+)\.train\.\w+")


def may_be_added(cfg: DictConfig, key: str) -> bool:
    """Whether ``key`` is of such a value, in a stage of the configuration that may or may not set it yet."""
    match = KEY.fullmatch(key)
    return match is not None and isinstance(node_at(cfg, match[1]), DictConfig)
