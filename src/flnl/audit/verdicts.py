"""Verdicts of a reviewer on samples, as the page saves them: ``client,sample,verdict,label``."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from flnl.audit.samples import LabelledSamples
from flnl.console.words import some
from flnl.core.errors import UserError
from flnl.storage.csv_lines import CsvLines, LineLengthError, opened
from flnl.storage.spreadsheet import text_of
from flnl.storage.written_names import composed

Judgement = Literal["right", "wrong", "unsure"]
COLUMNS = ("client", "sample", "verdict", "label")


@dataclass(frozen=True)
class Verdict:
    """What a reviewer says of a sample's given label."""

    judgement: Judgement
    label: int | None  # the right class of a wrong label, if the reviewer names it

    def agrees(self, other: Verdict) -> bool:
        """Whether the other says the same; what is right or unsure says no more by a label."""
        return self == other or self.judgement == other.judgement != "wrong"


def read_verdicts(paths: Sequence[Path], samples: LabelledSamples, classes: Sequence[str]) -> dict[int, Verdict]:
    """Read the verdicts of all files, by the index of the sample.

    A name that looks like a formula may have a ``'`` before it, as a spreadsheet's copy may have.

    Raises:
        UserError: naming the line: an unknown sample, class or verdict, another verdict on a sample than before, a
            wrong label that should be itself, or a right one that is not the given one.
    """
    place = _finder({(c, str(name)): i for i, (c, name) in enumerate(zip(samples.owner, samples.name, strict=True))})
    numbers = _finder({(name,): k for k, name in enumerate(classes)})
    verdicts: dict[int, Verdict] = {}
    lines: dict[int, str] = {}
    for path, number, row in ((file, *line) for file in paths for line in _rows(file)):
        line = f"line {number} of {path}"
        where = f"--reviewed: {line}"
        sample = place(row["client"], row["sample"])
        if sample is None:
            raise UserError(f"{where}: client {row['client']} has no sample {row['sample']!r}")
        if row["verdict"] not in get_args(Judgement):
            raise UserError(f"{where}: {row['verdict']!r} is no verdict; there are {', '.join(get_args(Judgement))}")
        label = None
        if row["label"]:
            label = numbers(row["label"])
            if label is None:
                raise UserError(f"{where}: {row['label']!r} is none of the classes ({some(classes)})")
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
        verdict = Verdict(judgement, label)
        if not verdicts.setdefault(sample, verdict).agrees(verdict):
            raise UserError(
                f"{where}: sample {row['sample']!r} of client {row['client']} has another verdict in {lines[sample]}: "
                "keep one of them"
            )
        lines.setdefault(sample, line)
    return verdicts


def write_verdicts(
    path: Path, verdicts: Mapping[int, Verdict], samples: LabelledSamples, classes: Sequence[str]
) -> None:
    """Write verdicts on samples, by index, as the page saves them.

    Raises:
        OSError: if the file cannot be written.
    """
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        for i, one in verdicts.items():
            label = "" if one.label is None else classes[one.label]
            lines.writerow([samples.owner[i], samples.name[i], one.judgement, label])


def _finder(known: Mapping[tuple[str, ...], int]) -> Callable[..., int | None]:
    """Finds names as they are, without a spreadsheet's mark, or in another Unicode form where that is of one alone."""

    def form(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(composed, names))

    alike = Counter(map(form, known))
    looks = {who: i for names, i in known.items() if alike[who := form(names)] == 1}

    def find(*written: str) -> int | None:
        plain = tuple(map(text_of, written))
        return known.get(written, known.get(plain, looks.get(form(plain))))

    return find


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
