"""The report: Markdown for readers, CSV for programs, and a short table for the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import Machine
from bench.measure import Measured, Spread
from bench.round_cost import SHOWN
from bench.workloads import Workload
from flnl.console.markdown import grid
from flnl.console.templates import template

COLUMNS = ("workload", "way", "kind", "repeat", "seconds_a_round", "times_as_fast_as_hand", "own_peak_bytes", "failure")


@dataclass
class Results:
    """The results of one run of the benchmark, filled step by step."""

    machine: Machine
    command: str
    workloads: dict[str, Workload] = field(default_factory=dict)
    measured: dict[str, list[Measured]] = field(default_factory=dict)  # by workload
    round_cost: Mapping[str, float] | None = None
    round_cost_failure: str | None = None
    startup: Mapping[str, Spread] = field(default_factory=dict)
    seconds: float = 0.0

    def floor(self, workload: str) -> Measured | None:
        """The hand-written loop on this workload, if it was measured."""
        return next((m for m in self.measured[workload] if m.kind == "hand"), None)

    def ratio(self, workload: str, measured: Measured) -> Spread | None:
        """The speed relative to the hand-written loop."""
        floor = self.floor(workload)
        return None if floor is None else measured.ratio(floor)

    def share(self, workload: str, measured: Measured) -> Spread | None:
        """The throughput relative to a centralised loop on this workload."""
        bound = next((m for m in self.measured[workload] if m.kind == "centralised"), None)
        return None if bound is None else measured.ratio(bound)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, all columns aligned left."""
    return grid(head, rows, "l" * len(head))


def time_of(seconds: float) -> str:
    """Three digits and a unit.

    >>> time_of(0.04837), time_of(3.131)
    ('48.4 ms', '3.13 s')
    """
    return f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _times(ratio: Spread | None, *, spread: bool) -> str:
    if ratio is None:
        return "-"
    return f"{ratio.median:.2f}" + (f" ({ratio.low:.2f} to {ratio.high:.2f})" if spread else "")


def conditions(m: Machine, command: str, seconds: float, *more: tuple[str, str]) -> str:
    """A table of the conditions of a measurement: machine, versions, commit and duration."""
    rows = [
        ("command", f"`{command}`"),
        ("CPU", f"{m.cpu}, {m.cores} cores, {m.memory_gib:.0f} GiB"),
        ("load at the start (1, 5, 15 minutes)", ", ".join(f"{load:.2f}" for load in m.load)),
        ("threads", "1 a process"),
        ("versions", f"Python {m.python}, {m.versions}"),
        *more,
        ("commit", m.commit),
        ("took", f"{seconds / 60:.1f} minutes"),
    ]
    busy = max(m.load[:2]) > 0.5
    note = "\n\n**The machine was not idle: times and ratios are indicative only.**" if busy else ""
    return table(("", ""), rows) + note


def markdown(results: Results, figure: str | None) -> str:
    """The whole report."""
    more = ("other frameworks", results.machine.peers)
    return template(Path(__file__).with_name("report.md.j2"), {"table": table, "time": time_of}).render(
        results=results,
        conditions=conditions(results.machine, results.command, results.seconds, more),
        figure=figure,
        row=_row,
        crop=_crop(results),
        parts=_parts(results.round_cost or {}),
    )


def _row(results: Results, workload: str, m: Measured) -> Sequence[str]:
    """What was measured of a way."""
    time = m.spread
    return (
        m.way + (f" ({m.detail})" if m.detail and m.detail != m.way else ""),
        time_of(time.median) if time else "failed",
        f"{time_of(time.low)} to {time_of(time.high)}" if time else "",
        _times(results.ratio(workload, m), spread=True),
        _times(results.share(workload, m), spread=False),
        time_of(Spread.of(m.cpu).median) if m.cpu else "-",
        f"{m.peak / 2**30:.2f}" if m.peak else "-",
        str(m.processes),
        "-" if m.accuracy is None else f"{100 * m.accuracy:.1f}",
        "-" if m.start is None else f"{m.start:.1f}",
    )


def _crop(results: Results) -> list[Sequence[str]]:
    """The cost of crop and flip, by way; empty if one of the two workloads is missing."""
    without, with_crop = ({m.way: m.spread for m in results.measured.get(n, [])} for n in ("lenet5", "lenet5-crop"))
    rows: list[Sequence[str]] = []
    for way, cropped in with_crop.items():
        plain = without.get(way)
        if plain is not None and cropped is not None:
            more = f"{100 * (cropped.median / plain.median - 1):+.1f} %"
            rows.append((way, time_of(plain.median), time_of(cropped.median), more))
    return rows


def _parts(cost: Mapping[str, float]) -> list[Sequence[str]]:
    """The seconds of a round's parts, and their shares; empty if they were not measured."""
    if not cost:
        return []
    whole = sum(cost.values())
    rows = [(label, time_of(cost[label]), f"{100 * cost[label] / whole:.3f} %") for label in SHOWN if label in cost]
    outside = whole - cost.get("local training", 0.0)
    return [*rows, ("all but local training", time_of(outside), f"{100 * outside / whole:.2f} %")]


def csv_text(results: Results) -> str:
    """The report as CSV, one line per repeat."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, measured in results.measured.items():
        floor = results.floor(name)
        for m in measured:
            for repeat, seconds in enumerate(m.seconds):
                base = None if floor is None else floor.seconds[repeat]
                ratio = None if base is None or seconds is None else base / seconds
                shown = ("" if value is None else f"{value:.6g}" for value in (seconds, ratio))
                writer.writerow((name, m.way, m.kind, repeat + 1, *shown, m.peak, m.failure or ""))
    for label, seconds in (results.round_cost or {}).items():
        writer.writerow(("round", label, "part", "", f"{seconds:.6g}", "", "", ""))
    for command, spread in results.startup.items():
        writer.writerow(("startup", command, "command", "", f"{spread.median:.6g}", "", "", ""))
    return out.getvalue()


def short(results: Results) -> str:
    """A text table of speeds relative to the hand-written loop: a row per workload, a column per way."""
    names = list(dict.fromkeys(m.way for measured in results.measured.values() for m in measured))
    width = max([len(n) for n in results.measured] + [8])
    lines = []
    if names:
        lines.append(f"{'':{width}}  {'hand':>9}" + "".join(f"{n:>11}" for n in names if n != "hand"))
    for workload, measured in results.measured.items():
        by_name = {m.way: m for m in measured}
        floor = results.floor(workload)
        time = "-" if floor is None or floor.spread is None else time_of(floor.spread.median)
        cells = []
        for n in names:
            if n == "hand":
                continue
            one = by_name.get(n)
            ratio = None if one is None else results.ratio(workload, one)
            cell = "" if one is None else "failed" if one.failure else "-" if ratio is None else f"{ratio.median:.2f}x"
            cells.append(f"{cell:>11}")
        lines.append(f"{workload:{width}}  {time:>9}" + "".join(cells))
    if results.round_cost:
        whole = sum(results.round_cost.values())
        share = 1 - results.round_cost.get("local training", 0.0) / whole
        lines.append(f"a round of LeNet-5 besides local training: {100 * share:.2f} %")
    if "--help" in results.startup:
        lines.append(f"--help: {time_of(results.startup['--help'].median)}")
    return "\n".join(lines)
