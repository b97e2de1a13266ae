"""An audit from the folder of a run to the files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flnl.audit.examination import Examined, examine
from flnl.audit.options import Options
from flnl.audit.writing import Written, folder_of, refuse_existing, write
from flnl.storage.output_file import check_folder


def perform(run: Path, options: Options, report: Callable[[str], None] = lambda line: None) -> tuple[Examined, Written]:
    """Audit the run in the folder ``run`` and write the files; ``report`` is told in a line what takes long.

    Raises:
        UserError: for mistakes that the user can correct.
    """
    if options.formats or options.corrections is not None:
        folder = folder_of(run, options)
        refuse_existing(folder, options)
        check_folder(str(folder), folder.resolve().parent)  # beside it, the new one is made
    examined = examine(run, options, report)
    return examined, write(examined)
