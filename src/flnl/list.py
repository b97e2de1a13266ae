"""Name what can be chosen, each with the line that its file begins with.

flnl list [GROUP...]          all, or of these groups: method, method/local, noise ...
flnl list method=METHOD       a method's short keys: what they stand for, and their values by default
flnl list --markdown GROUP    the options of one group as a Markdown table
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from flnl.cli import guard
from flnl.config import compose
from flnl.config.groups import described, groups, not_an_option
from flnl.config.resolvers import CONF
from flnl.config.short_keys import declared
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


def short_keys(method: str) -> Iterator[tuple[str, str, str]]:
    """Short key, value and the part's key, for each short key of a method.

    Raises:
        UserError: if there is no such method, naming the nearest.
    """
    if method not in compose.options("method"):
        raise UserError(not_an_option("method", method, compose.options("method")))
    cfg = compose.load([f"method={method}"])
    values = compose.resolved(cfg)["method"]
    for name, target in declared(cfg).items():
        value = values[name]
        yield f"method.{name}", value if isinstance(value, str) else json.dumps(value), target


def show_short_keys(methods: Sequence[str]) -> None:
    """A table on a terminal; elsewhere a line ``key=value  the part's key`` each.

    Raises:
        UserError: if there is no such method.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    for method in methods:
        found = list(short_keys(method))
        if not found:
            print_line(f"method={method} has no short keys; flnl method={method} --cfg job shows those of its parts")
        elif console.is_terminal:
            table = Table("short key", "value", "stands for", title=cell(f"method={method}"), box=None, pad_edge=False)
            for row in found:
                table.add_row(*map(cell, row))
            console.print(table)
        else:
            for key, value, target in found:
                print_line(f"{key}={value}  {target}")


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
        print(
            "flnl list method=METHOD: its short keys, their values by default, and the parts' keys that they stand for"
        )
        print("flnl list --markdown GROUP: the options of one group as a Markdown table")
        return
    if words[:1] == ["--markdown"]:
        guard.guarded(lambda: [print(markdown(group)) for group in words[1:] or ["method"]], overrides=False)
        return
    if any(word.startswith("method=") for word in words):
        guard.guarded(lambda: show_short_keys([_method(word) for word in words]), overrides=False)
        return
    guard.guarded(lambda: show(words), overrides=False)


def _method(word: str) -> str:
    """The method that a word names.

    Raises:
        UserError: if it names something else.
    """
    group, _, method = word.partition("=")
    if group != "method":
        raise UserError(f"{word} stands beside method=...: name methods or groups, not both")
    return method


if __name__ == "__main__":
    main()
