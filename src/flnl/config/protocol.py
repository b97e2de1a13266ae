"""What holds for a method under a protocol: ``${protocol:KEY,default,{...}}`` in files of ``conf/``.

A protocol has the numbers that every method shares: clients, rounds, learning rate ... What a method's paper says of a
protocol stands in the method's own file, a row for each protocol::

    settings:
      default: {T_wu: =rounds*fraction/5, T: =rounds - T_wu/fraction}
      cifar10: {T_wu: 5} # Table 7
      "*clothing1m": {lr: 0.001}
      centralized: # rows of centralized training, which come first there
        default: {epochs: 1}

A row's name may be a pattern; an exact name comes first, then patterns in their order, then ``default``. A text that
begins with "=" is a formula of the protocol's ``rounds``, ``fraction``, ``epochs`` and ``num_clients`` and of other
keys that hold for the method, to the nearest whole number, at least 1.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from flnl.core.errors import UserError
from flnl.core.numbers import is_number

SETTINGS = "settings"
"""The key of a method under which its rows are."""
CENTRALIZED = "centralized"
"""The section, of a method's rows or of a protocol's section for a method, that holds in centralized training only."""
DEFAULT = "default"
SHARED = ("rounds", "fraction", "epochs", "num_clients")
"""The protocol's values that formulas know."""


class Place(NamedTuple):
    """Where a value that holds for a method is written."""

    key: str  # dotted, such as method.settings.cifar10.T1
    value: Any


def places(cfg: DictConfig, key: str) -> Iterator[Place]:
    """Where ``key`` is written for the method and protocol in use, the place that counts first.

    A protocol, such as a user's own, may itself have a section for a method; it comes before the method's rows. A
    variant of a method says in ``like`` whose section it takes.

    Raises:
        UserError: for a section without keys.
    """
    method, protocol, name = cfg.method.get("like", cfg.method.name), cfg.protocol, str(cfg.protocol.name)
    section, rows = f"protocol.{method}", f"method.{SETTINGS}"
    alone = cfg.get("centralized") is True
    if alone:
        yield from _value(cfg, f"{section}.{CENTRALIZED}", key)
        yield from _row(cfg, f"{rows}.{CENTRALIZED}", name, key)
    yield from _value(cfg, section, key)
    yield from _row(cfg, rows, name, key)
    if key in protocol:
        yield Place(f"protocol.{key}", protocol[key])


def value(cfg: DictConfig, key: str, default: tuple[Any, ...] = ()) -> Any:
    """What holds for ``key``: what is written first, or else the default.

    Args:
        cfg: the composed configuration.
        key: such as ``T1``.
        default: nothing, or a value, or a value with rows by protocol that come before it.

    Raises:
        KeyError: if nothing is written, and there is no default.
        UserError: for a section without keys, or a wrong formula.
    """
    for place in places(cfg, key):
        return _computed(cfg, place.value, place.key)
    if len(default) > 1:
        for name in _fitting(default[1], str(cfg.protocol.name)):
            return _computed(cfg, default[1][name], key)
    if not default:
        raise KeyError(key)
    return _computed(cfg, default[0], key)


def _row(cfg: DictConfig, rows: str, protocol: str, key: str) -> Iterator[Place]:
    table = _section(cfg, rows)
    for name in [*_fitting(table, protocol), *([DEFAULT] if DEFAULT in table else [])]:
        yield from _value(cfg, f"{rows}.{name}", key)


def _fitting(rows: Mapping[str, Any], protocol: str) -> list[str]:
    patterns = [name for name in map(str, rows) if name != protocol and fnmatchcase(protocol, name)]
    return [*([protocol] if protocol in rows else []), *patterns]


def _value(cfg: DictConfig, section: str, key: str) -> Iterator[Place]:
    values = _section(cfg, section)
    if key in values:
        yield Place(f"{section}.{key}", values[key])


def _section(cfg: DictConfig, key: str) -> Mapping[str, Any]:
    """The mapping at a dotted ``key``, empty if there is none."""
    node: Any = cfg
    for part in key.split("."):
        node = node.get(part) if isinstance(node, Mapping | DictConfig) else None
        if node is None:
            return {}
    if not isinstance(node, Mapping | DictConfig):
        raise UserError(f"{key}={node}: must have the values of a method, a key each")
    return node


# ---------------------------------------------------------------------------------------------------------- formulas

OPERATIONS: Mapping[type, Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
FUNCTIONS: Mapping[str, Callable[..., float]] = {"min": min, "max": max, "floor": math.floor}


def _computed(cfg: DictConfig, written: Any, key: str) -> Any:
    """A value as it is, or what a formula gives; in lists, each item."""
    if isinstance(written, list) or OmegaConf.is_list(written):
        return OmegaConf.create([_computed(cfg, one, key) for one in written])
    if not (isinstance(written, str) and written.startswith("=")):
        return written
    try:
        found = _evaluated(cfg, ast.parse(written[1:].strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, TypeError, ZeroDivisionError, RecursionError) as error:
        what = f"there is no {error.args[0]}" if isinstance(error, KeyError) else str(error.args[0])
        raise UserError(
            f"{key}{written}: {what}; a formula has numbers, + - * / ( ), min, max, floor, {', '.join(SHARED)} and the "
            "method's own keys"
        ) from None
    return max(1, round(found))


def _evaluated(cfg: DictConfig, node: ast.expr) -> float:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name):
            if name in SHARED and name not in cfg.protocol:
                raise UserError(f"protocol.{name} is missing, from which others follow: set it")
            number = cfg.protocol[name] if name in SHARED else value(cfg, name)
            if not is_number(number):
                key = f"protocol.{name}" if name in SHARED else next(places(cfg, name)).key
                raise UserError(f"{key}={number}: must be a number, from which others follow")
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluated(cfg, operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATIONS:
            return OPERATIONS[type(op)](_evaluated(cfg, left), _evaluated(cfg, right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_evaluated(cfg, one) for one in arguments))
        case _:
            pass
    raise ValueError(f"{ast.unparse(node)} is not allowed")
