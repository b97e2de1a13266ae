"""What may enter the benchmark, and what a method that enters needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from flnl.config import compose
from flnl.config.override_text import key_of, value_of
from flnl.core.errors import UserError
from flnl.instruments.benchmark.definition import Benchmark, Task
from flnl.instruments.benchmark.entries import CEILING, FEDAVG
from flnl.instruments.tune.space import Space

OWN = ("method", "train")
"""Sections of which an entry may set keys."""
EQUAL = ("train.lr", "train.epochs", "train.steps")
"""Those of them that are the same for all entries, beside the learning rate, which is chosen."""


@dataclass(frozen=True)
class Candidate:
    """What is to be entered: a method with what is set of it, or FedAvg on right labels."""

    name: str
    overrides: Sequence[str]
    ceiling: bool = False

    def experiments(self, tasks: Sequence[Task]) -> list[str]:
        """Those of the ``tasks``, each once.

        Raises:
            UserError: if there is none: right labels of a clean task are no ceiling.
        """
        own = [task.ceiling if self.ceiling else task.override for task in tasks if not (self.ceiling and task.clean)]
        if not own:
            raise UserError(f"{self.name}: right labels of a clean task are those of {FEDAVG}; name noisy tasks")
        return [*dict.fromkeys(own)]


def candidates(version: Benchmark, overrides: Sequence[str], name: str | None, trials: int | None) -> list[Candidate]:
    """What the ``overrides`` of ``flnl benchmark run`` enter.

    Args:
        version: the benchmark.
        overrides: a method, or several, and what is set or searched of it; or the ceiling.
        name: of the entry; None: that of the method.
        trials: of ruleset B; None of ruleset A.

    Raises:
        UserError: if they name no method, set what is equal for all entries, or lack a name or have another's.
    """
    if CEILING in overrides:
        if len(overrides) > 1 or name is not None or trials is not None:
            raise UserError(f"flnl benchmark run {CEILING} takes no override, no --name and no --trials: it is FedAvg")
        return [Candidate(CEILING, [f"method={FEDAVG}"], ceiling=True)]
    chosen = [one for one in overrides if key_of(one) == "method"]
    if len(chosen) != 1:
        raise UserError("flnl benchmark run needs a method: flnl benchmark run method=fedcorr")
    for one in overrides:
        key = key_of(one)
        for_a_stage = one.startswith("+") and key.endswith(tuple(f".{equal}" for equal in EQUAL))
        if key in EQUAL or for_a_stage or re.split(r"[./]", key)[0] not in OWN:
            raise UserError(f"{one}: {key} is the benchmark's, equal for all entries; set what is the method's own")
        if value_of(one).startswith("{") and (key == "train" or key.startswith("method.stages")):
            raise UserError(f"{one}: set the keys of {key} one by one")
    methods = value_of(chosen[0]).split(",")
    others = [one for one in overrides if one is not chosen[0]]
    if name is not None and len(methods) > 1:
        raise UserError(f"--name {name} names one entry, and there are {len(methods)} methods")
    if others and name is None:
        raise UserError(f"{others[0]} makes another entry than {methods[0]}: give it a --name")
    if name == CEILING or (name in compose.options("method") and (others or name != methods[0])):
        raise UserError(f"--name {name} is that of another entry: give a name of its own")
    _check_search(version, trials, others)
    names = methods if name is None else [name]
    return [Candidate(one, [f"method={method}", *others]) for one, method in zip(names, methods, strict=True)]


def composed(overrides: Sequence[str]) -> DictConfig | None:
    """The configuration; None of what the tuning will refuse."""
    try:
        return compose.load(overrides)
    except (HydraException, OmegaConfBaseException, UserError):
        return None


def lacks_noise_rate(cfg: DictConfig) -> bool:
    """Whether a method is to be given the noise rate where none is stated."""
    from flnl.config import given  # imports torch

    return bool(given.takers(cfg)) and given.noise_rate(cfg) is None


def needs_clean_samples(cfg: DictConfig) -> bool:
    """Whether the server is to score models on clean samples; False of a method that the tuning will refuse."""
    from flnl.config import registry
    from flnl.core.method import assemble  # imports torch

    try:
        return assemble(compose.build(cfg.method), registry.option_of).given_clean_samples
    except (HydraException, OmegaConfBaseException, UserError):
        return False


def searched(version: Benchmark, overrides: Sequence[str]) -> list[str]:
    """The keys beside the rate that have several values."""
    return [axis.key for axis in Space.of([*overrides, version.grid]).axes if axis.key != version.rate]


def _check_search(version: Benchmark, trials: int | None, overrides: Sequence[str]) -> None:
    """Whether what is searched beside the rate agrees with the ruleset: nothing (A), or something in few trials (B).

    Raises:
        UserError: if it does not.
    """
    keys = searched(version, overrides)
    most = f"--trials N, of at most {version.trials}"
    if keys and trials is None:
        raise UserError(f"{keys[0]} has several values, and ruleset A chooses {version.rate} alone; B: {most}")
    if trials is not None and not keys:
        raise UserError(f"--trials {trials}: give keys of the method several values to search, as in method.mu=0.1,1")
    if trials is not None and not 0 < trials <= version.trials:
        raise UserError(f"--trials {trials}: ruleset B has {most}")
