"""``flnl``, also ``python -m flnl``: a run or a sweep, and commands that read their results.

    flnl method=fedcorr noise.rho=0.6       one run; with -m a sweep
    flnl compare multirun/2026-11-20        a command

Only the chosen command is imported.
"""

from __future__ import annotations

import importlib
import re
import sys

from flnl import __version__
from flnl.commands import completion
from flnl.commands.completion import COMPLETE, INSTALL
from flnl.console.suggestions import instead

TRAIN = "run"
COMMANDS = {
    TRAIN: ("flnl.commands.run", "KEY=VALUE ...", 'train; with -m a sweep. "run" may be omitted'),
    "list": ("flnl.commands.list", "[GROUP ...]", "all groups and options, a line each"),
    "explain": ("flnl.commands.explain", "KEY ... [KEY=VALUE ...]", "what keys mean and may be: noise.rho, train"),
    "card": ("flnl.commands.card", "KEY=VALUE ...", "the federation, without training"),
    "rerun": ("flnl.commands.rerun", "RUN_DIR [KEY=VALUE ...]", "repeat a finished run: do the bits agree?"),
    "config": ("flnl.commands.config", "RUN_DIR [--short]", "a run's configuration; --short: for a paper"),
    "compare": ("flnl.commands.compare", "RUN_DIR_OR_PATTERN ...", "finished runs side by side"),
    "figures": ("flnl.commands.figures", "RUN_DIR ...", "redraw the figures of runs from their records"),
    "tables": ("flnl.commands.tables", "list|plan|run|render ...", "the papers' tables, our numbers beside theirs"),
    "tune": ("flnl.commands.tune", "KEY=V1,V2 ... [--each KEY]", "choose hyperparameters on held-out seeds or samples"),
    "benchmark": (
        "flnl.commands.benchmark",
        "list|run|verify|render ...",
        "all methods on equal terms: tasks, entries, the page",
    ),
    "doctor": ("flnl.commands.doctor", "", "check this machine and its GPU; time training"),
    "audit": ("flnl.commands.audit", "RUN_DIR ...", "rank a run's labels by how likely they are wrong"),
    "federation": ("flnl.commands.federation", "init|admit ...", "make a federation of sites, and let these in"),
    "site": ("flnl.commands.site", "FOLDER", "be a site of a federation, with data that stay here"),
    "serve": ("flnl.commands.serve", "FOLDER KEY=VALUE ...", "train with the sites of a federation"),
    "predict": ("flnl.commands.predict", "RUN_DIR IMAGE_OR_FOLDER ...", "classify images with the model of a run"),
}
"""Each command's module with its ``main``, its arguments, and what it does."""


def usage() -> str:
    """All commands, a line each, and where to read more.

    >>> print(usage().splitlines()[2])
      flnl list [GROUP ...]                      all groups and options, a line each
    """
    taken = {name: f"flnl {name} {takes}" for name, (_, takes, _) in COMMANDS.items()}
    width = max(map(len, taken.values()))
    return "\n".join(
        [
            "flnl: federated learning with noisy labels",
            *(f"  {taken[name]:{width}}  {does}" for name, (_, _, does) in COMMANDS.items()),
            "",
            "  flnl method=fedcorr noise.rho=0.6       one run",
            "  flnl -m method=fedavg,fedcorr seed=1,2  a sweep",
            "",
            f"flnl COMMAND --help explains a command; flnl {TRAIN} --help lists every group, option and key.",
            f"flnl {INSTALL} lets bash, zsh or fish complete methods, data sets, keys and options.",
        ]
    )


def main() -> None:
    """Run the command that the first argument names; without one, train with all arguments as overrides.

    An unknown command is refused in one line, with exit code 2.
    """
    arguments = sys.argv[1:]
    name = arguments[0] if arguments else ""
    if arguments in (["--help"], ["-h"]):
        print(usage())
        return
    if arguments == ["--version"]:
        print(f"flnl {__version__}")
        return
    if name == COMPLETE:
        print("\n".join(completion.offered(" ".join(arguments[1:]), COMMANDS)))
        return
    if name == INSTALL:
        from flnl.commands import guard

        guard.guarded(lambda: completion.install(arguments[1:]), name=f"flnl {INSTALL}", overrides=False)
        return
    if "" not in sys.path:
        sys.path.append("")  # the user's classes in the working folder; last, so that they shadow no installed module
    if name in COMMANDS:
        del sys.argv[1]
    elif re.fullmatch(r"[A-Za-z][\w-]*", name):
        there = f"{instead(name, COMMANDS)}, and overrides of a run as in noise.rho=0.6"
        print(f"error: {name} is not a command; {there}", file=sys.stderr)
        sys.exit(2)
    importlib.import_module(COMMANDS.get(name, COMMANDS[TRAIN])[0]).main()


if __name__ == "__main__":
    main()
