"""Values as bytes between a server and its sites, who need not trust each other: no pickle, limits before allocation.

A frame is ``MAGIC``, the length of its header (8 bytes, little endian), the header, and the raw bytes of tensors. The
header is JSON: the value as a tree, and dtype and shape of each tensor. A dataclass has its stored name, and is made
only if the reader expects its class here, and each field is of the type that the class says.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.payload import Params, Payload
from flnl.core.stored import name_of

VERSION = 1
MAGIC = b"FLNLw1\0\0"
LARGEST_HEADER = 2**20
"""Bytes of a header: it has a line for each tensor, and no value of a sample. What is made of it takes up to 50 times
as much memory."""
LARGEST_FRONT = len(MAGIC) + 8 + LARGEST_HEADER
"""Bytes before those of tensors."""
MOST_VALUES = 2**16
"""Values of a header, and tensors."""
DEEPEST = 32
"""Levels of a value."""
MOST_DIMENSIONS = 16
DTYPES: dict[str, torch.dtype] = {
    str(one).removeprefix("torch."): one
    for one in (
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool),
    )
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class WireError(UserError):
    """Bytes that are no frame, or a frame that holds something else than expected. The message quotes no value."""


# ------------------------------------------------------------------------------------------------------------- writing


def written(value: Any) -> bytes:
    """The frame of a value: None, numbers, texts, tensors, lists, tuples, mappings, payloads, stored dataclasses.

    Raises:
        TypeError: if it is or holds anything else.
        UserError: if its header were larger than readers take.
    """
    tensors: list[Tensor] = []
    tree = _tree(value, tensors)
    about = [[NAMES[tensor.dtype], list(tensor.shape)] for tensor in tensors]
    header = json.dumps({"value": tree, "tensors": about}, separators=(",", ":")).encode()
    if len(header) > LARGEST_HEADER:
        raise UserError(f"a message with a header of {len(header):,} bytes, of which {LARGEST_HEADER:,} can be sent")
    bodies = (_bytes(tensor).tobytes() for tensor in tensors)
    return b"".join([MAGIC, len(header).to_bytes(8, "little"), header, *bodies])


def _tree(value: Any, tensors: list[Tensor]) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        if value.dtype not in NAMES:
            raise TypeError(f"a tensor of {value.dtype} cannot be sent")
        tensors.append(value.detach().to("cpu").contiguous())
        return {"tensor": len(tensors) - 1}
    if isinstance(value, np.generic) and np.ndim(value) == 0:
        return _tree(value.item(), tensors)
    if isinstance(value, Payload):
        return {"payload": [_tree(one, tensors) for one in value]}
    if is_dataclass(value) and not isinstance(value, type):
        named = {f.name: _tree(getattr(value, f.name), tensors) for f in fields(value)}
        return {"class": name_of(type(value)), "fields": named}
    if isinstance(value, Mapping):
        return {"mapping": [[_tree(key, tensors), _tree(one, tensors)] for key, one in value.items()]}
    if type(value) is tuple:
        return {"tuple": [_tree(one, tensors) for one in value]}
    if type(value) is list:
        return [_tree(one, tensors) for one in value]
    raise TypeError(f"a {type(value).__name__} cannot be sent: use tensors, numbers, texts, containers or dataclasses")


def _bytes(tensor: Tensor) -> Any:
    """A byte array over a dense tensor's memory."""
    if not tensor.numel():  # numpy gives an empty one no stride
        return np.zeros(0, np.uint8)
    return tensor.reshape(-1).view(torch.uint8).numpy()


# ------------------------------------------------------------------------------------------------------------- reading


def read(data: bytes, expected: Collection[type] = (), most: int | None = None) -> Any:
    """The value of a frame.

    Args:
        data: the frame.
        expected: the dataclasses that it may hold; those that their fields name may be in these.
        most: the largest number of bytes; None for no limit.

    Raises:
        WireError: if it is no whole frame, or holds anything that is not expected.
    """
    header, tensors = _header(data, most)
    reader = _Reader(_tensors(header["tensors"], tensors), _known(frozenset(expected)))
    value = reader.value(header["value"])
    if reader.left:
        raise WireError("tensors that nothing refers to")
    return value


