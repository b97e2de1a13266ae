"""The federation of a finished run, drawn again from the run's record. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from flnl.config import compose
from flnl.config.check import faults_of
from flnl.config.identity import PLACES
from flnl.config.recorded import placed, whereabouts
from flnl.config.registry import restored
from flnl.core.errors import UserError
from flnl.data.federation.build import Federation, from_config
from flnl.record.run import RESULT, RunRecord

CHANGED = "the data files, numpy or the code that draws it have changed since"


def recorded_federation(
    record: RunRecord, places: Sequence[Path] = (), data: Mapping[str, str] | None = None
) -> Federation:
    """Draw a run's federation.

    Args:
        record: the run's record.
        places: folders, besides ``conf/``, with configuration files that name the classes of the run's parts.
        data: where the run's data lie here, by the keys of ``PLACES``.

    Raises:
        UserError: if it cannot be drawn, or differs from the recorded one.
    """
    return drawn_again(recorded_data(record, places, data), record)


def drawn_again(cfg: DictConfig, record: RunRecord, cache: Path | None = None) -> Federation:
    """Draw the federation of a configuration that should be that of a run.

    Raises:
        UserError: if it cannot be drawn, or differs from the recorded one.
    """
    try:
        federation = from_config(cfg, cache)
    except UserError as error:
        if named := [key for key in PLACES if f"{key}=" in str(error) or f"{key}:" in str(error)]:
            raise UserError(f"{error} (if it lies elsewhere here, add {named[0]}=PATH)") from None
        raise
    if record.federation not in federation.fingerprints:
        why = what_differs(record, compose.resolved(cfg), federation.contents)
        raise UserError(
            f"{record.folder}: the federation drawn now differs from the run's: {why}; put back the data of the run, "
            "or repeat the run"
        )
    return federation


def what_differs(record: RunRecord, plain: Mapping[str, Any], contents: Mapping[str, Collection[str]]) -> str:
    """Why the federation of a configuration is another than that of a record, in words.

    Args:
        record: that of a run of this configuration.
        plain: the configuration, resolved.
        contents: of the federation drawn now, as ``Federation.contents``.
    """
    digests = record.digests
    if [one.get("dataset", {}).get("fingerprint") for one in (plain, record.config)] == ["names", "contents"]:
        digests.pop("dataset", None)  # of another kind than any that is known here
    for group, found in contents.items():
        if group in digests and digests[group] not in found:
            here, there = (_of_group(group, one) for one in (whereabouts(plain), record.whereabouts))
            if here and here == there:
                return f"the data files of {here} have changed since"
            if here:
                return f"the data files of {here} are others than those of {there or 'the run'}"
    return CHANGED


def _of_group(group: str, places: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={place}" for key, place in places.items() if key.startswith(f"{group}."))


def recorded_data(record: RunRecord, places: Sequence[Path] = (), data: Mapping[str, str] | None = None) -> DictConfig:
    """The configuration of a run's data, restricted to what a file may choose.

    Args:
        record: the run's record.
        places: folders, besides ``conf/``, with configuration files that name the classes of the run's parts.
        data: where the run's data lie here, by the keys of ``PLACES``.

    Raises:
        UserError: naming a value that it may not.
    """
    config, source = record.config, str(record.file(RESULT))
    parts = {group: restored(group, config.get(group), source, places) for group in ("dataset", "partition", "noise")}
    values = {key: config.get(key) for key in ("data_seed", "eval")}
    values["centralized"] = config.get("centralized", False)  # early runs had no such key
    values["shift"] = config.get("shift", {})
    if faults := faults_of(values):
        raise UserError(f"{source}: {faults}")
    return OmegaConf.create({**placed(parts, record.cwd, data or {}, source), **values})
