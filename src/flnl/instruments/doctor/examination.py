"""What ``flnl doctor`` prints, and whether all is well."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from filelock import Timeout
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from flnl.config import compose
from flnl.config.check import check_config
from flnl.console.cores import processor
from flnl.console.terminal import cell, duration, print_line
from flnl.core.errors import UserError, in_one_line
from flnl.engine.placement import placement_for
from flnl.instruments.doctor.agreement import TOLERANCE, Agreement, agreements
from flnl.instruments.doctor.networks import Setting, settings
from flnl.instruments.doctor.surroundings import Row, surroundings
from flnl.instruments.doctor.timing import Timed, known, timings
from flnl.run.paces_here import paces_here
from flnl.storage.paces import Paces


def chosen(texts: Sequence[str]) -> list[Setting]:
    """The settings to time: all, or those whose title contains one of ``texts`` in any case.

    Raises:
        UserError: if there is none.
    """
    there = settings()
    wanted = [one for one in there if not texts or any(text.lower() in one.title.lower() for text in texts)]
    if not wanted:
        titles = ", ".join(dict.fromkeys(one.title for one in there))
        raise UserError(f"--networks {' '.join(texts)}: no title contains this; there are {titles}")
    return wanted


def examine(device: str, *, quick: bool, at_once: bool, wanted: Sequence[Setting]) -> bool:
    """Print everything; return whether all is well.

    Raises:
        UserError: if there is no such device, or if several runs at once are to be timed on a CPU.
    """
    cfg = compose.load([f"device={device}"])
    check_config(cfg)
    torch.set_num_threads(cfg.threads)
    place = placement_for(device, 32).device
    if at_once and place.type == "cpu":
        raise UserError("--jobs is about a GPU; on a CPU a sweep runs as many jobs at once as there are cores")
    where = str(place) if place.index else place.type
    console = Console()
    rows = list(surroundings(cfg, "cuda" if place.type == "cpu" else place.type))
    console.print(_facts(rows))
    good = not any(row.problem for row in rows)
    if place.type != "cpu":
        good = _compare(console, where) and good
    cache, name = Path(cfg.cache).expanduser(), _name(place)
    if not quick:
        return _time(console, where, name, wanted, cache, at_once=at_once) and good
    if place.type != "cpu" and (before := known(paces_here(cache, {name}), name, wanted)):
        console.print(_times(f"local training on {name}, as measured before", before))
    return good


def _name(place: torch.device) -> str:
    return processor() if place.type == "cpu" else str(torch.get_device_module(place).get_device_name(place))


def _facts(rows: Sequence[Row]) -> Table:
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        mark = "PROBLEM: " if row.problem else "note: " if row.note else ""
        table.add_row(cell(row.name), cell(f"{mark}{row.value}"))
    return table


def _compare(console: Console, device: str) -> bool:
    """Print the comparison with the CPU; return whether everything agrees."""
    table = Table(title=f"{device} beside the CPU, double precision")
    for title in ("method", "clients", "difference", "same bits again", "time", "CPU", ""):
        table.add_column(title, justify="left" if title in ("method", "clients", "") else "right")
    results: list[Agreement] = []
    with _busy(console) as progress:
        task = progress.add_task(f"comparing {device} with the CPU")
        for one in agreements(device):
            results.append(one)
            progress.update(task, description=f"comparing {device} with the CPU: {one.method}, {one.way}")
    for one in results:
        measured = "", "", ""
        if one.difference is not None:
            measured = f"{one.difference:.1e}", "yes" if one.repeats else "NO", f"{one.seconds:.1f} s"
        verdict = "agrees" if one.agrees else "FAILED" if one.failure else "WRONG"
        table.add_row(one.method, one.way, *measured, f"{one.seconds_on_cpu:.1f} s", verdict)
    console.print(table)
    for one in results:
        if one.failure:
            print_line(f"{device}: {one.method} ({one.way}): {one.failure}")
    wrong = [f"{one.method} ({one.way})" for one in results if not one.agrees and not one.failure]
    if wrong:
        print_line(f"{device} does not compute what the CPU computes (tolerance {TOLERANCE:g}): {', '.join(wrong)}")
    return all(one.agrees for one in results)


def _time(console: Console, device: str, name: str, wanted: Sequence[Setting], cache: Path, *, at_once: bool) -> bool:
    """Print how long training takes, and keep it for ``flnl tables plan``; return whether all that was possible."""
    threads = f", {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}" if device == "cpu" else ""
    print_line(f"timing {len(wanted)} networks; --quick leaves this out", to=sys.stderr)
    timed: list[Timed] = []
    lost = ""  # why the times were not kept
    with _busy(console) as progress:
        task = progress.add_task("timing")
        for one in timings(device, name, wanted, at_once=at_once):
            timed.append(one)
            if one.pace is not None and not lost:
                try:  # at once, so that it is not lost if the doctor is stopped
                    Paces.add(cache, [one.pace])
                except (OSError, Timeout) as error:
                    lost = in_one_line(error)
            count = len({(of.setting.title, of.batch) for of in timed})
            of_several = f", {one.runs} at once" * (one.runs > 1)
            progress.update(task, description=f"timing: {count} of {len(wanted)}, {one.setting.title}{of_several}")
    console.print(_times(f"local training on {name}{threads}", timed))
    for one in timed:
        if one.error:
            several = f", {one.runs} runs at once" * (one.runs > 1)
            print_line(f"{one.setting.title}, batches of {one.batch}, precision={one.precision}{several}: {one.error}")
    if lost:
        print_line(f"PROBLEM: the times could not be kept for flnl tables plan: {lost}")
    elif any(one.pace is not None for one in timed):
        print_line("flnl tables plan estimates with these times what has not run here yet")
        if at_once:
            print_line("sweeps run as many jobs at once on each GPU as train most images by these times")
    return not lost and not any(one.error for one in timed)


def _times(title: str, timed: Sequence[Timed]) -> Table:
    """A table of measurements, with how long a run of the default method would train at that rate on the data set."""
    table = Table(title=title)
    methods = ", ".join(dict.fromkeys(one.setting.method for one in timed))
    several = any(one.runs > 1 for one in timed)
    what = "network and data", "batch", "precision", *["runs"] * several
    for column in (*what, "images a second", "a pass", methods, "clients"):
        left, whole = column in ("network and data", "clients"), column == "images a second"
        table.add_column(column, justify="left" if left else "right", no_wrap=whole, overflow="fold")
    for one in timed:
        row = one.setting.title, str(one.batch), one.precision, *[str(one.runs)] * several
        if one.pace is None:
            table.add_row(*row, one.failure, "", "", "")
            continue
        how = "together" if one.stacked else "one by one"
        rate = one.setting.images / one.pace.seconds
        times = duration(one.pace.seconds), duration(one.pace.seconds * one.setting.passes)
        table.add_row(*row, f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}", *times, how)
    return table


def _busy(console: Console) -> Progress:
    error = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    return Progress(*columns, console=error, transient=True, disable=not error.is_terminal)
