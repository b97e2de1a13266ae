"""What a run has left in its folder, as values and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl.console.extras import install
from flnl.core.errors import UserError
from flnl.record import label_table, metric_names
from flnl.record.run import RunRecord
from flnl.storage.spreadsheet import text_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RunResults:
    """A run's folder, read. Tables are pandas frames (the extra ``pandas``), made when they are asked for."""

    folder: Path
    status: str  # finished, stopped (at max_rounds), interrupted or failed
    config: Mapping[str, Any] = field(repr=False)  # resolved, by group and key
    numbers: Mapping[str, Any] = field(repr=False)  # of the closing table: ``best``, ``last`` (in [0, 1]), and others
    warnings: tuple[str, ...]  # what the method may have harmed, as the run's end printed it; mostly none
    record: Mapping[str, Any] = field(repr=False)  # all of ``result.json``
    _run: RunRecord = field(repr=False)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row for each round, by ``round``: ``stage``, ``train/loss``, ``test/accuracy``, NaN without evaluation."""
        evaluations = {row["round"]: row for row in self._run.evaluations}
        rows = [metric_names.of_round(row, evaluations.get(row["round"])) for row in self._run.per_round]
        return _frame(rows, columns=None if rows else list(metric_names.FIRST)).set_index("round")

    @cached_property
    def corrections(self) -> pd.DataFrame:
        """A row for each client at each correction of labels, by ``round`` and ``client``; empty without corrections.

        A client is known by its name if it has one, else by its number, as in ``labels``.

        The columns are what ``corrections.jsonl`` tells of clients, such as FedCorr's estimated noise levels.
        """
        rows = [
            {"round": row["round"], "client": self._client(client), "stage": row["stage"]}
            | {name: values[client] for name, values in row["clients"].items()}
            for row in self._run.corrections
            for client in range(max(map(len, row["clients"].values()), default=0))
        ]
        return _frame(rows, columns=None if rows else ["round", "client", "stage"]).set_index(["round", "client"])

    @cached_property
    def labels(self) -> pd.DataFrame:
        """``labels.csv``: a row for each training sample; classes and names of samples as text.

        Raises:
            UserError: if the run has not written it, or another one, or it cannot be read.
        """
        file = self.folder / label_table.NAME
        pandas = _pandas()
        try:
            self._run.check_file(file)
            table = pandas.read_csv(file, dtype=str, keep_default_na=False, encoding_errors="surrogateescape")
        except FileNotFoundError:
            raise UserError(
                f"there is no {file}: a run writes it when it finishes or stops, with products=true"
            ) from None
        except ValueError as error:  # pandas' errors about files are ValueErrors, too
            raise _unreadable(file, str(error).strip()) from error
        named = ["client"] if self._run.client_names else []
        texts = [name for name in (*named, "sample", "given", "final", "true") if name in table]
        table[texts] = table[texts].map(text_of)
        for name in ("client", "confidence", "self_confidence", "flagged"):
            if name in named or name not in table:  # early versions wrote no self_confidence
                continue
            try:
                table[name] = pandas.to_numeric(table[name].replace("", None))
            except ValueError as error:
                raise _unreadable(file, f"column {name}: {error}") from error
        return table

    def _client(self, number: int) -> str | int:
        return self._run.called(number) if self._run.client_names else number

    @property
    def figures(self) -> dict[str, Path]:
        """The figures' files, by name."""
        return {file.stem: file for file in sorted((self.folder / "figures").glob("*")) if file.is_file()}


def load_run(folder: str | Path) -> RunResults:
    """Read what a run has left in ``folder``.

    Raises:
        UserError: if there is no run, or its files differ from what it wrote.
    """
    path = Path(folder).expanduser()
    run = RunRecord.open(path).with_lines()
    warnings = tuple(map(str, run.warnings))
    return RunResults(path, run.status, run.config, run.metrics, warnings, run.raw, run)


def _frame(rows: list[dict[str, Any]], columns: list[str] | None) -> pd.DataFrame:
    return _pandas().DataFrame(rows, columns=columns)


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError as error:
        reason = f"tables of a run need pandas: {install('pandas')}"
        raise ModuleNotFoundError(reason) from error
    return pandas


def _unreadable(file: Path, reason: str) -> UserError:
    return UserError(f"{file} cannot be read ({reason}); it should be as the run wrote it")
