"""The records in a run's folder, as figures read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.record import lines
from flnl.storage.records import RESULT, read_record

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """``result.json``, and the rows of ``metrics.jsonl`` and ``corrections.jsonl`` in the order of rounds."""

    result: Row
    rounds: Sequence[Row]
    evaluations: Sequence[Row]
    corrections: Sequence[Row]

    @property
    def title(self) -> str:
        """Method, data set and seed; and the status of an unfinished run."""
        config = self.result.get("config", {})
        method, dataset = (config.get(group, {}).get("name", "?") for group in ("method", "dataset"))
        method += " (upper bound)" if self.result.get("upper_bound") else ""
        status = self.result.get("status", "finished")
        return f"{method} on {dataset}, seed {config.get('seed', '?')}" + (
            "" if status == "finished" else f" ({status})"
        )

    def called(self, client: int) -> str:
        """What a client is called: its name, or else its number."""
        names = self.result.get("client_names")
        return str(names[client]) if isinstance(names, list) and client < len(names) else str(client)

    @property
    def passes(self) -> list[Row]:
        """The corrections with a new LID mixture: one per pass over the clients."""
        rows: list[Row] = []
        for row in self.corrections:
            if row.get("mixture") and (not rows or row["mixture"] != rows[-1]["mixture"]):
                rows.append(row)
        return rows

    @property
    def given_noise(self) -> NDArray[np.float64] | None:
        """Each client's share of wrong given labels; None if the truth is unknown."""
        if not self.corrections or "true_noise_before" not in self.corrections[0]["clients"]:
            return None
        return numbers(self.corrections[0]["clients"]["true_noise_before"])


def read(folder: Path) -> RunRecord:
    """Read the records of the run in ``folder``.

    Raises:
        UserError: if there is no run, or its files differ from what it wrote.
    """
    result = read_record(folder)
    if result is None:
        raise UserError(f"{folder}: no run is recorded there ({RESULT} is missing or unreadable)")
    metrics = lines.rows(folder, lines.METRICS, result)
    return RunRecord(
        result,
        [row for row in metrics if row["kind"] == "round"],
        [row for row in metrics if row["kind"] == "evaluation"],
        lines.rows(folder, lines.CORRECTIONS, result),
    )


def numbers(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Recorded numbers as float64; null, which replaces non-finite numbers, becomes NaN."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def column(rows: Sequence[Row], key: str) -> NDArray[np.float64]:
    """The values of ``key`` in all rows; NaN where missing."""
    return numbers([row.get(key) for row in rows])
