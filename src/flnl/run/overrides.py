"""The check of a command's overrides, before Hydra composes a configuration from them."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf

from flnl.config.compose import load, options
from flnl.config.explain import no_such_key, searched
from flnl.config.folders import CONF, refuse_shadowed
from flnl.config.free_keys import may_be_added, may_be_named, may_stand_in
from flnl.config.groups import SEVERAL, not_an_option
from flnl.config.identity import flatten
from flnl.config.override_text import group_of, without
from flnl.config.schema import Root
from flnl.config.short_keys import without_declarations
from flnl.core.errors import UserError
from flnl.record.run import RESULT

FLAGS = {
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--multirun", "--info"),
    *("--shell-completion", "--config-path", "--config-name", "--config-dir"),
}


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse arguments that Hydra would accept silently or answer with a traceback.

    Raises:
        UserError: naming the argument.
    """
    for argument in arguments:
        if argument.startswith("--") and argument.split("=")[0] not in FLAGS:
            hint = f"write {argument[2:]}=..., without dashes" if (CONF / argument[2:]).exists() else "see --help"
            raise UserError(f"{argument} is not an option; {hint}")
    _check_options(arguments)
    overrides = _parsed(arguments)
    places = searched(arguments)
    _check_base(get_args_parser().parse_known_args(list(arguments))[0], places)
    for folder in places:
        refuse_shadowed(folder)
    for override in overrides:
        key = override.key_or_group
        if not key:
            raise UserError(f"{override.input_line!r} names no key: write key=value, as in noise.rho=0.6")
        if key == "hydra.run.dir":
            raise UserError(f"{override.input_line}: a run's folder is set by output=..., a sweep's by hydra.sweep.dir")
        if override.is_delete() and key in Root.__annotations__:
            raise UserError(f"{override.input_line}: every run has {key}; write {key}=... to change it")
        if key in Root.__annotations__ and (CONF / key).is_dir():
            _check_section(override, key)
        elif group := group_of(key):
            _check_choice(override, group, places)
    _check_additions(overrides)


def replaced(arguments: Sequence[str], keys: Sequence[str], *added: str) -> list[str]:
    """A command's arguments without the overrides of ``keys``, and with those ``added`` after its other overrides.

    Options such as ``-m`` stay where they are: none may stand between overrides.

    >>> replaced(["seed=1,2", "max_rounds=3", "-m"], ["max_rounds"], "hydra.sweep.dir=a")
    ['seed=1,2', 'hydra.sweep.dir=a', '-m']
    """
    words = list(arguments)
    overrides = get_args_parser().parse_args(words).overrides
    count = len(overrides)
    first = next((i for i in range(len(words)) if words[i : i + count] == overrides), len(words))
    return [*words[:first], *without(overrides, *keys), *added, *words[first + count :]]


def _check_options(arguments: Sequence[str]) -> None:
    """Refuse options that argparse would answer with its usage text, or that have no effect."""
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        chosen, left = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError as error:
        raise UserError(f"{(error.argument_name or '').split('/')[0]}: {error.message}; see --help") from None
    strange = [argument for argument in left if argument.startswith("-")]
    if strange:
        raise UserError(f"{strange[0]} is not an option; see --help")
    if left:
        among = [argument for argument in arguments if argument.startswith("-")]
        raise UserError(f"{among[-1]} stands between overrides: write it before the first one")
    if chosen.cfg and chosen.multirun:
        raise UserError("--cfg shows one configuration: leave out -m, or list the jobs of a sweep with --dry-run")
    for name in ("resolve", "package"):
        if getattr(chosen, name) and not (chosen.cfg or chosen.help):
            raise UserError(f"--{name} says how to show the configuration: add --cfg job")
    if chosen.shell_completion and not any(re.match("(un)?install=|query=", argument) for argument in arguments):
        raise UserError("--shell-completion takes install=bash, uninstall=bash or query=bash, or another shell's name")


