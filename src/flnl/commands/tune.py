"""Choose hyperparameters on seeds, or on samples, that are kept out of the results.

    flnl tune KEY=VALUE ... KEY=VALUE,VALUE ... [--each KEY] [--seeds 101,102,103] [--measure validation]
        [--margin 0.05] [--report 1,2,3,4,5] [--out FILE [--add [--skip chosen]]] [--markdown FILE] [--config-dir DIR]

Keys with several values are the axes of a grid; with ``--margin``, combinations far behind are dropped after each seed.
With ``--trials N`` Optuna searches them, and intervals too. With ``--report`` the chosen combination is then run under
other seeds, whose results are those to publish.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from flnl.commands import guard
from flnl.commands.parser import Parser, add_config_dir
from flnl.config.folders import search_path
from flnl.config.override_text import key_of
from flnl.console.shell import divided
from flnl.console.terminal import print_line
from flnl.core.errors import UserError
from flnl.instruments.tune.checks import refuse_fractions, refuse_share
from flnl.instruments.tune.choices_file import ChoicesFile
from flnl.instruments.tune.runs import Known, Runs
from flnl.instruments.tune.scores import HELD_OUT, MARGIN, MEASURES, RESULT, SHARE, VALIDATION, share_of
from flnl.instruments.tune.shown import markdown, show, show_reported
from flnl.instruments.tune.space import Space, optuna_search
from flnl.record.tuned import Question, Study, Trial, Tuned, Values
from flnl.storage.output_file import check_output, save_output
from flnl.sweep import listed
from flnl.sweep.keys import refuse_keys

FILE = Path("tuned.json")
SEEDS = (101, 102, 103)


def parser() -> Parser:
    """The command's options."""
    options = Parser(
        prog="flnl tune",
        description="Choose hyperparameters on seeds, or on samples, that are kept out of the results.",
        epilog="Runs lie in multirun/tune by their keys; the same command goes on where it was stopped. After -- come "
        "overrides of how runs are launched: hydra.launcher.n_jobs=4, executor=stacked, device=cpu.",
        allow_abbrev=False,
    )
    options.add_argument(
        "overrides",
        metavar="KEY=VALUE",
        nargs="+",
        help="overrides of a run; those with several values are chosen from: train.lr=0.003,0.01,0.03,0.1",
    )
    options.add_argument(
        "--each",
        metavar="KEY",
        action="append",
        default=[],
        help="choose anew for each value of this key: --each method",
    )
    options.add_argument(
        "--seeds", metavar="N,N", type=_seeds, default=SEEDS, help="seeds to average over, by default 101,102,103"
    )
    options.add_argument(
        "--report",
        metavar="N,N",
        type=_seeds,
        default=(),
        help="seeds under which the choice is run afterwards; their results go into the file",
    )
    options.add_argument(
        "--measure",
        metavar="NAME",
        choices=MEASURES,
        default=VALIDATION,
        help="; ".join(f"{name}: {text}" for name, text in MEASURES.items())
        + f". By default {VALIDATION}: the others choose on the test images, on which results are reported",
    )
    options.add_argument(
        "--share", metavar="X", type=_share, help="share of samples held out for --measure validation; by default 0.1"
    )
    options.add_argument(
        "--margin",
        metavar="X",
        type=partial(_share, what=MARGIN),
        help="go from seed to seed, and only on with combinations whose mean so far is within X of the best; 0.05 is "
        "five points. By default, every combination is run under every seed",
    )
    options.add_argument(
        "--trials", metavar="N", type=_count, help="search with Optuna (extra hpo), so many combinations"
    )
    options.add_argument(
        "--out", metavar="FILE", type=Path, default=FILE, help=f"all scores and the choice, by default {FILE}"
    )
    options.add_argument(
        "--add",
        action="store_true",
        help="keep the choices that FILE holds of other commands; they must have the same measure, seeds and keys, and "
        "the same overrides but for the keys under --each. Choices for the same values are replaced",
    )
    options.add_argument(
        "--skip",
        choices=("none", "chosen", "traced"),
        default="none",
        help="with --add, leave out what FILE has already: a choice from the same grid, with the results of --report "
        "(chosen), or such a choice and the trace of each of its runs (traced); of another grid, the runs FILE has "
        "with a trace. By default nothing is left out",
    )
    options.add_argument("--markdown", metavar="FILE", type=Path, help="write tables of results and scores to FILE")
    add_config_dir(options)
    return options


def _seeds(text: str) -> tuple[int, ...]:
    seeds = text.split(",")
    if not all(seed.isdecimal() and len(seed) < 10 for seed in seeds) or len(set(map(int, seeds))) < len(seeds):
        raise ArgumentTypeError(f"{text} is no list of different seeds such as 101,102,103")
    return tuple(map(int, seeds))


def _count(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) <= 10_000):
        raise ArgumentTypeError(f"{text} is no number from 1 to 10000")
    return int(text)


def _share(text: str, what: str = "share between 0 and 1") -> float:
    try:
        return share_of(text, what)
    except UserError as error:
        raise ArgumentTypeError(str(error)) from None


