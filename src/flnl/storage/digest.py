"""A sha256 of nested values with tensors: equal values have equal digests, independent of how they are stored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hashlib import _Hash


def digest(value: Any) -> str:
    """The sha256, 64 hex digits, of types, names, lengths, shapes and bytes; the order of a mapping does not matter.

    Raises:
        TypeError: for a value other than None, bool, int, float, str, list, tuple, mapping or dense tensor.
    """
    sha256 = hashlib.sha256()
    _update(sha256, value)
    return sha256.hexdigest()


def _update(sha256: _Hash, value: Any) -> None:
    """Add ``value``. Every value is prefixed with its type and length, so different values give different bytes."""
    if value is None or isinstance(value, bool | int | float):
        sha256.update(f"{type(value).__name__} {value!r}\n".encode())
    elif isinstance(value, str):
        text = value.encode("utf-8", errors="surrogatepass")
        sha256.update(f"str {len(text)}\n".encode() + text)
    elif isinstance(value, Tensor):
        data = value.detach().cpu().contiguous()
        sha256.update(f"tensor {data.dtype} {list(data.shape)}\n".encode())
        sha256.update(data.reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        sha256.update(f"mapping {len(value)}\n".encode())
        for key, held in sorted(value.items(), key=lambda item: repr(item[0])):
            _update(sha256, key)
            _update(sha256, held)
    elif isinstance(value, list | tuple):
        sha256.update(f"{'tuple' if isinstance(value, tuple) else 'list'} {len(value)}\n".encode())
        for held in value:
            _update(sha256, held)
    else:
        raise TypeError(f"no digest is defined for a {type(value).__name__}")
