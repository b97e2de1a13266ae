"""From overrides to a configuration, from a configuration to plain values and to objects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from flnl.config.folders import CONF, folders
from flnl.config.former_names import register_former_names
from flnl.config.groups import bringing, groups
from flnl.config.protocol import SETTINGS
from flnl.config.resolvers import register_resolvers
from flnl.config.short_keys import DECLARATIONS, connect, shortened
from flnl.config.written import texts
from flnl.core.errors import UserError
from flnl.core.training import Training

register_resolvers()
register_former_names()


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain values, every interpolation resolved, without a method's declarations for others.

    Those are its short keys and its settings by protocol.

    Raises:
        UserError: if one cannot be.
    """
    try:
        plain: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        key = getattr(error, "full_key", None) or "configuration"
        if match := re.search(r"Interpolation key '(.+?)' not found", str(error)):
            missing = "${" + match[1] + "}"
            takers = (taker for taker, text in texts(cfg) if missing in text)
            raise UserError(f"{next(takers, key)} takes {match[1]}, which {_owners(match[1])}") from None
        raise UserError(f"{key}: {str(error).splitlines()[0]}") from None
    if isinstance(plain.get("method"), dict):
        for name in (DECLARATIONS, SETTINGS):
            plain["method"].pop(name, None)
        if isinstance(plain.get("protocol"), dict):
            plain["protocol"].update(_held(cfg, plain))
    return dict(plain)


def _held(cfg: DictConfig, plain: dict[str, Any]) -> dict[str, Any]:
    """What holds under the protocol for this method, in a section of its name, as far as no key was set instead."""
    held = {}
    for key, text in texts(cfg):
        if (asked := re.match(r"\$\{protocol:(\w+)", text)) and asked[1] not in plain["protocol"]:
            node: Any = plain
            for part in key.split("."):
                node = node.get(part) if isinstance(node, dict) else None
            held[asked[1]] = node
    return {str(cfg.method.get("like", cfg.method.get("name"))): held} if held else {}


def options(group: str, places: Sequence[Path] = ()) -> list[str]:
    """What can be chosen in ``group``, by the running command or with the further folders ``places``."""
    return sorted(groups([*folders(), *places]).get(group, ()))


def _owners(key: str) -> str:
    """Which files of its group have ``key``."""
    if term := re.fullmatch(r"method\.(local|exchange)\.(\w+)(?:\.\w+)*", key):
        slot, name = term.groups()
        if option := bringing(f"method/{slot}", name):
            return f"is not there; add method/{slot}=[{option}]"
    if value := re.fullmatch(r"method\.(\w+)\.(\w+)", key):
        slot, leaf = value.groups()
        files = sorted(p for p in (CONF / "method" / slot).glob("*.yaml") if leaf in (OmegaConf.load(p) or {}))
        if files:
            return f"is not there; choose method/{slot}={' or '.join(p.stem for p in files)}"
    group, _, leaf = key.partition(".")
    files = sorted(p for p in (CONF / group).glob("*.yaml") if leaf in (OmegaConf.load(p) or {})) if leaf else []
    return f"only {' and '.join(f'{group}={p.stem}' for p in files)} has" if files else "is not a key"


def load(overrides: Sequence[str] = (), *, with_hydra: bool = False) -> DictConfig:
    """Compose ``conf/config.yaml`` with command-line overrides, as the entry point does.

    Raises:
        UserError: if overrides set a short key that stands for nothing.
    """
    cfg = composed(overrides, with_hydra=with_hydra)
    connect(cfg, overrides)
    return cfg


def composed(overrides: Sequence[str] = (), *, with_hydra: bool = False) -> DictConfig:
    """As ``load``, before parts take the values of their short keys. A caller's Hydra is as before afterwards."""
    callers = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("config", overrides=list(overrides), return_hydra_config=with_hydra)
    finally:
        GlobalHydra.instance().hydra = callers


def build(node: Any) -> Any:
    """The object that a configuration node describes; plain values pass through.

    Raises:
        UserError: where the object refuses its values; a value that it names by its field, as in ``fraction=0.1``, is
            named by its key.
    """
    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except hydra.errors.InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, UserError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise UserError(_by_key(node, str(cause), str(error))) from None


def training(cfg: DictConfig) -> Training:
    """The settings of local training in ``cfg``."""
    return Training(**build(cfg.train))


def _by_key(node: Any, reason: str, error: str) -> str:
    """``reason`` with keys instead of fields of the part at which Hydra's ``error`` says that it occurred."""
    where = re.search(r"^full_key: (\S+)$", error, re.MULTILINE)
    if where is None or not isinstance(node, DictConfig):
        return reason
    root: Any = node._get_root()
    part = OmegaConf.select(root, where[1])
    names = "|".join(re.escape(str(name)) for name in part if not str(name).startswith("_"))
    return shortened(root, re.sub(rf"(?<![\w.])({names})=", rf"{where[1]}.\1=", reason) if names else reason)
