"""The papers' tables, ours beside theirs: what there is, what is missing, run it, render it.

    flnl tables list | plan | run | render [TABLE ...] [scale=small] [seeds=N] [out=FOLDER] [-- OVERRIDE ...]

What takes seconds to import is imported when something is run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flnl.cli import guard
from flnl.core.errors import UserError
from flnl.core.terminal import print_line
from flnl.tables import load
from flnl.tables.cost import Estimate, estimate
from flnl.tables.plan import Count, Plan
from flnl.tables.table import Table

VERBS = ("list", "plan", "run", "render")
LAUNCHING = ("plan", "run")
"""Those that take words on how runs are launched."""
OPTIONS = ("scale", "seeds", "out")
RESULTS = Path("results")
MOST_SEEDS = 1000
"""Beyond, a number of seeds is taken for a mistake: every cell's configuration is composed for each of them."""
MINUTE, HOUR = 60.0, 3600.0

USAGE = """\
flnl tables VERB [TABLE ...] [scale=small] [seeds=N] [out=FOLDER] [-- OVERRIDE ...]
The papers' tables, ours beside theirs. Without a TABLE: all of them.

  list    name the tables
  plan    say which runs are missing, and what they may cost by those that have been measured
  run     run what is missing; what was stopped or killed goes on where it left off
  render  write the tables and a report into results/SCALE, or the folder out; runs nothing. Index and report are of
          all tables that the folder holds

  scale   {scales}; what it changes is in conf/scale/
  seeds   so many, instead of the scale's

After -- come Hydra's words on how runs are launched: hydra/launcher=submitit_slurm hydra.launcher.partition=gpu,
hydra.launcher.n_jobs=4 for the default joblib, executor=ray, device=cpu.
A table of your own is a copy of one in conf/table/."""


@dataclass(frozen=True)
class Asked:
    """What a command asks for."""

    verb: str
    tables: tuple[Table, ...]
    every: tuple[Table, ...]  # that there are
    scale: str
    seeds: int | None
    out: Path
    overrides: tuple[str, ...]
    told: set[str] = field(default_factory=set)  # what was said of other tables

    @property
    def plan(self) -> Plan:
        """The tables at the scale."""
        return self.plan_of(self.tables)

    @property
    def held(self) -> tuple[Table, ...]:
        """The tables, and the others that the folder of results holds."""
        return tuple(t for t in self.every if t in self.tables or (self.out / f"{t.name}.md").exists())

    def plan_of(self, tables: Sequence[Table]) -> Plan:
        """These tables at the scale."""
        found = Plan(tables, load.scaling(self.scale), self.seeds, every=self.every)
        self.tell(found.wrong)
        return found

    def tell(self, wrong: Sequence[str]) -> None:
        """Say once what is wrong with tables that were not asked for."""
        for line in wrong:
            if line not in self.told:
                print_line(f"note: {line}; left out", to=sys.stderr)
                self.told.add(line)


def asked(words: Sequence[str]) -> Asked:
    """What ``words`` ask for.

    Raises:
        UserError: if that cannot be told.
    """
    before = list(words[: words.index("--")] if "--" in words else words)
    verb = load.known(before[0], VERBS, "verb") if before else ""
    if not verb:
        raise UserError(f"what shall be done? one of {', '.join(VERBS)}; see --help")
    said: dict[str, str] = {}
    names = []
    for word in before[1:]:
        key, equals, value = word.partition("=")
        if equals:
            said[_option(key, word)] = value
        else:
            names.append(load.known(Path(word).stem if word.endswith(".yaml") else word, load.names(), "table"))
    scale = load.known(said.get("scale", "small"), load.scales(), "scale")
    seeds = said.get("seeds")
    if seeds is not None and not (seeds.isdecimal() and len(seeds) < 10 and 0 < int(seeds) <= MOST_SEEDS):
        raise UserError(f"seeds={seeds}: give a number of seeds, 1 to {MOST_SEEDS}")
    tables = tuple(load.table(name) for name in dict.fromkeys(names or load.names()))
    every, wrong = load.readable()
    overrides = tuple(words[len(before) + 1 :])
    if overrides and verb not in LAUNCHING:
        raise UserError(f"{verb} takes no words after --: they are on how runs are launched")
    found = Asked(
        verb,
        tables,
        every,
        scale,
        None if seeds is None else int(seeds),
        Path(said["out"]) if "out" in said else RESULTS / scale,
        overrides,
    )
    found.tell(wrong)
    return found


def _option(key: str, word: str) -> str:
    try:
        return load.known(key, OPTIONS, "option of tables")
    except UserError as error:
        raise UserError(f"{error}; words on how runs are launched come after --, as in -- {word}") from None


