"""Whether a finished run may stand for one that is asked for: its key has no contents of data files, only paths."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from flnl.config import compose
from flnl.config.identity import identity
from flnl.core.errors import UserError
from flnl.data.federation.build import Federation, from_config

log = logging.getLogger(__name__)

CHANGED = "the data files, numpy or the code that draws it have changed since"
OF_DATA = ("dataset.", "partition.", "noise.")


def same_federation(recorded: object, federation: Federation) -> bool:
    """Whether a recorded fingerprint is the federation's, or that by paths and sizes of its files."""
    return recorded in (federation.fingerprint, federation.names_fingerprint)


def check_data(cfg: DictConfig, folder: Path, record: Mapping[str, Any]) -> None:
    """Check that a finished run is of the federation that its configuration describes now.

    Data are read only where the configuration has the path of files whose contents are not known: published files that
    are compared with their checksums are the same wherever they lie. Files that cannot be read are told of.

    Args:
        cfg: the composed configuration, with the key of the run.
        folder: the run's folder.
        record: its record.

    Raises:
        UserError: if it is of another one.
    """
    if not _has_files(compose.resolved(cfg)):
        return
    try:
        federation = from_config(cfg, Path(cfg.cache).expanduser())
    except UserError as error:
        log.warning("%s: its data cannot be compared with those of today: %s", folder, error)
        return
    if not same_federation(record.get("federation"), federation):
        raise UserError(
            f"{folder}: the run is finished, of another federation than the one drawn now: {CHANGED}; remove the folder"
            " or choose another to run it again"
        )


def _has_files(plain: Mapping[str, Any]) -> bool:
    """Whether data, partition or noise name a file or folder that exists."""
    values = (value for key, value in identity(plain).items() if key.startswith(OF_DATA) and isinstance(value, str))
    return any(os.path.exists(os.path.expanduser(value)) for value in values)  # noqa: PTH110, PTH111 (never raise)
