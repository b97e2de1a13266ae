"""From configuration to objects: resolvers, the schema of what is in no group, and building."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import hydra
from annotated_types import Interval, MinLen
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from flnl.core.errors import UserError
from flnl.core.ranges import Count, Neutral, NonNegative, PathText, Positive, PositiveCount, PositiveShare, Seed

CONF = Path(__file__).resolve().parent.parent / "conf"

# ------------------------------------------------------------------------------------------------------- resolvers


def _protocol(key: str, *default: Any, _root_: DictConfig) -> Any:
    """What the protocol says of ``key``: for the method by name, or for all, or else the default.

    A variant of a method says in ``like`` whose section it takes.
    """
    protocol, method = _root_.protocol, _root_.method.get("like", _root_.method.name)
    for name, section in ((f".{method}", protocol.get(method, {})), ("", protocol)):
        if not isinstance(section, DictConfig | dict):
            raise UserError(f"protocol{name}={section}: must have the values of a method, a key each")
        if key in section:
            return section[key]
    if default:
        return default[0]
    raise UserError(f"protocol={protocol.name} says nothing of {key} for method={method}; set method.{key}")


def _own(key: str, default: Any, *, _root_: DictConfig) -> Any:
    """The method's own value of ``key``, or the default where it has none."""
    return _root_.method.get(key, default)


def _of(method: str, key: str, default: Any, *, _root_: DictConfig) -> Any:
    """The value of ``key`` where the method is this one or a variant of it, or the default.

    For keys that another method has too, with another meaning.
    """
    chosen = _root_.method
    return chosen.get(key, default) if chosen.get("like", chosen.name) == method else default


def _first_stage(term: str, *, _root_: DictConfig) -> int:
    """The number of the first stage with any rounds in which the loss term of this name acts; 1 where none does."""
    method = _root_.method
    for number, name in enumerate(_section(method, "stages"), start=1):
        stage = _section(method.stages, name)
        length = stage.get("rounds", stage.get("passes", 0))
        if length and term in _section(stage if "local" in stage else method, "local"):
            return number
    return 1


def _section(node: DictConfig, name: Any) -> DictConfig:
    """What is in a section that a person may have put something else in the place of."""
    found = node.get(name)
    if not isinstance(found, DictConfig):
        key = node._get_full_key(name)
        raise UserError(f"{key}={'null' if found is None else found}: must be a section, with a key each")
    return found


ALIKE = ("IIDUniform", "IIDClass", "QuantitySkew")
"""Partitions under which clients have the same classes."""


def _noniid(value: Any, otherwise: Any, *, _root_: DictConfig) -> Any:
    """The first value where clients' classes differ, the second where they do not."""
    return otherwise if str(_root_.partition.get("_target_")).rpartition(".")[-1] in ALIKE else value


def register_resolvers() -> None:
    """Make the interpolations of ``conf/`` known to OmegaConf: ``${protocol:...}``, ``${own:...}`` and the others."""
    OmegaConf.register_new_resolver("noniid", _noniid, replace=True)
    OmegaConf.register_new_resolver("protocol", _protocol, replace=True)
    OmegaConf.register_new_resolver("own", _own, replace=True)
    OmegaConf.register_new_resolver("of", _of, replace=True)
    OmegaConf.register_new_resolver("first_stage", _first_stage, replace=True)


register_resolvers()

# ---------------------------------------------------------------------------------------------------------- schema


@dataclass(frozen=True)
class Training:
    """``train``: local SGD."""

    lr: Positive
    momentum: Annotated[float, Interval(ge=0, lt=1)]
    weight_decay: NonNegative
    batch_size: PositiveCount
    epochs: PositiveCount
    lr_decay: PositiveShare

    def at(self, round: int) -> Training:
        """What holds in ``round`` (from 0, over all stages): the rate is ``lr · lr_decay^round``.

        A round is one aggregation, as "communication round" is in FedCorr (Sec. 3.2), whose iterations over the clients
        are made of many: each of a chain of single clients counts.
        """
        return replace(self, lr=self.lr * self.lr_decay**round)


@dataclass(frozen=True)
class Eval:
    """``eval``: when and on what."""

    every: PositiveCount | None
    validation: Annotated[float, Interval(ge=0, lt=1)]
    benchmark: Annotated[float, Interval(ge=0, lt=1), Neutral(0.0)]
    memorization: bool
    cohort: bool


@dataclass(frozen=True)
class Checkpoints:
    """``checkpoint``: how often, how many."""

    every: PositiveCount | None
    keep: PositiveCount


@dataclass(frozen=True)
class Wandb:
    """``wandb``: the mirror of the metrics."""

    mode: Literal["auto", "online", "offline", "disabled"]
    project: Annotated[str, MinLen(1)]
    group: str | None
    tags: list[str]


@dataclass(frozen=True)
class Root:
    """The keys of a run outside its groups."""

    seed: Seed
    data_seed: Seed
    max_rounds: PositiveCount | None
    resume: bool | PathText
    output: PathText | None
    output_root: PathText
    cache: PathText
    device: Literal["auto", "cpu", "cuda"]
    precision: Literal[32, 64, "bf16"]
    threads: Annotated[int, Interval(ge=1, le=1024)]
    memory_format: Literal["auto", "contiguous", "channels_last"]
    client_memory: NonNegative
    rounds: Count
    fraction: PositiveShare
    on_nonfinite: Literal["drop", "stop"]
    products: bool
    figures: bool
    train: Training
    eval: Eval
    checkpoint: Checkpoints
    wandb: Wandb


NO_GROUPS = ("table", "scale")
"""Folders of ``conf/`` that say nothing of a single run: ``flnl.tables`` reads them."""
GROUPS = ("protocol", "dataset", "partition", "noise", "model", "method", "executor")


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
    content = node._content if isinstance(node, DictConfig) else node._value()
    if isinstance(content, str):
        yield key, content
    elif isinstance(content, dict):
        for name, inner in content.items():
            yield from _written(inner, f"{key}.{name!s}" if key else str(name))


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
            takers = (taker for taker, text in _written(cfg) if f"${{{found[1]}}}" in text)
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


# -------------------------------------------------------------------------------------------------- compose, build


def flatten(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; an empty mapping is a value."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


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
