"""The record of a run: its folder, and the line of ``runs.jsonl`` that has what tables read, for readers without it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from flnl.core.errors import UserError
from flnl.core.numbers import is_number
from flnl.core.special import refuse_special
from flnl.instruments.compare.runs import shown
from flnl.record.lines import METRICS, DamagedLinesError
from flnl.record.run import RESULT, RunRecord
from flnl.storage.input_file import parse_json
from flnl.storage.output_file import write_output

RUNS = "runs.jsonl"
"""Beside rendered tables: a line for each run behind them, in the order of keys."""
SHA256 = "sha256"
"""The last field of a line, of what stands before it."""
LOCK = ".runs.lock"
REFERENCE = re.compile(r'""([\w-]+)""')
"""The name of a run in a rendered CSV file."""

PROCESS = ("commit", "versions", "machine", "device", "executor", "threads")
"""Fields of a process that computed a part of a run, as far as they may differ from the last one's."""
KEPT = (
    *("key", "status", "data", "federation", "contents", "given", "given_origin", "clean_samples", *PROCESS),
    *("started", "wall_time_s", "rounds", "acts_from", "participations", "bytes"),
    *("training_passes", "forward_passes", "optimizer_steps", "cpu_time_s", "peak_memory", "peak_gpu_memory"),
    *("left_out", "metrics", "earlier"),
)
"""What a line has of a record; command and commit determine the configuration."""
CURVE = ("round", "participations", "accuracy")
"""The numbers of an evaluation that a line has, for all evaluations."""

NUMBERS: Mapping[str, Sequence[str]] = {"evaluation": ("accuracy", "participations")}
"""The numbers that a line of ``metrics.jsonl`` must have, by its kind."""

REPEAT = "remove the folder and run the table again"
REPAIR = "restore it from where it is from, or remove it"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Written:
    """What a finished run has written: its record, and lines of its ``metrics.jsonl`` in order.

    From the run's folder these are ``result.json`` and all lines; from ``runs.jsonl`` the run's line there, and a line
    for every evaluation with one for its round.
    """

    record: RunRecord
    rows: Sequence[Row]

    @property
    def evaluations(self) -> list[Row]:
        """The evaluations: each has ``accuracy`` in [0, 1] and the client ``participations`` until then."""
        return [row for row in self.rows if row["kind"] == "evaluation"]

    def last(self, kind: str) -> Row:
        """The last line of a kind, ``evaluation`` or ``round``; empty if there is none."""
        return next((row for row in reversed(self.rows) if row["kind"] == kind), {})


# ------------------------------------------------------------------------------------------------------ a run's folder


def record(folder: Path) -> RunRecord | None:
    """A run's record; None if the file does not exist.

    Raises:
        UserError: if the file exists but is not the record of a run.
    """
    found = RunRecord.read(folder)
    if found is None and (folder / RESULT).exists():
        raise _damaged(folder, f"its {RESULT} cannot be read as that of a run")
    return found


def read(folder: Path) -> Written:
    """Read the files of a finished run, and check all of them before using any number.

    Raises:
        UserError: if any of them is damaged: the remaining lines could give a wrong number.
    """
    result = record(folder)
    if result is None or not isinstance(result.raw.get("metrics"), Mapping):
        raise _damaged(folder, f"{RESULT} has no metrics")
    try:
        (folder / METRICS).stat()
        rows = []
        for number, line in enumerate(result.text(METRICS).decode().splitlines(), 1):
            if (row := _row(line)) is None:
                raise _damaged(folder, f"line {number} of {METRICS} is damaged")
            rows.append(row)
        result.check_closing(rows)
    except DamagedLinesError as error:
        raise UserError(f"{error}; {REPEAT}") from None
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"{METRICS} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    return Written(result, rows)


