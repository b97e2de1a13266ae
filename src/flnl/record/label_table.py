"""``labels.csv``, a product of a run: the given and the final label of every sample."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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

    def columns(self) -> dict[str, Sequence[str | int]]:
        """The columns of the file: labels as class names, ``flagged`` as 1, 0 or empty."""
        columns: dict[str, Sequence[str | int]] = {
            "client": self.client,
            "sample": self.sample,
            "given": [self.classes[label] for label in self.given],
            "final": [self.classes[label] for label in self.final],
            "confidence": [f"{share:.6g}" for share in self.confidence.tolist()],
            "self_confidence": [f"{share:.6g}" for share in self.self_confidence.tolist()],
            "flagged": [""] * len(self.given) if self.flagged is None else [int(flag) for flag in self.flagged],
        }
        return columns if self.true is None else {**columns, "true": [self.classes[label] for label in self.true]}

    def save(self, path: Path) -> str:
        """Write the table atomically as CSV; return the sha256 of the file, 64 hex digits.

        A name that a spreadsheet would read as a formula gets a ``'`` before it, which ``spreadsheet.text_of`` removes.

        Raises:
            OSError: if the file cannot be written.
        """
        columns = self.columns()
        text = csv_text([[*columns], *zip(*columns.values(), strict=True)])
        data = text.encode("utf-8", errors="surrogateescape")
        write_atomically(path, data)
        return hashlib.sha256(data).hexdigest()
