"""Verdicts of a reviewer on samples, as the page saves them: ``client,sample,verdict,label``."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from flnl.audit.assessment import LabelledSamples
from flnl.core.errors import UserError
from flnl.storage.csv_lines import CsvLines, LineLengthError, opened
from flnl.storage.spreadsheet import text_of
from flnl.storage.written_names import composed

Name = TypeVar("Name", str, tuple[str, str])
Judgement = Literal["right", "wrong", "unsure"]
COLUMNS = ("client", "sample", "verdict", "label")


@dataclass(frozen=True)
class Verdict:
    """What a reviewer says of a sample's given label."""

    judgement: Judgement
    label: int | None  # the right class of a wrong label, if the reviewer names it


def read_verdicts(paths: Sequence[Path], samples: LabelledSamples, classes: Sequence[str]) -> dict[int, Verdict]:
    """Read the verdicts of all files, by the index of the sample.

    A name that looks like a formula may have a ``'`` before it, as a spreadsheet's copy may have.

    Raises:
        UserError: naming the line: an unknown sample, class or verdict, a second verdict on a sample, a wrong label
            that should be itself, or a right one that is not the given one.
    """
    place = {(c, str(name)): i for i, (c, name) in enumerate(zip(samples.owner, samples.name, strict=True))}
    alike = Counter((composed(c), composed(name)) for c, name in place)
    looks = {who: i for (c, name), i in place.items() if alike[who := (composed(c), composed(name))] == 1}
    numbers = {name: k for k, name in enumerate(classes)}
    verdicts: dict[int, Verdict] = {}
    for path, number, row in ((file, *line) for file in paths for line in _rows(file)):
        where = f"--reviewed: line {number} of {path}"
        who, plain = (row["client"], row["sample"]), (text_of(row["client"]), text_of(row["sample"]))
        sample = _known(who, plain, place)
        if sample is None:
            sample = looks.get((composed(plain[0]), composed(plain[1])))
        if sample is None:
            raise UserError(f"{where}: client {row['client']} has no sample {row['sample']!r}")
        if sample in verdicts:
            raise UserError(f"{where}: sample {row['sample']!r} of client {row['client']} has a verdict already")
        if row["verdict"] not in get_args(Judgement):
            raise UserError(f"{where}: {row['verdict']!r} is no verdict; there are {', '.join(get_args(Judgement))}")
        label = None
        if row["label"]:
            label = _known(row["label"], text_of(row["label"]), numbers)
            if label is None:
                more = ", ..." if len(classes) > 5 else ""
                raise UserError(f"{where}: {row['label']!r} is none of the classes ({', '.join(classes[:5])}{more})")
            if row["verdict"] == "right" and label != samples.given[sample]:
                raise UserError(
                    f"{where}: the given label of sample {row['sample']!r} is {classes[samples.given[sample]]!r}, and "
                    f"{row['label']!r} is called right: the verdicts are of other labels"
                )
            if row["verdict"] == "wrong" and label == samples.given[sample]:
                raise UserError(
                    f"{where}: {row['label']!r} is the given label of sample {row['sample']!r}, which cannot be wrong "
                    "and right: put the right class there, or make the verdict unsure"
                )
        judgement: Judgement = row["verdict"]  # type: ignore[assignment] # checked above
        verdicts[sample] = Verdict(judgement, label)
    return verdicts


def _known(written: Name, plain: Name, known: Mapping[Name, int]) -> int | None:
    return known.get(written, known.get(plain))


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        with opened(path) as file:
            lines = CsvLines(file)
            if missing := [name for name in COLUMNS if name not in lines.header]:
                raise UserError(
                    f"--reviewed: {path} has no column {missing[0]!r}: its header should be {','.join(COLUMNS)}"
                )
            return list(lines)
    except LineLengthError as error:
        raise UserError(
            f"--reviewed: line {error.line} of {path} has another number of values than the header"
        ) from error
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(
            f"--reviewed: {path} cannot be read ({reason}); it should be verdicts.csv from the page"
        ) from error
