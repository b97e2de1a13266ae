"""An audit from the folder of a run to the files."""

from __future__ import annotations

from pathlib import Path

from flnl.audit.examination import Examined, examine
from flnl.audit.options import Options
from flnl.audit.writing import Written, folder_of, refuse_existing, write


def perform(run: Path, options: Options) -> tuple[Examined, Written]:
    """Audit the run in the folder ``run`` and write the files.

    Raises:
        UserError: for mistakes that the user can correct.
    """
    refuse_existing(folder_of(run, options), force=options.force or not options.formats)
    examined = examine(run, options)
    return examined, write(examined)
