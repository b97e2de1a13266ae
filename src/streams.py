"""Randomness as a function of its purpose: every draw names what it is for, and no generator outlives its use.

``stream(seed, "client", round, client)`` is the same sequence in every process, in whatever order clients are
simulated and whatever else was drawn before. Nothing here is checkpointed, because nothing here has a history.
"""

import hashlib

import numpy as np


def entropy(seed: int, purpose: str, *indices: int) -> np.random.SeedSequence:
    """The seed sequence of one purpose. The purpose enters by a fixed digest: ``hash()`` changes between processes.

    Raises:
        ValueError: if the seed or an index is negative.
    """
    if seed < 0 or any(index < 0 for index in indices):
        raise ValueError(f"seeds and indices are non-negative, got {(seed, *indices)}")
    digest = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "little")
    # The number of words each integer takes is fixed by splitting them: (1, 2**32) and (1, 0, 1) must differ.
    words = [word for value in (seed, digest, *indices) for word in (value & 0xFFFFFFFF, value >> 32)]
    return np.random.SeedSequence(words)


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
