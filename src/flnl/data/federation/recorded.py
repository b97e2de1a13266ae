"""The federation of a finished run, drawn again from the run's record. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from flnl.config.check import faults_of
from flnl.config.registry import restored
from flnl.core.errors import UserError
from flnl.data.federation.build import Federation, from_config
from flnl.storage.records import RESULT


def recorded_federation(record: Mapping[str, Any], folder: Path, places: Sequence[Path] = ()) -> Federation:
    """Draw a run's federation.

    Args:
        record: the run's record.
        folder: the run's folder.
        places: folders, besides ``conf/``, with configuration files that name the classes of the run's parts.

    Raises:
        UserError: if it cannot be drawn, or differs from the recorded one.
    """
    federation = from_config(recorded_data(record["config"], folder / RESULT, places))
    demand_recorded(federation, record, folder)
    return federation


def demand_recorded(federation: Federation, record: Mapping[str, Any], folder: Path) -> None:
    """Check that a federation is the one of the run with this record, in this folder.

    Raises:
        UserError: if it is another one.
    """
    if record.get("federation") not in federation.fingerprints:
        raise UserError(
            f"{folder}: the federation drawn now differs from the run's: the data files, numpy or the code have changed"
            " since; put back the data of the run, or repeat the run"
        )


def recorded_data(config: Mapping[str, Any], source: Path, places: Sequence[Path] = ()) -> DictConfig:
    """The configuration of a run's data, restricted to what a file may choose.

    Raises:
        UserError: naming a value that it may not.
    """
    parts = {
        group: restored(group, config.get(group), str(source), places) for group in ("dataset", "partition", "noise")
    }
    values = {key: config.get(key) for key in ("data_seed", "eval")}
    values["centralized"] = config.get("centralized", False)  # runs of before there was such a key had none
    if faults := faults_of(values):
        raise UserError(f"{source}: {faults}")
    return OmegaConf.create({**parts, **values})
