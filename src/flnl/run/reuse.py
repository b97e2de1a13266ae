"""Whether a finished run may stand for one that is asked for: its key has no contents of data files, only paths."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from flnl.config import compose
from flnl.config.identity import identity
from flnl.core.errors import UserError
from flnl.data.federation.build import from_config

log = logging.getLogger(__name__)

CHANGED = "the data files, numpy or the code that draws it have changed since"
OF_DATA = ("dataset.", "partition.", "noise.", "eval.", "centralized", "data_seed")
"""What a federation depends on."""


@dataclass(frozen=True)
class _Drawn:
    """What is kept of a federation that was drawn to be compared."""

    fingerprints: tuple[str, ...] = ()  # none if it could not be drawn
    by_names: bool = False
    failure: str = ""


class Reuse:
    """Compares finished runs with the federations that their configurations describe now; each is drawn once."""

    def __init__(self) -> None:
        self._drawn: dict[str, _Drawn] = {}

    def changed(self, cfg: DictConfig, folder: Path, record: Mapping[str, Any]) -> bool:
        """Whether a finished run is known to be of another federation.

        Data are read only where the configuration has the path of files whose contents are not known: published files
        that are compared with their checksums are the same wherever they lie. Data that cannot be compared are told of.

        Args:
            cfg: the composed configuration, with the key of the run.
            folder: the run's folder.
            record: its record.
        """
        plain = compose.resolved(cfg)
        of_data = {key: value for key, value in identity(plain).items() if key.startswith(OF_DATA)}
        if not any(_exists(value) for value in of_data.values()):
            return False
        drawn = self._draw(cfg, json.dumps([of_data, plain["dataset"].get("fingerprint")], sort_keys=True, default=str))
        unknown = drawn.failure
        if not unknown and record.get("federation") not in drawn.fingerprints:
            if not (drawn.by_names and record["config"].get("dataset", {}).get("fingerprint") == "contents"):
                return True
            unknown = "dataset.fingerprint=names does not tell the contents of files"
        if unknown:
            log.warning("%s: its data cannot be compared with those of today: %s", folder, unknown)
        return False

    def _draw(self, cfg: DictConfig, name: str) -> _Drawn:
        if name not in self._drawn:
            try:
                federation = from_config(cfg, Path(cfg.cache).expanduser())
                self._drawn[name] = _Drawn(federation.fingerprints, federation.by_names)
            except UserError as error:
                self._drawn[name] = _Drawn(failure=str(error))
        return self._drawn[name]


def check_data(cfg: DictConfig, folder: Path, record: Mapping[str, Any]) -> None:
    """Check that a finished run is of the federation that its configuration describes now.

    Raises:
        UserError: if it is of another one.
    """
    if Reuse().changed(cfg, folder, record):
        raise UserError(
            f"{folder}: the run is finished, of another federation than the one drawn now: {CHANGED}; remove the folder"
            " or choose another to run it again"
        )


def _exists(value: object) -> bool:
    """Whether a value is the path of something."""
    return isinstance(value, str) and os.path.exists(os.path.expanduser(value))  # noqa: PTH110, PTH111 (never raise)
