"""``flnl ... --dry-run``: the runs of a command, without running them.

Each is checked as it would be before it starts; so are its folder, and that its data are there. Nothing is written.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from flnl.config import compose
from flnl.config.identity import PLACES, run_key
from flnl.config.recorded import FROM_CWD, whereabouts
from flnl.config.short_keys import connect
from flnl.console.terminal import cell, console, duration, print_line
from flnl.console.words import counted
from flnl.core.errors import UserError
from flnl.record.run import RunRecord
from flnl.run import budget
from flnl.run.folder import chosen, refusal
from flnl.run.paces_here import cards_here, kept_in, paces_here
from flnl.storage.paces import Kind, Paces
from flnl.sweep import launchers, supervisor
from flnl.sweep.gpus import Share
from flnl.sweep.job import shares_a_process
from flnl.sweep.ledger import Job
from flnl.sweep.table import labels

OPTION = "--dry-run"
CALLBACK = "hydra.callbacks.sweep._target_=flnl.sweep.dry_run.Listing"
"""In a sweep, Hydra tells this of the composed configuration before any job."""


@dataclass(frozen=True)
class Planned:
    """A run that would be made."""

    number: int
    overrides: Sequence[str]
    key: str
    folder: Path | None  # None: one that the run chooses when it starts
    state: str  # new, or that of the run that is in its folder, or refused
    refusal: str  # why it would be refused; empty if nothing is known to be wrong
    device: str  # as configured
    gpu: bool  # it would run on one
    kind: Kind
    passes: float  # over all training data

    @classmethod
    def of(
        cls, number: int, overrides: Sequence[str], cfg: DictConfig, job: Path | None = None, *, here: bool = True
    ) -> Planned:
        """The run of a checked configuration.

        Args:
            number: its job's.
            overrides: its job's.
            cfg: the configuration.
            job: the folder that its sweep has for it.
            here: whether it would run on this machine, where its data are then looked for.
        """
        import torch

        plain = compose.resolved(cfg)
        key = run_key(plain)
        named = cfg.output is not None
        try:
            folder, goes_on = chosen(
                output=cfg.output if job is None or not named else str(job),
                output_root=cfg.output_root,
                resume=cfg.resume,
                key=key,
                job=job,
                same=lambda record: whereabouts(plain) == record.whereabouts,
            )
        except UserError as error:
            folder, goes_on, refused = job, False, str(error)
        else:
            refused = ""
        record = None if folder is None else RunRecord.read(folder)
        if folder is not None and not refused:
            refused = refusal(folder, record, key=key, plain=plain, named=named, goes_on=goes_on)
        refused = refused or (_lacking(plain) if here else "")
        state = "refused" if refused else "new" if record is None else f"{record.status} there"
        gpu = torch.cuda.is_available() if cfg.device == "auto" else cfg.device != "cpu"
        kind, passes = budget.training_kind(plain), budget.passes(plain)
        return cls(number, overrides, key, folder, state, refused, cfg.device, gpu, kind, passes)


def _lacking(plain: Mapping[str, Any]) -> str:
    """What of a run's data is not there, in words; what can be downloaded is not looked for."""
    root = plain["dataset"].get("root") or ""
    for key in PLACES:
        group, _, name = key.partition(".")
        place = plain[group].get(name)
        by_itself = key in ("dataset.root", "noise.root")  # where other keys may lead elsewhere
        if not isinstance(place, str) or (by_itself and (plain[group].get("download") or plain[group].get("path"))):
            continue
        path = place if key in FROM_CWD else os.path.join(root, os.path.expanduser(place))  # noqa: PTH111, PTH118
        if not os.path.exists(os.path.expanduser(path)):  # noqa: PTH110, PTH111 (none of these raises)
            return f"{key}={place}: there is no {path}"
    return ""


class Listing(Callback):
    """Hydra's callback at the start of a sweep that lists its jobs and ends the command."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """List the jobs."""
        try:
            here = not supervisor.elsewhere(config.hydra)
            runs = [Planned.of(*job, here=here) for job in supervisor.planned(config)]
            if not runs:
                raise UserError(f"hydra/sweeper={_type(config.hydra.sweeper)} chooses its jobs while it runs")
            launchers.name(config.hydra)
            print_line(f"sweep {config.hydra.sweep.dir}: {_launched(config.hydra, runs)}")
            show(runs)
            if not here:
                print(_submission(config.hydra, len(runs)))
            refuse(runs)
        except Exception as error:
            raise supervisor.Refused(error) from None
        raise Told


class Told(BaseException):
    """Ends the command past Hydra, which turns a callback's ``Exception`` into a warning."""


