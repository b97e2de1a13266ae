"""The benchmark: every method at equal budgets, tuned alike, on tasks that tell methods apart.

    flnl benchmark list
    flnl benchmark run KEY=VALUE ... [--name NAME] [--trials N] [--tasks NAME,NAME | --tier S] [--config-dir DIR]
        [-- OVERRIDE ...]
    flnl benchmark verify [--name NAME] [--tasks NAME,NAME | --tier S] [--draw WORD | --each] [--keep] [-- OVERRIDE ...]
    flnl benchmark render

``run`` makes the entry of a method, or adds to it what it lacks: the learning rate is chosen by held-out noisy labels
under the tuning seeds, then run under the seeds of the scores. With ``--trials N`` a method's own constants that have
several values are searched with it (ruleset B). ``verify`` makes one run of an entry again, which the
date draws, and compares its numbers; with ``--each`` that of the first seed of every entry and task. ``--keep`` writes
down what came out, from which the page has processor times: FedAvg's are made on the same machine.

Exit codes of ``verify``: 0, all numbers are those of the entry; 1, some are not.
"""

from __future__ import annotations

import shlex
import signal
import sys
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path

from flnl.commands import guard
from flnl.commands.parser import Parser, add_config_dir
from flnl.config.folders import search_path
from flnl.config.override_text import key_of
from flnl.config.pinning import pin
from flnl.console.shell import divided
from flnl.console.terminal import print_line
from flnl.console.words import counted
from flnl.core.errors import Interrupted, UserError
from flnl.instruments.benchmark import definition, entries
from flnl.instruments.benchmark.definition import TIERS, Benchmark, Task
from flnl.instruments.benchmark.entering import candidates, composed, lacks_noise_rate, needs_clean_samples, searched
from flnl.instruments.benchmark.entries import CEILING, CLEAN, FEDAVG, RESULTS, SCORES, Claim, Entry, claims, drawn
from flnl.instruments.benchmark.reruns import Program, Rerun, Reruns
from flnl.instruments.tune.runs import Runs
from flnl.record.run import RunRecord
from flnl.record.trace import Trace
from flnl.record.tuned import Tuned
from flnl.storage.output_file import check_folder, save_output
from flnl.sweep import listed


def parser() -> Parser:
    """The command's arguments."""
    arguments = Parser(
        prog="flnl benchmark",
        description="Every method at equal budgets, tuned alike, on tasks that tell methods apart. docs/benchmark.md "
        "has the rules, results/benchmark the results.",
        epilog="Runs lie in multirun/tune by their keys; the same command goes on where it was stopped. After -- come "
        "overrides of how runs are launched: executor=stacked, device=cpu and, of run, hydra.launcher.n_jobs=4.",
        allow_abbrev=False,
    )
    arguments.add_argument(
        "verb",
        choices=("list", "run", "verify", "render"),
        help="list: the tasks and who has entered; run: what an entry lacks; verify: one run of an entry again; "
        "render: the page",
    )
    arguments.add_argument(
        "overrides",
        metavar="KEY=VALUE",
        nargs="*",
        help="of run: what is entered, as in method=fedcorr "
        f"or method=fedcorr,flr; {CEILING} is FedAvg on right labels, for comparison",
    )
    arguments.add_argument(
        "--name", metavar="NAME", help="of the entry; by default that of the method, and of verify any"
    )
    arguments.add_argument(
        "--trials",
        metavar="N",
        type=int,
        help="of run: search the method's own keys that have several values, too, in N combinations (ruleset B)",
    )
    arguments.add_argument("--tasks", metavar="NAME,NAME", help="these tasks alone")
    arguments.add_argument(
        "--tier", choices=tuple(TIERS), help="; ".join(f"{tier}: {of}" for tier, of in TIERS.items())
    )
    arguments.add_argument(
        "--draw", metavar="WORD", help="of verify: what draws the run that is made again; by default today's date"
    )
    arguments.add_argument(
        "--each",
        action="store_true",
        help="of verify: the first seed of every entry in every task",
    )
    arguments.add_argument(
        "--keep",
        action="store_true",
        help="of verify: write down what comes out, and leave out what this program has made again on this machine",
    )
    arguments.add_argument("--version", metavar="VERSION", help="of the benchmark; by default the newest")
    arguments.add_argument(
        "--results", metavar="FOLDER", type=Path, default=RESULTS, help="by default results/benchmark"
    )
    add_config_dir(arguments)
    return arguments


