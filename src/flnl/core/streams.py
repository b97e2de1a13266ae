"""Random streams: every use of random numbers has its own stream, derived from the seed and a named purpose.

``stream(seed, "client", round, client)`` gives the same sequence in every process, whatever the order in which clients
are simulated and whatever was drawn before. Streams have no state between uses, so checkpoints need not store any.
"""

import hashlib
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray


class Draws(Protocol):
    """The methods that draws for privacy use, of NumPy's ``Generator`` and of ``SecretStream``."""

    def random(self, size: int, /) -> NDArray[np.float64]:
        """Uniform numbers in [0, 1), float64 [size]."""

    def integers(self, high: int, /, *, size: int) -> NDArray[np.int64]:
        """Uniform whole numbers from 0 to ``high`` - 1, int64 [size]."""


class OfEngine(StrEnum):
    """What the engine itself draws for on a client."""

    BATCHES = "batches"
    BATCHES_BESIDE = "batches of the second pool"
    CROPS = "augmentation"
    CROPS_OF_VIEW = "augmentation of another view"
    CROPS_BESIDE = "augmentation of the second pool"
    MIXING = "mixing"
    DROPOUT = "dropout"
    TERM = "term"  # with the name of a loss term, for its ``draw``


OF_FEDERATION = frozenset(
    {
        *("partition", "validation", "benchmark", "initialisation", "train_sample", "vote", "shift"),
        *("made samples", "made labels"),
        *("noise", "noise.rate", "noise.matrix", "noise.projection"),
    }
)
"""Purposes of the draws before the first round; no part may draw for them."""

_PART = "part: "


def of_part(purpose: str) -> str:
    """The name of a part's ``purpose`` among all: another one where the engine or the federation has the same.

    >>> of_part("label privacy"), of_part("augmentation"), of_part("term fedprox")
    ('label privacy', 'part: augmentation', 'part: term fedprox')
    """
    taken = purpose in {*OfEngine, *OF_FEDERATION} or purpose.startswith((f"{OfEngine.TERM} ", _PART))
    return f"{_PART}{purpose}" if taken else purpose


def entropy(seed: int, purpose: str, *indices: int) -> np.random.SeedSequence:
    """The seed sequence of one purpose, which enters by its SHA-256 digest (``hash()`` differs between processes).

    Raises:
        ValueError: if the seed or an index is negative.
    """
    if seed < 0 or any(index < 0 for index in indices):
        raise ValueError(f"seeds and indices are non-negative, got {(seed, *indices)}")
    # Each integer becomes two halves, so that (1, 2**32) and (1, 0, 1) differ.
    halves = [half for value in (seed, _digest(purpose), *indices) for half in (value & 0xFFFFFFFF, value >> 32)]
    return np.random.SeedSequence(halves)


@lru_cache(1000)
def _digest(purpose: str) -> int:
    return int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """A fresh numpy generator for one purpose.

    >>> first = stream(1, "noise", 3).random()
    >>> first == stream(1, "noise", 3).random()
    True
    >>> first == stream(1, "noise", 4).random()
    False
    """
    return np.random.Generator(np.random.PCG64(entropy(seed, purpose, *indices)))


class SecretStream:
    """Random numbers from SHAKE-256 of a key and a counter: who has seen some of them can tell no other one."""

    def __init__(self, key: bytes) -> None:
        self._key, self._calls = key, 0

    def random(self, size: int, /) -> NDArray[np.float64]:
        """Uniform multiples of ``2**-53`` in [0, 1), float64 [size]."""
        self._calls += 1
        data = hashlib.shake_256(self._key + self._calls.to_bytes(8, "little")).digest(8 * size)
        return np.asarray((np.frombuffer(data, "<u8") >> np.uint64(11)) * 2.0**-53)

    def integers(self, high: int, /, *, size: int) -> NDArray[np.int64]:
        """Uniform whole numbers from 0 to ``high`` - 1, int64 [size]; uniform to a part in ``2**53 / high``."""
        return np.asarray(self.random(size) * high).astype(np.int64)


def secret_stream(secret: bytes, purpose: str, labels: NDArray[np.int64], *parameters: float) -> SecretStream:
    """Random numbers for ``labels`` [n] that nobody without the ``secret`` can draw again.

    The same labels and parameters give the same numbers whenever they are asked for, so asking again tells no more; any
    other labels or parameters give numbers that have nothing to do with these.

    >>> first = secret_stream(b"k" * 32, "labels", np.array([1, 2]), 0.5).random(1)
    >>> first == secret_stream(b"k" * 32, "labels", np.array([1, 2]), 0.5).random(1)
    array([ True])
    >>> first == secret_stream(b"k" * 32, "labels", np.array([2, 1]), 0.5).random(1)
    array([False])
    """
    about = repr((purpose, [float(one) for one in parameters]))  # no two differ and have the same text
    return SecretStream(hmac.digest(secret, f"{about}\n".encode() + labels.astype("<i8").tobytes(), "sha256"))


def secret_seed(secret: bytes, seed: int) -> int:
    """A 63-bit seed instead of ``seed`` for who has a ``secret``, which nobody without it can tell.

    >>> secret_seed(b"k" * 32, 1) == secret_seed(b"k" * 32, 1), secret_seed(b"k" * 32, 1) == secret_seed(b"k" * 32, 2)
    (True, False)
    """
    return int.from_bytes(hmac.digest(secret, f"seed {seed}".encode(), "sha256")[:8], "little") >> 1


def torch_seed(seed: int, purpose: str, *indices: int) -> int:
    """A 63-bit seed for ``torch.manual_seed`` or ``torch.Generator.manual_seed``."""
    return int(entropy(seed, purpose, *indices).generate_state(1, np.uint64)[0] >> np.uint64(1))


@contextmanager
def torch_seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators of the CPU and of ``device`` inside the block; restore their states afterwards."""
    generators = [torch.default_generator]
    if device.type != "cpu":
        accelerator = torch.get_device_module(device)
        accelerator.init()
        generators.append(accelerator.default_generators[device.index or 0])
    before = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
