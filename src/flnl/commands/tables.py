"""The papers' tables, our numbers beside theirs: list the tables, plan and run missing runs, render results.

    flnl tables list | plan | run | render [TABLE ...] [scale=small] [seeds=N] [rows=LABEL] [columns=LABEL]
        [add=ROW [--config-dir DIR]] [tuned=PATH] [verify=false] [records=FILE] [out=FOLDER] [-- OVERRIDE ...]
    flnl tables agree [metric=NAME] [out=FOLDER]
    flnl tables tune TABLE columns=LABEL grid=KEY=VALUE,VALUE [scale=small] [rows=LABEL] ... [-- OVERRIDE ...]

Modules that take seconds to import are imported only when something is run.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flnl.commands import guard
from flnl.console.cores import usable_cores
from flnl.console.shell import joined
from flnl.console.terminal import duration, print_line
from flnl.core.errors import UserError
from flnl.instruments.tables import load
from flnl.instruments.tables.cost import Estimate, estimate
from flnl.instruments.tables.plan import Count, Plan, wanted
from flnl.instruments.tables.request import AGREE, OF_ONE_VERB, OPTIONS, RESULTS, TUNE, VERBS, Request, parse
from flnl.instruments.tables.run_record import RUNS
from flnl.instruments.tables.table import Table
from flnl.instruments.tune.scores import MEASURES, ON_TEST_SET
from flnl.run.paces_here import kept_in, paces_here
from flnl.storage.output_file import check_folder, check_output, write_output

if TYPE_CHECKING:
    from flnl.instruments.tables.render.losses import Loss

TUNED = "tuned"
"""The folder beside the scales where choices are kept, in a folder for each scale."""

USAGE = """\
flnl tables VERB [TABLE ...] [scale=small] [seeds=N] [rows=LABEL] [columns=LABEL] [tuned=PATH]
            [add=[LABEL: ]OVERRIDE... [--config-dir DIR]] [verify=false] [records=FILE] [out=FOLDER] [-- OVERRIDE ...]
flnl tables agree [metric=mean_last_10] [out=FOLDER]
flnl tables tune TABLE columns=LABEL grid=KEY=VALUE,VALUE [measure=validation [share=0.1]] [margin=0.05]
            [seeds=2] [scale=small] [rows=LABEL] [verify=false] [out=FILE] [-- OVERRIDE ...]
The papers' tables, our numbers beside theirs. Without a TABLE: all tables,
but for those of which list says that they are made if they are named.

  list    list the tables
  plan    show which runs are missing, and estimate their cost from finished runs
  run     run what is missing; a run that was stopped or killed continues from its last checkpoint
  render  write the tables and a report into results/SCALE, or into the folder out; starts no run. The index and the
          report cover all tables in that folder
  agree   write README.md into results, or into the folder out: at every scale that is rendered there, how well our
          order of the methods agrees with the papers'
  tune    choose hyperparameters for each method of a table in one of its columns; they are for all tables of its paper.
          The choices and all scores are added to conf/scale/tuned/SCALE/PAPER.json (in a checkout; elsewhere to
          tuned/SCALE/PAPER.json), or to the file out

  scale   {scales}; conf/scale/ says what each changes
  seeds   number of seeds, instead of the table's or the scale's; for tune, of those of the choice, 101 and so on
  rows    plan and run only rows with this label; * and ? stand for any characters, as in rows='*LeNet-5', and
          rows=A rows=B selects both
  columns the same for columns: columns='ρ=0.6*'
  add     a row of your own in all tables, in the settings of their columns: add='method=mine', or with a label
          add='Mine, λ=2: method=mine method.lam=2'; may be repeated. Results go to results/SCALE_own, choices of
          tune to tuned/SCALE/own_PAPER.json. With --config-dir DIR, overrides may name files in a folder of your own
  tuned   what was tuned: rows of the methods that it names get the values that were chosen for them, and the folder of
          results is results/SCALE_tuned. A file of flnl tune, for all tables, or of flnl tables tune, for its paper's;
          or a folder of such files, as conf/scale/tuned/small; may be repeated
  verify  verify=false takes data files that differ from the published ones, such as copies that went through JPEG;
          these are runs of their own, and notes under the tables tell of them
  records records that render wrote, such as results/lenet/runs.jsonl, or their folder: the runs that are there count as
          finished here, so tables can be made on several machines, one after the other

  grid    the values to choose from: grid=train.lr=0.01,0.03,0.1; may be repeated for further keys
  measure the score, as for flnl tune: {measures}; by default validation, on samples that are held
          out of clients' training data (share), with their noisy labels: the others choose on the test images
  metric  take this one of our runs ({of_tests}) in place of the tables' own, and write by_METRIC.md
  margin  drop values whose mean score is so far behind after a seed; margin=none tries all of them under every seed