def plain_in(data: bytes, most: int) -> dict[str, int | str]:
    """The numbers and texts of a frame's mapping, by name; nothing else of it is made or checked.

    Raises:
        WireError: if it is no frame.
    """
    match _header(data, most)[0]["value"]:
        case {"mapping": list(pairs)}:
            pairs = [pair for pair in pairs if isinstance(pair, list) and len(pair) == 2]
            return {name: value for name, value in pairs if isinstance(name, str) and isinstance(value, int | str)}
    return {}


def _header(data: bytes, most: int | None) -> tuple[dict[str, Any], memoryview]:
    """A frame's header, as JSON has it, and the bytes of its tensors."""
    if most is not None and len(data) > most:
        raise WireError(f"a frame of {len(data):,} bytes, of which {most:,} are expected at most")
    start = len(MAGIC) + 8
    if len(data) < start or data[: len(MAGIC)] != MAGIC:
        raise WireError("bytes that are no frame of this version")
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    if length > LARGEST_HEADER:
        raise WireError(f"a header of {length:,} bytes, of which {LARGEST_HEADER:,} are expected at most")
    if length > len(data) - start:
        raise WireError(f"a header of {length:,} bytes in a frame of {len(data):,}")
    try:
        header = json.loads(data[start : start + length])
    except (ValueError, RecursionError):
        raise WireError("a header that is no JSON") from None
    if not isinstance(header, dict) or header.keys() != {"value", "tensors"}:
        raise WireError("a header without value and tensors")
    return header, memoryview(data)[start + length :]


def _tensors(about: Any, data: memoryview) -> list[Tensor]:
    """The tensors, whose sizes are checked against the bytes that there are before any is made."""
    if not isinstance(about, list):
        raise WireError("a header whose tensors are no list")
    if len(about) > MOST_VALUES:
        raise WireError(f"more than {MOST_VALUES:,} tensors")
    sizes = [_size(one, len(data)) for one in about]
    if sum(sizes) != len(data):
        raise WireError(f"{len(data):,} bytes of tensors, of which the header tells {sum(sizes):,}")
    tensors, at = [], 0
    for (dtype, shape), size in zip(about, sizes, strict=True):
        tensor = torch.empty(shape, dtype=DTYPES[dtype])
        if size:
            _bytes(tensor)[:] = np.frombuffer(data, np.uint8, size, at)
        if tensor.dtype == torch.bool and size and int(_bytes(tensor).max()) > 1:
            raise WireError("a tensor of bool with other values")
        tensors.append(tensor)
        at += size
    return tensors


def _size(about: Any, left: int) -> int:
    """The bytes of a tensor, of which no more than ``left`` can be there."""
    if not (isinstance(about, list) and len(about) == 2 and isinstance(about[0], str) and about[0] in DTYPES):
        raise WireError("a tensor of an unknown dtype")
    shape = about[1]
    if not (
        isinstance(shape, list) and len(shape) <= MOST_DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
    ):
        raise WireError("a tensor of a shape that is none")
    item = DTYPES[about[0]].itemsize
    if math.prod(max(n, 1) for n in shape) * item > max(left, 2**20):  # also of an empty one: strides are products
        raise WireError("a tensor larger than its frame")
    return math.prod(shape) * item


Known = Mapping[str, tuple[type, Mapping[str, Any]]]
"""Classes and the types of their fields, by stored name."""


