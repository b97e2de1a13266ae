"""Import the user's own modules: what they do while they are imported can fail in any way."""

from __future__ import annotations

import importlib
from types import ModuleType

from flnl.core.errors import Interrupted, in_one_line


def import_own(name: str) -> ModuleType:
    """The module of that name, which may be the user's own.

    Raises:
        ImportError: if it ends Python, as by ``sys.exit``, or raises what else is no ``Exception``.
        Exception: whatever else it raises.
    """
    try:
        return importlib.import_module(name)
    except (Exception, KeyboardInterrupt, Interrupted):
        raise
    except BaseException as error:
        raise ImportError(f"it ends Python: {in_one_line(error)}") from error
