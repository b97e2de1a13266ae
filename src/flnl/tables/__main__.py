"""The papers' tables, our numbers beside theirs: list the tables, plan and run missing runs, render results.

    flnl tables list | plan | run | render [TABLE ...] [scale=small] [seeds=N] [rows=LABEL] [columns=LABEL]
        [tuned=FILE] [verify=false] [records=FOLDER] [out=FOLDER] [-- OVERRIDE ...]

Modules that take seconds to import are imported only when something is run.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flnl.cli import guard
from flnl.config import compose
from flnl.core.cores import usable_cores
from flnl.core.errors import UserError
from flnl.core.terminal import HOUR, duration, print_line
from flnl.storage.paces import Paces
from flnl.storage.tuned import Tuned
from flnl.tables import load
from flnl.tables.cost import Estimate, estimate
from flnl.tables.plan import Count, Plan
from flnl.tables.selection import Selection
from flnl.tables.table import Table

VERBS = ("list", "plan", "run", "render")
LAUNCHING = ("plan", "run")
"""The verbs that take a selection of cells, and overrides after ``--``: how runs are launched."""
OPTIONS = ("scale", "seeds", "rows", "columns", "tuned", "verify", "records", "out")
REPEATABLE = ("rows", "columns")
"""The options that may be given several times."""
RESULTS = Path("results")
MOST_SEEDS = 1000
"""A larger number of seeds is refused as a mistake: every cell's configuration is composed once for each seed."""

USAGE = """\
flnl tables VERB [TABLE ...] [scale=small] [seeds=N] [rows=LABEL] [columns=LABEL] [tuned=FILE]
            [verify=false] [records=FOLDER] [out=FOLDER] [-- OVERRIDE ...]
The papers' tables, our numbers beside theirs. Without a TABLE: all tables.

  list    list the tables
  plan    show which runs are missing, and estimate their cost from finished runs
  run     run what is missing; a run that was stopped or killed continues from its last checkpoint
  render  write the tables and a report into results/SCALE, or into the folder out; starts no run. The index and the
          report cover all tables in that folder

  scale   {scales}; conf/scale/ says what each changes
  seeds   number of seeds, instead of the scale's
  rows    plan and run only rows with this label; * and ? stand for any characters, as in rows='*LeNet-5', and
          rows=A rows=B selects both
  columns the same for columns: columns='ρ=0.6*'
  tuned   a file of flnl tune: rows of the methods that it names get the values that it chose for them,
          and the folder of results is results/SCALE_tuned
  verify  verify=false takes data files that differ from the published ones, such as copies that went through JPEG;
          these are runs of their own, and notes under the tables tell of them
  records a folder of records that render wrote, such as results/lenet/runs: the runs that it has count as finished
          here, so tables can be made on several machines, one after the other

After --, overrides set how runs are launched: hydra/launcher=submitit_slurm hydra.launcher.partition=gpu,
hydra.launcher.n_jobs=4 for the default joblib, executor=ray, device=cpu.
To add a table, copy one in conf/table/."""


@dataclass(frozen=True)
class Request:
    """The parsed command line."""

    verb: str
    tables: tuple[Table, ...]  # the selected tables, with the selected rows and columns
    every: tuple[Table, ...]  # all readable tables
    scale: str
    seeds: int | None
    tuned: Tuned | None
    verify: bool  # whether data files must be the published ones
    records: Path | None  # records of runs that count as finished
    out: Path
    overrides: tuple[str, ...]
    warned: set[str] = field(default_factory=set)  # warnings already printed

    @property
    def plan(self) -> Plan:
        """The plan of the selected tables at the scale."""
        return self.plan_of(self.tables)

    @property
    def held(self) -> tuple[Table, ...]:
        """The selected tables, and all others that the output folder already contains."""
        return tuple(t for t in self.every if t in self.tables or (self.out / f"{t.name}.md").exists())

    def plan_of(self, tables: Sequence[Table]) -> Plan:
        """The plan of ``tables`` at the scale."""
        scaling = load.scaling(self.scale)
        if not self.verify:
            scaling = scaling.unverified()
        if self.tuned is not None:
            scaling = scaling.tuned(self.tuned)
            self.warn([f"tuned: no row of these tables is of {cells}" for cells in scaling.unused(tables)])
        plan = Plan(tables, scaling, self.seeds, every=self.every)
        self.warn(plan.wrong)
        return plan

    def warn(self, faults: Sequence[str]) -> None:
        """Print each fault of a table that was not selected, once."""
        for line in faults:
            if line not in self.warned:
                print_line(f"note: {line}; left out", to=sys.stderr)
                self.warned.add(line)