def _check_base(chosen: argparse.Namespace, places: Sequence[Path]) -> None:
    """Refuse a file or folder of the user's in whose place Hydra would read ``conf/config.yaml``, or find nothing.

    It searches ``conf/`` first, and takes no path for a name.

    Args:
        chosen: Hydra's options.
        places: the folders that the command adds to ``conf/``.
    """
    path = None if chosen.config_path is None else Path(chosen.config_path)
    for option, folder in (("--config-path", path), *(("--config-dir", place) for place in places)):
        if folder is not None and _is_file(folder / RESULT):
            raise UserError(f"{option} {folder} is the folder of a run: flnl rerun {folder} repeats it")
    if path is not None and not path.is_absolute():
        raise UserError(f"--config-path {path} replaces conf/, by an absolute path; --config-dir {path} adds to it")
    if (name := chosen.config_name) is None or path is not None:
        return
    file = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    own = next((one for place in (*places, Path()) if _is_file(one := place / file)), None)
    if own is None or own.resolve() == (CONF / file.lstrip("/")).resolve():
        return
    if _is_file(own.parent / RESULT):
        raise UserError(f"--config-name {name}: {own} is of a run: flnl rerun {own.parent} repeats it")
    if "/" in name:
        raise UserError(f"--config-name {name} is no path: write --config-dir {own.parent} --config-name {own.stem}")
    if _is_file(CONF / file):
        raise UserError(f"--config-name {name} would read {CONF / file}, not {own}: give your file another name")


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113 (never raises, however long a name is)


def _check_section(override: Override, key: str) -> None:
    """Refuse a value instead of a section, which Hydra takes for a choice if groups are below its name."""
    if not isinstance(override.value(), dict):
        groups = ", ".join(f"{key}/{folder.name}=..." for folder in sorted((CONF / key).iterdir()))
        raise UserError(f"{override.input_line}: {key} is a section; set its keys, as in {key}.lr=0.1, or {groups}")


def _check_choice(override: Override, group: str, places: Sequence[Path]) -> None:
    """Refuse a choice that the group does not accept."""
    value = override.value()
    listed = isinstance(value, list) and group not in SEVERAL
    if override.is_delete() or listed or value is None:
        none = "; leave it out for none" if group in ("experiment", "debug", "local") else ""
        raise UserError(f"{override.input_line}: {group} takes one of {', '.join(options(group, places))}{none}")
    if again := [one for one in value if value.count(one) > 1] if isinstance(value, list) else []:
        raise UserError(f"{override.input_line}: {group} takes each choice once, and {again[0]} is repeated")
    if (override.is_add() or override.is_force_add()) and not may_stand_in(override.package or "", group):
        raise UserError(f"{override.input_line}: {group} is part of every run; write {group}=..., without +")
    if group in ("method", "executor") and "/" in str(value):
        raise UserError(not_an_option(group, str(value), options(group, places)))


def _check_additions(overrides: Sequence[Override]) -> None:
    """Refuse ``+key=value`` for a key that does not exist: nothing would read it."""
    added = [o for o in overrides if o.is_add() or o.is_force_add()]
    values = [o for o in added if not group_of(o.key_or_group)]
    values = [o for o in values if not o.key_or_group.startswith("hydra")]
    if not values:
        return
    rest = [o.input_line for o in overrides if o not in values and o.input_line and not o.is_sweep_override()]
    try:
        composed = without_declarations(load([w for w in rest if not w.startswith("hydra")]))
    except HydraException:
        return  # composing gives a better message
    known = dict(flatten(OmegaConf.to_container(composed)))
    for override in values:
        key = override.key_or_group
        there = key in known or any(k.startswith(f"{key}.") for k in known)
        if not there and not may_be_added(composed, key) and not may_be_named(composed, key):
            raise UserError(f"+{no_such_key(key, rest)}")


def _parsed(arguments: Sequence[str]) -> list[Override]:
    typed = [w for w in arguments if ("=" in w or w.startswith("~")) and not w.startswith("-")]
    parser = OverridesParser.create()
    try:
        return parser.parse_overrides(typed)
    except HydraException:
        return []
    except ValueError:  # Python limits the digits of integers
        limit = sys.get_int_max_str_digits()
        long = next(word for word in typed if re.search(rf"\d{{{limit + 1}}}", word.replace("_", "")))
        raise UserError(f"{long}: a number may have at most {limit} digits") from None
