"""Be a site of a federation.

flnl site init FOLDER --invitation FILE [--name NAME]
flnl site FOLDER [--approve KEY | --review VERDICTS.CSV [RUN] | --units GROUP | --no-supernode]
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
        prog="flnl site",
        description="Be a site of a federation: train on the samples that are here, which stay here. flnl site init "
        "FOLDER --invitation FILE makes the site's folder.",
    )
    options.add_argument("folder", type=Path, nargs="+", metavar="[init] FOLDER", help="the site's folder")
    options.add_argument("--invitation", type=Path, metavar="FILE", help="with init: what the server has sent")
    options.add_argument("--name", help="with init: the site's name; by default the end of the folder's")
    options.add_argument("--flower", metavar="PATH", help="an environment with Flower; by default .venv-flower")
    instead = options.add_mutually_exclusive_group()
    instead.add_argument(
        "--approve",
        metavar="KEY",
        help="let the run with this key train here; of one that has asked, the first 12 digits or more are enough",
    )
    instead.add_argument(
        "--review",
        nargs="+",
        metavar=("VERDICTS.CSV", "RUN"),
        help="write the page of a run's audit anew, by default of the last, and corrected.csv with these verdicts",
    )
    instead.add_argument(
        "--units",
        metavar="GROUP",
        help="print units of systemd and a compose file, where this group may use the socket",
    )
    instead.add_argument(
        "--no-supernode", action="store_true", help="another user or container runs Flower's SuperNode"
    )
    return options


def command(arguments: Sequence[str]) -> None:
    """Run the command that ``arguments`` describe.

    Raises:
        Interrupted: when SIGTERM ends the site.
    """
    options = parser().parse_args(arguments)
    begins = options.folder[0] == Path("init")
    if len(options.folder) != 1 + begins:
        raise UserError("name one folder, as in flnl site lung-north, or flnl site init lung-north --invitation FILE")
    if begins != (options.invitation is not None):
        raise UserError("flnl site init FOLDER --invitation FILE makes a site; flnl site FOLDER runs it")
    from flnl.audit.corrections import CORRECTED
    from flnl.sites import runtime, site, site_folder, units
    from flnl.sites.flower_environment import Flower

    folder = options.folder[-1]
    if begins:
        name = options.name or folder.absolute().name.rpartition("-")[2]
        site_folder.make(folder, Flower.found(options.flower), options.invitation, name)
        print_line(f"send {folder / site_folder.NODE_PUB} to the server, and nothing else of {folder}")
        print_line(f"then say in {folder / site_folder.FILE} where the data are, and start flnl site {folder}")
        return
    here = site_folder.SiteFolder.read(folder)
    if options.approve is not None:
        key = here.approve(options.approve)
        print_line(f"{here.name}: {key[:8]}... is approved")
        return
    if options.review is not None:
        if len(options.review) > 2:
            raise UserError("--review takes one file of verdicts, and one run, as in --review verdicts.csv 9dc470fa")
        folder = here.review(Path(options.review[0]).expanduser(), "".join(options.review[1:]))
        print_line(folder / runtime.PAGE)
        print_line(folder / CORRECTED)
        print_line(f"to train on these labels: dataset.labels={folder.absolute() / CORRECTED} in data of {here.file}")
        return
    if options.units is not None:
        print(units.text(here, options.units, Flower.found(options.flower).folder, _owner(folder)), end="")
        return
    node = None if options.no_supernode else site.SuperNode(here, Flower.found(options.flower))
    if node is not None:
        print_line(site.ONE_USER, to=sys.stderr)
    signal.signal(signal.SIGTERM, ended)
    try:
        site.answer_for_ever(here, node)
    except (KeyboardInterrupt, Interrupted):
        print_line(f"stopped; a run that has begun goes on once flnl site {folder} is started again", to=sys.stderr)
        raise


def _owner(folder: Path) -> str:
    """The name of the user who owns a folder; a number if that user has none here."""
    try:
        return folder.owner()
    except KeyError:
        return str(folder.stat().st_uid)


main = guard.entry("site", command)