def parse(arguments: Sequence[str]) -> Request:
    """Parse the command line.

    Raises:
        UserError: for an unknown verb, table, scale or option.
    """
    before = list(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    verb = load.known(before[0], VERBS, "verb") if before else ""
    if not verb:
        raise UserError(f"which command? one of {', '.join(VERBS)}; see --help")
    options: dict[str, list[str]] = {}
    names = []
    for argument in before[1:]:
        key, equals, value = argument.partition("=")
        if equals:
            options.setdefault(_option(key, argument), []).append(value)
        else:
            name = Path(argument).stem if argument.endswith(".yaml") else argument
            names.append(load.known(name, load.names(), "table"))
    if twice := [key for key, values in options.items() if len(values) > 1 and key not in REPEATABLE]:
        raise UserError(f"{twice[0]} is given twice; give one value")
    last = {key: values[-1] for key, values in options.items()}
    selection = Selection(tuple(options.get("rows", ())), tuple(options.get("columns", ())))
    if selection and verb not in LAUNCHING:
        raise UserError(f"{verb} takes no rows or columns: it shows whole tables")
    scale = load.known(last.get("scale", "small"), load.scales(), "scale")
    seeds = last.get("seeds")
    if seeds is not None and not (seeds.isdecimal() and len(seeds) < 10 and 0 < int(seeds) <= MOST_SEEDS):
        raise UserError(f"seeds={seeds}: give a number of seeds, 1 to {MOST_SEEDS}")
    tables = selection.of([load.table(name) for name in dict.fromkeys(names or load.names())])
    every, wrong = load.readable()
    overrides = tuple(arguments[len(before) + 1 :])
    if overrides and verb not in LAUNCHING:
        raise UserError(f"{verb} takes no overrides after --: it launches no runs")
    request = Request(
        verb,
        tables,
        every,
        scale,
        None if seeds is None else int(seeds),
        Tuned.load(Path(last["tuned"])) if "tuned" in last else None,
        load.known(last.get("verify", "true"), ("true", "false"), "value of verify") == "true",
        Path(last["records"]) if "records" in last else None,
        Path(last["out"]) if "out" in last else RESULTS / (f"{scale}_tuned" if "tuned" in last else scale),
        overrides,
    )
    request.warn(wrong)
    return request


def _option(key: str, argument: str) -> str:
    try:
        return load.known(key, OPTIONS, "option of tables")
    except UserError as error:
        raise UserError(f"{error}; overrides of how runs are launched come after --, as in -- {argument}") from None


def print_tables(tables: Sequence[Table]) -> None:
    """Print one line per table: name, title, metric, size, and the methods that are not implemented."""
    width = max(len(table.name) for table in tables)
    for table in tables:
        paper = f"{table.paper} {table.number}".strip()
        missing = list(dict.fromkeys(row.missing for row in table.rows if row.missing is not None))
        lacks = f"; there is no {', '.join(missing)} yet" if missing else ""
        size = f"{len(table.rows)} x {len(table.columns)}"
        name = f"{table.name:<{width}}"
        print_line(f"{name}  {f'{paper}: ' if paper else ''}{table.title} ({table.metric.name}, {size}{lacks})")


def print_plan(plan: Plan) -> None:
    """Print how many cells have run, how many runs are missing, and an estimate of their cost."""
    for table in plan.filled():
        print(f"{table.table.name:<11} {Count.of([table])}")
    missing = plan.missing
    print(f"scale={plan.scaling.name}: {Count.of(plan.filled())}")
    print(f"{len(plan.runs)} different runs are behind them, of which {len(missing)} are missing")
    if missing:
        print(_cost(plan))


def _cost(plan: Plan) -> str:
    """The estimated cost of the missing runs: one line for CPUs, one for GPUs."""
    cores = usable_cores()
    doctor = Paces.load(Path(compose.load([]).cache).expanduser())
    cpu, gpu = estimate(plan, gpu=False, doctor=doctor), estimate(plan, gpu=True, doctor=doctor)
    on_cpu = f"about {duration(cpu.seconds)} one after the other, {duration(cpu.seconds / cores)} on {cores} cores"
    on_gpu = f"about {gpu.seconds / HOUR:.1f} GPU hours"
    return f"on a CPU: {_with_basis(cpu, on_cpu)}\non a GPU: {_with_basis(gpu, on_gpu)}"


def _with_basis(cost: Estimate, text: str) -> str:
    """``text`` followed by how many runs the estimate covers and on which measurements it is based."""
    if not cost.runs:
        what = " with their data set and network" if cost.measured else ""
        return f"no estimate: nothing measured{what}; flnl doctor times the papers' networks"
    sources = [f"the times of {cost.measured}"] * bool(cost.measured)
    sources += [f"flnl doctor's of plain SGD for {cost.timed}"] * bool(cost.timed)
    covered = f"{text} for {cost.runs} of {cost.runs + cost.unknown} runs, from {' and '.join(sources)}"
    guessed = f"; for {cost.guessed} of them, from other methods or batch sizes" if cost.guessed else ""
    unknown = f"; no estimate for {cost.unknown}: nothing measured with their data set and network"
    return covered + guessed + (unknown if cost.unknown else "")


def run(request: Request) -> int:
    """Run what is missing and count the cells.

    Returns:
        The exit code: 1 if a cell or the launcher has failed or a run is still missing, else 0.
    """
    plan, complete = request.plan, True
    if missing := plan.missing:
        print(f"{len(missing)} of {len(plan.runs)} runs are missing\n{_cost(plan)}", file=sys.stderr, flush=True)
        from flnl.tables.launch import launch

        complete = launch(plan, request.overrides)
    plan = request.plan
    count = Count.of(plan.filled())
    print(count)
    return 1 if count.failed or plan.missing or not complete else 0


def render(request: Request) -> None:
    """Write the tables, and an index and a report over all tables in the output folder.

    Raises:
        UserError: if cells can run and none has: results that someone else rendered are not overwritten by empty ones.
    """
    from flnl.tables.notes import noted
    from flnl.tables.render import render as write

    plan, names = request.plan_of(request.held), {table.name for table in request.tables}
    tables = plan.filled()
    count = Count.of([one for one in tables if one.table.name in names])
    if count.possible and not count.run:
        raise UserError(f"no cell of these tables has run at scale={request.scale} yet: flnl tables run")
    foreign = [one.table.name for one in tables if one.table.name not in names and not Count.of([one]).run]
    filled = noted(plan)
    for file in write(filled, request.out, names, together=not foreign):
        print_line(file)
    if foreign:
        print_line(
            f"note: index and report of {request.out} are unchanged: they include tables that have not run here "
            f"({', '.join(foreign)}); out=FOLDER renders into another folder",
            to=sys.stderr,
        )


def command(arguments: Sequence[str]) -> None:
    """Run the command that ``arguments`` describe.

    Raises:
        UserError: for mistakes that the user can correct.
        SystemExit: with 1 if a cell has failed or a run is still missing.
    """
    request = parse(arguments)
    if request.overrides:
        from flnl.tables.launch import check

        check(request.plan, request.overrides)
    if request.records is not None and request.verb != "list":
        from flnl.tables.restore import restore

        plan = request.plan_of(request.held) if request.verb == "render" else request.plan
        number = restore(plan, request.records)
        print(f"{number} runs restored from {request.records}", file=sys.stderr, flush=True)
    if request.verb == "list":
        print_tables(request.tables)
    elif request.verb == "plan":
        print_plan(request.plan)
    elif request.verb == "run":
        sys.exit(run(request))
    else:
        render(request)


def main() -> None:
    """Entry point of ``flnl tables``."""
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        print(USAGE.format(scales=", ".join(load.scales())))
        return
    guard.guarded(lambda: command(arguments), name="flnl tables", overrides=False)


if __name__ == "__main__":
    main()
