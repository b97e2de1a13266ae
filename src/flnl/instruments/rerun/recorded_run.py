"""A finished run as it is repeated: its record, the configuration in it, and its data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from flnl.config import compose
from flnl.config.explain import explain, no_such_key
from flnl.config.given import noise_rate
from flnl.config.identity import FORMAT, PLACES, identity
from flnl.config.override_text import dotted, group_of
from flnl.config.quoting import quoted
from flnl.config.recorded import placed, places_of, recorded_configuration
from flnl.core.errors import UserError
from flnl.record.run import RESULT, RunRecord
from flnl.record.sweeps import PLAN
from flnl.run.overrides import check_arguments

NEW = ("output", "output_root", "resume", "cache", "products", "figures", "logger", "wandb", "executor", "checkpoint")
"""Sections and keys that a repeated run has of its own: where it writes, and who runs its clients."""
FREE = ("precision",)
"""What may be changed of what makes a run what it is: its arithmetic."""
EARLIEST = 4
"""The first format of keys whose runs are repeated."""


def finished_run(folder: Path) -> RunRecord:
    """Read the record in ``folder``.

    Raises:
        UserError: if there is no finished run, or one of another version.
    """
    if not folder.exists():
        raise UserError(f"there is no folder {folder}; name the folder of a finished run")
    runs = [] if (folder / RESULT).exists() else sorted(file.parent for file in folder.glob(f"*/{RESULT}"))
    if runs or (folder / PLAN).exists():
        one = f", such as {runs[0]}" if runs else ""
        raise UserError(f"{folder} holds several runs, and one is repeated at a time: name its folder{one}")
    record = RunRecord.open(folder).demand_finished()
    if record.key_format not in range(EARLIEST, FORMAT + 1):
        commit = f" (commit {record.commit})" if record.commit else ""
        raise UserError(
            f"{folder}: its record has keys of format {record.key_format}, and this version repeats runs of formats "
            f"{EARLIEST} to {FORMAT}: use the version that it was made with{commit}"
        )
    return record


def configuration(
    run: RunRecord, overrides: Sequence[str], places: Sequence[Path] = (), trusted: Sequence[str] = ()
) -> DictConfig:
    """The configuration that repeats the run; ``overrides`` say how to run it, and where its files lie.

    The record may name classes that files in the folders ``places`` name, as those in ``conf/`` do, and code of the
    user's own by the dotted paths ``trusted``.

    Raises:
        UserError: naming what a record may not choose, what the overrides may not change, or what is missing here.
    """
    config, source = run.config, str(run.file(RESULT))
    check_arguments(overrides)
    own = [word for word in overrides if dotted(word).split(".")[0] in NEW]
    others = [word for word in overrides if word not in own]
    products = str(config.get("products") is not False).lower()
    base = compose.load(["logger=csv", "figures=false", f"products={products}", *own])
    cfg = recorded_configuration(config, source, places, trusted, base)
    if cfg.dataset.get("cache", "") is None:
        cfg.dataset.cache = cfg.cache  # which a record cannot choose
    typed = places_of([word for word in others if dotted(word) in PLACES])
    data = {group: cfg[group] for group in ("dataset", "partition", "noise")}
    for group, part in placed(data, run.cwd, typed, source).items():
        cfg[group] = part
    others = [word for word in others if dotted(word) not in PLACES]
    for word in others:
        _set(cfg, word)
    if not any(dotted(word).startswith("executor") for word in own):
        from flnl.engine.executors.auto import as_recorded

        plain: Any = OmegaConf.to_container(base.executor, resolve=True)
        cfg.executor = as_recorded(run.executor or "sequential", plain, source)
    _demand_same(run, compose.resolved(cfg), [dotted(word) for word in others])
    _refer_to_noise_rate(run, cfg)
    return cfg


def _demand_same(run: RunRecord, plain: Mapping[str, Any], typed: Sequence[str]) -> None:
    """Refuse a configuration of another run, except for what is ``FREE``."""
    ours, theirs = identity(plain), run.defining
    changed = [k for k in dict.fromkeys([*ours, *theirs]) if ours.get(k) != theirs.get(k) and k not in FREE]
    for key in changed:
        here, there = (str(values.get(key, "absent")) for values in (ours, theirs))
        if key in typed:
            raise UserError(f"{key}={here}: the run has {there}, and what a run is cannot be changed: leave it out")
    if changed:
        key = changed[0]
        raise UserError(
            f"{run.folder}: {key} would be {ours.get(key, 'absent')}, and the run has {theirs.get(key, 'absent')},"
            f" which a record cannot choose; if you trust it, add {key}={quoted(str(theirs.get(key)))}"
        )


def _refer_to_noise_rate(run: RunRecord, cfg: DictConfig) -> None:
    """Mark again what the method was given the noise rate for, as far as it is the noise rate."""
    for key, value in run.given.items():
        if re.fullmatch(r"method(\.\w+)+", key) and OmegaConf.select(cfg, key) == value:
            rate = noise_rate(cfg)
            if rate is not None and rate.value == value:
                OmegaConf.update(cfg, key, "${noise_rate:}")


def demand_another_folder(run: RunRecord, cfg: DictConfig) -> None:
    """Check that a run is not to be compared with itself.

    Raises:
        UserError: if its repetition would go on in its own folder, or in one that ``resume=true`` finds by its key.
    """
    named = cfg.output or (None if isinstance(cfg.resume, bool) else cfg.resume)
    if cfg.resume and named is None:
        raise UserError(
            "resume=true finds the run itself; name the folder of the repetition that was interrupted: resume=FOLDER"
        )
    if isinstance(named, str) and Path(named).expanduser().resolve() == run.file("").resolve():
        raise UserError(f"{named} is the folder of the run itself; its repetition needs another one: output=FOLDER")


def demand_data(run: RunRecord, cfg: DictConfig) -> None:
    """Check that the data are the run's, before hours are spent on others.

    Raises:
        UserError: if they are missing or others.
    """
    from flnl.data.federation.recorded import drawn_again

    drawn_again(cfg, run, Path(cfg.cache).expanduser())


def _set(cfg: DictConfig, word: str) -> None:
    """Set a key as an override says.

    Raises:
        UserError: if it chooses a file or a key that is not there.
    """
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except HydraException as error:
        raise UserError(explain(error, [word])) from None
    key = override.key_or_group
    if group_of(word) or override.is_add() or override.is_delete() or override.is_sweep_override():
        raise UserError(f"{word}: what a run is cannot be changed; executor=, logger= and values of how it runs can")
    if key in ("max_rounds", "seed", "rounds") or not re.fullmatch(r"\w+(\.\w+)*", key):
        raise UserError(f"{word}: what a run is cannot be changed: leave it out")
    if OmegaConf.select(cfg, key, default=_set) is _set:
        raise UserError(no_such_key(key) if "." not in key else f"{word}: the run has no {key}")
    OmegaConf.update(cfg, key, override.value())
