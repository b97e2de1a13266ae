"""List the groups and their options, each with the comment at the head of its file.

flnl list [GROUP...]          all groups, or these: method, method/local, noise ...
flnl list method=METHOD       a method's short keys: their values, the parts' keys they stand for, what they mean
flnl list protocol=PROTOCOL   how long each method's stages are under a protocol, and how many local trainings they cost
flnl list --markdown GROUP    the options of one group as a Markdown table
flnl list --config-dir DIR    with the options in a folder of your own
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flnl.commands import guard
from flnl.commands.meanings import table
from flnl.commands.parser import Parser, add_config_dir
from flnl.config.compose import load, resolved
from flnl.config.folders import CONF, search_path
from flnl.config.groups import described, groups, not_an_option
from flnl.config.meaning import Meaning, meanings
from flnl.console.suggestions import did_you_mean
from flnl.console.terminal import cell, print_line
from flnl.console.words import counted
from flnl.core.errors import UserError
from flnl.run import budget


def chosen(names: Sequence[str], places: Sequence[Path] = (CONF,)) -> dict[str, dict[str, Path]]:
    """The options, with their files, of the groups ``names`` and of the groups below them; of all if it is empty.

    The prefix ``method/`` of a slot may be omitted.

    Raises:
        UserError: for an unknown group, naming the closest match.
    """
    known = groups(places)
    if not names:
        return known
    wanted = set()
    for name in names:
        prefix = name.strip("/")
        below = [group for group in known if f"{group}/".startswith(f"{prefix}/") or group == f"method/{prefix}"]
        if not below:
            short = {group.removeprefix("method/"): group for group in known}
            near = did_you_mean(prefix, [*known, *short])
            raise UserError(f"{name} is not a group; {near}{' ' if near else ''}there are {', '.join(known)}")
        wanted.update(below)
    return {group: files for group, files in known.items() if group in wanted}


def rows(names: Sequence[str], places: Sequence[Path] = (CONF,)) -> Iterator[tuple[str, str, str]]:
    """Group, option and description of each file."""
    for group, files in chosen(names, places).items():
        for option, file in files.items():
            yield group, option, described(file)


def short_keys(method: str, places: Sequence[Path] = (CONF,)) -> Iterator[Meaning]:
    """The short keys of a method, with what they mean.

    Raises:
        UserError: if there is no such method, naming the nearest.
    """
    known = groups(places)["method"]
    if method not in known:
        raise UserError(not_an_option("method", method, sorted(known)))
    own = search_path([place for place in places if place != CONF])
    yield from (one for one in meanings("method", [*own, f"method={method}"]) if one.stands_for)


def show_short_keys(methods: Sequence[str], places: Sequence[Path] = (CONF,)) -> None:
    """A table on a terminal; elsewhere a line each, below the names of several methods."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    for method in methods:
        keys = list(short_keys(method, places))
        if not keys:
            print_line(f"method={method} has no short keys; flnl method={method} --cfg job shows those of its parts")
        elif console.is_terminal:
            console.print(cell(f"method={method}", "cyan"))
            console.print(table(keys))
        else:
            if len(methods) > 1:
                print_line(f"method={method}")
            for one in keys:
                print_line(f"{one.key}={one.value}  {one.stands_for}  {one.comment}".rstrip())


def lengths(protocol: str, places: Sequence[Path] = (CONF,)) -> Iterator[tuple[str, str, str]]:
    """Every method under a protocol: its name, the lengths of its stages, and the local trainings that they cost.

    Raises:
        UserError: if there is no such protocol, naming the nearest.
    """
    known = groups(places)
    if protocol not in known["protocol"]:
        raise UserError(not_an_option("protocol", protocol, sorted(known["protocol"])))
    own = search_path([place for place in places if place != CONF])
    for method in known["method"]:
        plain = resolved(load([*own, f"method={method}", f"protocol={protocol}"]))
        stages = {name: stage for name, stage in plain["method"]["stages"].items() if _length(stage)}
        each = ", ".join(_length(stage) if len(stages) == 1 else f"{n} {_length(stage)}" for n, stage in stages.items())
        cost = f"{budget.trainings(plain)} trainings of {budget.epochs(plain):.3g} epochs"
        yield method, each, cost


