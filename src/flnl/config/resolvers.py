"""The interpolations that files of ``conf/`` use: ``${protocol:...}`` and others."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, Node, OmegaConf

from flnl.config import given, protocol
from flnl.config.short_keys import shortest
from flnl.core.errors import UserError
from flnl.core.importing import located


def _protocol(key: str, *default: Any, _root_: DictConfig, _node_: Node) -> Any:
    """What holds for ``key`` under the protocol (``config.protocol``), or else the default.

    Args:
        key: such as ``T1``.
        default: a value, then values by protocol that come before it.
    """
    try:
        return protocol.value(_root_, key, default)
    except KeyError:
        pass
    method, name = _root_.method, _root_.protocol.name
    taker = shortest(_root_, str(_node_._get_full_key(None)))
    whose = f"method.like={method.like}" if "like" in method else f"method={method.name}"
    raise UserError(f"protocol={name} says nothing of {key} for {whose}; set {taker}")


def _first_stage(*terms: str, _root_: DictConfig) -> int:
    """The number of the first stage with any rounds in which a loss term of these names acts; 1 where none does."""
    method = _root_.method
    for number, name in enumerate(_section(method, "stages"), start=1):
        stage = _section(method.stages, name)
        length = stage.get("rounds", stage.get("passes", 0))
        if length and not {*terms}.isdisjoint(_section(stage if "local" in stage else method, "local")):
            return number
    return 1


def _section(node: DictConfig, name: Any) -> DictConfig:
    """The section, which a person may have replaced by something else."""
    section = node.get(name)
    if not isinstance(section, DictConfig):
        key = node._get_full_key(name)
        raise UserError(f"{key}={'null' if section is None else section}: must be a section, with a key each")
    return section


def _noniid(value: Any, otherwise: Any, *, _root_: DictConfig) -> Any:
    """The first value where clients' classes differ, the second where they do not, or there is one client."""
    alike = getattr(located(_root_.partition.get("_target_")), "alike", False)
    return otherwise if alike or _root_.get("centralized") is True else value


def _noise_rate(*, _root_: DictConfig, _node_: Any) -> float:
    """The noise rate: information that a method is given, which a record lists (``config.given``)."""
    rate = given.noise_rate(_root_)
    if rate is None:
        key, dataset = shortest(_root_, str(_node_._get_full_key(None))), OmegaConf.select(_root_, "dataset.name")
        raise UserError(
            f"{key} is the noise rate, and neither this noise nor dataset={dataset} states one: set it to an estimate"
        )
    return rate.value


def register_resolvers() -> None:
    """Make the interpolations of ``conf/`` known to OmegaConf: ``${protocol:...}`` and the others."""
    OmegaConf.register_new_resolver("noniid", _noniid, replace=True)
    OmegaConf.register_new_resolver("protocol", _protocol, replace=True)
    OmegaConf.register_new_resolver("first_stage", _first_stage, replace=True)
    OmegaConf.register_new_resolver("noise_rate", _noise_rate, replace=True)
