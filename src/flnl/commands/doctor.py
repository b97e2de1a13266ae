"""Say what this machine has, check its GPU against the CPU, and time training.

    flnl doctor [--device auto] [--quick] [--networks TEXT ...] [--jobs]

What it times is kept for ``flnl tables plan`` and for sweeps.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from flnl.commands import guard
from flnl.commands.parser import Parser
from flnl.core.errors import UserError


def parser() -> Parser:
    """The command's options."""
    options = Parser(
        prog="flnl doctor",
        description="Say what this machine has; on a GPU, compare short runs with the CPU's; time training.",
        epilog="Exit code 1: something will not work, or the GPU does not compute what the CPU computes. The times are "
        "kept: flnl tables plan tells hours by them; with --jobs, sweeps and tables run as many at once as train most.",
    )
    options.add_argument("--device", default="auto", metavar="NAME", help="auto, cpu or cuda; by default auto")
    options.add_argument("--quick", action="store_true", help="leave out the timing")
    options.add_argument(
        "--networks", nargs="+", metavar="TEXT", default=[], help="time only networks whose title contains a text"
    )
    options.add_argument(
        "--jobs",
        action="store_true",
        help="time 1, 2, 4 ... runs at once on the GPU, until more train no more images; this takes minutes a network",
    )
    return options


def command(arguments: Sequence[str]) -> None:
    """Run the command that ``arguments`` describe.

    Raises:
        SystemExit: with 1 if something is not well.
    """
    options = parser().parse_args(arguments)
    if options.quick and (options.networks or options.jobs):
        given = "--networks" if options.networks else "--jobs"
        raise UserError(f"--quick times no networks: leave it out, or leave out {given}")
    from flnl.instruments.doctor.examination import chosen, examine

    wanted = chosen(options.networks)
    if not examine(options.device, quick=options.quick, at_once=options.jobs, wanted=wanted):
        sys.exit(1)


main = guard.entry("doctor", command)
