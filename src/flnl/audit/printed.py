"""What the command prints: the numbers of an audit, its worst clients and pairs, and where the files are."""

from __future__ import annotations

from collections.abc import Sequence

from flnl.audit.result import Audit, ClientSummary, WrongLabels
from flnl.audit.writing import Written
from flnl.console.shell import joined
from flnl.console.terminal import print_line, print_table
from flnl.console.words import counted

WORST = 5
NOTHING = "nothing stands out"


def show(audit: Audit, written: Written) -> None:
    """Print an audit: tables on a terminal, tab-separated lines elsewhere."""
    from rich import box

    for heading, header, rows in tables(audit):
        print_table(header, rows, left=(0,), title=heading, title_justify="left", box=box.SIMPLE_HEAD)
    if not audit.issues:
        print_line(NOTHING)
    for file in written.files:
        print_line(file)
    if written.overrides is not None:
        print_line(f"to train on the corrected labels: {joined(written.overrides)}")
        if written.superseded:
            print_line(f"and leave out of the run's command: {joined(written.superseded)}")
    elif audit.options.corrections is not None:
        print_line(f"{audit.dataset} reads no labels from a file: corrected.csv is for other programs")


def tables(audit: Audit) -> list[tuple[str, Sequence[str], list[Sequence[str]]]]:
    """The tables: heading, columns and rows."""
    classes = audit.classes
    numbers: list[Sequence[str]] = [
        ("samples", f"{audit.size}"),
        ("issues", f"{audit.issues}"),
        ("wrong labels, expected", _range(audit.wrong)),
        ("expected precision", _share(audit.precision.of_issues)),
        ("probabilities", audit.source.description),
    ]
    if audit.source.choice is not None:
        numbers.append(("why these", audit.source.choice.reason))
    if audit.cut is not None:
        numbers.append(("cut on the suspicion score", f"{audit.cut:.2f}"))
    if audit.review is not None and audit.review.interval is not None:
        low, high = audit.review.interval
        many = counted(audit.review.sampled, "sample")
        numbers.append(("precision by review", f"{_share(audit.review.precision)} ({low:.2f} to {high:.2f}, {many})"))
    elif audit.review is not None and audit.review.judged < audit.review.drawn:
        numbers.append(
            (
                "precision by review",
                f"once all {audit.review.drawn} drawn at random are judged; {audit.review.judged} are",
            )
        )
    for name, value in (audit.measured or {}).items():
        numbers.append((f"measured: {name.replace('_', ' ')}", f"{value}" if isinstance(value, int) else _share(value)))
    shown: list[tuple[str, Sequence[str], list[Sequence[str]]]] = [("audit", ("", audit.dataset), numbers)]
    clients = sorted((row for row in audit.by_client if row.issues or _wrong(row)), key=_worst)  # stable
    by_client: list[Sequence[str]] = []
    for row in clients[:WORST]:
        pair = "" if row.pair is None else " → ".join(classes[k] for k in row.pair)
        by_client.append((row.name, f"{row.samples}", _range(row.wrong), f"{row.issues}", pair))
    if by_client:
        columns = ("client", "samples", "wrong, expected", "issues", "most frequent (given → predicted)")
        shown.append(("clients", columns, by_client))
    by_pair: list[Sequence[str]] = [
        (classes[row.given], classes[row.predicted], f"{row.issues}") for row in audit.by_pair[:WORST]
    ]
    if by_pair:
        shown.append(("pairs of classes", ("given", "predicted", "issues"), by_pair))
    return shown


def _wrong(row: ClientSummary) -> int:
    return 0 if row.wrong is None else round(row.wrong.expected)


def _worst(row: ClientSummary) -> tuple[float, float]:
    """Sorts by the share of wrong labels, or of issues where that is unknown, the largest first."""
    return -_wrong(row) / max(row.samples, 1), -row.issues / max(row.samples, 1)


def _range(wrong: WrongLabels | None) -> str:
    if wrong is None:
        return "unknown"
    return f"{round(wrong.expected)} ({wrong.low} to {wrong.high}{', by review' if wrong.judged else ''})"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
