"""A federated label audit: rank the labels of a run by how likely they are wrong, and show them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flnl.audit.options import Options
    from flnl.audit.result import Audit


def audit(run: Path | str, options: Options | None = None) -> Audit:
    """Audit the labels of a finished run, and write the files that ``options`` ask for (``formats=()``: none).

    Args:
        run: the run's folder.
        options: what the command's options say; by default those of ``flnl audit RUN_DIR``.

    Raises:
        UserError: for mistakes that the user can correct.
    """
    from flnl.audit.options import Options
    from flnl.audit.performing import perform

    return perform(Path(run), Options() if options is None else options)[0].audit
