"""``probabilities.npz``, a product of a run: class probabilities of all samples, for an audit of the labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.storage.atomic import written_atomically

NAME = "probabilities.npz"

Rows = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Probabilities:
    """Class probabilities of N training and M test samples in K classes; each row sums to 1 up to rounding.

    Training samples are those of ``labels.csv`` in its order: by client, then by position. The arrays of the file have
    the names of these fields. With two networks, they are what the evaluation scores: the pair's joint prediction.
    """

    window: Rows  # [N, K], mean over the evaluations of ``window_rounds``
    all: Rows  # [N, K], mean over the evaluations of ``rounds``
    final: Rows  # [N, K], of the model in ``model.pt``
    test_window: Rows  # [M, K], as above, for the test samples
    test_all: Rows  # [M, K]
    test_final: Rows  # [M, K]
    rounds: NDArray[np.int64]  # [R], rounds after which the model was evaluated, from 1
    window_rounds: NDArray[np.int64]  # [W], the first of them, up to a share of the run's participations
    client: NDArray[np.int64]  # [N], who holds the sample
    sample: NDArray[np.str_] | NDArray[np.int64]  # [N], the data set's name of the sample, or its position
    tested: NDArray[np.int64]  # [M], positions in the test set
    key: str  # the run's key
    federation: str  # fingerprint of the federation
    round: int  # rounds of the run so far

    def save(self, path: Path) -> None:
        """Write the arrays atomically as an uncompressed ``npz``, whose bytes depend on nothing else.

        Raises:
            OSError: if the file cannot be written.
        """
        arrays: Mapping[str, Any] = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        with written_atomically(path) as file:
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file that ``save`` wrote; nothing in it is executed.

        Raises:
            UserError: if it cannot be read, or arrays are missing or do not fit together.
        """
        names = [field.name for field in fields(cls)]
        try:
            with path.open("rb") as source, np.load(source, allow_pickle=False) as file:
                missing = [name for name in names if name not in file.files]
                arrays = {name: file[name] for name in names if not missing}
        except FileNotFoundError:
            raise UserError(f"{path} does not exist: the run has recorded no probabilities") from None
        except Exception as error:  # a damaged file can make a reader raise anything
            raise UserError(f"{path} cannot be read ({error}): run the experiment again") from None
        if missing:
            raise UserError(f"{path} has no array {missing[0]!r}: it is not from this version of flnl")
        one = {name: arrays.pop(name) for name in ("key", "federation", "round")}
        read = cls(**arrays, key=str(one["key"]), federation=str(one["federation"]), round=int(one["round"]))
        if fault := read._fault():
            raise UserError(f"{path} is damaged ({fault}): run the experiment again")
        return read

    def _fault(self) -> str:
        """What does not fit together, as a phrase; empty if everything does."""
        samples, classes = (*self.final.shape, 0, 0)[:2]
        shapes = {
            **dict.fromkeys(("window", "all", "final"), (samples, classes)),
            **dict.fromkeys(("test_window", "test_all", "test_final"), (len(self.tested), classes)),
            **dict.fromkeys(("client", "sample"), (samples,)),
        }
        for name, shape in shapes.items():
            if (given := getattr(self, name).shape) != shape:
                return f"{name} has shape {given} instead of {shape}"
        return ""
