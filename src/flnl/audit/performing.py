"""An audit from the folder of a run to the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from flnl.audit.examination import Examined, examine
from flnl.audit.options import Options
from flnl.audit.writing import Written, folder_of, refuse_existing, write
from flnl.core.errors import UserError
from flnl.record.run import RunRecord
from flnl.storage.output_file import check_folder

AT_SITES = ("sites", "served")
"""Executors of runs whose labels are at sites."""


def perform(run: Path, options: Options, report: Callable[[str], None] = lambda line: None) -> tuple[Examined, Written]:
    """Audit the run in the folder ``run`` and write the files; ``report`` is told in a line what takes long.

    Raises:
        UserError: for mistakes that the user can correct.
    """
    record = RunRecord.read(run)
    if record is not None and isinstance(record.executor, Mapping) and record.executor.get("name") in AT_SITES:
        raise UserError(f"{run}: the labels of this run are at its sites; the command flnl audit asks them")
    if options.formats or options.corrections is not None:
        folder = folder_of(run, options)
        refuse_existing(folder, options)
        check_folder(str(folder), folder.resolve().parent)  # beside it, the new one is made
    examined = examine(run, options, report)
    return examined, write(examined)
