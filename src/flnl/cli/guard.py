"""The command line's manners: one line for what the user can mend, and exit codes that scripts can rely on.

0 done, 1 the run failed, 2 the command or configuration is wrong, 130 and 143 stopped by Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import os
import re
import sys
from collections.abc import Callable, Sequence

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from flnl.config.compose import CONF, Root, flatten, load, options
from flnl.core.credentials import put_aside
from flnl.core.errors import UserError, in_one_line, one_line
from flnl.core.terminal import log_to_stderr, print_line
from flnl.run.interrupt import Interrupted

TRACEBACKS = "HYDRA_FULL_ERROR"


def guarded(entry: Callable[[], object], *, overrides: bool = True) -> None:
    """Run ``entry`` and leave the process with the right exit code; tracebacks only where ``HYDRA_FULL_ERROR=1``.

    The command's words are checked as ``overrides`` of the configuration, unless they are none. Credentials in them are
    put aside: nothing that reads ``sys.argv`` sees them.
    """
    sys.argv[1:] = put_aside(sys.argv[1:])
    log_to_stderr()
    wanted = os.environ.get(TRACEBACKS, "0") not in ("", "0")
    os.environ[TRACEBACKS] = "1"  # so that Hydra hands its errors over, to be said in one line here
    try:
        if overrides:
            check_words(sys.argv[1:])
        entry()
    except Interrupted as stopped:
        sys.exit(stopped.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (UserError, HydraException, OmegaConfBaseException) as error:
        if wanted:
            raise
        print_line(f"error: {one_line(explain(error, sys.argv[1:]))}", to=sys.stderr)
        sys.exit(2)
    except Exception as error:
        if wanted:
            raise
        if not overrides and (word := _path_at_fault(error, sys.argv[1:])) is not None:
            reason = error.strerror if isinstance(error, OSError) else error
            print_line(f"error: {one_line(f'{word}: {reason}')}", to=sys.stderr)
            sys.exit(2)
        print_line(f"error: the run failed: {one_line(in_one_line(error))}; {TRACEBACKS}=1 shows where", to=sys.stderr)
        sys.exit(1)


def _path_at_fault(error: Exception, words: Sequence[str]) -> str | None:
    """The word of the command whose path the system refuses, where that is what went wrong."""
    if isinstance(error, ValueError) and "null byte" in str(error):
        return next((word for word in words if "\0" in word), None)
    if not isinstance(error, OSError) or error.errno not in REFUSED or error.filename is None:
        return None
    path = os.fspath(error.filename)
    typed = [(word, word.partition("=")[2] or word) for word in words]
    near = (word for word, value in typed if f"{path}/".startswith(f"{value}/") or value.startswith(f"{path}/"))
    return next(near, None)


REFUSED = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL, errno.ENXIO, errno.ENODEV),
)
"""What a system says of a path that a person has to mend; a full disk is none of it."""


def explain(error: BaseException, words: Sequence[str]) -> str:
    """One line that names the key, what was wrong and what would be right."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            return str(cause)
        cause = cause.__cause__
    text = str(error).strip()
    if isinstance(error, OverrideParseException):
        return _unreadable(error.override)
    if isinstance(error, MissingConfigException):
        return _no_such_option(text)
    if found := re.match(r"Could not override '([^']+)'", text):
        return _no_such_key(found.group(1))
    if found := re.match(r"Could not delete from config. '([^']+)' does not exist", text):
        return f"~{_no_such_key(found.group(1))}"
    if isinstance(error, ConfigCompositionException | OmegaConfBaseException) and (
        found := re.search(r"full_key: (\S+)", text)
    ):
        return f"{found.group(1)}: {text.splitlines()[0]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines and error.__cause__ is not None:
        return explain(error.__cause__, words)
    return " ".join(lines)


def _unreadable(word: str) -> str:
    if "=" not in word:
        return f"{word!r} is no override: write key=value, as in noise.rho=0.6"
    return f"{word!r} cannot be read: write key=value, with quotes around a value that has spaces, commas or brackets"


def _no_such_option(text: str) -> str:
    found = re.search(r"Could not (?:find|load) '([^']+)'", text)
    if not found:
        return text.splitlines()[0]
    group, _, option = found.group(1).rpartition("/")
    return _not_an_option(group, option, options(group) or re.findall(r"^\t(\S+)$", text, re.MULTILINE))


def _not_an_option(group: str, option: str, options: Sequence[str]) -> str:
    close = difflib.get_close_matches(option, options, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{group}={option} does not exist; {hint}there are {', '.join(options)}"


def _no_such_key(key: str) -> str:
    """Where ``key`` belongs, or the nearest key that exists."""
    group, _, place = key.partition("@")
    if (CONF / group).is_dir():
        return f"{key} cannot be set here: " + (f"{group} has its own place, write {group}=" if place else "see --help")
    if "/" in key:
        groups = sorted(str(p.relative_to(CONF)) for p in CONF.rglob("*") if p.is_dir())
        close = difflib.get_close_matches(key, groups, n=1)
        return f"{key} is not a group of the configuration" + (f"; did you mean {close[0]}?" if close else "")
    group, _, leaf = key.partition(".")
    if leaf and (CONF / group).is_dir():
        owners = [
            path.stem
            for path in sorted((CONF / group).glob("*.yaml"))
            if leaf in dict(flatten(_values(OmegaConf.to_container(OmegaConf.load(path)), group)))
        ]
        if owners:
            return f"{key} belongs to {' or '.join(f'{group}={o}' for o in owners)}, which is not chosen here"
    known = [k for k, _ in flatten(OmegaConf.to_container(load()))]
    sections = sorted({k[: k.rfind(".")] for k in known if "." in k})
    close = difflib.get_close_matches(key, [*known, *sections], n=1, cutoff=0.6)
    if not close:
        close = [k for k in known if k.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]][:1]
    return f"{key} is not a key of the configuration" + (f"; did you mean {close[0]}?" if close else "")


