"""Name what can be chosen, each with the line that its file begins with.

flnl list [GROUP...]          all, or of these groups: method, method/local, noise ...
flnl list --markdown GROUP    the options of one group as a Markdown table
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from flnl.cli import guard
from flnl.config.compose import CONF, NO_GROUPS
from flnl.core.errors import UserError
from flnl.core.terminal import cell, print_line

FIRST = ("method", "dataset", "partition", "noise", "model", "protocol", "experiment", "debug")
"""The order of the groups; the others follow."""
NESTED = ("method", "hydra")
"""Groups with groups in their folders; elsewhere a folder is part of the option's name."""


def groups() -> dict[str, list[Path]]:
    """The files of every group, by the group's name; a method's parts are groups of their own, by slot."""
    found: dict[str, list[Path]] = {}
    for file in sorted(CONF.rglob("*.yaml")):
        parts = file.relative_to(CONF).parts[:-1]
        if parts and parts[0] not in NO_GROUPS:
            found.setdefault("/".join(parts if parts[0] in NESTED else parts[:1]), []).append(file)
    tops = [*FIRST, *sorted({name.split("/")[0] for name in found} - set(FIRST))]
    return {name: found[name] for name in sorted(found, key=lambda name: (tops.index(name.split("/")[0]), name))}


def described(file: Path) -> str:
    """The comment at the head of a file, after Hydra's line on the package; empty where there is none."""
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("#"):
                break
            if not line.startswith("# @package"):
                return line.lstrip("#").strip()
    return ""


def chosen(names: Sequence[str]) -> dict[str, list[Path]]:
    """The groups called ``names`` and those below them, or all; a slot may go without ``method/``.

    Raises:
        UserError: if there is no such group, naming the nearest.
    """
    known = groups()
    if not names:
        return known
    wanted = set()
    for name in names:
        asked = name.strip("/")
        below = [group for group in known if f"{group}/".startswith(f"{asked}/") or group == f"method/{asked}"]
        if not below:
            short = {group.removeprefix("method/"): group for group in known}
            close = difflib.get_close_matches(asked, [*known, *short], n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise UserError(f"{name} is not a group; {hint}there are {', '.join(known)}")
        wanted.update(below)
    return {group: files for group, files in known.items() if group in wanted}


def rows(names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Group, option and description of each file."""
    for group, files in chosen(names).items():
        for file in files:
            yield group, file.relative_to(CONF / group).with_suffix("").as_posix(), described(file)


def markdown(group: str) -> str:
    """The options of one group as a Markdown table; those of the groups below it have their own.

    Raises:
        UserError: if there is no such group.
    """
    name, files = next(iter(chosen([group]).items()))
    lines = [f"| `{file.relative_to(CONF / name).with_suffix('').as_posix()}` | {described(file)} |" for file in files]
    return "\n".join([f"| `{name}` | what |", "|---|---|", *lines])


def show(names: Sequence[str]) -> None:
    """Tables on a terminal; elsewhere a line ``group=option  description`` each.

    Raises:
        UserError: for what the user can mend.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    found = list(rows(names))
    if not console.is_terminal:
        for group, option, description in found:
            print_line(f"{group}={option}  {description}".rstrip())
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    before = None
    for group, option, description in found:
        if group != before:
            table.add_row(*(("", "") if before is not None else ()))
            table.add_row(cell(group), "", style="cyan")
        table.add_row(cell(f"  {option}"), cell(description))
        before = group
    console.print(table)


def main() -> None:
    """What ``flnl list`` runs."""
    words = sys.argv[1:]
    if {"-h", "--help"} & set(words):
        print("flnl list [GROUP ...]: name methods, parts, data sets and whatever else can be chosen")
        print("flnl list --markdown GROUP: the options of one group as a Markdown table")
        return
    if words[:1] == ["--markdown"]:
        guard.guarded(lambda: [print(markdown(group)) for group in words[1:] or ["method"]], overrides=False)
        return
    guard.guarded(lambda: show(words), overrides=False)


if __name__ == "__main__":
    main()
