"""A data set in memory: samples, labels, and the transform from samples to inputs.

The modules in ``datasets/`` read the files and build this value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flnl.core.images import Images, ReadDataset
from flnl.core.inputs import Preparation

Indices = NDArray[np.int64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Dataset(ReadDataset):
    """A data set with its official split.

    ``given`` holds the labels that came with the data and may be wrong; ``truth`` the correct ones, if known. Both are
    int64 [N], and at least one is not None. ``given`` is None if the labels are the truth and noise is simulated.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images
    test_labels: Labels  # [M], correct
    transform: Preparation
    truth: Labels | None  # [N]
    given: Labels | None = None  # [N]
    clients: Indices | None = None  # [N], a natural client's number for each sample
    client_names: tuple[str, ...] | None = None  # [K], what these clients are called; None: by their numbers
    test_clients: Indices | None = None  # [M], a test sample's natural client, -1: none of them; None: unknown
    people: Indices | None = None  # [A, N], the labels by each of A people, -1 where one gave none, if several did
    texts: Sequence[str] | None = None  # [N], what a reader sees of a sample that is no image
    ids: Sequence[str] | None = None  # [N], a sample's name or path; None: its position
    fingerprint: str = ""  # sha256 of labels and images; with ``dataset.fingerprint=names``, of paths and sizes instead
    names_fingerprint: str | None = None  # sha256 of labels, paths and sizes of files; None if there are no files

    @property
    def num_classes(self) -> int:
        """The number of classes C."""
        return len(self.classes)

    @property
    def labels(self) -> Labels:
        """The labels that came with the data, [N]: the given ones, or else the true ones."""
        labels = self.given if self.given is not None else self.truth
        assert labels is not None
        return labels
