"""The labels of a run as a product: ``labels.csv`` says of every sample what it was given and what it ended with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from flnl.storage.atomic import write_atomically
from flnl.storage.spreadsheet import csv_text

NAME = "labels.csv"


@dataclass(frozen=True)
class LabelTable:
    """Every training sample of every client, by client and then by position; no sample that is held out or nobody's.

    All columns have length n. Labels are numbers of ``classes``.
    """

    classes: Sequence[str]  # [K]
    client: Sequence[int]
    sample: Sequence[str | int]  # name or path as the data set has it, or position in its training set
    given: Sequence[int]
    final: Sequence[int]
    confidence: Tensor  # float64 [n] in [0, 1]: the final global model's probability of the final label
    flagged: Sequence[bool] | None  # suspected or changed; None where nobody has judged the labels
    true: Sequence[int] | None  # None where nobody knows them

    def rows(self) -> Iterator[dict[str, str | int]]:
        """The lines of the file: labels by the names of their classes, ``flagged`` as 1, 0 or empty."""
        for i, (client, sample) in enumerate(zip(self.client, self.sample, strict=True)):
            row = {
                "client": client,
                "sample": sample,
                "given": self.classes[self.given[i]],
                "final": self.classes[self.final[i]],
                "confidence": f"{float(self.confidence[i]):.6g}",
                "flagged": "" if self.flagged is None else int(self.flagged[i]),
            }
            yield row if self.true is None else {**row, "true": self.classes[self.true[i]]}

    def save(self, path: Path) -> None:
        """Write the table as CSV, whole or not at all.

        A name that a spreadsheet would take for a formula has a mark before it: ``spreadsheet.text_of`` reads it.

        Raises:
            OSError: if it cannot be written.
        """
        columns = ["client", "sample", "given", "final", "confidence", "flagged"]
        columns += ["true"] if self.true is not None else []
        text = csv_text([columns, *(row.values() for row in self.rows())])
        write_atomically(path, text.encode("utf-8", errors="surrogateescape"))