def single(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """List the one run of a command without ``-m``.

    Raises:
        UserError: if the configuration is wrong.
    """
    from flnl.config.check import check_config, check_machine
    from flnl.engine.placement import device_for
    from flnl.run.opening import method_of

    connect(cfg, overrides)
    check_config(cfg)
    check_machine(cfg)
    device_for(cfg.device)
    method_of(cfg, overrides)
    run = Planned.of(0, overrides, cfg)
    show([run])
    refuse([run])


def refuse(runs: Sequence[Planned]) -> None:
    """Say why a run would be refused.

    Raises:
        UserError: if one would.
    """
    for run in runs:
        if run.refusal:
            raise UserError(run.refusal if len(runs) == 1 else f"job {run.number}: {run.refusal}")


def show(runs: Sequence[Planned]) -> None:
    """Print a table of the runs, which of them are there already, and how long the others would take."""
    from rich import box
    from rich.table import Table

    named = labels([Job(run.number, run.overrides, "waiting", None) for run in runs])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("job", "key", "overrides", "folder", "state"):
        table.add_column(name, overflow="fold")
    for run in runs:
        folder = "" if run.folder is None else _short(run.folder)
        table.add_row(str(run.number), run.key[:8], *map(cell, (named[run.number], folder, run.state)))
    console().print(table)
    counts = Counter(run.state for run in runs)
    print_line(f"{counted(len(runs), 'run')}: {', '.join(f'{n} {state}' for state, n in counts.items())}")
    if twice := [key for key, count in Counter(run.key for run in runs).items() if count > 1]:
        same = [str(run.number) for run in runs if run.key == twice[0]]
        print_line(f"jobs {', '.join(same)} are the same run, under other names of its values")
    print_line(estimate([run for run in runs if not run.refusal and not run.state.startswith("finished")]))


def _short(folder: Path) -> str:
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)


def estimate(runs: Sequence[Planned], paces: Paces | None = None) -> str:
    """How long the runs take at least, one after the other, from what was timed here or on such a GPU."""
    if paces is None:
        paces = paces_here(kept_in())
    seconds, unknown = 0.0, []
    for run in runs:
        near = [p for p in paces.values if p.kind[:3] == run.kind[:3] and p.gpu == run.gpu and p.runs in (None, 1)]
        same = [pace.seconds for pace in near if pace.batch == run.kind[3]] or [pace.seconds for pace in near]
        if same:
            seconds += median(same) * run.passes
        else:
            unknown.append(run)
    if len(unknown) == len(runs):
        return "no estimate of the time: flnl doctor has not timed this data set and network here" if runs else ""
    timed = f"{duration(seconds)} or more one after the other, by flnl doctor's times of plain SGD"
    return f"{timed}; without {len(unknown)} that it has not timed" if unknown else timed


def _type(part: DictConfig) -> str:
    """The name of a part's class."""
    return str(part._target_).rpartition(".")[2]


def _launched(chosen: DictConfig, runs: Sequence[Planned]) -> str:
    """Where the jobs would run."""
    if shares_a_process(chosen):
        return "one after the other, in this process"
    if supervisor.elsewhere(chosen):
        return f"submitted to Slurm as an array of jobs, {chosen.launcher.name}"
    workers = chosen.launcher.get("n_jobs")
    at_once = f"{workers} at once" if workers else "as many at once as there are cores"

    def each(kind: str) -> int | None:
        return Paces.load(kept_in()).runs_at_once({run.kind for run in runs}, cards_here(kind))

    if workers and (share := Share.of({run.device for run in runs}, len(runs), workers, each)).gpus:
        at_once = share.told(len(runs))
    return f"{_type(chosen.launcher)}, {at_once}"


def _submission(chosen: DictConfig, jobs: int) -> str:
    """The file that sbatch would be given."""
    from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf
    from submitit.slurm.slurm import SlurmExecutor

    class Executor(SlurmExecutor):
        """It submits nothing, so Slurm need not be here."""

        @classmethod
        def affinity(cls) -> int:
            return 1

    values: Any = OmegaConf.to_container(chosen.launcher, resolve=True)
    values = {name: value for name, value in values.items() if value is not None and name != "_target_"}
    executor = Executor(folder=values.pop("submitit_folder"), max_num_timeout=values.pop("max_num_timeout", 0))
    general = {name: values.pop(name) for name in [*values] if name in BaseQueueConf.__dataclass_fields__}
    executor.update_parameters(**executor._convert_parameters(general), **values)
    executor.parameters["map_count"] = jobs
    return str(executor._make_submission_file_text(executor._submitit_command_str, "..."))