def tune(arguments: Sequence[str], typed: Sequence[str] | None = None) -> None:
    """Try what the command's overrides span, write the file and show the choice.

    Args:
        arguments: those of ``flnl tune``.
        typed: the command that the file and the user are told; by default this one.

    Raises:
        UserError: for what the user can mend, and if nothing could be chosen.
    """
    before, launching = divided(arguments)
    options = parser().parse_intermixed_args(before)
    if seeds := [one for one in options.overrides if key_of(one) == "seed"]:
        raise UserError(f"{seeds[0]}: seeds are given as --seeds 101,102,103")
    space = Space.of(_with_share(options.overrides, options.measure, options.share))
    if shared := set(options.seeds) & set(options.report):
        raise UserError(f"--report {min(shared)}: this seed takes part in the choice; --seeds and --report share none")
    for name, path in (("--out", options.out), ("--markdown", options.markdown)):
        if path is not None:
            check_output(f"{name} {path}", path)  # before anything runs
    refuse_keys([*space.fixed, *(axis.key for axis in space.axes)])
    own, command = search_path(options.config_dir), typed or ["flnl", "tune", *arguments]
    parts = space.split(options.each)
    each, part = parts[0]
    question = Question.of(options.measure, options.seeds, part.fixed, each, [axis.key for axis in part.axes])
    runs = Runs(options.seeds, options.measure, launching, command, own=own)
    file = ChoicesFile(options.out, question, command, options.add)
    file, there = file.without_stale([each for each, _ in parts], runs)
    kept = there if options.add else None
    parts = _without_known(parts, kept, options)
    if kept is not None and not parts:
        _write_markdown(kept, options)
        print_line(f"{options.out} has all of it")
        return
    if kept is not None and options.skip != "none":
        runs = replace(runs, known=Known.of(kept))
    listed.check([*own, *parts[0][1].fixed], launching, "write it before --")
    spaces = [part for _, part in parts]
    for space in spaces:
        refuse_fractions(space, own)
    if options.measure == VALIDATION:
        refuse_share(spaces, options.seeds, "--share ", own)
    tried = _tried(spaces, runs, options)
    studies = [Study(each, part.fixed, trials) for (each, part), trials in zip(parts, tried, strict=True)]
    tuned = Tuned(command, options.measure, options.seeds, studies)
    show(tuned, own)
    if all(study.chosen is None for study in studies) and file.has_choice():
        raise UserError(
            f"nothing could be chosen: every combination has a run that failed; {options.out} stays as it is"
        )
    _write_markdown(file.write(tuned), options)
    if options.report:
        tuned = replace(tuned, studies=runs.reported(studies, options.report))
        show_reported(tuned)
        _write_markdown(file.write(tuned), options)
    for path in (options.out, options.markdown):
        if path is not None:
            print_line(str(path))
    if any(
        score is None for study in tuned.studies if study.reported for score in study.reported.scores[RESULT].values()
    ):
        raise UserError("a run of --report failed; see the file")
    if any(study.chosen is None for study in studies):
        raise UserError("nothing could be chosen where every combination has a run that failed; see the table")


def _write_markdown(tuned: Tuned, options: Namespace) -> None:
    if options.markdown is not None:
        save_output(f"--markdown {options.markdown}", options.markdown, markdown(tuned).encode())


def _without_known(
    parts: Sequence[tuple[Values, Space]], before: Tuned | None, options: Namespace
) -> list[tuple[Values, Space]]:
    """What is to be tried: without what ``--skip`` leaves out, which is told."""
    if options.skip == "none":
        return list(parts)
    if not options.add:
        raise UserError(f"--skip {options.skip} leaves out what the file has that --add adds to; add --add")
    if options.trials is not None:
        raise UserError(f"--skip {options.skip} goes with a grid: leave out --trials, or --skip")
    if before is None:
        return list(parts)
    traced = options.skip == "traced"
    left = [(each, part) for each, part in parts if not before.has(each, part.grid(), options.report, traced=traced)]
    if len(left) < len(parts):
        print_line(f"{len(parts) - len(left)} of {len(parts)} choices are in {options.out} and left out", to=sys.stderr)
    return left


def _with_share(overrides: Sequence[str], measure: str, share: float | None) -> list[str]:
    if measure != VALIDATION:
        if share is not None:
            raise UserError(f"--share {share}: only --measure {VALIDATION} holds samples out; add it")
        return list(overrides)
    if any(key_of(one) == HELD_OUT for one in overrides):
        raise UserError("the share that --measure validation holds out is given as --share 0.1; or add --measure last")
    return [*overrides, f"{HELD_OUT}={SHARE if share is None else share}"]


def _tried(spaces: Sequence[Space], runs: Runs, options: Namespace) -> list[list[Trial]]:
    if options.trials is None:
        return runs.grids(spaces, options.margin)
    if options.margin is not None:
        raise UserError("--margin goes with a grid: leave out --trials, or --margin")
    return [optuna_search(space, partial(runs.trials, space.fixed), options.trials) for space in spaces]


main = guard.entry("tune", tune)
