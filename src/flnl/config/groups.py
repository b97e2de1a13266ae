"""The groups of ``conf/``, the options of each, and the line that describes an option."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from flnl.config.folders import CONF
from flnl.config.schema import NO_GROUPS
from flnl.console.suggestions import instead


def not_an_option(group: str, option: str, options: Sequence[str]) -> str:
    """A line that names what there is instead of ``option``, the nearest first."""
    return f"{group}={option} does not exist; {instead(option, options)}"


FIRST = ("method", "dataset", "partition", "noise", "model", "train", "protocol", "experiment", "debug")
"""The order of the groups; the others follow."""

NESTED = ("method", "train", "executor", "hydra")
"""Groups with groups in their folders; elsewhere a folder is part of the option's name."""

SEVERAL = ("method/local", "method/exchange", "logger")
"""Groups of which several options can be chosen."""


def groups(places: Sequence[Path] = (CONF,)) -> dict[str, dict[str, Path]]:
    """The options of every group with their files; parts of methods and of executors are groups of their own.

    Args:
        places: folders with the layout of ``conf/``; of an option that several have, the first counts.
    """
    files: dict[str, dict[str, Path]] = {}
    for place in places:
        for file in sorted(place.rglob("*.yaml")):
            parts = file.relative_to(place).with_suffix("").parts
            if len(parts) > 1 and parts[0] not in NO_GROUPS:
                depth = len(parts) - 1 if parts[0] in NESTED else 1
                files.setdefault("/".join(parts[:depth]), {}).setdefault("/".join(parts[depth:]), file)
    tops = [*FIRST, *sorted({name.split("/")[0] for name in files} - set(FIRST))]
    return {name: files[name] for name in sorted(files, key=lambda name: (tops.index(name.split("/")[0]), name))}


@cache
def bringing(group: str, name: str) -> str | None:
    """The option of a group of ``conf/`` that brings the loss term or exchange ``name``; None if there is none."""
    options = groups()[group]
    line = re.compile(rf"^{re.escape(name)}:", re.MULTILINE)
    found = [option for option, file in options.items() if line.search(file.read_text(encoding="utf-8"))]
    return name if name in found else next(iter(found), None)


def described(file: Path) -> str:
    """The comment at the head of a file, after Hydra's line on the package; empty where there is none."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("#"):
                break
            if not line.startswith("# @package"):
                return line.lstrip("#").strip()
    return ""
