"""All loggers of a run as one, which never fails the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flnl.core.run_logger import LoggedRun, Logger, OpenLogger

log = logging.getLogger(__name__)


class Loggers:
    """The open loggers of a run; one that raises is logged in a line and left out from then on."""

    def __init__(self, loggers: Mapping[str, Logger], run: LoggedRun) -> None:
        self._open: dict[str, OpenLogger] = {}
        for name, logger in loggers.items():
            try:
                self._open[name] = logger.open(run)
            except Exception as error:  # any library may fail in any way
                log.warning("logger=%s could not be started (%s); the run continues without it", name, _reason(error))

    def log(self, row: Mapping[str, float | str], step: int) -> None:
        """Pass on the values of a round."""
        self._each(lambda logger: logger.log(row, step))

    def images(self, files: Sequence[Path], step: int) -> None:
        """Pass on figures."""
        if files:
            self._each(lambda logger: logger.images(files, step))

    def products(self, files: Sequence[Path]) -> None:
        """Pass on what the run has produced."""
        if files:
            self._each(lambda logger: logger.products(files))

    def close(self, *, failed: bool, summary: Mapping[str, Any]) -> str | None:
        """Close all; return a folder of W&B that is not synchronised yet, or else None."""
        places: list[str] = []

        def close(logger: OpenLogger) -> None:
            place = logger.close(failed=failed, summary=summary)
            places.extend([] if place is None else [place])

        self._each(close)
        self._open.clear()
        return places[0] if places else None

    def _each(self, do: Callable[[OpenLogger], None]) -> None:
        for name, logger in list(self._open.items()):
            try:
                do(logger)
            except Exception as error:  # any library may fail in any way
                del self._open[name]
                log.warning("logger=%s failed and is switched off (%s)", name, _reason(error))


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
