"""Stores of images: in memory as one tensor, or in files that are decoded batch by batch.

Both return the same pixels for the same position, however often and in whatever order they are read.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.images import Images, Indices
from flnl.data import contents
from flnl.data.image_file import ImageError, decode, read_bytes

log = logging.getLogger(__name__)


class Store(Images, Protocol):
    """Images of a data set: a store can select a subset, and has a digest of its content."""

    @property
    def unreadable(self) -> frozenset[str]:
        """The paths of images that could not be decoded when they were read, so far."""

    def take(self, index: Indices) -> Self:
        """A store of the images at ``index`` [n]."""

    def digest(self) -> bytes:
        """A sha256 that identifies the images; each store documents what it covers."""

    def digest_of_names(self) -> bytes | None:
        """A sha256 of the names and sizes of the files; None if the images are not in files."""


@dataclass(frozen=True, eq=False)
class TensorImages:
    """Images in memory: uint8 or float32 ``pixels`` [N, C, H, W]; or rows of numbers [N, D], or token ids [N, L].

    ``larger`` [N, C, H', W'] is the source of random crops, if not ``pixels``. The images at
    ``unreadable`` paths could not be decoded and are black.
    """

    pixels: Tensor
    larger: Tensor | None = None
    unreadable: frozenset[str] = frozenset()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the network's input, (C, H, W) of images."""
        return tuple(self.pixels.shape[1:])

    @property
    def augmented_size(self) -> tuple[int, ...]:
        """(H', W') of the source of random crops; () of what is no image."""
        return tuple((self.pixels if self.larger is None else self.larger).shape[2:])

    @property
    def bytes_in_memory(self) -> int:
        """Size of both tensors in bytes."""
        return self.pixels.nbytes + (0 if self.larger is None else self.larger.nbytes)

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, index: Tensor, *, augmented: bool = False) -> Tensor:
        """A copy of the images at ``index`` [b], on the device of ``pixels``."""
        source = self.larger if augmented and self.larger is not None else self.pixels
        waits = source.device.type == "cpu"  # only a copy to the host has to be synchronous
        return source.index_select(0, index.to(source.device, non_blocking=not waits))

    def read_each(self, parts: Sequence[Tensor], *, augmented: bool = False) -> Iterator[Tensor]:
        """Yield the images at each of ``parts`` [b]."""
        return (self.read(index, augmented=augmented) for index in parts)

    def to(self, device: torch.device | str) -> Self:
        """The same images on ``device``."""
        return replace(
            self, pixels=self.pixels.to(device), larger=None if self.larger is None else self.larger.to(device)
        )

    def take(self, index: Indices) -> Self:
        """The images at ``index`` [n], copied."""
        chosen = torch.from_numpy(index)
        return replace(
            self,
            pixels=self.pixels.index_select(0, chosen),
            larger=None if self.larger is None else self.larger.index_select(0, chosen),
        )

    def digest(self) -> bytes:
        """The sha256 of type, shape and every pixel."""
        digest = hashlib.sha256()
        for pixels in (self.pixels, self.larger):
            if pixels is not None:
                array = np.ascontiguousarray(pixels.cpu().numpy())
                digest.update(f"{array.dtype}{array.shape}".encode())
                digest.update(array.data)
        return digest.digest()

    def digest_of_names(self) -> None:
        """None: the images are in memory."""


AHEAD = 1
"""Number of parts that are decoded ahead of the one in use."""


