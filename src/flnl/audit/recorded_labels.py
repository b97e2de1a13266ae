"""``labels.csv`` of a run, as an audit reads it: final labels and the method's own flags."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flnl.audit.samples import LabelledSamples
from flnl.core.errors import UserError
from flnl.core.images import Labels
from flnl.storage.csv_lines import CsvLines
from flnl.storage.spreadsheet import text_of

COLUMNS = ("client", "sample", "given", "final", "flagged")


@dataclass(frozen=True, eq=False)
class RecordedLabels:
    """The columns that an audit uses."""

    final: Labels  # [N]
    flagged: NDArray[np.bool_] | None  # [N]; None if the method has not judged labels


def read_labels(path: Path, samples: LabelledSamples, classes: Sequence[str]) -> RecordedLabels:
    """Read the file, and compare it with the federation's samples.

    Raises:
        UserError: if it cannot be read, or does not list these samples with these labels in this order.
    """
    numbers = {name: k for k, name in enumerate(classes)}
    final, flags = np.empty(len(samples), np.int64), np.zeros(len(samples), np.bool_)
    judged, i, line = True, 0, 1
    try:
        with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
            lines = CsvLines(file)
            if missing := [name for name in COLUMNS if name not in lines.header]:
                raise ValueError(f"it has no column {missing[0]}")
            for line, row in lines:
                if i == len(samples):
                    raise _other(path, line, f"{row['client']}, {row['sample']}", "no more samples")
                here = samples.owner[i], str(samples.name[i]), classes[samples.given[i]]
                there = text_of(row["client"]), text_of(row["sample"]), text_of(row["given"])
                if there != here:
                    raise _other(path, line, _shown(there), _shown(here))
                final[i] = numbers[text_of(row["final"])]
                judged = row["flagged"] != ""
                flags[i] = row["flagged"] == "1"
                i += 1
    except KeyError as error:
        raise UserError(f"{path}: line {line} has the label {error.args[0]!r}, which is no class of the run") from error
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({error}); it should be as the run wrote it") from error
    if i < len(samples):
        here = samples.owner[i], str(samples.name[i]), classes[samples.given[i]]
        raise _other(path, line + 1, "no more samples", _shown(here))
    return RecordedLabels(final, flags if judged else None)


def _shown(sample: tuple[str, str, str]) -> str:
    client, name, given = sample
    return f"sample {name} of client {client} with label {given}"


def _other(path: Path, line: int, there: str, here: str) -> UserError:
    return UserError(
        f"{path} and the federation disagree at line {line}: {there} in the file, {here} in the federation; put back "
        "the file that the run wrote"
    )
