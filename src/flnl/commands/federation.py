"""Make a federation on its server, and let sites in.

flnl federation install-flower [FOLDER]
flnl federation init FOLDER --address HOST:PORT --sites NAME,NAME [--data dataset.KEY=VALUE ...]
flnl federation admit FOLDER NODE.pub --name NAME
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flnl.commands import guard
from flnl.commands.parser import Parser
from flnl.console.terminal import print_line


def parser() -> Parser:
    """The command's options."""
    options = Parser(prog="flnl federation", description="Make a federation on its server, and let sites in.")
    parts = options.add_subparsers(dest="what", required=True, metavar="init|admit|install-flower", parser_class=Parser)
    init = parts.add_parser("init", help="make a federation: its authority, certificate and invitation")
    init.add_argument("folder", type=Path, help="a folder that is not there yet; its name is the federation's")
    init.add_argument("--address", required=True, metavar="HOST:PORT", help="what sites call")
    init.add_argument("--sites", required=True, metavar="NAME,NAME", help="their names")
    init.add_argument(
        "--listen", metavar="HOST:PORT", help="where to listen; by default 0.0.0.0 and the address's port"
    )
    init.add_argument(
        "--data", metavar="dataset.KEY=VALUE", nargs="+", default=[], help="what all sites' data have in common"
    )
    init.add_argument(
        "--classes", default="", metavar="NAME,NAME", help="in order; by default those of the sites' data"
    )
    admit = parts.add_parser("admit", help="let a site in, by its public key")
    admit.add_argument("folder", type=Path, help="the federation's")
    admit.add_argument("key", type=Path, metavar="NODE.pub", help="as flnl site init has made it at the site")
    admit.add_argument("--name", required=True, help="the site's")
    install = parts.add_parser("install-flower", help="make an environment with Flower, of hashed files")
    install.add_argument("folder", type=Path, nargs="?", default=Path(".venv-flower"), help="by default .venv-flower")
    init.add_argument("--flower", metavar="PATH", help="an environment with Flower; by default .venv-flower")
    return options


def command(arguments: Sequence[str]) -> None:
    """Run the command that ``arguments`` describe."""
    options = parser().parse_args(arguments)
    from flnl.sites import federation, flower_environment

    if options.what == "install-flower":
        flower_environment.install(options.folder)
        print_line(f"{options.folder} has Flower; in other folders: export FLNL_FLOWER={options.folder.absolute()}")
    elif options.what == "admit":
        made = federation.FederationFolder.read(options.folder)
        made.admit(options.key, options.name)
        left = [site for site in made.sites if site not in made.admitted]
        print_line(f"{options.name} is admitted" + (f"; {', '.join(left)} are not yet" if left else "; all sites are"))
    else:
        flower = flower_environment.Flower.found(options.flower)
        lists = [one.split(",") if one else [] for one in (options.sites, options.classes)]
        made = federation.make(
            options.folder, flower, options.address, lists[0], options.listen, lists[1], options.data
        )
        print_line(f"{options.folder / federation.INVITATION} is for the sites: {', '.join(made.sites)}")


main = guard.entry("federation", command)
