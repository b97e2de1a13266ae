"""Scikit-learn's handwritten digits: 1,797 real images that come with the library, so nothing is downloaded.

A federation trains on them in seconds, and methods still differ.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch

from flnl.core.errors import UserError
from flnl.core.ranges import Neutral, PositiveCount
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import assemble, refuse_first_of_groups
from flnl.data.images import TensorImages
from flnl.data.owners import LEFT_OUT, Owners
from flnl.data.transforms import Transform

STARTS = (0, 130, 256, 386, 516, 646, 776, 915, 1029, 1157, 1287, 1415, 1545, 1667)
"""Where the block of each of the 14 writers begins in the library's order, which the library does not tell.

All are copies of one sheet of 130 digits: the blocks are it, lack some or have one changed. The data set's description
says 13 people, so that two blocks may be of one. The usual list is kept, also where the eighth block may begin at 906:
there the sheet starts over.
"""


@dataclass(frozen=True)
class Digits:
    """Images of 8x8 with grey values 0..16, 10 classes; stored exactly, without augmentation.

    There is no official split. This one is deterministic: of the samples sorted by class, in the library's order within
    a class, every fifth, starting with the first, is for testing. It gives 1,437 training and 360 test samples with
    equal class proportions, and every writer is in both. With ``test_writers``, the test set is all that these have
    written, and nobody trains on it.
    """

    name: Literal["digits"]
    train_size: PositiveCount | None
    test_size: PositiveCount | None
    # Records of earlier versions lack the keys that follow.
    train_sample: Annotated[PositiveCount | None, Neutral(None)] = None
    test_writers: Annotated[list[int] | None, Neutral(None)] = None
    groups: Annotated[Literal["writers"] | None, Neutral(None)] = None

    def __call__(self) -> Dataset:
        """Load the data set; the labels are the truth.

        Raises:
            UserError: if there are no such writers or samples.
        """
        from sklearn.datasets import load_digits

        if self.groups is not None:
            refuse_first_of_groups(self.train_size)
        source = load_digits()
        labels = source.target.astype(np.int64)
        pixels = torch.from_numpy(source.images.astype(np.uint8)[:, None])
        writer = np.repeat(np.arange(len(STARTS)), np.diff([*STARTS, len(labels)]))
        if self.test_writers is None:
            test = np.sort(np.argsort(labels, kind="stable")[::5])
        else:
            test = np.flatnonzero(np.isin(writer, self._unseen(self.test_writers)))
        train = np.setdiff1d(np.arange(len(labels)), test)
        owners, test_owners = None, None
        if self.groups is not None:
            owners = Owners.of([*map(str, writer[train].tolist())], "dataset.groups=writers")
            number = {int(name): i for i, name in enumerate(owners.names)}
            test_owners = np.array([number.get(one, LEFT_OUT) for one in writer[test].tolist()], np.int64)
        return assemble(
            name=self.name,
            classes=tuple("0123456789"),
            train=TensorImages(pixels[train]),
            test=TensorImages(pixels[test]),
            test_labels=labels[test],
            # Mean and standard deviation of all pixels, divided by 16.
            transform=Transform(size=(8, 8), mean=(0.3053,), std=(0.3760,), scale=16.0),
            truth=labels[train],
            owners=owners,
            test_owners=test_owners,
            train_size=self.train_size,
            train_sample=self.train_sample,
            test_size=self.test_size,
        )

    @staticmethod
    def _unseen(writers: list[int]) -> list[int]:
        if not 0 < len(set(writers)) < len(STARTS) or not set(writers) <= {*range(len(STARTS))}:
            raise UserError(
                f"dataset.test_writers={writers}: some of the writers 0..{len(STARTS) - 1} are needed, not all"
            )
        return writers
