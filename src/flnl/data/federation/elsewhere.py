"""A federation as a server knows it whose clients keep their samples: their numbers, and nothing of any sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Self

import numpy as np
import torch
from torch import Tensor

from flnl.core.errors import UserError
from flnl.data.federation.build import Federation


class ElsewhereError(UserError):
    """Something on the server asked for a sample or label of a client."""


@dataclass(frozen=True, eq=False)
class Withheld:
    """Images that are elsewhere: their number and form are known, and reading one raises ``ElsewhereError``."""

    count: int
    shape: tuple[int, ...]
    augmented_size: tuple[int, ...]
    dtype: torch.dtype
    bytes_in_memory: int | None = None
    unreadable: frozenset[str] = frozenset()

    def __len__(self) -> int:
        return self.count

    def read(self, index: Tensor, *, augmented: bool = False) -> Tensor:
        """An empty batch, if none is asked for.

        Raises:
            ElsewhereError: if any is.
        """
        if len(index):
            raise ElsewhereError("the samples of clients are not here: the server cannot read one")
        return torch.empty(0, self.shape[0], *(self.augmented_size if augmented else self.shape[1:]), dtype=self.dtype)

    def read_each(self, parts: Sequence[Tensor], *, augmented: bool = False) -> Iterator[Tensor]:
        """As ``read``, of each of ``parts``."""
        return (self.read(index, augmented=augmented) for index in parts)

    def to(self, device: torch.device | str) -> Self:
        """The same."""
        return self


def without_samples(federation: Federation) -> Federation:
    """The federation without images, labels, names and truth of its clients' samples.

    Labels are a tensor without values, so that whatever reads them raises. The test set, which is the server's, and the
    fingerprint stay.
    """
    data, sizes = federation.dataset, [len(index) for index in federation.clients]
    total, ends = sum(sizes), list(accumulate(sizes))
    one = data.train.read(torch.zeros(0, dtype=torch.int64))
    nobody = np.zeros(0, np.int64)
    return replace(
        federation,
        dataset=replace(
            data,
            train=Withheld(total, data.train.shape, data.train.augmented_size, one.dtype),
            truth=None,
            given=None,
            clients=None,
            people=None,
            texts=None,
            ids=None,
        ),
        clients=tuple(np.arange(end - size, end, dtype=np.int64) for end, size in zip(ends, sizes, strict=True)),
        validation=nobody,
        held_out_by=nobody,
        dropped=nobody,
        given=torch.empty(total, dtype=torch.int64, device="meta"),
        truth=None,
        nominal=None,
    )