After --, overrides set how runs are launched: hydra/launcher=submitit_slurm hydra.launcher.partition=gpu,
hydra.launcher.n_jobs=4 for the default joblib, executor=ray, device=cpu.
To add a table, copy one in conf/table/."""


def words(before: Sequence[str]) -> list[str]:
    """What may follow the words ``before`` on the command line, for the shell's completion."""
    if not before:
        return list(VERBS)
    scales = [f"scale={scale}" for scale in load.scales()]
    return [*load.names(), *scales, *(f"{option}=" for option in (*OPTIONS, *OF_ONE_VERB) if option != "scale")]


def print_tables(tables: Sequence[Table]) -> None:
    """Print one line per table: name, title, metric, size, and the methods that are not implemented."""
    width = max(len(table.name) for table in tables)
    for table in tables:
        paper = f"{table.paper} {table.number}".strip()
        missing = list(dict.fromkeys(row.missing for row in table.rows if row.missing is not None))
        lacks = f"; there is no {', '.join(missing)} yet" if missing else ""
        alone = f"; scale={' or '.join(table.scales)} alone" if table.scales else ""
        alone += "; if it is named" if table.by_name else ""
        size = f"{len(table.rows)} x {len(table.columns)}"
        name = f"{table.name:<{width}}"
        print_line(f"{name}  {f'{paper}: ' if paper else ''}{table.title} ({table.metric.name}, {size}{alone}{lacks})")


def print_plan(plan: Plan) -> None:
    """Print how many cells have run, how many runs are missing, and an estimate of their cost."""
    for table in plan.filled():
        print(f"{table.table.name:<11} {Count.of([table])}")
    missing = plan.missing
    print(f"scale={plan.scaling.name}: {Count.of(plan.filled())}")
    print(f"{len(plan.runs)} different runs are behind them, of which {len(missing)} are missing")
    if missing:
        print(_cost(plan))


def print_outline(request: Request) -> None:
    """Print how many cells can run, where nothing has: the settings of hundreds of runs need not be read for that."""
    scaling, total = request.scaling, Counter[str]()
    for table in request.tables:
        here = scaling.for_table(table)
        cells = [here.can_run(row, column) for row in table.rows for column in table.columns]
        total.update(possible=sum(cells), cells=len(cells))
        print(f"{table.name:<11} {sum(cells)} of {len(cells)} cells can run")
    runs = len(set(wanted(request.tables, scaling, request.seeds)))
    print(f"scale={request.scale}: {total['possible']} of {total['cells']} cells can run, none has")
    print(f"at most {runs} different runs are behind them; no estimate: flnl doctor times the papers' networks")


def _cost(plan: Plan) -> str:
    """The estimated cost of the missing runs: one line for CPUs, one for GPUs."""
    cores, doctor = usable_cores(), paces_here(kept_in())

    def on_cpu(seconds: float) -> str:
        parallel = f" ({duration(seconds / cores)} on {cores} cores)" if cores > 1 else ""
        return f"{duration(seconds)} one after the other{parallel}"

    def on_gpu(seconds: float) -> str:
        return f"{duration(seconds)} of a GPU"

    cpu, gpu = estimate(plan, gpu=False, doctor=doctor), estimate(plan, gpu=True, doctor=doctor)
    return f"on a CPU: {_with_basis(cpu, on_cpu)}\non a GPU: {_with_basis(gpu, on_gpu)}"


def _with_basis(cost: Estimate, text: Callable[[float], str]) -> str:
    """The estimate with the number of runs that it covers and the measurements on which it is based."""
    if not cost.runs and not cost.least_runs:
        what = " with their data set and network" if cost.measured else ""
        return f"no estimate: nothing measured{what}; flnl doctor times the papers' networks"
    parts = []
    if cost.runs:
        parts.append(f"about {text(cost.seconds)} for {cost.runs} runs, from the times of {cost.measured}")
    if cost.least_runs:
        parts.append(
            f"{text(cost.least_seconds)} or more for {cost.least_runs} whose method has not run in this setting, "
            "the time of plain SGD or of the fastest method there"
        )
    if cost.unknown:
        parts.append(f"no estimate for {cost.unknown}: nothing measured with their data set and network")
    return "; ".join(parts)


