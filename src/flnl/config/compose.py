"""From words to a configuration, from a configuration to plain values and to objects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from flnl.config.resolvers import CONF
from flnl.core.errors import UserError


def source(cfg: DictConfig, key: str) -> str:
    """The key that a value was written at: where a node only repeats another, the other's."""
    raw = _node(cfg, key)
    written = None if raw is None else raw._value()
    if not isinstance(written, str):
        return key
    if repeated := re.fullmatch(r"\$\{([\w.]+)\}", written):
        return key if _node(cfg, repeated[1]) is None else source(cfg, repeated[1])
    own = re.match(r"\$\{(?:own:|of:\w+,)(\w+)", written)
    if own and own[1] in cfg.method:
        return source(cfg, f"method.{own[1]}")
    said = re.search(r"\$\{protocol:(\w+)", written)
    places = (f"protocol.{cfg.method.get('like', cfg.method.name)}.{said[1]}", f"protocol.{said[1]}") if said else ()
    return next((place for place in places if _node(cfg, place) is not None), key)


def _node(cfg: DictConfig, key: str) -> Node | None:
    """What is written at ``key``, unresolved."""
    node: Any = cfg
    for part in key.split("."):
        usable = isinstance(node, DictConfig) and isinstance(node._content, dict)
        node = node._get_node(part, validate_access=False) if usable else None
    return node if isinstance(node, Node) else None


def _written(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every key in and below a node whose value is a text, and that text, unresolved."""
    content: Any = node._content if isinstance(node, DictConfig) else node._value()
    if isinstance(content, str):
        yield key, content
    elif isinstance(content, dict):
        for name, inner in content.items():
            yield from _written(inner, f"{key}.{name}" if key else str(name))


def resolved(cfg: DictConfig) -> dict[str, Any]:
    """The configuration as plain values, every interpolation resolved.

    Raises:
        UserError: if one cannot be.
    """
    try:
        return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UserError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        key = getattr(error, "full_key", None) or "configuration"
        if found := re.search(r"Interpolation key '(.+?)' not found", str(error)):
            missing = "${" + found[1] + "}"
            takers = (taker for taker, text in _written(cfg) if missing in text)
            raise UserError(f"{next(takers, key)} takes {found[1]}, which {_owners(found[1])}") from None
        raise UserError(f"{key}: {str(error).splitlines()[0]}") from None


def options(group: str) -> list[str]:
    """What can be chosen in ``group``; the parts of methods lie in folders below them and are no methods."""
    found = (str(p.relative_to(CONF / group).with_suffix("")) for p in (CONF / group).rglob("*.yaml"))
    return sorted(o for o in found if group != "method" or "/" not in o)


def _owners(key: str) -> str:
    """Which files of its group have ``key``."""
    if term := re.fullmatch(r"method\.(local|exchange)\.(\w+)", key):
        slot, name = term.groups()
        if (CONF / "method" / slot / f"{name}.yaml").exists():
            return f"is not there; add method/{slot}=[{name}]"
    group, _, leaf = key.partition(".")
    files = sorted(p for p in (CONF / group).glob("*.yaml") if leaf in (OmegaConf.load(p) or {})) if leaf else []
    return f"only {' and '.join(f'{group}={p.stem}' for p in files)} has" if files else "is not a key"


def load(overrides: Sequence[str] = (), *, with_hydra: bool = False) -> DictConfig:
    """Compose ``conf/config.yaml`` with command-line overrides, as the entry point does."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(overrides), return_hydra_config=with_hydra)


def build(node: Any) -> Any:
    """The object that a configuration node describes; plain values pass through.

    Raises:
        UserError: where the object refuses its values.
    """
    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except hydra.errors.InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, UserError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None
