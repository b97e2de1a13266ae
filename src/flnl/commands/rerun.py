"""Repeat a finished run from its folder, here or on another machine, and say whether the bits agree.

    flnl rerun RUN_DIR [output=FOLDER] [dataset.root=FOLDER] [executor=sequential] ...

Exit codes: 0, all bits agree; 1, some do not, or are gone from the folder, or the run failed; 2, it cannot be repeated.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from flnl.commands import guard
from flnl.commands.parser import Parser, add_config_dir, add_trust
from flnl.config.pinning import pin
from flnl.console.terminal import print_line
from flnl.core.errors import Interrupted


def parser() -> Parser:
    """The command's arguments."""
    arguments = Parser(
        prog="flnl rerun",
        description="Repeat a finished run from its folder, and say whether the bits agree: of the model's parameters, "
        "of all metrics, of labels.csv. If not, say since which round, and what differs in versions, threads, device "
        "and machine.",
        epilog="Exit codes: 0, the bits agree; 1, they do not, or some are gone, or the run failed; 2, it "
        "cannot be repeated. "
        "docs/running.md has more.",
    )
    arguments.add_argument("run", metavar="RUN_DIR", type=Path, help="the folder of a finished run")
    arguments.add_argument(
        "overrides",
        metavar="KEY=VALUE",
        nargs=argparse.ZERO_OR_MORE,
        help="how to run it, as in output=FOLDER, executor=sequential, threads=2, device=cpu, precision=64; and where "
        "its files lie here, as in dataset.root=FOLDER. What the run is cannot be changed",
    )
    add_config_dir(arguments)
    add_trust(arguments)
    return arguments


def rerun(arguments: Sequence[str]) -> int:
    """Repeat the run that ``arguments`` name, and print what agrees.

    Returns:
        The exit code: 0 if all bits agree, else 1.

    Raises:
        UserError: if it cannot be repeated.
        Interrupted: after a signal.
    """
    request = parser().parse_intermixed_args(arguments)
    from flnl.instruments.rerun.recorded_run import configuration, demand_another_folder, demand_data, finished_run

    run = finished_run(request.run.expanduser())
    if isinstance(threads := run.config.get("threads"), int):
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # before torch is first imported
    if run.config.get("reproducible") is True and "reproducible=false" not in request.overrides:
        pin()
    cfg = configuration(run, request.overrides, request.config_dir, request.trust)
    demand_another_folder(run, cfg)
    from flnl.instruments.rerun.comparison import compared, surroundings
    from flnl.record.run import RunRecord
    from flnl.run.train import train

    demand_data(run, cfg)
    places = [word for place in request.config_dir for word in ("--config-dir", str(place))]
    outcome = train(cfg, request.overrides, typed=["rerun", str(request.run), *request.overrides, *places])
    if outcome.signal is not None:
        raise Interrupted(outcome.signal)
    again = RunRecord.open(outcome.folder)
    parts = compared(run, again)
    width = max(len(part.name) for part in parts)
    for part in parts:
        print_line(f"{part.name:{width}}  {part.verdict}{f': {part.detail}' if part.detail else ''}")
    changed = surroundings(run, again)
    for line in changed:
        print_line(f"note: {line}")
    agree, gone = all(part.agree is not False for part in parts), [part.name for part in parts if part.gone]
    if not agree and not changed:
        print_line("note: nothing that the record tells of the surroundings differs")
    if agree and gone:
        print_line(f"note: no longer in {run.folder}, so that nobody knows whether they agree: {', '.join(gone)}")
    verdict = "do not agree" if not agree else "agree as far as they are there" if gone else "agree"
    print_line(f"the bits of {run.folder} and {outcome.folder} {verdict}")
    return 0 if agree and not gone else 1


main = guard.entry("rerun", rerun)
