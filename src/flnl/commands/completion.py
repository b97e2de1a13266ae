"""Completion of command lines by the shell: ``flnl --install-completion``.

The shell asks ``flnl --complete LINE`` with what is typed so far, and offers the lines that are printed. So methods,
data sets and keys are those that there are, with those in a folder of ``--config-dir``. Nothing is installed for it
but a function of the shell.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from flnl.core.errors import UserError

INSTALL, COMPLETE = "--install-completion", "--complete"
OPTIONS = ("-m", "--multirun", "--cfg", "--config-dir", "--dry-run", "--help", "--resolve")
"""The options of a run."""

HIDDEN = re.compile(r"\b_\w+_=|^method\.short\.|^hydra\.")
"""Keys that nobody sets."""

SCRIPTS = {
    "bash": """\
# Completion of flnl in bash.
_flnl() {
    local line="${COMP_LINE:0:COMP_POINT}" IFS=$'\\n'
    local word="${line##* }" broken=""
    # Readline breaks words at = and :, and wants what follows the last of them.
    [[ $COMP_WORDBREAKS == *=* && $word == *=* ]] && broken="${word%"${word##*=}"}"
    [[ $COMP_WORDBREAKS == *:* && $word == *:* ]] && broken="${word%"${word##*:}"}"
    COMPREPLY=($(command "${COMP_WORDS[0]}" --complete "$line" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$broken"}")
}
complete -o nospace -o default -F _flnl flnl
""",
    "zsh": """\
# Completion of flnl in zsh.
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_flnl() {
    local -a offered
    offered=("${(@f)$(command "$words[1]" --complete "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}")
    offered=(${offered:#})
    if (( $#offered )); then compadd -Q -S '' -- $offered; else _files; fi
}
compdef _flnl flnl
""",
    "fish": """\
# Completion of flnl in fish.
complete -c flnl -a '(command flnl --complete (commandline -cp | string collect) 2>/dev/null)'
""",
}
"""A function for each shell."""


def offered(line: str, commands: Mapping[str, tuple[str, str, str]]) -> list[str]:
    """What may stand instead of the last word of ``line``, which is empty after a space.

    Args:
        line: the command line up to the cursor, with the name of the program.
        commands: each command's module, the arguments that it takes, and what it does.
    """
    _, *before, word = line.split(" ")
    before = [one for one in before if one]
    if not before:
        found = [*commands, *_of_a_run(before, word)]
    elif before[0] in commands and before[0] != "run":
        module, takes, _ = commands[before[0]]
        found = [one for one in _of_a_command(module, before[1:]) if word or not one.startswith("-")]
        if "KEY" in takes:
            found += _overrides(before[1:], word)
        if "GROUP" in takes:
            found += _groups(before)
    else:
        found = [*_of_a_run(before, word)]
    return sorted({one for one in found if one.startswith(word)})


def _of_a_command(module: str, before: Sequence[str]) -> Iterator[str]:
    """The options of a command, and words that it names itself."""
    command = import_module(module)
    if hasattr(command, "parser"):
        for action in command.parser()._actions:
            yield from action.option_strings
            yield from map(str, action.choices or ())
    if hasattr(command, "words"):
        yield from command.words(before)


def _of_a_run(before: Sequence[str], word: str) -> Iterator[str]:
    yield from OPTIONS if word.startswith("-") else _overrides(before, word)


def _overrides(before: Sequence[str], word: str) -> Iterator[str]:
    """Groups with their options, and keys of the configuration that the line chooses so far, with their values."""
    import yaml
    from hydra.errors import HydraException
    from hydra.plugins.completion_plugin import CompletionPlugin

    from flnl.config.compose import composed
    from flnl.config.folders import CONF, search_path
    from flnl.config.groups import groups

    sign = "+" if word.startswith("+") else ""
    bare, folders = word.removeprefix("+"), _folders(before)
    known = groups([CONF, *folders])
    group, equals, value = bare.partition("=")
    if equals and group in known:
        chosen = value.rpartition(",")[0]  # of a sweep
        yield from (f"{sign}{group}={chosen}{',' if chosen else ''}{option}" for option in known[group])
        return
    yield from (f"{sign}{name}=" for name in known)
    if not {".", "="} & {*bare}:
        top = yaml.safe_load((CONF / "config.yaml").read_text(encoding="utf-8"))
        sections = {name.partition("/")[0] for name in known} - {"debug", "experiment", "logger"}
        sections |= {name for name in top if isinstance(top[name], dict)}
        yield from (f"{sign}{name}{'.' if name in sections else '='}" for name in {*top, *sections} - {"defaults"})
        return
    choices = [one for one in before if "=" in one and not one.startswith("-")]
    try:
        config = composed([*search_path(folders), *choices])
    except (HydraException, UserError):
        config = composed(search_path(folders))
    for match in CompletionPlugin._get_matches(config, bare):
        if not HIDDEN.search(match):
            yield f"{sign}{match}"
        if match.endswith(("=true", "=false")):
            yield from (f"{sign}{bare}{value}" for value in ("true", "false"))


def _groups(before: Sequence[str]) -> list[str]:
    from flnl.config.folders import CONF
    from flnl.config.groups import groups

    return [*groups([CONF, *_folders(before)])]


def _folders(before: Sequence[str]) -> list[Path]:
    """The folders that ``--config-dir`` has named."""
    pairs = pairwise(before)
    named = [value for option, value in pairs if option == "--config-dir"]
    named += [one.partition("=")[2] for one in before if one.startswith("--config-dir=")]
    return [folder for one in named if (folder := Path(one).expanduser()).is_dir()]


def install(arguments: Sequence[str]) -> None:
    """Put the function of a shell, by default the user's, where the shell reads it when it starts.

    Raises:
        UserError: for another shell, or if a file cannot be written.
    """
    shell = arguments[0] if arguments else Path(os.environ.get("SHELL", "")).name
    if len(arguments) > 1 or shell not in SCRIPTS:
        raise UserError(f"{INSTALL} takes the name of a shell: {', '.join(SCRIPTS)}")
    home = Path(os.environ.get("HOME") or "~").expanduser()
    if shell == "fish":
        file = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions" / "flnl.fish"
        starts = None
    else:
        file = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "flnl" / f"completion.{shell}"
        starts = (Path(os.environ.get("ZDOTDIR") or home) if shell == "zsh" else home) / f".{shell}rc"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(SCRIPTS[shell], encoding="utf-8")
        print(f"written: {file}")
        line = f'source "{file}"'
        if starts is not None and line not in (starts.read_text().splitlines() if starts.exists() else ()):
            with starts.open("a", encoding="utf-8") as appended:
                appended.write(f"\n{line}\n")
            print(f"added to {starts}: {line}")
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    print(f"open a new {shell} to use it")
