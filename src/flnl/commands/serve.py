"""Train with the sites of a federation, rehearse that, or only see what they have.

flnl serve FOLDER [KEY=VALUE ...] [--check | --rehearse] [--flower PATH]
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from flnl.commands import guard
from flnl.commands.parser import Parser
from flnl.console.terminal import print_line
from flnl.core.errors import Interrupted, UserError
from flnl.run.interrupt import ended


def parser() -> Parser:
    """The command's options."""
    options = Parser(
        prog="flnl serve",
        description="Connect the sites of a federation, wait until all are there, and train with them, as every run.",
        epilog="resume=true goes on with a run that was stopped. Samples and labels stay at the sites.",
    )
    options.add_argument("folder", type=Path, help="the federation's folder, as flnl federation init has made it")
    options.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="as of flnl run: method=fedprox rounds=60")
    instead = options.add_mutually_exclusive_group()
    instead.add_argument(
        "--check", action="store_true", help="connect all sites, say how many samples of what form they have, and end"
    )
    instead.add_argument(
        "--rehearse",
        action="store_true",
        help="train in this process, with random samples of the numbers and form that sites have told",
    )
    options.add_argument("--flower", metavar="PATH", help="an environment with Flower; by default .venv-flower")
    return options


def command(arguments: Sequence[str]) -> None:
    """Run the command that ``arguments`` describe.

    Raises:
        Interrupted: if a signal has stopped it.
    """
    options = parser().parse_intermixed_args(arguments)
    if "=" in str(options.folder) and not options.folder.exists():
        raise UserError(
            f"{options.folder}: name the federation's folder first, as in flnl serve lung {options.folder}; flnl "
            "federation init lung makes one"
        )
    from flnl.sites import serving

    signal.signal(signal.SIGTERM, ended)  # until the run handles it
    if options.check and options.overrides:
        raise UserError(f"{options.overrides[0]}: --check trains nothing: leave it out")
    try:
        if options.check:
            serving.check(options.folder, options.flower)
            return
        if options.rehearse:
            outcome = serving.rehearse(options.folder, options.overrides)
        else:
            outcome = serving.serve(options.folder, options.overrides, options.flower)
    except (KeyboardInterrupt, Interrupted):
        print_line(
            "stopped" if options.check else "stopped; a run with whole rounds goes on with resume=true", to=sys.stderr
        )
        raise
    if outcome.signal is not None:
        raise Interrupted(outcome.signal)


main = guard.entry("serve", command)
