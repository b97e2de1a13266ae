"""What several figures read from the rows of a run's record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flnl.record.run import RunRecord

Row = Mapping[str, Any]


def passes(record: RunRecord) -> list[Row]:
    """The corrections with a new LID mixture: one per pass over the clients."""
    rows: list[Row] = []
    for row in record.corrections:
        if row.get("mixture") and (not rows or row["mixture"] != rows[-1]["mixture"]):
            rows.append(row)
    return rows


def given_noise(record: RunRecord) -> NDArray[np.float64] | None:
    """Each client's share of wrong given labels; None if the truth is unknown."""
    if not record.corrections or "true_noise_before" not in record.corrections[0]["clients"]:
        return None
    return numbers(record.corrections[0]["clients"]["true_noise_before"])


def numbers(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Recorded numbers as float64; null, which replaces non-finite numbers, becomes NaN."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def column(rows: Sequence[Row], key: str) -> NDArray[np.float64]:
    """The values of ``key`` in all rows; NaN where missing."""
    return numbers([row.get(key) for row in rows])
