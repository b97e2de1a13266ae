"""Noise as people make it: the labels of each client are by one person, who confuses classes in a way of their own."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.core.images import Labels
from flnl.core.ranges import PathText, Positive, Share
from flnl.core.streams import stream
from flnl.data.dataset import Dataset
from flnl.data.noise import Rates
from flnl.data.noise.transition import transmit


@dataclass(frozen=True)
class Annotators:
    """Each client has a confusion matrix T_k of its own: a label of true class i is j with probability T_k[i, j].

    It is drawn: the rate r_k ~ U(low, high), T_k[i, i] = 1 - r_k, and r_k times a draw of Dir(concentration, ...,
    concentration) over the other classes. The smaller the concentration, the fewer classes a class is confused with;
    at a large one, labels are those of symmetric noise. Or it is given: ``path`` is a ``.npy`` file of [K, C, C].
    """

    low: Share
    high: Share
    concentration: Positive
    path: PathText | None

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise UserError(f"noise.low={self.low} is above noise.high={self.high}: rates are drawn between them")

    @property
    def nominal(self) -> float | None:
        """The middle of the interval; None if matrices are given."""
        return (self.low + self.high) / 2 if self.path is None else None

    @property
    def expected(self) -> float:
        """The mean rate of the given matrices, if all clients and classes are equally frequent."""
        return (
            float(_rates(_load(Path(self.path).expanduser())).mean()) if self.path is not None else self.nominal or 0.0
        )

    def rates(self, num_clients: int, seed: int) -> Rates:
        """Each client's rate [K]: of given matrices, the mean over classes.

        Raises:
            UserError: if matrices are given for another number of clients.
        """
        if self.path is None:
            drawn = [stream(seed, "noise.rate", k).uniform(self.low, self.high) for k in range(num_clients)]
            return np.array(drawn, np.float64)
        matrices = _load(Path(self.path).expanduser())
        if len(matrices) != num_clients:
            raise UserError(
                f"noise.path={self.path} has the matrices of {len(matrices)} clients; there are {num_clients}"
            )
        return _rates(matrices)

    def of(self, client: int, num_clients: int) -> "_Annotator":
        """The person who labels a client's samples."""
        given = None if self.path is None else _load(Path(self.path).expanduser())[client]
        return _Annotator(self.concentration, given, f"noise.path={self.path}")

    def __call__(self, labels: Labels, rate: float, dataset: Dataset, rng: np.random.Generator, /) -> Labels:
        """Draw the given labels of a person with a drawn matrix."""
        return _Annotator(self.concentration, None, "")(labels, rate, dataset, rng)

    def files(self) -> tuple[Path, ...]:
        """The files that the outcome depends on."""
        return () if self.path is None else (Path(self.path).expanduser(),)


@dataclass(frozen=True, eq=False)
class _Annotator:
    concentration: float
    given: NDArray[np.float64] | None  # [C, C]
    told: str

    def __call__(self, labels: Labels, rate: float, dataset: Dataset, rng: np.random.Generator, /) -> Labels:
        classes = dataset.num_classes
        if self.given is not None and self.given.shape != (classes, classes):
            raise UserError(f"{self.told} has matrices of {len(self.given)} classes; the data set has {classes}")
        T = habits(classes, rate, self.concentration, rng) if self.given is None else self.given
        return transmit(labels, T, rng)


def habits(classes: int, rate: float, concentration: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """A person's confusion matrix [C, C]: see ``Annotators``."""
    T = np.zeros((classes, classes))
    for i in range(classes):
        others = np.delete(np.arange(classes), i)
        drawn = rng.dirichlet(np.full(classes - 1, concentration))
        T[i, others] = rate * (drawn if np.isfinite(drawn).all() else np.eye(classes - 1)[rng.integers(classes - 1)])
        T[i, i] = 1 - rate
    return T


def _rates(matrices: NDArray[np.float64]) -> Rates:
    return np.asarray(1 - np.diagonal(matrices, axis1=1, axis2=2).mean(axis=1), np.float64)


def _load(path: Path) -> NDArray[np.float64]:
    """Confusion matrices [K, C, C].

    Raises:
        UserError: if they cannot be read, or a row is no distribution.
    """
    where = f"noise.path={path}"
    try:
        held = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(
            f"{where} cannot be read ({str(error).partition(chr(10))[0]}); a .npy file is needed"
        ) from error
    if (
        not isinstance(held, np.ndarray)
        or held.dtype.kind not in "fiu"
        or held.ndim != 3
        or held.shape[1] != held.shape[2]
    ):
        form = f"{held.dtype} {list(held.shape)}" if isinstance(held, np.ndarray) else "an archive"
        raise UserError(f"{where} holds {form}; numbers [clients, classes, classes] are needed")
    matrices = held.astype(np.float64)
    wrong = np.argwhere(~((matrices >= 0).all(axis=2) & (np.abs(matrices.sum(axis=2) - 1) <= 1e-6)))
    if len(wrong):
        client, row = wrong[0].tolist()
        raise UserError(f"{where}: row {row} of client {client} is no distribution: numbers from 0 whose sum is 1")
    return np.asarray(matrices / matrices.sum(axis=2, keepdims=True), np.float64)
