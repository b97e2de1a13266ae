"""A version of the benchmark, as ``conf/benchmark/VERSION.yaml`` defines it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from flnl.config.folders import CONF
from flnl.console.suggestions import instead
from flnl.core.errors import UserError

FOLDER = CONF / "benchmark"
TIERS = {
    "S": "digits, at most some two minutes of a core for a run of FedAvg",
    "M": "photographs, at most some ten minutes of a core for a run of FedAvg",
    "L": "a GPU",
}
STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=STRICT)
class Task:
    """A federation and its noise: ``experiment=benchmark/NAME``."""

    name: str
    title: str
    tier: Literal["S", "M", "L"] = "S"
    clean: bool = False  # its labels are right: a method must not harm
    federation: str | None = None  # the task whose federation it has, with other noise; None: its own

    @property
    def override(self) -> str:
        """The override that chooses it."""
        return f"benchmark/{self.name}"

    @property
    def ceiling(self) -> str:
        """The override that chooses the same federation with right labels."""
        return self.override if self.clean else f"benchmark/clean/{self.federation or self.name}"


@dataclass(frozen=True, config=STRICT)
class Benchmark:
    """What all entries of a version have in common."""

    version: str
    grid: str  # an axis of ``flnl tune``
    tuning_seeds: tuple[int, ...]
    share: float  # of each client's samples, held out
    clean_share: float  # of the test set, held by the server for methods that need clean samples, and not tested on
    margin: float  # a rate so far behind after a tuning seed is dropped
    seeds: tuple[int, ...]
    level: float
    points: float  # between means, in percentage points
    trials: int  # combinations that ruleset B may try
    tasks: Mapping[str, Task] = field(default_factory=dict)

    @property
    def rate(self) -> str:
        """The key that ruleset A chooses."""
        return self.grid.partition("=")[0]

    @property
    def rates(self) -> list[str]:
        """Its values."""
        return self.grid.partition("=")[2].split(",")

    def chosen(self, names: Sequence[str] = (), tier: str | None = None) -> list[Task]:
        """The tasks with these names, or all of a tier, or all.

        Raises:
            UserError: if there is no such task, or none of the names in the tier.
        """
        for name in names:
            if name not in self.tasks:
                raise UserError(f"tasks={name}: there is no such task; {instead(name, [*self.tasks])}")
        found = [t for t in self.tasks.values() if (not names or t.name in names) and tier in (None, t.tier)]
        if not found:
            raise UserError(f"--tier {tier}: no task of {', '.join(names) or self.version} is in it")
        return found


def versions() -> list[str]:
    """The versions, the newest last."""
    return sorted((file.stem for file in FOLDER.glob("*.yaml")), key=lambda name: [*map(int, re.findall(r"\d+", name))])


def load(version: str | None = None) -> Benchmark:
    """A version; by default the newest.

    Raises:
        UserError: if there is no such version, or its file is damaged.
    """
    known = versions()
    name = known[-1] if version is None else version
    if name not in known:
        raise UserError(f"version={name}: there is no such version; {instead(name, known)}")
    try:
        held: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
        held["tasks"] = {task: {"name": task, **values} for task, values in held["tasks"].items()}
        return TypeAdapter(Benchmark).validate_python({"version": name, **held})
    except (KeyError, TypeError, AttributeError, ValidationError, yaml.YAMLError) as error:
        raise UserError(f"{FOLDER / name}.yaml is no benchmark ({str(error).splitlines()[0]})") from None