@dataclass(frozen=True, eq=False)
class _Reading:
    """Images that threads are decoding."""

    pixels: NDArray[np.uint8]  # [b, C, H, W]
    decoding: Sequence[Future[None]]  # [b]

    def wait(self) -> NDArray[np.uint8]:
        """Wait for all images and return them.

        Raises:
            UserError: if a file does not exist any more.
        """
        for image in self.decoding:
            image.result()
        return self.pixels

    def cancel(self) -> None:
        """Cancel the images that are not being decoded yet."""
        for image in self.decoding:
            image.cancel()


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Image files below ``root``, decoded when asked for: uint8 [b, C, H, W], resized by Pillow's bilinear filter.

    A file that cannot be decoded reads as black; it is logged once and counts as ``unreadable``, also where a forked
    process has met it. A file that has disappeared since the data set was built is an error, since the whole folder may
    be gone.
    """

    root: Path
    paths: Sequence[str]  # [N], relative to root
    file_sizes: NDArray[np.int64]  # [N], bytes
    size: tuple[int, int]  # (H, W) of evaluation and of the network's inputs
    augmented_size: tuple[int, int]  # (H', W') of the source of random crops
    channels: int = 3  # 3: colour, 1: grey
    threads: int = 1  # decoder threads; Pillow releases the GIL while it decodes
    device: torch.device | str = "cpu"
    known_by: Literal["contents", "names"] = "names"  # what the digest covers
    cache: Path | None = None  # the folder where digests of files are cached
    missed: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))  # [N], in shared memory

    def __post_init__(self) -> None:
        """Make ``missed`` for these paths."""
        if len(self.missed) != len(self.paths):
            object.__setattr__(self, "missed", torch.zeros(len(self.paths), dtype=torch.bool).share_memory_())

    @property
    def unreadable(self) -> frozenset[str]:
        """The paths that could not be decoded when they were read, so far."""
        return frozenset(self.paths[i] for i in self.missed.nonzero().flatten().tolist())

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the network's input."""
        return (self.channels, *self.size)

    @property
    def bytes_in_memory(self) -> None:
        """None: the images are in files."""
        return None

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: Tensor, *, augmented: bool = False) -> Tensor:
        """The images at ``index`` [b], at ``augmented_size`` or at ``size``.

        Raises:
            UserError: if a file does not exist any more.
        """
        return next(self.read_each([index], augmented=augmented))

    def read_each(self, parts: Sequence[Tensor], *, augmented: bool = False) -> Iterator[Tensor]:
        """Yield ``read`` of each of ``parts``; while one is in use, ``threads`` decode the next ``AHEAD`` parts.

        Closing the iterator cancels images whose decoding has not begun.
        """
        size = self.augmented_size if augmented else self.size
        begun, coming = deque[_Reading](), iter(parts)
        try:
            begun.extend(self._begin(index, size) for index in itertools.islice(coming, AHEAD))
            while begun:
                begun.extend(self._begin(index, size) for index in itertools.islice(coming, 1))
                pixels = begun[0].wait()
                begun.popleft()
                yield torch.from_numpy(pixels).to(self.device)
        finally:
            for reading in begun:
                reading.cancel()

    def _begin(self, index: Tensor, size: tuple[int, int]) -> _Reading:
        """Submit the images at ``index`` [b] to the decoder threads."""
        pixels = np.empty((len(index), self.channels, *size), np.uint8)

        def decode(row: int, position: int) -> None:
            pixels[row] = self._decode(position, size)

        pool = _pool(self.threads, os.getpid())
        return _Reading(pixels, [pool.submit(decode, row, position) for row, position in enumerate(index.tolist())])

    def _decode(self, position: int, size: tuple[int, int]) -> NDArray[np.uint8]:
        """One image [C, H, W]; black if it cannot be decoded."""
        path, black = self.root / self.paths[position], np.zeros((self.channels, *size), np.uint8)
        try:
            encoded = read_bytes(path)
        except OSError as error:
            raise UserError(f"dataset.root: {path} cannot be read any more ({error.strerror})") from error
        except ImageError as error:
            self._miss(position, error)
            return black
        try:
            return decode(encoded, size, self.channels)
        except Exception as error:  # a broken file can make a decoder raise anything
            self._miss(position, error)
            return black

    def _miss(self, position: int, error: Exception) -> None:
        """Record an unreadable file; log the first ten, then every thousandth."""
        if self.missed[position]:
            return
        self.missed[position] = True
        count, reason = int(self.missed.sum()), str(error).partition(" <_io")[0]
        if count <= 10 or count % 1000 == 0:
            log.warning(
                "%s cannot be decoded (%s) and is read as black: unreadable file no. %d",
                self.root / self.paths[position],
                reason,
                count,
            )

    def demand_one(self) -> None:
        """Check that there is an image, decoding the first ones until one succeeds.

        Raises:
            UserError: if none of them can be decoded.
        """
        for position in range(len(self)):
            self._decode(position, self.size)
            if not self.missed[position]:
                return
        raise UserError(f"dataset.root: none of the {len(self)} images below {self.root} can be decoded")

    def to(self, device: torch.device | str) -> Self:
        """The same images, decoded on the host and returned on ``device``."""
        return replace(self, device=device)

    def take(self, index: Indices) -> Self:
        """The files at ``index`` [n]."""
        paths = tuple(self.paths[i] for i in index.tolist())
        missed = self.missed[torch.from_numpy(index)].share_memory_()
        return replace(self, paths=paths, file_sizes=self.file_sizes[index], missed=missed)

    def digest(self) -> bytes:
        """The sha256 of relative paths, contents of the files, and sizes after resizing; nothing is decoded.

        If ``known_by`` is ``names``, it is ``digest_of_names``, which opens no file.

        Raises:
            UserError: if a file cannot be read.
        """
        if self.known_by == "names":
            return self.digest_of_names()
        digest = hashlib.sha256(f"contents{self.channels}{self.size}{self.augmented_size}".encode())
        for path, content in zip(self.paths, contents.digests(self.root, self.paths, self.cache), strict=True):
            digest.update(path.encode(errors="surrogateescape") + b"\0" + content.tobytes())
        return digest.digest()

    def digest_of_names(self) -> bytes:
        """The sha256 of relative paths, file sizes in bytes, and sizes after resizing."""
        digest = hashlib.sha256(f"{self.channels}{self.size}{self.augmented_size}".encode())
        for path, size in zip(self.paths, self.file_sizes.tolist(), strict=True):
            digest.update(f"{path}\0{size}\n".encode(errors="surrogateescape"))
        return digest.digest()

    def in_memory(self) -> TensorImages:
        """Decode all images into memory.

        Raises:
            UserError: if none of them can be decoded.
        """
        self.demand_one()
        everything = torch.arange(len(self))
        larger = None if self.augmented_size == self.size else self.read(everything, augmented=True)
        return TensorImages(self.read(everything), larger, self.unreadable)


def file_sizes(root: Path, paths: Sequence[str]) -> NDArray[np.int64]:
    """The size of each file in bytes [N], 0 if it does not exist; threads hide the latency of a network disk."""
    base = os.fspath(root)

    def size(path: str) -> int:
        try:
            status = os.stat(os.path.join(base, path))  # noqa: PTH116, PTH118 - a million Path objects are slow
        except OSError:
            return 0
        return status.st_size if stat.S_ISREG(status.st_mode) else 0

    def sizes(start: int) -> list[int]:
        return [size(path) for path in paths[start : start + 1000]]

    blocks = _pool(16, os.getpid()).map(sizes, range(0, len(paths), 1000))
    return np.array([size for block in blocks for size in block], np.int64)


@lru_cache(maxsize=4)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """The pool of reader threads, one per ``process`` id: a forked process inherits no threads."""
    return ThreadPoolExecutor(threads, thread_name_prefix=f"images-{process}")