def run(request: Request) -> int:
    """Run what is missing and count the cells.

    Returns:
        The exit code: 1 if a cell or the launcher has failed or a run is still missing, else 0.
    """
    plan, complete = request.plan, True
    if missing := plan.missing:
        print(f"{len(missing)} of {len(plan.runs)} runs are missing\n{_cost(plan)}", file=sys.stderr, flush=True)
        from flnl.instruments.tables.launch import launch

        complete = launch(plan, request.overrides, ["flnl", "tables", *sys.argv[1:]])
    plan = request.plan
    count = Count.of(plan.filled())
    print(count)
    return 1 if count.failed or plan.missing or not complete else 0


def render(request: Request) -> None:
    """Write the tables, and an index and a report over all tables in the output folder.

    Raises:
        UserError: if no cell of the tables has run, or if the folder has results of runs that have not run here.
    """
    from flnl.instruments.tables.notes import noted
    from flnl.instruments.tables.render import render as write
    from flnl.instruments.tables.render.losses import losses

    check_folder(f"out={request.out}", request.out)
    plan, names = request.plan_of(request.held), {table.name for table in request.tables}
    tables = plan.filled()
    count = Count.of([one for one in tables if one.table.name in names])
    if count.possible and not count.begun:
        raise UserError(f"no cell of these tables has run at scale={request.scale} yet: flnl tables run")
    lost = {one.table.name: losses(one, request.out) for one in tables}
    if cells := [cell for name in lost for cell in lost[name] if name in names]:
        what, keeps, cells = _of(cells, request.out)
        raise UserError(
            f"{request.out} has results {what}, and would lose them: {cells[0].cell}{_more(cells)}; take them along "
            f"with {keeps}, or render into another folder with out=FOLDER"
        )
    foreign = [name for name, cells in lost.items() if cells]
    filled = noted(plan)
    for file in write(filled, request.out, names, together=not foreign):
        print_line(file)
    if foreign:
        what, keeps, _ = _of([cell for name in foreign for cell in lost[name]], request.out)
        print_line(
            f"note: index and report of {request.out} are unchanged: they include tables {what} "
            f"({', '.join(foreign)}); {keeps} takes them along",
            to=sys.stderr,
        )


def _of(cells: list[Loss], out: Path) -> tuple[str, str, list[Loss]]:
    """What the results of ``cells`` in ``out`` are, the option that keeps them, and the cells of which that is true."""
    if more := [one for one in cells if one.of_more_seeds]:
        return "of more seeds", f"seeds={max(one.runs for one in more)}", more
    if gone := [one for one in cells if one.gone]:
        return "of rows that are not given", "their add=", gone
    if changed := [one for one in cells if one.changed and not one.begun]:
        return "of other settings than these cells have now", "the settings of then, or run them anew", changed
    begun = list(dict.fromkeys(str(folder) for one in cells for folder in one.begun))
    first = f" after removing {begun[0]}{_more(begun)} (not finished, or damaged)" if begun else ""
    return "that have not run here", f"records={out / RUNS}{first}", cells


def _more(several: Sequence[object]) -> str:
    return f", and {len(several) - 1} more" if len(several) > 1 else ""


def tune(request: Request, arguments: Sequence[str]) -> None:
    """Choose hyperparameters for the methods of a table in one of its columns, show them and write them to a file.

    Raises:
        UserError: if not one column of one table is selected, for a wrong option or grid, and if nothing could be
            chosen for a method.
    """
    from flnl.instruments.tables.tuning import Tuning
    from flnl.instruments.tune.shown import show

    if len(request.tables) != 1:
        raise UserError("tune takes one table, and one column of it, as in fedcorr_2 columns='ρ=0.6 τ=0.5'")
    if request.choices or request.records is not None:
        raise UserError("tune takes neither tuned nor records: it chooses anew, from runs in multirun/tune")
    (table,) = request.tables
    tuning = Tuning.of(table, request.scaling, request.options)
    file = _file_of_choices(request)
    if "out" in request.options:
        check_output(f"out={file}", file)  # before anything runs, as are the next lines
    else:
        check_folder(str(file), file.parent)
    tuning.kept(file)
    tuned = tuning.run(request.overrides, ["flnl", "tables", *arguments])
    kept = tuning.kept(file)  # another command may have written meanwhile
    file.parent.mkdir(parents=True, exist_ok=True)
    (tuned if kept is None else kept.with_added(tuned)).save(file)
    show(tuned)
    print_line(file)
    if any(study.chosen is None for study in tuned.studies):
        raise UserError("nothing could be chosen where every combination has a run that failed; see the table")
    words = [table.name, f"scale={request.scale}", *request.own, *([] if request.verify else ["verify=false"])]
    print_line(f"next: {joined(['flnl', 'tables', 'run', *words, f'tuned={file}'])}")


