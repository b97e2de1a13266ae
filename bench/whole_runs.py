"""What benchmarks of whole runs share: the choice of runs on the command line, which are there, and their lines."""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from bench.ways import environment
from flnl.record.run import RunRecord

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Kind = TypeVar("Kind", bound="DataclassInstance")


def chosen(
    parser: argparse.ArgumentParser, choices: Mapping[str, Sequence[str]], argv: Sequence[str] | None
) -> argparse.Namespace:
    """The arguments: ``folder``, a list for each of ``choices``, and ``seeds``; a value that is no choice ends with 2.

    Args:
        parser: has what is special to the benchmark.
        choices: the known values of each option; by default it takes them all.
        argv: the words; None for those of the command.
    """
    parser.add_argument("folder", type=Path)
    for name, known in choices.items():
        parser.add_argument(f"--{name}", default=",".join(known), help=f"by default {','.join(known)}")
    parser.add_argument("--seeds", default="1,2,3")
    args = parser.parse_args(argv)
    for name, known in choices.items():
        asked = str(getattr(args, name)).split(",")
        for value in asked:
            if value not in known:
                parser.error(f"--{name}: {value} is none of {', '.join(known)}")
        setattr(args, name, asked)
    args.seeds = [int(seed) for seed in args.seeds.split(",")]
    return args


def everywhere(seed: int, executor: str, output: Path) -> list[str]:
    """The overrides of every run, whatever it trains."""
    return [
        f"seed={seed}",
        "device=cpu",
        "threads=1",
        f"executor={executor}",
        "figures=false",
        "wandb.mode=disabled",
        "resume=true",
        f"output={output}",
    ]


def finished(folder: Path) -> bool:
    """Whether there is a finished run."""
    record = RunRecord.read(folder)
    return record is not None and record.finished


def made(words: Sequence[str], folder: Path, seed: int = 1, executor: str = "sequential") -> RunRecord | None:
    """The record of the finished run in ``folder``, which is made of ``words`` if it is not there.

    None if it failed, which is told.
    """
    if not finished(folder):
        command = [sys.executable, "-m", "flnl", *words, *everywhere(seed, executor, folder)]
        ended = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        print(f"{folder}: {ended.stderr.strip().splitlines()[-1] if ended.returncode else 'finished'}", flush=True)
    return RunRecord.read(folder) if finished(folder) else None


def values(rows: Sequence[Any], name: str) -> list[float]:
    """The values of a field, where it is defined."""
    return [value for row in rows if (value := getattr(row, name)) is not None]


def write_rows(file: Path, kind: type[DataclassInstance], rows: Sequence[DataclassInstance]) -> None:
    """Write ``rows`` of ``kind`` as CSV, a column for each field."""
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, [field.name for field in fields(kind)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read_rows(file: Path, kind: type[Kind]) -> list[Kind]:
    """The rows that ``write_rows`` has written; none if there is no such file. Empty cells are None."""
    if not file.exists():
        return []
    hints = get_type_hints(kind)

    def value(name: str, text: str) -> object:
        hint = hints[name]
        return None if text == "" else hint(text) if hint in (int, float, str) else float(text)

    with file.open(newline="") as opened:
        lines = csv.DictReader(opened)
        if lines.fieldnames != [*hints]:
            raise SystemExit(f"{file} is of another version: move it away")
        return [kind(**{name: value(name, text) for name, text in row.items()}) for row in lines]