def benchmark(arguments: Sequence[str]) -> bool:
    """Do what the first argument says.

    Returns:
        False if a run that was made again gives other numbers.

    Raises:
        UserError: for what the user can mend.
    """
    before, launching = divided(arguments)
    options = parser().parse_intermixed_args(before)
    version = definition.load(options.version)
    if options.verb != "run" and options.overrides:
        raise UserError(f"flnl benchmark {options.verb} takes no overrides; run does")
    if options.verb not in ("run", "verify") and (launching or options.name):
        raise UserError(f"flnl benchmark {options.verb} takes no --name, and nothing after --; run and verify do")
    if options.verb != "run" and options.trials is not None:
        raise UserError(f"flnl benchmark {options.verb} takes no --trials; run does")
    if options.verb not in ("run", "verify") and (options.tasks or options.tier or options.config_dir):
        raise UserError(f"flnl benchmark {options.verb} takes no --tasks, --tier, --config-dir; run and verify do")
    if options.verb != "verify" and (options.draw or options.each or options.keep):
        raise UserError(f"flnl benchmark {options.verb} takes no --draw, --each, --keep; verify does")
    if options.draw and options.each:
        raise UserError("--draw chooses one run, and --each takes many: give one of them")
    if options.keep and launching:
        raise UserError("--keep takes nothing after --: what is kept are the entries' own runs")
    if options.verb == "list":
        show(version, options.results)
    elif options.verb == "run":
        run(version, options, launching, ["flnl", "benchmark", *arguments])
    elif options.verb == "verify":
        return verify(version, options, launching)
    else:
        render(version, options.results)
    return True


def show(version: Benchmark, results: Path) -> None:
    """Print the tasks, and which entries have scores of how many."""
    print_line(f"benchmark {version.version}: {version.grid} by held-out noisy labels; seeds {_listed(version.seeds)}")
    width = max(map(len, version.tasks))
    for task in version.tasks.values():
        print_line(f"  {task.name:{width}}  {task.tier}  {task.title}")
    found = [*entries.entries(version, results)]
    for entry in found:
        there = sum(entry.score(version, task) is not None for task in version.tasks.values())
        more = f"{', ruleset B' if entry.searched(version) else ''}{', withdrawn' if entry.withdrawn else ''}"
        print_line(f"{entry.name}: {there} of {len(version.tasks)} tasks{more}")
    if not found:
        print_line(f"{results / version.version} has no entry yet: flnl benchmark run method=fedavg")


