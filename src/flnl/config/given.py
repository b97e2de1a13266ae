"""Information that a method is given beyond its federation: the noise rate, where it is from, and who is given it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from flnl.config.written import texts

CLOSE = 0.02
"""An expected rate that differs from the nominal one by at most this part of it is given as the nominal one."""
NOISE_RATE = "${noise_rate:"
"""What begins a value that is the noise rate. A value that a person sets in its place is an estimate."""


@dataclass(frozen=True)
class NoiseRate:
    """A noise rate that methods can be given."""

    value: float  # in [0, 1]
    origin: str  # for the record: "nominal rate of the noise"


def noise_rate(cfg: DictConfig) -> NoiseRate | None:
    """The noise rate of a configuration; None if neither its noise nor its data set states one.

    That is the nominal rate of the noise; if none is configured, or if limiting rates to [0, 1] has clearly moved their
    mean, the share of wrong labels that is expected; and if the data set's labels are used as they are, the estimate
    that comes with the data set.
    """
    noise = instantiate(cfg.noise, _convert_="all")
    nominal, expected = (getattr(noise, name, None) for name in ("nominal", "expected"))
    if nominal is not None and (expected is None or abs(expected - nominal) <= CLOSE * nominal):
        return NoiseRate(float(nominal), "nominal rate of the noise")
    if expected is not None:
        rate = float(expected) if nominal is None else round(float(expected), 5)  # of a formula: equal on all machines
        return NoiseRate(rate, "expected rate of the noise")
    if (estimate := OmegaConf.select(cfg, "dataset.noise_rate")) is not None:
        return NoiseRate(float(estimate), f"estimate for {cfg.dataset.name}")
    return None


def noise_rates(cfg: DictConfig) -> dict[str, Any]:
    """The values of the method's parts that are the noise rate, by their keys."""
    return {key: OmegaConf.select(cfg, key) for key in takers(cfg)}


def takers(cfg: DictConfig) -> list[str]:
    """The keys of the method's parts whose values are the noise rate."""
    return [key for key, text in texts(cfg.method, "method") if text.startswith(NOISE_RATE)]
