"""What a data set is, once read: images, labels as far as they are known, and how images become inputs.

Everything here is a value; where the files come from lives in the modules that build it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flnl.core.images import Images, ReadDataset
from flnl.data.transforms import Transform

Indices = NDArray[np.int64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Dataset(ReadDataset):
    """A data set with its official split.

    ``given`` holds labels that came with the data and may be wrong (then the noise is theirs); ``truth`` the correct
    ones where somebody knows them. At least one of the two is there. Both are int64 [N]; ``given`` is None where the
    labels are the truth and noise is to be simulated.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images
    test_labels: Labels  # [M], correct
    transform: Transform
    truth: Labels | None  # [N]
    given: Labels | None = None  # [N]
    clients: Indices | None = None  # [N], a natural client's number for each sample
    ids: Sequence[str] | None = None  # [N], a sample's name or path; its position where None
    fingerprint: str = ""  # sha256 of labels and images, which ``dataset.fingerprint=names`` tells by paths and sizes
    names_fingerprint: str | None = None  # the same with files told by paths and sizes; None where there are no files

    @property
    def num_classes(self) -> int:
        """The number of classes C."""
        return len(self.classes)

    @property
    def labels(self) -> Labels:
        """The labels that come with the data: the given ones, or else the true ones, [N]."""
        labels = self.given if self.given is not None else self.truth
        assert labels is not None
        return labels