def run(version: Benchmark, options: Namespace, launching: Sequence[str], typed: Sequence[str]) -> None:
    """Make or complete entries, whose files name the command as it was ``typed``.

    Raises:
        UserError: if the command does not say which, or a run fails.
    """
    tasks = _tasks(version, options)
    wanted = candidates(version, options.overrides, options.name, options.trials)
    folders = {one.name: entries.folder_of(version, one.name, options.results) for one in wanted}
    experiments_of = {one.name: one.experiments(tasks) for one in wanted}
    search = ["--margin", str(version.margin), "--skip", "chosen"]
    if options.trials is not None:
        search = ["--trials", str(options.trials)]
    pin()  # before torch is first imported
    for one in wanted:
        check_same(folders[one.name], one.name, one.overrides, options.trials, search_path(options.config_dir))
    from flnl.commands.tune import tune

    failed = []
    for candidate in wanted:
        name, overrides, folder = candidate.name, candidate.overrides, folders[candidate.name]
        check_folder(f"--results {options.results}", folder)
        axes = searched(version, overrides)
        fixed = [*search_path(options.config_dir), *(one for one in overrides if key_of(one) not in axes)]
        tried = {one: composed([*fixed, f"experiment={one}"]) for one in experiments_of[name]}
        unstated = [one for one, cfg in tried.items() if cfg is not None and lacks_noise_rate(cfg)]
        if unstated:
            print_line(
                f"{name} needs the noise rate; left out, since none is stated: {', '.join(unstated)}", to=sys.stderr
            )
        experiments = [one for one in tried if one not in unstated]
        if not experiments:
            failed.append(f"{name}: no task states the noise rate")
            continue
        cfg = tried[experiments[0]]
        clean = [f"{CLEAN}={version.clean_share}"] if cfg is not None and needs_clean_samples(cfg) else []
        folder.mkdir(parents=True, exist_ok=True)
        print_line(f"{name}: {counted(len(experiments), 'task')}", to=sys.stderr)
        try:
            tune(
                [
                    *overrides,
                    *clean,
                    f"experiment={','.join(experiments)}",
                    version.grid,
                    *("--each", "method", "--each", "experiment"),
                    *("--measure", "validation", "--share", str(version.share)),
                    *("--seeds", _listed(version.tuning_seeds), "--report", _listed(version.seeds)),
                    *("--out", str(folder / SCORES), "--add", *search),
                    *(part for place in options.config_dir for part in ("--config-dir", str(place))),
                    *("--", "reproducible=true", *launching),
                ],
                typed,
            )
        except UserError as error:  # the next entry may be whole
            failed.append(f"{name}: {error}")
            if len(wanted) > 1:
                print_line(failed[-1], to=sys.stderr)
            with suppress(OSError):
                folder.rmdir()  # if nothing is in it
    if failed:
        raise UserError(f"not whole: {'; '.join(failed)}")


def _tasks(version: Benchmark, options: Namespace) -> list[Task]:
    """Those that the command is about.

    Raises:
        UserError: if there is none.
    """
    return version.chosen(() if options.tasks is None else options.tasks.split(","), options.tier)


def check_same(
    folder: Path, name: str, overrides: Sequence[str], trials: int | None = None, own: Sequence[str] = ()
) -> None:
    """Check that the entry in a folder, if there is one, is of the same method with the same keys and the same search.

    Args:
        folder: the entry's.
        name: the entry's.
        overrides: the method and what is set or searched.
        trials: of the search; None of ruleset A.
        own: what adds folders of the user's to the search path.

    Raises:
        UserError: if it is not, or if the files that the method is composed of have changed since.
    """
    if not (folder / SCORES).exists():
        return
    entry = Entry(name, folder, Tuned.load(folder / SCORES))
    words, searched_in = _typed(entry)
    there = [f"method={entry.method}", *words]
    if ({*there}, searched_in) != ({*overrides}, trials):
        of = " ".join([*there, *(() if searched_in is None else ("--trials", str(searched_in)))])
        raise UserError(f"{name} is the entry of {of}: give this one a --name of its own")
    runs = Runs(entry.tuned.seeds, entry.tuned.measure, (), (), own=own)
    if (study := next((one for one in entry.tuned.studies if not runs.current(one)), None)) is not None:
        raise UserError(
            f"{name} has scores in {study.each['experiment']} of another configuration of {entry.method}, or of other "
            f"data, than today's: give this one a --name of its own, or remove {folder}"
        )


def _typed(entry: Entry) -> tuple[Sequence[str], int | None]:
    """What an entry's command sets and searches, but for the method, and in how many trials; None of ruleset A."""
    command = entry.tuned.command
    if [*command[:2]] != ["flnl", "benchmark"]:
        return entry.own, None
    options = parser().parse_intermixed_args(divided(command[2:])[0])
    return [one for one in options.overrides if one != CEILING and key_of(one) != "method"], options.trials


