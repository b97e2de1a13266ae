"""Explain errors of Hydra and OmegaConf in one line that names the key and what would be right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra._internal.utils import get_args_parser
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from flnl.config.compose import load, options
from flnl.config.folders import CONF, added_by, search_path
from flnl.config.free_keys import may_be_added, may_be_named
from flnl.config.groups import NESTED, not_an_option
from flnl.config.identity import flatten
from flnl.config.nearest import nearest, of_a_launcher
from flnl.config.override_text import choices_of
from flnl.console.extras import install
from flnl.console.suggestions import closest
from flnl.core.errors import UserError

PLUGINS = {"hydra/launcher=submitit": "cluster"}
"""Choices that the extras add to Hydra, by their first letters."""


def explain(error: BaseException, overrides: Sequence[str]) -> str:
    """One line that names the key, the fault and what would be right."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            return str(cause)
        cause = cause.__cause__
    text = str(error).strip()
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if isinstance(error, MissingConfigException):
        return _no_such_option(text, overrides)
    if match := re.match(r"Could not override '([^']+)'", text):
        return no_such_key(match.group(1), overrides)
    if match := re.match(r"Could not delete from config. '([^']+)' does not exist", text):
        return f"~{no_such_key(match.group(1), overrides)}"
    if match := re.match(r"Could not delete '([^']+)'", text):
        what = f"{match[1]} is not chosen" if "=" in match[1] else f"nothing is chosen of {match[1]}"
        return f"~{match[1]}: {what}, so it cannot be deleted; leave ~{match[1]} out"
    if match := re.match(r"(?s)In '(.+?)': .*Cannot merge DictConfig with ListConfig", text):
        how = "a file chooses loggers by defaults: [override /logger: [csv], _self_]"
        return f"{match.group(1)}.yaml has a list instead of a section; {how}"
    if match := re.match(r"'([^']+)/([^']+)' is validated against ConfigStore schema", text):
        return f"{match[1]}={match[2]}: an option had this name before; give your file another one"
    if isinstance(error, ConfigCompositionException | OmegaConfBaseException) and (
        match := re.search(r"full_key: (\S+)", text)
    ):
        return f"{match.group(1)}: {text.splitlines()[0]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines and error.__cause__ is not None:
        return explain(error.__cause__, overrides)
    return " ".join(lines)


def _unreadable(override: str) -> str:
    if "=" not in override:
        return f"{override!r} is no override: write key=value, as in noise.rho=0.6"
    key, _, value = override.partition("=")
    if value == "~" or value.startswith("~/"):
        return f"{override!r} cannot be read: write $HOME in place of ~"
    return (
        f"{override!r} cannot be read: write key=value, with quotes around a value that has spaces, commas, brackets "
        f"or other signs, inside those for the shell, as in \"{key}='a, b'\""
    )


def _no_such_option(text: str, overrides: Sequence[str]) -> str:
    match = re.search(r"Could not (?:find|load) '([^']+)'", text)
    if not match:
        return text.splitlines()[0]
    group, _, option = match.group(1).rpartition("/")
    if (above := group.partition("/")[0]) not in NESTED:  # folders are part of the option's name
        group, option = above, match.group(1).partition("/")[2]
    if lacking := next((extra for begins, extra in PLUGINS.items() if f"{group}={option}".startswith(begins)), None):
        return f"{group}={option} is of a package that is not here: {install(lacking)}"
    known = options(group, searched(overrides)) or sorted(re.findall(r"^\t(\S+)$", text, re.MULTILINE))  # Hydra's own
    own = "" if closest(option, known) or searched(overrides) else "; --config-dir FOLDER adds files of your own"
    return f"{not_an_option(group, option, known)}{own}"


