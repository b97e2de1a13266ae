"""A sha256 of a value made of tensors and plain values: equal for equal values, whichever file they were read from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hashlib import _Hash


def digest(value: Any) -> str:
    """The sha256, 64 hex digits, of types, names, lengths, shapes and bytes; keys of a mapping count in any order.

    Raises:
        TypeError: for a value that is none of None, bool, int, float, str, list, tuple, mapping and dense tensor.
    """
    found = hashlib.sha256()
    _update(found, value)
    return found.hexdigest()


def _update(found: _Hash, value: Any) -> None:
    """Every value begins with its type and length, so no two values give the same bytes."""
    if value is None or isinstance(value, bool | int | float):
        found.update(f"{type(value).__name__} {value!r}\n".encode())
    elif isinstance(value, str):
        text = value.encode("utf-8", errors="surrogatepass")
        found.update(f"str {len(text)}\n".encode() + text)
    elif isinstance(value, Tensor):
        data = value.detach().cpu().contiguous()
        found.update(f"tensor {data.dtype} {list(data.shape)}\n".encode())
        found.update(data.reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        found.update(f"mapping {len(value)}\n".encode())
        for key, held in sorted(value.items(), key=lambda item: repr(item[0])):
            _update(found, key)
            _update(found, held)
    elif isinstance(value, list | tuple):
        found.update(f"{'tuple' if isinstance(value, tuple) else 'list'} {len(value)}\n".encode())
        for held in value:
            _update(found, held)
    else:
        raise TypeError(f"no digest is defined of a {type(value).__name__}")
