"""Rank the labels of a run by how likely they are wrong, and show them.

    flnl audit RUN_DIR [--corrections suggested] [--min-precision 0.9] ...

It uses nothing but what the clients of the run could have computed, and no truth.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import get_args

from flnl.audit.options import Filter, Format, Options, Score
from flnl.commands import guard
from flnl.commands.parser import Parser, add_config_dir, add_data
from flnl.console.terminal import print_line
from flnl.core.errors import Interrupted, UserError


def parser() -> Parser:
    """The command's options."""
    default = Options()
    options = Parser(
        prog="flnl audit",
        description="Rank the labels of a finished run by how likely they are wrong. Writes audit.csv (a line for each "
        "sample), audit.json and a page into RUN_DIR/audit.",
        epilog="docs/audit.md explains the columns, the scores and what stays private.",
    )
    options.add_argument("run", metavar="RUN_DIR", type=Path, help="the folder of a finished run")
    add_data(options)
    what = options.add_argument_group("probabilities")
    what.add_argument(
        "--probabilities",
        metavar="SOURCE",
        default=None,
        help="window (mean over the first half of the run), all (over the whole run), final (the last model), folds, "
        "or an .npz file with pred_probs, client and sample; by default that of the first three which ranks spoiled "
        "test labels best",
    )
    what.add_argument(
        "--out-of-sample",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="the file's probabilities are of models that have not seen the sample",
    )
    what.add_argument("--folds", metavar="K", type=_whole, help="train K more times, each time without a part")
    what.add_argument("--by", choices=("samples", "clients"), default=default.by, help="what the folds divide")
    how = options.add_argument_group("scores and issues")
    how.add_argument("--score", choices=get_args(Score), default=default.score, help=f"by default {default.score}")
    how.add_argument("--adjust", action="store_true", help="subtract each class's mean probability first")
    how.add_argument(
        "--issues", metavar="FILTER", choices=get_args(Filter), default=default.issues, help=", ".join(get_args(Filter))
    )
    how.add_argument(
        "--people",
        choices=("crowdlab", "ignore"),
        default=default.people,
        help="crowdlab: where a label file has labels by several people, they judge together with the models",
    )
    how.add_argument("--prior", choices=("client", "none"), default=default.prior, help="client: bad clients first")
    how.add_argument(
        "--prior-weight",
        metavar="W",
        type=_number,
        default=default.prior_weight,
        help=f"of the client prior, 0 to 1, by default {default.prior_weight:g}",
    )
    how.add_argument(
        "--min-precision", metavar="X", type=_number, help="only issues up to the cut where X is expected to be wrong"
    )
    how.add_argument(
        "--label-privacy", metavar="EPS", type=_number, help="label differential privacy of what clients send"
    )
    how.add_argument(
        "--secret",
        metavar="FILE",
        help="what --label-privacy draws from: 32 random bytes, made if missing; by default in the user's state folder",
    )
    files = options.add_argument_group("files")
    files.add_argument("--out", metavar="DIR", help="by default RUN_DIR/audit")
    files.add_argument("--force", action="store_true", help="replace an earlier audit")
    files.add_argument("--formats", metavar="LIST", type=_formats, default=default.formats, help="html,csv,json")
    files.add_argument("--spreadsheet", action="store_true", help="put a ' before cells that look like a formula")
    files.add_argument("--clients", action="store_true", help="also an audit for each client, the others pooled")
    files.add_argument("--min-client", metavar="N", type=_whole, default=default.min_client, help="pool smaller ones")
    files.add_argument(
        "--corrections", choices=("suggested", "reviewed"), help="write corrected.csv, for dataset.labels"
    )
    files.add_argument(
        "--reviewed",
        metavar="FILE",
        action="append",
        default=[],
        help="verdicts.csv, as saved from the page; may be given more than once, as where each client saves its own",
    )
    page = options.add_argument_group("page")
    page.add_argument(
        "--top", metavar="N", type=_whole, default=default.top, help=f"suspects, by default {default.top}"
    )
    page.add_argument("--per-page", metavar="N", type=_whole, default=default.per_page, help="suspects in a file")
    page.add_argument(
        "--thumbnails", metavar="N", type=_thumbnails, default=None, help="images of the first N, or none"
    )
    options.add_argument("--quiet", action="store_true", help="print nothing but errors")
    add_config_dir(options)
    return options


def options_of(arguments: Sequence[str]) -> tuple[Path, Options, bool]:
    """The run's folder, the options, and whether to print nothing.

    Raises:
        UserError: if an argument is wrong, or does not go with another.
    """
    values = vars(parser().parse_intermixed_args(arguments))
    run, quiet = values.pop("run"), values.pop("quiet")
    if values["reviewed"] and (more := [word for word in values["data"] if "=" not in word]):
        raise UserError(f"{more[0]}: each file of verdicts takes its own --reviewed, as in --reviewed A --reviewed B")
    values |= {name: tuple(values[name]) for name in ("config_dir", "data", "reviewed")}
    return run.expanduser(), Options(**values), quiet


def command(arguments: Sequence[str]) -> None:
    """Run the command that ``arguments`` describe.

    Raises:
        Interrupted: after SIGTERM.
    """
    run, options, quiet = options_of(arguments)
    from flnl.audit.printed import show
    from flnl.sites.audit import perform

    with _interruptible():
        if quiet:
            perform(run, options)
            return
        examined, written = perform(run, options, lambda line: print_line(line, to=sys.stderr))
    for note in examined.audit.notes:
        print_line(f"note: {note}", to=sys.stderr)
    show(examined.audit, written)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Within this, SIGTERM raises ``Interrupted``, so that nothing half written stays."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _whole(text: str) -> int | str:
    """A whole number; another text as it is, which ``Options`` refuses."""
    return int(text) if text.isdecimal() else text


def _number(text: str) -> float | str:
    """A number; another text as it is, which ``Options`` refuses."""
    try:
        return float(text)
    except ValueError:
        return text


def _thumbnails(text: str) -> int | str:
    return 0 if text == "none" else _whole(text)


def _formats(text: str) -> tuple[Format, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in names if name not in get_args(Format)]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no format; there are {', '.join(get_args(Format))}")
    return names  # type: ignore[return-value] # checked above


main = guard.entry("audit", command)
