"""What a record says of its run's configuration, to be read: all of it, or what makes the run what it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from flnl.config.folders import folders
from flnl.config.identity import flatten
from flnl.config.registry import recorded_name
from flnl.config.short_keys import DECLARATIONS

ORDER = ("method", "dataset", "partition", "noise", "model", "train", "rounds", "fraction", "eval")
"""What comes first, in this order; other keys follow as they are recorded."""
TARGET = "._target_"


def short(values: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a run what it is, by the keys that a person types: without neutral values and how it was run.

    A class stands for its part, as in ``noise: FedCorr``, and a short key for the part's own.

    Args:
        values: what makes the run what it is, as ``identity.recorded_identity``.
        config: the run's configuration.
    """
    typed = _short_keys(config.get("method"))
    named: dict[str, Any] = {}
    double = _double(config)
    for key, value in values.items():
        if key == double:
            continue
        if key.endswith(TARGET):
            named[key.removesuffix(TARGET)] = recorded_name(str(value))
        elif value not in (None, {}, []):
            named[typed.get(key, key)] = value
    if "method.name" in named:
        named = {"method": named.pop("method.name"), **named}
    place = {name: number for number, name in enumerate(ORDER)}
    return dict(sorted(named.items(), key=lambda item: place.get(item[0].split(".")[0], len(ORDER))))


def _double(config: Mapping[str, Any]) -> str | None:
    """The key that says a length which another one says: ``rounds`` is that of the only stage, or of none."""
    method = config.get("method")
    stages = method.get("stages") if isinstance(method, Mapping) else None
    if not isinstance(stages, Mapping) or not stages:
        return None
    if len(stages) > 1:
        return "rounds"
    ((name, stage),) = stages.items()
    return f"method.stages.{name}.rounds" if stage.get("rounds") == config.get("rounds") else None


def _short_keys(method: Any) -> dict[str, str]:
    """The short key of each part's key, as the method's configuration file declares them, where its value agrees."""
    if not isinstance(method, Mapping):
        return {}
    values = dict(flatten(method, "method"))
    return {
        target: f"method.{name}"
        for name, target in _declared(str(method.get("name")))
        if f"method.{name}" in values and values.get(target, _declared) == values[f"method.{name}"]
    }


def _declared(name: str, depth: int = 4) -> Iterator[tuple[str, str]]:
    """The short keys in the file of a method, and in those that it starts from, each with its part's key."""
    if not re.fullmatch(r"\w+", name) or not depth:
        return
    for place in folders():
        try:
            content: Any = OmegaConf.to_container(OmegaConf.load(place / "method" / f"{name}.yaml"))
        except (OSError, YAMLError):
            continue
        if not isinstance(content, dict):
            continue
        for default in content.get("defaults") or []:
            yield from _declared(str(default).removesuffix("@_here_"), depth - 1)
        declared = content.get(DECLARATIONS)
        for key, text in declared.items() if isinstance(declared, dict) else ():
            if target := re.fullmatch(r"\$\{(method\.[\w.]+)\}", str(text)):
                yield str(key), target[1]
