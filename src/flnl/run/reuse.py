"""Whether a run may stand for one that is asked for: its key has neither the contents of data files nor their paths."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from flnl.config import compose
from flnl.config.identity import OF_FEDERATION, identity, places
from flnl.config.recorded import whereabouts
from flnl.core.errors import UserError
from flnl.data.federation.build import from_config
from flnl.data.federation.recorded import what_differs
from flnl.record.run import RunRecord

log = logging.getLogger(__name__)

OF_DATA = (*OF_FEDERATION, "eval.", "centralized")
"""Beginnings of the keys of what a federation depends on."""


@dataclass(frozen=True)
class _Drawn:
    """What is kept of a federation that was drawn to be compared."""

    fingerprints: tuple[str, ...] = ()  # none if it could not be drawn
    contents: Mapping[str, Collection[str]] = field(default_factory=dict)
    by_names: bool = False
    failure: str = ""


class Reuse:
    """Compares runs with the federations that their configurations describe now; each is drawn once."""

    def __init__(self) -> None:
        self._drawn: dict[str, _Drawn] = {}

    def changed(self, cfg: DictConfig, record: RunRecord) -> str:
        """What tells a finished run from one of this configuration's federation, in words; "" if nothing is known to.

        Data are read only where the configuration has the path of files whose contents are not known: published files
        that are compared with their checksums are the same wherever they lie. Data that cannot be compared are told of.

        Args:
            cfg: the composed configuration, with the key of the run.
            record: its record.
        """
        plain = compose.resolved(cfg)
        if whereabouts(plain) == record.whereabouts and not names_files(plain):
            return ""
        drawn = self._draw(cfg, plain)
        unknown = drawn.failure
        if not unknown and record.federation not in drawn.fingerprints:
            if not (drawn.by_names and record.config.get("dataset", {}).get("fingerprint") == "contents"):
                return what_differs(record, plain, drawn.contents)
            unknown = "dataset.fingerprint=names does not tell the contents of files"
        if unknown:
            log.warning("%s: its data cannot be compared with those of today: %s", record.folder, unknown)
        return ""

    def draws(self, cfg: DictConfig, federation: str) -> bool:
        """Whether the federation of a configuration may have this digest now. Data are read.

        Args:
            cfg: the composed configuration, with the key of the run that drew it.
            federation: the digest, 64 hex digits.
        """
        drawn = self._draw(cfg, compose.resolved(cfg))
        return bool(drawn.failure) or drawn.by_names or federation in drawn.fingerprints

    def same(self, cfg: DictConfig, record: RunRecord) -> bool:
        """Whether a run of a configuration's key is of its data: these lie at the same places, or agree.

        Data are read only where the run's lay elsewhere.
        """
        plain = compose.resolved(cfg)
        if whereabouts(plain) == record.whereabouts:
            return True
        return record.federation in self._draw(cfg, plain).fingerprints

    def _draw(self, cfg: DictConfig, plain: Mapping[str, Any]) -> _Drawn:
        known = [of_data(plain), places(plain), plain["dataset"].get("fingerprint")]
        name = json.dumps(known, sort_keys=True, default=str)
        if name not in self._drawn:
            try:
                federation = from_config(cfg, Path(cfg.cache).expanduser())
                self._drawn[name] = _Drawn(federation.fingerprints, federation.contents, federation.by_names)
            except UserError as error:
                self._drawn[name] = _Drawn(failure=str(error))
        return self._drawn[name]


def check_data(cfg: DictConfig, record: RunRecord) -> None:
    """Check that a finished run is of the federation that its configuration describes now.

    Raises:
        UserError: if it is of another one.
    """
    if why := Reuse().changed(cfg, record):
        raise UserError(
            f"{record.folder}: the run is finished, of another federation than the one drawn now: {why}; remove the "
            "folder or choose another to run it again"
        )


def of_data(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a resolved configuration that a federation depends on, by dotted key."""
    return {key: value for key, value in identity(plain).items() if key.startswith(OF_DATA)}


def names_files(plain: Mapping[str, Any]) -> bool:
    """Whether a federation depends on files that are there, and whose contents no published checksum tells."""
    return any(map(_exists, (*whereabouts(plain).values(), *of_data(plain).values())))


def _exists(value: object) -> bool:
    """Whether a value is the path of something."""
    return isinstance(value, str) and os.path.exists(os.path.expanduser(value))  # noqa: PTH110, PTH111 (never raise)