def verify(version: Benchmark, options: Namespace, launching: Sequence[str]) -> bool:
    """Make runs of entries again; return whether all their numbers are those of the entries.

    Raises:
        UserError: if there is no such run, or one cannot be made here: others are made nevertheless.
    """
    for word in launching:
        if word.lstrip("+~").startswith("hydra") or not listed.keeps_key(word):
            raise UserError(f"{word}: verify makes the entries' own runs, whole and one after another: leave it out")
    folder = options.results / version.version
    if options.keep:
        check_folder(f"--results {options.results}", folder)
    tasks = _tasks(version, options)
    chosen = _chosen(claims(version, [*entries.entries(version, options.results)], tasks), version, options)
    if not chosen:
        raise UserError(f"{folder} has no run of {'an entry' if options.name is None else options.name} in these tasks")
    pin()  # before torch is first imported
    same, failed = True, []
    kept, here = (Reruns.load(folder), _program()) if options.keep else (Reruns(), (None, None))
    for number, claim in enumerate(chosen, 1):
        before = kept.of(claim.run, here)
        of = f"[{number}/{len(chosen)}] " if len(chosen) > 1 else ""
        print_line(f"{of}{claim}: {'made again before' if before else shlex.join(['flnl', *claim.overrides])}")
        try:
            rerun = before or _again(claim, search_path(options.config_dir), launching)
        except UserError as error:  # such as data that are not here
            failed.append(f"{claim}: {error}")
            print_line(f"failed: {failed[-1]}", to=sys.stderr)
            continue
        _tell(claim, rerun)
        same &= not rerun.different
        if options.keep and before is None:
            Reruns.add(folder, rerun)
    if failed:
        raise UserError(f"not made: {'; '.join(failed)}")
    return same


def _chosen(those: Sequence[Claim], version: Benchmark, options: Namespace) -> list[Claim]:
    """What is made again: the first seed of each, with FedAvg's if times are kept, or the one that is drawn."""
    named = [claim for claim in those if options.name in (None, claim.entry)]
    if not options.each:
        return [drawn(named, date.today().isoformat() if options.draw is None else options.draw)] if named else []
    tasks = {claim.task for claim in named}
    base = [claim for claim in those if claim.entry == FEDAVG and claim.task in tasks and options.keep]
    first = [claim for claim in (*base, *named) if claim.seed == version.seeds[0]]
    return [*{claim.run: claim for claim in first}.values()]


def _program() -> Program:
    """What makes runs here."""
    from flnl.run.record import environment

    here = environment()
    return here.machine, here.commit


def _again(claim: Claim, own: Sequence[str], launching: Sequence[str]) -> Rerun:
    """Make a run again."""
    from flnl.api.runs import run as trained

    quiet = ("wandb.mode=disabled", "figures=false", "products=false")
    with tempfile.TemporaryDirectory() as folder:
        if trained([*own, *claim.overrides, *quiet, f"output={folder}/run", *launching]).status != "finished":
            raise Interrupted(signal.SIGINT)  # its numbers are those of some rounds
        return Rerun.of(claim.run, claim.trace, Trace.of(RunRecord.open(Path(folder) / "run")))


def _tell(claim: Claim, rerun: Rerun) -> None:
    """Print how the numbers compare."""
    print_line(f"{claim}: {counted(rerun.numbers, 'number')}, {len(rerun.different) or 'none'} different")
    for name, (first, here) in rerun.different.items():
        print_line(f"  {name}: {first!r} then, {here!r} now")
    for origin in claim.trace.origins if rerun.different else ():
        print_line(f"then: torch {origin.torch}, {origin.machine}, commit {origin.commit}; now: torch {rerun.torch}")


def render(version: Benchmark, results: Path) -> None:
    """Write the page of each tier that has entries, and its figures.

    Raises:
        UserError: if there is no entry.
    """
    from flnl.instruments.benchmark import figures
    from flnl.instruments.benchmark.page import file_of, pages, suffix

    found = [*entries.entries(version, results)]
    if not found:
        raise UserError(f"{results / version.version} has no entry yet: flnl benchmark run method=fedavg")
    folder = results / version.version
    for page in pages(version, found, folder, Reruns.load(folder)):
        shown = {"ranks": figures.ranks(page.leaderboard)} if len(page.leaderboard.scores) > 1 else {}
        if page.timed:
            shown["cost"] = figures.costs(page)
        for name, figure in shown.items():
            file = folder / f"{name}{suffix(page.tier)}.png"
            figure.savefig(file, dpi=150)
            print_line(str(file))
        text = folder / file_of(page.tier)
        save_output(str(text), text, page.markdown().encode())
        print_line(str(text))


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


main = guard.entry("benchmark", lambda arguments: 0 if benchmark(arguments) else 1)