def agree(request: Request) -> None:
    """Write a page over all scales that are rendered below a folder.

    Raises:
        UserError: if none is, one is damaged, or the page would overwrite another one.
    """
    from flnl.instruments.tables.render import INDEX, is_foreign, rendered, scales

    if other := next((key for key in request.options if key not in ("out", "metric")), None) or request.named:
        raise UserError(f"agree takes all tables below a folder and no {other}; give out=FOLDER, or metric=NAME")
    out = request.out if "out" in request.options else RESULTS
    metric = request.options["metric"][-1] if "metric" in request.options else None
    file = out / (INDEX if metric is None else f"by_{load.known(metric, ON_TEST_SET, 'measure')}.md")
    if out.is_dir():
        check_output(f"out={out}", file)
    if is_foreign(file, scales.TITLE):
        raise UserError(f"{file} is another page: out= would overwrite it; name another folder")
    order = [f"{scale}{tuned}" for scale in load.scales() for tuned in ("", "_tuned")]
    names = [name for name in order if (out / name).is_dir()]
    tables = {name: rendered.read(out / name, metric) for name in names}
    if not any(tables.values()):
        raise UserError(f"{out} has no rendered table of a paper's accuracies; flnl tables render writes them")
    write_output(file, scales.page(tables, metric).encode())
    print_line(file)


def _file_of_choices(request: Request) -> Path:
    if "out" in request.options:
        return request.out
    (table,) = request.tables
    name = table.paper.lower() if table.paper in load.PAPERS else table.name
    if any(row.own for row in table.rows):
        return Path(TUNED) / request.scale / f"own_{name}.json"
    in_checkout = load.SCALES.is_relative_to(Path.cwd())  # else nothing is written beside the scales
    return (load.SCALES / TUNED if in_checkout else Path(TUNED)) / request.scale / f"{name}.json"


def _none_of(records: int, request: Request) -> str:
    """What to say where no record is of a run that is asked for."""
    of = "the one record there is not" if records == 1 else f"none of the {records} records there is"
    folder = "" if request.verify else ", or another folder of data: with verify=false FLNL_DATA must name the same"
    return f"{of} of a run of these tables: others, another scale or other seeds{folder}"


def command(arguments: Sequence[str]) -> None:
    """Run the command that ``arguments`` describe.

    Raises:
        SystemExit: with 1 if a cell has failed or a run is still missing.
    """
    request = parse(arguments)
    if request.overrides and request.verb != TUNE:
        from flnl.instruments.tables.launch import check

        first = next(iter(request.plan.runs.values()), None)
        check(None if first is None else first.overrides, request.overrides)
    if request.records is not None and request.verb not in ("list", TUNE, AGREE):
        from flnl.instruments.tables.restore import restore

        plan = request.plan_of(request.held) if request.verb == "render" else request.plan
        found = restore(plan, request.records)
        print_line(f"{found.runs} runs restored from {request.records}", to=sys.stderr)
        if not found.known:
            print_line(_none_of(found.records, request), to=sys.stderr)
    if request.verb == "list":
        print_tables(request.tables)
    elif request.verb == "plan":
        if request.may_be_outlined and not paces_here(kept_in()).values:
            print_outline(request)
        else:
            print_plan(request.plan)
    elif request.verb == "run":
        sys.exit(run(request))
    elif request.verb == TUNE:
        tune(request, arguments)
    elif request.verb == AGREE:
        agree(request)
    else:
        render(request)


def main() -> None:
    """Entry point of ``flnl tables``."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(
            USAGE.format(scales=", ".join(load.scales()), measures=", ".join(MEASURES), of_tests=", ".join(ON_TEST_SET))
        )
        return
    guard.guarded(lambda: command(sys.argv[1:]), name="flnl tables", overrides=False)