def _values(node: object, group: str) -> object:
    """A group file's own values: those under the group's name where the file is written from the root."""
    if isinstance(node, dict):
        node = node.get(group, node) if isinstance(node.get(group), dict) else node
        return {k: v for k, v in node.items() if k != "defaults"} if isinstance(node, dict) else node
    return node


FLAGS = {
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--multirun", "--info"),
    *("--shell-completion", "--config-path", "--config-name", "--config-dir"),
}
TAKES_SEVERAL = ("method/local", "method/exchange")


def check_words(words: Sequence[str]) -> None:
    """Refuse what Hydra would take silently or answer with a traceback.

    Raises:
        UserError: naming the word.
    """
    for word in words:
        if word.startswith("--") and word.split("=")[0] not in FLAGS:
            hint = f"write {word[2:]}=..., without dashes" if (CONF / word[2:]).exists() else "see --help"
            raise UserError(f"{word} is not an option; {hint}")
    _check_options(words)
    overrides = _parsed(words)
    for override in overrides:
        key = override.key_or_group
        if not key:
            raise UserError(f"{override.input_line!r} names no key: write key=value, as in noise.rho=0.6")
        if (CONF / key.split("@")[0]).is_dir():
            _check_choice(override, key.split("@")[0])
        elif override.is_delete() and key in Root.__annotations__:
            raise UserError(f"{override.input_line}: every run has {key}; write {key}=... to change it")
    _check_additions(overrides)


def _check_options(words: Sequence[str]) -> None:
    """Refuse options that argparse would answer with its usage, or that do nothing."""
    parser = get_args_parser()
    parser.exit_on_error = False
    try:
        chosen, left = parser.parse_known_args(list(words))
    except argparse.ArgumentError as error:
        raise UserError(f"{(error.argument_name or '').split('/')[0]}: {error.message}; see --help") from None
    strange = [word for word in left if word.startswith("-")]
    if strange:
        raise UserError(f"{strange[0]} is not an option; see --help")
    if left:
        among = [word for word in words if word.startswith("-")]
        raise UserError(f"{among[-1]} stands between overrides: write it before all of them")
    for name in ("resolve", "package"):
        if getattr(chosen, name) and not (chosen.cfg or chosen.help):
            raise UserError(f"--{name} says how to show the configuration: add --cfg job")
    if chosen.shell_completion and not any(re.match("(un)?install=|query=", word) for word in words):
        raise UserError("--shell-completion takes install=bash, uninstall=bash or query=bash, or another shell's name")


def _check_choice(override: Override, group: str) -> None:
    """Refuse a choice that the group cannot take."""
    value = override.value()
    listed = isinstance(value, list) and group not in TAKES_SEVERAL
    if override.is_delete() or listed or value is None:
        none = "; leave it out for none" if group in ("experiment", "debug") else ""
        raise UserError(f"{override.input_line}: {group} takes one of {', '.join(options(group))}{none}")
    if again := [one for one in value if value.count(one) > 1] if isinstance(value, list) else []:
        raise UserError(f"{override.input_line}: {group} takes each choice once, and {again[0]} stands there again")
    if (override.is_add() or override.is_force_add()) and "@" not in override.key_or_group:
        raise UserError(f"{override.input_line}: {group} is part of every run; write {group}=..., without +")
    if group == "method" and "/" in str(value):
        raise UserError(_not_an_option(group, str(value), options(group)))


def _check_additions(overrides: Sequence[Override]) -> None:
    """Refuse ``+key=value`` for a key that does not exist, which nobody would read."""
    added = [o for o in overrides if o.is_add() or o.is_force_add()]
    values = [o for o in added if not (CONF / o.key_or_group.split("@")[0]).is_dir()]
    values = [o for o in values if not o.key_or_group.startswith("hydra")]
    if not values:
        return
    rest = [o.input_line for o in overrides if o not in values and o.input_line and not o.is_sweep_override()]
    try:
        known = dict(flatten(OmegaConf.to_container(load([w for w in rest if not w.startswith("hydra")]))))
    except HydraException:
        return  # composing will say it better
    for override in values:
        key = override.key_or_group
        if key not in known and not any(k.startswith(f"{key}.") for k in known):
            raise UserError(f"+{_no_such_key(key)}")


def _parsed(words: Sequence[str]) -> list[Override]:
    typed = [w for w in words if ("=" in w or w.startswith("~")) and not w.startswith("-")]
    parser = OverridesParser.create()
    try:
        return parser.parse_overrides(typed)
    except HydraException:
        return []
    except ValueError:  # Python refuses to read so long a number
        limit = sys.get_int_max_str_digits()
        long = next(word for word in typed if re.search(rf"\d{{{limit + 1}}}", word.replace("_", "")))
        raise UserError(f"{long}: a number may have at most {limit} digits") from None
