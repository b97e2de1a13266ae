"""Read pickles of arrays, such as CIFAR's files, without executing code from them.

Unpickling calls every function that the file names. This reader maps the few names that arrays need to safe stand-ins
and refuses all others; numpy only receives a buffer with a plain type. numpy's own functions would not be safe: a file
can tell ``numpy.dtype`` that objects are plain numbers, so that numpy would use its bytes as memory addresses.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PLAIN = re.compile(r"[biuf][1248]")
"""Codes of numpy's numeric types: kind and bytes."""


class Kind:
    """Stands in for ``numpy.dtype``: a type of plain numbers."""

    def __init__(self, code: object, align: object = False, copy: object = False) -> None:
        if not (isinstance(code, str) and _PLAIN.fullmatch(code)):
            raise pickle.UnpicklingError(f"it holds an array of {str(code)[:40]!r}, not of plain numbers")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: object) -> None:
        """Read the byte order from numpy's state: version, order, three structure entries, size, alignment, flags."""
        if not (isinstance(state, tuple) and len(state) >= 5 and state[2:5] == (None, None, None)):
            raise pickle.UnpicklingError("it holds an array of structures, not of plain numbers")
        if state[1] not in ("<", ">", "=", "|"):
            raise pickle.UnpicklingError("it holds an array with an unknown byte order")
        self.dtype = self.dtype.newbyteorder(state[1])


class Array:
    """Stands in for ``numpy.ndarray``; ``numpy.asarray`` turns it into a read-only array."""

    values: NDArray[Any] | None = None

    def __setstate__(self, state: object) -> None:
        """Read numpy's state: version, shape, type, whether in Fortran order, and the bytes."""
        if not (isinstance(state, tuple) and len(state) == 5):
            raise pickle.UnpicklingError("it holds an array in an unknown form")
        _, shape, kind, by_columns, content = state
        self.values = _values(content, kind, shape, "F" if by_columns else "C")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The array.

        Raises:
            ValueError: if the file gives it no content.
        """
        if self.values is None:
            raise ValueError("an array without content")
        return self.values if dtype is None else self.values.astype(dtype)


def _values(content: object, kind: object, shape: object, order: str) -> NDArray[Any]:
    if isinstance(content, str):  # bytes of Python 2
        content = content.encode("latin1")
    if not isinstance(kind, Kind) or not isinstance(content, bytes | bytearray):
        raise pickle.UnpicklingError("it holds an array of something other than numbers")
    if not (isinstance(shape, tuple) and all(type(n) is int and n >= 0 for n in shape)):
        raise pickle.UnpicklingError("it holds an array without a valid shape")
    if math.prod(shape) * kind.dtype.itemsize != len(content):
        raise pickle.UnpicklingError(f"it holds {len(content)} bytes for an array of shape {shape}")
    return np.frombuffer(bytes(content), kind.dtype).reshape(shape, order="F" if order == "F" else "C")


def _reconstruct(kind: object, shape: object, code: object) -> Array:
    """Stands in for numpy's function of this name: returns an array without content."""
    if kind is not Array:
        raise pickle.UnpicklingError("it holds an array of a foreign class")
    return Array()


def _frombuffer(content: object, kind: object, shape: object, order: object) -> Array:
    """Stands in for numpy's function of this name, which pickles of protocol 5 call."""
    array = Array()
    array.values = _values(content, kind, shape, str(order))
    return array


def _encode(text: object, encoding: object = None) -> bytes:
    """Stands in for ``_codecs.encode``, which pickles of old protocols call for bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("it holds bytes in an unknown form")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """Stands in for ``bytes``, which pickles of old protocols call for empty bytes."""
    return b""


ADMITTED: Mapping[str, Callable[..., Any]] = {
    "numpy.ndarray": Array,
    "numpy.dtype": Kind,
    **{f"numpy.{core}.multiarray._reconstruct": _reconstruct for core in ("core", "_core")},  # numpy 1 and 2
    **{f"numpy.{core}.numeric._frombuffer": _frombuffer for core in ("core", "_core")},
    "_codecs.encode": _encode,
    "__builtin__.bytes": _no_bytes,
}
"""The names that a file may use, and their stand-ins."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ADMITTED[f"{module}.{name}"]
        except KeyError:
            raise pickle.UnpicklingError(
                f"it asks for {f'{module}.{name}'[:80]}, which a file of arrays has no use for"
            ) from None


def read_array_pickle(path: Path) -> Any:
    """Read a pickle of dicts, lists, tuples, text, bytes, numbers and arrays; an array is returned as ``Array``.

    Text of Python 2 is read as Latin-1.

    Raises:
        pickle.UnpicklingError: if it names anything that arrays do not need; that code is not executed.
        Exception: of any kind, if the file is damaged.
    """
    with path.open("rb") as file:
        return _Unpickler(file, encoding="latin1").load()