def _length(stage: Mapping[str, Any]) -> str:
    if "passes" in stage:
        return f"{stage['passes']} pass{'' if stage['passes'] == 1 else 'es'}" if stage["passes"] else ""
    return counted(stage["rounds"], "round") if stage["rounds"] else ""


def show_lengths(protocol: str, places: Sequence[Path] = (CONF,)) -> None:
    """A table of ``lengths``, below the line that describes the protocol."""
    from rich.console import Console
    from rich.table import Table

    found = list(lengths(protocol, places))
    print_line(described(groups(places)["protocol"][protocol]))
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        for row in found:
            print_line("  ".join(row))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for row in found:
        table.add_row(cell(row[0], "bold"), *map(cell, row[1:]))
    console.print(table)


def markdown(group: str, places: Sequence[Path] = (CONF,)) -> str:
    """The options of one group as a Markdown table, without those of the groups below it.

    A folder of groups without options of its own (``train``) has a table for each group in it.
    """
    found = chosen([group], places)
    first = next(iter(found))
    shown = {first: found[first]} if all(name.startswith(f"{first}/") for name in found if name != first) else found
    return "\n\n".join(_table(name, files) for name, files in shown.items())


def _table(group: str, files: Mapping[str, Path]) -> str:
    lines = [f"| `{option}` | {described(file)} |" for option, file in files.items()]
    return "\n".join([f"| `{group}` | what |", "|---|---|", *lines])


def show(names: Sequence[str], places: Sequence[Path] = (CONF,)) -> None:
    """Print the options: tables on a terminal, elsewhere lines of ``group=option  description``."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    options = list(rows(names, places))
    if not console.is_terminal:
        for group, option, description in options:
            print_line(f"{group}={option}  {description}".rstrip())
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    before = None
    for group, option, description in options:
        if group != before:
            table.add_row(*(("", "") if before is not None else ()))
            table.add_row(cell(group), "", style="cyan")
        table.add_row(cell(f"  {option}"), cell(description))
        before = group
    console.print(table)


def parser() -> Parser:
    """The arguments of the command."""
    arguments = Parser(
        prog="flnl list",
        description="List methods, their parts, data sets and all other options, each with a description.",
        allow_abbrev=False,
    )
    arguments.add_argument(
        "groups",
        metavar="GROUP",
        nargs="*",
        help="only these groups, as in method, method/local or noise; by default all. method=NAME lists short keys, "
        "protocol=NAME how long each method's stages are",
    )
    arguments.add_argument("--markdown", action="store_true", help="one Markdown table per group, by default of method")
    add_config_dir(arguments)
    return arguments


def run(arguments: Sequence[str]) -> None:
    """Print what the arguments ask for.

    Raises:
        UserError: for an unknown group or option.
    """
    request = parser().parse_intermixed_args(arguments)
    methods = [word.removeprefix("method=") for word in request.groups if word.startswith("method=")]
    protocols = [word.removeprefix("protocol=") for word in request.groups if word.startswith("protocol=")]
    if protocols and (request.markdown or len(request.groups) > 1):
        raise UserError("protocol=NAME lists the lengths of stages: give it alone, or name groups")
    if methods and (request.markdown or len(methods) < len(request.groups)):
        raise UserError("method=NAME lists a method's short keys: give it alone, or name groups")
    places = [CONF, *request.config_dir]
    if methods:
        show_short_keys(methods, places)
    elif protocols:
        show_lengths(protocols[0], places)
    elif request.markdown:
        print("\n\n".join(markdown(group, places) for group in request.groups or ["method"]))
    else:
        show(request.groups, places)


main = guard.entry("list", run)
