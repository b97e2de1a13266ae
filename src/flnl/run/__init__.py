"""Runs one experiment: folder, session, checkpoints, record, progress, signals, loggers.

The package can be called: ``flnl.run(["noise.rho=0.6"])`` is ``flnl.api.runs.run``.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package that is a function, too: ``flnl.run`` is this package as soon as one of its modules is imported."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        return import_module("flnl.api.runs").run(*args, **named)  # by name: it is in a layer above


sys.modules[__name__].__class__ = _Callable
