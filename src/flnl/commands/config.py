"""Print the configuration of a run from its record.

flnl config RUN_DIR [--short]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from flnl.commands import guard
from flnl.commands.parser import Parser
from flnl.config.recorded_settings import short
from flnl.console.terminal import print_line
from flnl.record.run import RunRecord


def parser() -> Parser:
    """The command's arguments."""
    arguments = Parser(prog="flnl config", description="Print the configuration of a run, as YAML.")
    arguments.add_argument("run", metavar="RUN_DIR", type=Path, help="the folder of a run")
    arguments.add_argument(
        "--short",
        action="store_true",
        help="only what makes the run what it is, a key a line, as for the appendix of a paper: without how it was "
        "run, values without effect, and what its protocol says of other methods",
    )
    return arguments


def text(folder: Path, *, shortly: bool) -> str:
    """The configuration of the run in a folder, as YAML."""
    record = RunRecord.open(folder, "; name a run's folder")
    if shortly:
        values = short(record.defining, record.config)
        return "\n".join(f"{_flow(key)}: {_flow(value)}" for key, value in values.items())
    whole: str = yaml.safe_dump(record.config, sort_keys=False, allow_unicode=True, width=WIDTH)
    return whole.rstrip()


WIDTH = 10**6
"""No line is broken."""


def _flow(value: Any) -> str:
    """A value as YAML in one line."""
    dumped: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=WIDTH)
    return " ".join(dumped.removesuffix("...\n").split("\n")).strip()


def show(arguments: Sequence[str]) -> None:
    """Print the configuration that ``arguments`` ask for, so that no terminal takes it for commands."""
    request = parser().parse_args(arguments)
    for line in text(request.run.expanduser(), shortly=request.short).split("\n"):
        print_line(line)


main = guard.entry("config", show)
