"""Random streams: every use of random numbers has its own stream, derived from the seed and a named purpose.

``stream(seed, "client", round, client)`` gives the same sequence in every process, whatever the order in which clients
are simulated and whatever was drawn before. Streams have no state between uses, so checkpoints need not store any.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def entropy(seed: int, purpose: str, *indices: int) -> np.random.SeedSequence:
    """The seed sequence of one purpose, which enters by its SHA-256 digest (``hash()`` differs between processes).

    Raises:
        ValueError: if the seed or an index is negative.
    """
    if seed < 0 or any(index < 0 for index in indices):
        raise ValueError(f"seeds and indices are non-negative, got {(seed, *indices)}")
    digest = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    # Each integer becomes two halves, so that (1, 2**32) and (1, 0, 1) differ.
    halves = [half for value in (seed, digest, *indices) for half in (value & 0xFFFFFFFF, value >> 32)]
    return np.random.SeedSequence(halves)


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """A fresh numpy generator for one purpose.

    >>> first = stream(1, "noise", 3).random()
    >>> first == stream(1, "noise", 3).random()
    True
    >>> first == stream(1, "noise", 4).random()
    False
    """
    return np.random.Generator(np.random.PCG64(entropy(seed, purpose, *indices)))


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
