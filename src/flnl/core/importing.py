"""Import the user's own modules and classes: what modules do while they are imported can fail in any way."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

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


NO_CLASS = "there is no such class"


def located(name: Any) -> type | None:
    """The class of that name; None where there is none that can be imported."""
    found = imported(name)
    return None if isinstance(found, str) else found


def imported(name: Any) -> type | str:
    """The class of that name, or why there is none: its module may exist and fail while it is imported."""
    module, _, leaf = str(name).rpartition(".")
    try:
        target = getattr(import_own(module), leaf, None)
    except Exception as error:  # what a module does while it is imported can fail in any way
        missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        if not missing and all(part.isidentifier() for part in module.split(".")):
            return f"{module} cannot be imported ({type(error).__name__}: {' '.join(str(error).split())})"
        return NO_CLASS
    return target if isinstance(target, type) else NO_CLASS
