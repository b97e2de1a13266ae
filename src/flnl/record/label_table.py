"""``labels.csv``, a product of a run: the given and the final label of every sample."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from flnl.storage.atomic import write_atomically
from flnl.storage.spreadsheet import csv_text

NAME = "labels.csv"


@dataclass(frozen=True)
class LabelTable:
    """Every client's training samples, by client and then by position; excludes held-out and unassigned samples.

    All columns have length n. Labels are indices into ``classes``.
    """

    classes: Sequence[str]  # [K]
    client: Sequence[str]  # its name, or its number
    sample: Sequence[str | int]  # the data set's name or path of the sample, or its position in the training set
    given: Sequence[int]
    final: Sequence[int]
    confidence: Tensor  # float64 [n] in [0, 1]: the final global model's probability of the final label
    self_confidence: Tensor  # float64 [n] in [0, 1]: the final global model's probability of the given label
    flagged: Sequence[bool] | None  # suspected or changed; None if the method has not judged labels
    true: Sequence[int] | None  # None if unknown

    def rows(self) -> Iterator[dict[str, str | int]]:
        """The rows of the file: labels as class names, ``flagged`` as 1, 0 or empty."""
        for i, (client, sample) in enumerate(zip(self.client, self.sample, strict=True)):
            row = {
                "client": client,
                "sample": sample,
                "given": self.classes[self.given[i]],
                "final": self.classes[self.final[i]],
                "confidence": f"{float(self.confidence[i]):.6g}",
                "self_confidence": f"{float(self.self_confidence[i]):.6g}",
                "flagged": "" if self.flagged is None else int(self.flagged[i]),
            }
            yield row if self.true is None else {**row, "true": self.classes[self.true[i]]}

    def save(self, path: Path) -> str:
        """Write the table atomically as CSV; return the sha256 of the file, 64 hex digits.

        A name that a spreadsheet would read as a formula gets a ``'`` before it, which ``spreadsheet.text_of`` removes.

        Raises:
            OSError: if the file cannot be written.
        """
        columns = ["client", "sample", "given", "final", "confidence", "self_confidence", "flagged"]
        columns += ["true"] if self.true is not None else []
        text = csv_text([columns, *(row.values() for row in self.rows())])
        data = text.encode("utf-8", errors="surrogateescape")
        write_atomically(path, data)
        return hashlib.sha256(data).hexdigest()
