"""A federated label audit: rank the labels of a run by how likely they are wrong, and show them.

The package can be called: ``flnl.audit("outputs/my_run")`` is ``flnl.audit.audit``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flnl.audit.options import Options

if TYPE_CHECKING:
    from flnl.audit.result import Audit

__all__ = ["Options", "audit"]


def audit(run: Path | str, options: Options | None = None) -> Audit:
    """Audit the labels of a finished run, and write the files that ``options`` ask for (``formats=()``: none).

    Args:
        run: the run's folder.
        options: what the command's options say; by default those of ``flnl audit RUN_DIR``.

    Raises:
        UserError: for mistakes that the user can correct.
    """
    from flnl.audit.performing import perform
    from flnl.core.errors import UserError

    given: Any = options
    if not isinstance(given, Options | None):
        raise UserError(f"options {given!r}: should be flnl.audit.Options(...)")
    return perform(Path(run).expanduser(), Options() if options is None else options)[0].audit


class _Callable(ModuleType):
    """A package that is a function, too: ``flnl.audit`` is this package."""

    def __call__(self, *args: Any, **named: Any) -> Audit:
        return audit(*args, **named)


sys.modules[__name__].__class__ = _Callable
