"""Explain keys of the configuration: what each means, what it may be, its value, and the file that sets it.

flnl explain noise.rho                  a key
flnl explain method method=flr          all keys of a section, with the choices that are made
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from flnl.commands import guard
from flnl.commands.meanings import table
from flnl.commands.parser import Parser, add_config_dir
from flnl.config.comments import beside
from flnl.config.explain import no_such_key
from flnl.config.folders import CONF, search_path
from flnl.config.groups import groups
from flnl.config.meaning import Meaning, meanings
from flnl.config.schema import NO_GROUPS
from flnl.console.terminal import cell, print_line
from flnl.core.errors import UserError

FEW = 4
"""So many keys at most are explained in paragraphs, and more in a table."""


def explained(key: str, overrides: Sequence[str] = (), places: Sequence[Path] = (CONF,)) -> dict[str, list[Meaning]]:
    """What a key means: with the choices that are made, or else with each choice of its group that has the key.

    Returns:
        The meanings of the key and of the keys below it, by the choice, as in ``noise=symmetric``; "" where the key is
        there without one.

    Raises:
        UserError: if no choice has it, naming the nearest key.
    """
    own = [*search_path([place for place in places if place != CONF]), *overrides]
    if found := meanings(key, own):
        return {"": _without_twins(found)}
    with_it = {choice: meanings(key, [*own, choice]) for choice in _choices(key, places)}
    if not any(with_it.values()):
        raise UserError(no_such_key(key, own))
    return {choice: _without_twins(found) for choice, found in with_it.items() if found}


def _without_twins(found: Sequence[Meaning]) -> list[Meaning]:
    """Short keys first; the parts' own keys that they stand for are left out."""
    twins = {one.stands_for for one in found}
    return sorted((one for one in found if one.key not in twins), key=lambda one: not one.stands_for)


def _choices(key: str, places: Sequence[Path]) -> Iterator[str]:
    """The choices of the key's group whose files set it."""
    group, _, leaf = key.partition(".")
    for name, options in groups(places).items():
        if name == group and name not in NO_GROUPS:
            for option, file in options.items():
                if leaf and {leaf, f"short.{leaf}", key} & {inner for inner, _ in beside(file)}:
                    yield f"{group}={option}"  # a file of package _global_ has the whole key


def show(found: dict[str, list[Meaning]]) -> None:
    """Print paragraphs of a few keys; of many a table on a terminal, and elsewhere a line each."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    rows = [(choice, one) for choice, keys in found.items() for one in keys]
    if len(rows) <= FEW or all(found):
        alike: dict[tuple[str, ...], list[tuple[str, Meaning]]] = {}
        for choice, one in rows:
            alike.setdefault((one.key, one.comment, one.allowed, one.value), []).append((choice, one))
        for same in alike.values():
            for line in _paragraph(", ".join(choice for choice, _ in same), same[0][1]):
                console.print(cell(line), soft_wrap=not console.is_terminal)
        return
    if not console.is_terminal:
        for _, one in rows:
            print_line("  ".join(filter(None, (f"{one.key}={one.value}", one.allowed, one.comment))))
        return
    console.print(table(one for _, one in rows))


def _paragraph(choice: str, one: Meaning) -> Iterator[str]:
    yield f"{one.key}={one.value}{f'  with {choice}' if choice else ''}"
    if one.comment:
        yield f"  {one.comment}"
    if one.allowed:
        yield f"  may be {one.allowed}"
    if one.stands_for:
        yield f"  short for {one.stands_for}"
    if one.file:
        yield f"  set in {one.file}{f', as {one.source}' if one.source else ''}"


def parser() -> Parser:
    """The arguments of the command."""
    arguments = Parser(
        prog="flnl explain",
        description="What keys of the configuration mean, what they may be, their values, and where these are set.",
        allow_abbrev=False,
    )
    arguments.add_argument(
        "words",
        metavar="KEY",
        nargs="+",
        help="a key as in noise.rho, or a section as in noise; KEY=VALUE makes a choice as for a run: method=flr "
        "explains FLR's keys",
    )
    add_config_dir(arguments)
    return arguments


def run(arguments: Sequence[str]) -> None:
    """Explain what the arguments name.

    Raises:
        UserError: for a key that no choice has.
    """
    request = parser().parse_intermixed_args(arguments)
    keys = [word for word in request.words if "=" not in word]
    overrides = [word for word in request.words if "=" in word]
    if not keys:
        raise UserError("flnl explain takes a key or a section, as in noise.rho or noise")
    for key in keys:
        show(explained(key, overrides, [CONF, *request.config_dir]))


main = guard.entry("explain", run)
