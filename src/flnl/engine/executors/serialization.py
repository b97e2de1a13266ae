"""Serialises jobs, tasks and results between processes; objects that both sides hold are sent by name.

Tasks refer to images, received parameters and messages for all clients as if these shared one memory. The encoder
recognises such objects by identity: images are sent once, when a worker starts, parameters and messages once per call.
If a result contains such an object, the parent decodes it to the very object that it sent.
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
from flnl.core.payload import CPU, Params

Name = tuple[str, Any]
Data = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Shared:
    """Objects that both sides hold: images and a call's messages by number, and its parameters by name.

    Other tensors that the sender has on an accelerator are decoded to ``device``.
    """

    images: Sequence[Images] = ()
    params: Params = field(default_factory=dict)
    device: torch.device = CPU
    messages: Sequence[Any] = ()

    def names(self) -> dict[int, Name]:
        """The name of every shared object, by its identity."""
        names: dict[int, Name] = {id(images): ("images", i) for i, images in enumerate(self.images)}
        names |= {id(message): ("message", i) for i, message in enumerate(self.messages)}
        names |= {id(tensor): ("param", name) for name, tensor in self.params.items()}
        if self.params:
            names[id(self.params)] = ("params", None)
        return names

    def find(self, name: Name) -> Any:
        """The shared object of this name; for a tensor that ``name`` carries, the tensor on ``device``."""
        kind, value = name
        if kind == "images":
            return self.images[value]
        if kind == "message":
            return self.messages[value]
        if kind == "param":
            return self.params[value]
        return self.params if kind == "params" else value.to(self.device)


def encode(value: Any, shared: Shared) -> bytes:
    """Serialise ``value``, with shared objects replaced by their names."""
    file = io.BytesIO()
    _Encoder(file, shared.names()).dump(value)
    return file.getvalue()


def decode(data: Data, shared: Shared) -> Any:
    """Deserialise a value from ``encode``, with names replaced by this side's shared objects."""
    return _Decoder(io.BytesIO(data), shared).load()


class _Encoder(pickle.Pickler):
    """Pickles tensors as raw bytes: torch's own pickling costs more than a small client's training step."""

    def __init__(self, file: io.BytesIO, names: dict[int, Name]) -> None:
        super().__init__(file, protocol=5)
        self._names = names

    def persistent_id(self, obj: Any) -> Name | None:
        """The name of a shared object; for an accelerator tensor, a marked copy on the CPU."""
        if type(obj) is Tensor and obj.device.type != "cpu" and id(obj) not in self._names:
            return "moved", obj.cpu()
        return self._names.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        """Raw bytes for dense tensors; torch's own pickling, which keeps strides and gradients, for the rest."""
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
    """A byte array over a dense tensor's memory; as bytes, because numpy lacks some of torch's dtypes."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _copied(data: Data, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    """A tensor with a copy of ``data``, aligned by torch: the bits of some sums depend on alignment."""
    tensor = torch.empty(shape, dtype=dtype)
    _bytes(tensor)[:] = np.frombuffer(data, np.uint8)
    return tensor


# -------------------------------------------------------------------------------------------------- sent only once


@dataclass(frozen=True)
class Packed:
    """A pickled value with its large buffers kept apart, possibly in shared memory; reading it copies no buffer."""

    header: bytes
    pieces: Sequence[Data]

    def value(self) -> Any:
        """The value; its tensors and arrays are views of the pieces and must not be modified."""
        return pickle.loads(self.header, buffers=self.pieces)


def pack(value: Any) -> tuple[Packed, list[Tensor]]:
    """Pack ``value``; also return the tensors in it whose memory became pieces."""
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
    """A tensor that is a view of ``data``."""
    if not memoryview(data).nbytes:
        return torch.empty(shape, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable")  # packed values are read only
        return torch.frombuffer(data, dtype=torch.uint8).view(dtype).view(shape)