def no_such_key(key: str, overrides: Sequence[str] = ()) -> str:
    """A message for an unknown key: where ``key`` belongs, or the closest key under the options that are chosen."""
    if not key.strip(" ./@"):
        return f"{key!r} is no key of the configuration: one is a name, as noise.rho or train"
    group, _, place = key.partition("@")
    if (CONF / group).is_dir():
        above, _, slot = group.partition("/")
        if choosing := [] if place else _choosing(above, slot):
            return (
                f"{key} belongs to {' or '.join(f'{above}={option}' for option in choosing)}, which is not chosen here"
            )
        return f"{key} cannot be set here: " + (f"{group} has a fixed place, write {group}=" if place else "see --help")
    if "/" in key:
        groups = sorted(str(p.relative_to(CONF)) for p in CONF.rglob("*") if p.is_dir())
        close = closest(key, groups)
        return f"{key} is not a group of the configuration" + (f"; did you mean {close}?" if close else "")
    group, _, leaf = key.partition(".")
    slot, _, value = leaf.partition(".")
    if value and (CONF / group / slot).is_dir() and group == "executor":
        group, leaf = f"{group}/{slot}", value
    chosen = _chosen(overrides)
    if may_be_named(chosen, f"{key}.NAME"):
        return f"{key} takes its values one by one: write +{key}.NAME=..."
    if may_be_added(chosen, key):
        return f"{key} is not set, so train.{key.rpartition('.')[2]} holds there; write +{key}=... to set it"
    if leaf and (CONF / group).is_dir():
        owners = {}
        for path in sorted((CONF / group).glob("*.yaml")):
            values = dict(flatten(_values(OmegaConf.to_container(OmegaConf.load(path)), group)))
            if leaf in values:
                owners[path.stem] = str(values[leaf])
        if owners:
            reason = f"{key} belongs to {' or '.join(f'{group}={o}' for o in owners)}, which is not chosen here"
            references = (re.fullmatch(r"\$\{(method\.[\w.]+)\}", value) for value in owners.values())
            targets = {reference[1] for reference in references if reference}
            return f"{reason}; the part's own key is {targets.pop()}" if len(targets) == 1 else reason
    if key.startswith("hydra.launcher.") and (launcher := of_a_launcher(key)) is not None:
        return f"{key} belongs to hydra/launcher={launcher}, which is not chosen here: add -m hydra/launcher={launcher}"
    if may_be_named(chosen, key):
        return f"{key} is not set yet; write +{key}=... to set it"
    near = nearest(key, chosen)
    return f"{key} is not a key of the configuration" + (f"; did you mean {near}?" if near else "")


def _choosing(group: str, slot: str) -> list[str]:
    """The options of ``group`` that choose one of the group ``slot`` below it."""
    files = {path.stem: OmegaConf.to_container(OmegaConf.load(path)) for path in sorted((CONF / group).glob("*.yaml"))}
    lists = {name: content.get("defaults", []) for name, content in files.items() if isinstance(content, dict)}
    return [name for name, chosen in lists.items() if any(isinstance(one, dict) and slot in one for one in chosen)]


def _chosen(overrides: Sequence[str]) -> DictConfig:
    """The configuration with the options that ``overrides`` choose; the default one if they cannot be composed."""
    choices = choices_of(w for w in overrides if "=" in w)
    try:
        return load([*search_path(searched(overrides)), *choices])
    except (HydraException, UserError):
        return load()


def searched(overrides: Sequence[str]) -> list[Path]:
    """The folders that a command line adds to ``conf/``, by ``--config-dir`` or by ``hydra.searchpath``."""
    asked = get_args_parser().parse_known_args(list(overrides))[0].config_dir
    return [*([] if asked is None else [Path(asked)]), *added_by(overrides)]


def _values(node: object, group: str) -> object:
    """The values in a group's file; in a file of ``@package _global_``, those below the group's name."""
    if isinstance(node, dict):
        node = node.get(group, node) if isinstance(node.get(group), dict) else node
        return {k: v for k, v in node.items() if k != "defaults"} if isinstance(node, dict) else node
    return node