def _row(line: str) -> Row | None:
    """Parse a line of ``metrics.jsonl``; None if it is not as a run writes it."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str):
        return None
    return row if all(isinstance(row.get(key), int | float) for key in NUMBERS.get(row["kind"], ())) else None


def _damaged(folder: Path, what: str) -> UserError:
    return UserError(f"{shown(folder)}: {what}; {REPEAT}")


# ---------------------------------------------------------------------------------------------------------- runs.jsonl


def line(folder: Path, command: str, seed: int, written: Written) -> str:
    """A run's line of ``runs.jsonl``, numbers unrounded: every value that a cell can show.

    ``evaluation`` and ``round`` hold the last line of each kind, ``evaluations`` the accuracies of all by stage,
    ``earlier`` the processes before the last of a run that was resumed.
    """
    kept = {key: written.record.raw[key] for key in KEPT if key in written.record.raw}
    if written.record.earlier:
        kept["earlier"] = [
            {"rounds": one.rounds}
            | {key: value for key in PROCESS if (value := getattr(one, key)) != getattr(written.record, key)}
            for one in written.record.processes[:-1]
        ]
    last = {
        kind: {key: value for key, value in written.last(kind).items() if is_number(value)}
        for kind in ("evaluation", "round")
    }
    stages: dict[str, dict[str, list[float]]] = {}
    for row in written.evaluations:
        columns = stages.setdefault(str(row.get("stage")), {key: [] for key in CURVE})
        for key in CURVE:
            columns[key].append(row[key])
    about = {"key": written.record.key, "command": command, "seed": seed, "folder": shown(folder)}
    return signed({**about, **kept, **last, "evaluations": stages})


def load(place: Path) -> dict[str, Written]:
    """The runs in a file, or those in the ``runs.jsonl`` of a folder.

    Returns:
        Each run by the name of its folder.

    Raises:
        UserError: if a line is damaged, its closing numbers are not those of its evaluations, or two are of one run.
    """
    file = place / RUNS if place.is_dir() else place
    found: dict[str, Written] = {}
    numbers: dict[str, int] = {}
    for number, text in enumerate(_bytes(file).splitlines() if file.exists() else (), 1):
        where = f"line {number} of {file}"
        name, run = _parsed(text, where)
        if numbers.setdefault(name, number) != number and run != found[name]:
            raise UserError(f"{where} is of the same run as line {numbers[name]}; remove one of them")
        found[name] = run
    return found


def save(out: Path, new: Mapping[str, str], *, tidy: bool = False) -> None:
    """Put lines into ``runs.jsonl`` of a folder of tables, by the names of runs; several processes may do so at a time.

    Args:
        out: the folder.
        new: the lines.
        tidy: whether to remove the runs that no table in the folder refers to.

    Raises:
        UserError: if what is there is damaged, or a new line is.
        OSError: if the file cannot be written.
    """
    runs = dict(_parsed(_encoded(text), f"the record of {name}") for name, text in new.items())
    with FileLock(out / LOCK):
        held = load(out) | runs
        if tidy:
            tables = "".join(file.read_text(encoding="utf-8", errors="replace") for file in out.glob("*.csv"))
            held = {name: held[name] for name in held.keys() & set(REFERENCE.findall(tables))}
        ordered = sorted(held.items(), key=lambda item: (item[1].record.key, item[0]))
        data = b"".join(_encoded(signed(run.record.raw)) + b"\n" for _, run in ordered)
        if not (out / RUNS).exists() or (out / RUNS).read_bytes() != data:
            write_output(out / RUNS, data)


def _bytes(file: Path) -> bytes:
    try:
        refuse_special(file)
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror or error})") from None


def signed(record: Row) -> str:
    """The text of a line."""
    return json.dumps({**record, SHA256: _sha256(record)}, ensure_ascii=False)


def _sha256(record: Row) -> str:
    return hashlib.sha256(_encoded(json.dumps(record, ensure_ascii=False))).hexdigest()


def _encoded(text: str) -> bytes:
    """Bytes of a command line that are no text become escapes, which JSON reads as what they were."""
    return text.encode(errors="backslashreplace")


def _parsed(text: bytes, where: str) -> tuple[str, Written]:
    """A line's run, and the name of its folder."""
    try:
        held = parse_json(text)
        if held.pop(SHA256, None) != _sha256(held):
            raise UserError(f"{where} is not as it was written, its sha256 is of another text; {REPAIR}")
        rows = [*_rows(held)]
        texts = (held[key] for key in ("key", "status", "folder"))
        numbers = (row[key] for row in rows for key in CURVE if key in row)
        typed = all(isinstance(text, str) for text in texts) and all(is_number(x) for x in numbers)
        if not (rows and isinstance(held["metrics"], dict) and typed):
            raise TypeError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{where} is damaged; {REPAIR}") from None
    record = RunRecord.of(held)
    if (fault := record.contradiction(rows)) is not None:
        raise UserError(f"{where} is damaged: {fault}; {REPAIR}")
    return Path(held["folder"]).name, Written(record, rows)


def _rows(record: Row) -> Iterator[Row]:
    """The lines of ``metrics.jsonl`` that a record has: of every evaluation, with one for its round."""
    evaluations = [
        {"stage": stage, **dict(zip(CURVE, row, strict=True))}
        for stage, columns in record["evaluations"].items()
        for row in zip(*(columns[key] for key in CURVE), strict=True)
    ]
    last = len(evaluations) - 1
    for i, row in enumerate(evaluations):
        place = {key: value for key, value in row.items() if key != "accuracy"}
        yield {"kind": "round", **place, **(record["round"] if i == last else {})}
        yield {"kind": "evaluation", **row, **(record["evaluation"] if i == last else {})}
