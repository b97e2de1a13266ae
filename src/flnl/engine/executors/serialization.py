"""How jobs, tasks and results travel between processes: pickled, with what both sides hold named instead of copied.

Tasks carry images and received parameters by reference, as if all clients shared one memory. Here those references are
recognised by identity: images travel once, when a worker starts, and parameters once a call. A result that holds a
received parameter itself, or a task's images, comes back as the object that was sent.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flnl.core.images import Images
from flnl.core.payload import Params

Name = tuple[str, Any]
Data = bytes | bytearray | memoryview
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Shared:
    """What this side and the other both hold: images, by number, and the parameters of a call, by name.

    Tensors that were on an accelerator there come to be on ``device`` here.
    """

    images: Sequence[Images] = ()
    params: Params = field(default_factory=dict)
    device: torch.device = CPU

    def names(self) -> dict[int, Name]:
        """The name of every shared object, by its identity."""
        found: dict[int, Name] = {id(images): ("images", i) for i, images in enumerate(self.images)}
        found |= {id(tensor): ("param", name) for name, tensor in self.params.items()}
        if self.params:
            found[id(self.params)] = ("params", None)
        return found

    def find(self, name: Name) -> Any:
        """The object of this name, or a tensor that came along with it."""
        kind, value = name
        if kind == "images":
            return self.images[value]
        if kind == "param":
            return self.params[value]
        return self.params if kind == "params" else value.to(self.device)


def encode(value: Any, shared: Shared) -> bytes:
    """``value`` as bytes, without what is shared."""
    file = io.BytesIO()
    _Encoder(file, shared.names()).dump(value)
    return file.getvalue()


def decode(data: Data, shared: Shared) -> Any:
    """The value that ``encode`` was given, with this side's own in place of what is shared."""
    return _Decoder(io.BytesIO(data), shared).load()


class _Encoder(pickle.Pickler):
    """Tensors as their bytes: what torch does for a file costs more than a small client's training step."""

    def __init__(self, file: io.BytesIO, names: dict[int, Name]) -> None:
        super().__init__(file, protocol=5)
        self._names = names

    def persistent_id(self, obj: Any) -> Name | None:
        """The name of what is shared; and what lies on an accelerator, as a copy that does not."""
        if type(obj) is Tensor and obj.device.type != "cpu" and id(obj) not in self._names:
            return "moved", obj.cpu()
        return self._names.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        """Dense tensors only; torch's own way for the rest, which keeps strides and gradients."""
        return (_copied, _parts(obj)) if _dense(obj) else NotImplemented


class _Decoder(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, shared: Shared) -> None:
        super().__init__(file)
        self._find = shared.find

    def persistent_load(self, pid: Name) -> Any:
        return self._find(pid)


def _dense(obj: Any) -> bool:
    return (
        type(obj) is Tensor
        and obj.device.type == "cpu"
        and obj.layout is torch.strided
        and obj.is_contiguous()
        and not obj.requires_grad
    )


def _parts(tensor: Tensor) -> tuple[pickle.PickleBuffer, torch.dtype, torch.Size]:
    return pickle.PickleBuffer(_bytes(tensor)), tensor.dtype, tensor.shape


def _bytes(tensor: Tensor) -> Any:
    """The bytes of a dense tensor, as an array over its memory; numpy knows fewer types than torch."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _copied(data: Data, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    """A tensor with memory of its own, aligned as torch aligns it: some sums depend on that."""
    tensor = torch.empty(shape, dtype=dtype)
    _bytes(tensor)[:] = np.frombuffer(data, np.uint8)
    return tensor


# ---------------------------------------------------------------------------------------------- what travels once


@dataclass(frozen=True)
class Packed:
    """A value whose large pieces lie apart from it, in memory that may be shared: nothing is copied to read it."""

    header: bytes
    pieces: Sequence[Data]

    def value(self) -> Any:
        """The value, its tensors and arrays over the pieces; they are to be read only."""
        return pickle.loads(self.header, buffers=self.pieces)


def pack(value: Any) -> tuple[Packed, list[Tensor]]:
    """``value`` and the tensors in it whose memory became pieces."""
    file, pieces = io.BytesIO(), list[pickle.PickleBuffer]()
    packer = _Packer(file, protocol=5, buffer_callback=pieces.append)
    packer.tensors = []
    packer.dump(value)
    return Packed(file.getvalue(), [piece.raw() for piece in pieces]), packer.tensors


class _Packer(pickle.Pickler):
    tensors: list[Tensor]

    def reducer_override(self, obj: Any) -> Any:
        if not _dense(obj):
            return NotImplemented
        self.tensors.append(obj)
        return _placed, _parts(obj)


def _placed(data: Data, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    """A tensor over memory that it does not own."""
    if not memoryview(data).nbytes:
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")  # nobody writes
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(shape)
