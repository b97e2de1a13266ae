"""flnl: federated learning with noisy labels, as methods that compose.

From Python: ``flnl.run([...])`` trains, ``flnl.load_run(folder)`` reads what a run has left,
``flnl.load_model(folder)`` gives its network, and ``flnl.audit(folder)`` ranks its labels by how likely they are wrong.
Nothing is imported before it is used.
"""

from importlib import import_module as _import_module

__version__ = "0.2.0"

_HOMES = {
    "run": "",  # the package flnl.run, which can be called
    "load_run": "flnl.api.results",
    "RunResults": "flnl.api.results",
    "load_model": "flnl.api.models",
    "TrainedModel": "flnl.api.models",
    "audit": "",  # the package flnl.audit, which can be called, too
    "Audit": "flnl.audit.result",
    "UserError": "flnl.core.errors",
}
"""The module of each public name; ``__init__.pyi`` says the same to type checkers."""

__all__ = ["Audit", "RunResults", "TrainedModel", "UserError", "__version__", "audit", "load_model", "load_run", "run"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(_HOMES[name]), name) if _HOMES[name] else _import_module(f"{__name__}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