class _Reader:
    """Makes values of trees, each tensor once."""

    def __init__(self, tensors: list[Tensor], known: Known) -> None:
        self._tensors, self._known = tensors, known
        self.left = set(range(len(tensors)))
        self._values = 0

    def value(self, tree: Any, depth: int = 0) -> Any:
        self._values += 1
        if self._values > MOST_VALUES:
            raise WireError(f"more than {MOST_VALUES:,} values")
        if depth > DEEPEST:
            raise WireError(f"a value of more than {DEEPEST} levels")
        if isinstance(tree, list):
            return [self.value(one, depth + 1) for one in tree]
        _check_size(tree)
        if not isinstance(tree, dict):
            return tree
        match tree:
            case {"tensor": int(number), **rest} if not rest and number in self.left:
                self.left.discard(number)
                return self._tensors[number]
            case {"tuple": list(items), **rest} if not rest:
                return tuple(self.value(one, depth + 1) for one in items)
            case {"mapping": list(items), **rest} if not rest:
                return self._mapping(items, depth)
            case {"payload": list(items), **rest} if not rest:
                return self._payload([self.value(one, depth + 1) for one in items])
            case {"class": str(name), "fields": dict(named), **rest} if not rest:
                return self._made(name, {key: self.value(one, depth + 1) for key, one in named.items()})
        raise WireError("a value of no known kind")

    def _mapping(self, items: list[Any], depth: int) -> dict[Any, Any]:
        mapping: dict[Any, Any] = {}
        for pair in items:
            if not (isinstance(pair, list) and len(pair) == 2 and type(pair[0]) in (int, str)):
                raise WireError("a mapping whose keys are neither numbers nor texts")
            _check_size(pair[0])  # numbers of any length can be made that share a hash
            mapping[pair[0]] = self.value(pair[1], depth + 1)
        if len(mapping) < len(items):
            raise WireError("a mapping with a key twice")
        return mapping

    def _payload(self, values: list[Any]) -> Payload:
        if len({type(value) for value in values}) < len(values):
            raise WireError("a payload with two values of a type")
        return Payload(*values)

    def _made(self, name: str, named: dict[str, Any]) -> Any:
        if name not in self._known:
            raise WireError(f"a value of a class that is not expected here: {name[:40]!r}")
        kind, hints = self._known[name]
        if named.keys() != hints.keys():
            raise WireError(f"a {name} with other fields than {', '.join(hints)}")
        wrong = next((key for key, value in named.items() if not fits(value, hints[key])), None)
        if wrong is not None:
            raise WireError(f"a {name} whose {wrong} is of another type")
        try:
            return kind(**named)
        except Exception:  # a class may check more
            raise WireError(f"a {name} with values that it does not take") from None


def _check_size(value: Any) -> None:
    if type(value) is int and not -(2**63) <= value < 2**63:
        raise WireError("a number of more than 64 bits")


@cache
def _known(expected: frozenset[type]) -> Known:
    """The expected classes and those in their fields."""
    known: dict[str, tuple[type, Mapping[str, Any]]] = {}
    new = list(expected)
    while new:
        kind = new.pop()
        name = name_of(kind)
        if name in known:
            continue
        hints = get_type_hints(kind)
        known[name] = kind, {f.name: hints[f.name] for f in fields(kind)}
        new += [one for hint in known[name][1].values() for one in _classes(hint)]
    return known


def _classes(hint: Any) -> list[type]:
    """The dataclasses in a type."""
    if isinstance(hint, type) and is_dataclass(hint):
        return [hint]
    return [one for inner in get_args(hint) for one in _classes(inner)]


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a dataclass's field says.

    >>> fits((1, 2), tuple[int, ...]), fits(True, int), fits(1, float), fits({1: "a"}, dict[int, int])
    (True, False, True, False)
    """
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if hint is None or hint is type(None):
        return value is None
    if origin is tuple and isinstance(value, tuple):
        if len(inner) == 2 and inner[1] is Ellipsis:
            return all(fits(one, inner[0]) for one in value)
        return len(value) == len(inner) and all(map(fits, value, inner))
    if origin in (list, Sequence) and isinstance(value, list | tuple):
        return all(fits(one, inner[0]) for one in value)
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return all(fits(key, inner[0]) and fits(one, inner[1]) for key, one in value.items())
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint if isinstance(hint, type) and origin is None else False


# -------------------------------------------------------------------------------------------------------------- models


def checked_model(value: Any, like: Params) -> Params:
    """A model that must have the names, shapes and dtypes of the one that was sent.

    Raises:
        WireError: if it has not.
    """
    if not isinstance(value, dict) or value.keys() != like.keys():
        raise WireError("a model with other entries than the one that was sent")
    for name, tensor in like.items():
        one = value[name]
        if not isinstance(one, Tensor) or one.shape != tensor.shape or one.dtype != tensor.dtype:
            raise WireError(f"a model whose {name} is of another shape or dtype than the one that was sent")
    return {name: value[name] for name in like}  # in the order of the one that was sent


def checked_fields(value: Any, hints: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping that must have exactly these fields, each of its type.

    Raises:
        WireError: naming the first that is missing, unknown or of another type.
    """
    if not isinstance(value, dict):
        raise WireError("a message that is no mapping")
    if (other := next(iter(value.keys() ^ hints.keys()), None)) is not None:
        raise WireError(f"a message {'without' if other in hints else 'with'} {str(other)[:40]}")
    if (wrong := next((name for name, hint in hints.items() if not fits(value[name], hint)), None)) is not None:
        raise WireError(f"a message whose {wrong} is of another type")
    return value
