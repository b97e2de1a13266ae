"""Information that a method is given beyond its federation, as its configuration shows it."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf

from flnl.config.written import texts

NOISE_RATE = "${noise_rate:"
"""What begins a value that is the noise rate. A value that a person sets in its place is an estimate."""


def noise_rates(cfg: DictConfig) -> dict[str, Any]:
    """The values of the method's parts that are the nominal noise rate, by their keys."""
    written = texts(cfg.method, "method")
    return {key: OmegaConf.select(cfg, key) for key, text in written if text.startswith(NOISE_RATE)}
