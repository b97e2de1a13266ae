"""Rows of numbers: what the readers of features and tables have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.data.images import TensorImages
from flnl.data.preparations import Rows

Scaling = Literal["column", "unit", "none"]
"""``column``: each column has mean 0 and deviation 1 in the training rows; ``unit``: each row has length 1."""


def stored(rows: NDArray[Any], what: str) -> TensorImages:
    """Rows [N, D] of numbers: float16 and float32 as they are, others as float32.

    Raises:
        UserError: if they have another form, or a value is not finite as float32.
    """
    if rows.ndim != 2 or rows.dtype.kind not in "biuf" or not rows.size:
        raise UserError(f"{what} is {rows.dtype} {list(rows.shape)}; it should be numbers [N, D]")
    if rows.dtype not in (np.float16, np.float32):
        with np.errstate(over="ignore"):  # values beyond float32 become infinite, which is checked below
            rows = rows.astype(np.float32)
    strange = np.argwhere(~np.isfinite(rows))
    if len(strange):
        row, column = strange[0].tolist()
        raise UserError(
            f"{what} has a value that is not finite as float32, first in row {row}, column {column}: fill in missing "
            "values, with a column that says where"
        )
    return TensorImages(torch.from_numpy(np.ascontiguousarray(rows)))


def prepared(train: TensorImages, scaling: Scaling) -> Rows:
    """How rows like ``train`` become inputs: deviations are those of all rows, constant columns are divided by 1."""
    width = train.pixels.shape[1]
    if scaling != "column":
        return Rows(width, unit=scaling == "unit")
    values = train.pixels.numpy().astype(np.float64)
    std = values.std(axis=0)
    return Rows(width, tuple(values.mean(axis=0).tolist()), tuple(np.where(std > 0, std, 1.0).tolist()))


@dataclass(frozen=True)
class RowTexts(Sequence[str]):
    """What a reader sees of each row: the first of its values, by the names of the columns."""

    rows: NDArray[Any]  # [N, D]
    columns: Sequence[str]  # [D]
    most: int = 12

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return RowTexts(self.rows[index], self.columns, self.most)
        shown = zip(self.columns[: self.most], self.rows[index], strict=False)
        text = ", ".join(f"{name} {float(value):.4g}" for name, value in shown)
        return text + (f", and {len(self.columns) - self.most} more" if len(self.columns) > self.most else "")