def listed(tables: Sequence[Table]) -> None:
    """A line a table: its name, what it is, its size, and the rows that nothing can run yet."""
    width = max(len(table.name) for table in tables)
    for table in tables:
        paper = f"{table.paper} {table.number}".strip()
        missing = list(dict.fromkeys(row.missing for row in table.rows if row.missing is not None))
        lacks = f"; there is no {', '.join(missing)} yet" if missing else ""
        size = f"{len(table.rows)} x {len(table.columns)}"
        name = f"{table.name:<{width}}"
        print_line(f"{name}  {f'{paper}: ' if paper else ''}{table.title} ({table.metric.name}, {size}{lacks})")


def planned(plan: Plan) -> None:
    """What there is, what is missing, and what that may cost."""
    for table in plan.filled():
        print(f"{table.table.name:<11} {Count.of([table])}")
    missing = plan.missing
    print(f"scale={plan.scaling.name}: {Count.of(plan.filled())}")
    print(f"{len(plan.runs)} different runs are behind them, of which {len(missing)} are missing")
    if missing:
        print(_cost(plan))


def _cost(plan: Plan) -> str:
    """A line for CPUs and one for GPUs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpu, gpu = estimate(plan, gpu=False), estimate(plan, gpu=True)
    on_cpu = f"about {_time(cpu.seconds)} one after the other, {_time(cpu.seconds / cores)} on {cores} cores"
    return f"on a CPU: {_known(cpu, on_cpu)}\non a GPU: {_known(gpu, f'about {gpu.seconds / HOUR:.1f} GPU hours')}"


def _known(found: Estimate, said: str) -> str:
    """What is ``said``, with what it rests on."""
    if not found.measured:
        return "no estimate: nothing measured"
    if not found.runs:
        return "no estimate: nothing measured with their data set and network"
    covered = f"{said} for {found.runs} of {found.runs + found.unknown} runs, by the rounds of {found.measured}"
    guessed = f"; {found.guessed} of them go by other methods or batch sizes" if found.guessed else ""
    unknown = f"; no estimate for {found.unknown}: nothing measured with their data set and network"
    return covered + guessed + (unknown if found.unknown else "")


def _time(seconds: float) -> str:
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / HOUR:.1f} h" if seconds >= HOUR else f"{seconds / MINUTE:.0f} min"


def run(question: Asked) -> int:
    """Run what is missing and count the cells; gives the exit code: 1 where a cell or the launcher has failed."""
    plan, whole = question.plan, True
    if missing := plan.missing:
        print(f"{len(missing)} of {len(plan.runs)} runs are missing\n{_cost(plan)}", file=sys.stderr, flush=True)
        from flnl.tables.launch import launch

        whole = launch(plan, question.overrides)
    found = Count.of(question.plan.filled())
    print(found)
    return 1 if found.failed or not whole else 0


def render(question: Asked) -> None:
    """Write the tables, and an index and a report over all tables that the folder holds.

    Raises:
        UserError: if nothing that can run has run, rather than writing that over what another has run.
    """
    from flnl.tables.notes import noted
    from flnl.tables.render import render as write

    plan, names = question.plan_of(question.held), {table.name for table in question.tables}
    found = plan.filled()
    count = Count.of([one for one in found if one.table.name in names])
    if count.possible and not count.run:
        raise UserError(f"nothing of these tables has run at scale={question.scale} yet: flnl tables run")
    foreign = [one.table.name for one in found if one.table.name not in names and not Count.of([one]).run]
    filled = noted(plan)
    for file in write(filled, question.out, names, together=not foreign):
        print_line(file)
    if foreign:
        print_line(
            f"note: index and report of {question.out} are as they were: they are over tables that have not run here "
            f"({', '.join(foreign)}); out=FOLDER writes others",
            to=sys.stderr,
        )


def command(words: Sequence[str]) -> None:
    """Do what ``words`` ask for.

    Raises:
        UserError: for what the user can mend.
        SystemExit: 1, if a cell has failed.
    """
    question = asked(words)
    if question.overrides:
        from flnl.tables.launch import check

        check(question.plan, question.overrides)
    if question.verb == "list":
        listed(question.tables)
    elif question.verb == "plan":
        planned(question.plan)
    elif question.verb == "run":
        sys.exit(run(question))
    else:
        render(question)


def main() -> None:
    """What ``flnl tables`` runs."""
    words = sys.argv[1:]
    if {"-h", "--help"} & set(words):
        print(USAGE.format(scales=", ".join(load.scales())))
        return
    guard.guarded(lambda: command(words), overrides=False)


if __name__ == "__main__":
    main()
