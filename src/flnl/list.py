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
from flnl.config.groups import described, groups
from flnl.config.resolvers import CONF
from flnl.core.errors import UserError
from flnl.core.terminal import cell, print_line


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
