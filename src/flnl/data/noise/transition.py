"""Noise of the set by a transition matrix: T[i, j] is the probability that a sample of true class i is labelled j.

Rows sum to one. ``matrix`` returns T; if ``count`` is not ``bernoulli``, T holds only in expectation.
"""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.core.images import Labels
from flnl.core.ranges import PathText, Share
from flnl.core.streams import stream
from flnl.data.dataset import Dataset
from flnl.data.noise import limited
from flnl.data.noise.maps import MapName, class_map
from flnl.numerics.label_flips import choose, redraw, remap

Transition = NDArray[np.float64]
Counting = Literal["bernoulli", "exact", "per_class"]


@dataclass(frozen=True)
class Clean:
    """The data set's labels unchanged: its given labels if it has some, else the true ones."""

    @property
    def nominal(self) -> None:
        """None: no rate is configured."""

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """A copy of the data set's labels."""
        return dataset.labels.copy()


@dataclass(frozen=True)
class Symmetric:
    """A share eta of the labels changes to a uniformly drawn other class; with ``include_true``, to any class.

    T = (1 - eta) I + eta/(C-1) (11' - I), or (1 - eta) I + eta/C 11', of which eta (C-1)/C is wrong.
    """

    eta: Share
    include_true: bool
    count: Counting

    @property
    def nominal(self) -> float:
        """The configured rate."""
        return self.eta

    def matrix(self, num_classes: int) -> Transition:
        """T [C, C]."""
        spread = self.eta / (num_classes if self.include_true else num_classes - 1)
        T = np.full((num_classes, num_classes), spread)
        np.fill_diagonal(T, 1 - self.eta + (spread if self.include_true else 0.0))
        return T

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """Draw the given labels."""
        truth, rng = true_labels(dataset), stream(seed, "noise")
        picked = choose(truth, self.eta, self.count, rng)
        return redraw(truth, picked, np.arange(dataset.num_classes), rng, include_true=self.include_true)


@dataclass(frozen=True)
class Asymmetric:
    """A share eta of each class changes to its partner in ``map``; a class that maps to itself does not change.

    T[i, i] = 1 - eta, T[i, map(i)] = eta. Half of CIFAR-10's classes have a partner, so eta/2 of its labels are wrong.
    """

    eta: Share
    map: MapName
    count: Counting

    @property
    def nominal(self) -> float:
        """The configured rate."""
        return self.eta

    def matrix(self, dataset: Dataset) -> Transition:
        """T [C, C]."""
        identity = np.eye(dataset.num_classes)
        return (1 - self.eta) * identity + self.eta * identity[class_map(self.map, dataset)]

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """Draw the given labels."""
        truth = true_labels(dataset)
        return remap(truth, choose(truth, self.eta, self.count, stream(seed, "noise")), class_map(self.map, dataset))


@dataclass(frozen=True)
class Random:
    """Each class has a random distribution of wrong labels (FedPeer's "random" noise, after Zhu et al.).

    T[i, i] = 1 - eta + U(-spread, spread), clipped to [0, 1]; the rest of the row is (1 - T[i, i]) Dir(1, ..., 1). The
    paper prints eta + U, which would make eta the share of correct labels. The whole set has the same T.
    """

    eta: Share
    spread: Share

    @property
    def nominal(self) -> float:
        """The configured rate."""
        return self.eta

    @property
    def expected(self) -> float:
        """The mean of the classes' rates, which are clipped."""
        return limited.clipped_uniform(self.eta, self.spread)

    def matrix(self, num_classes: int, seed: int) -> Transition:
        """T [C, C] for a seed."""
        rng = stream(seed, "noise.matrix")
        keep = np.clip(1 - self.eta + rng.uniform(-self.spread, self.spread, num_classes), 0.0, 1.0)
        T = np.zeros((num_classes, num_classes))
        T[~np.eye(num_classes, dtype=bool)] = rng.dirichlet(np.ones(num_classes - 1), num_classes).ravel()
        return T * (1 - keep)[:, None] + np.diag(keep)

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """Draw the given labels."""
        return transmit(true_labels(dataset), self.matrix(dataset.num_classes, seed), stream(seed, "noise"))


@dataclass(frozen=True)
class Matrix:
    """A user-defined transition matrix, as rows or as a ``.npy`` or ``.csv`` file of C lines of C numbers."""

    matrix: list[list[float]] | None
    path: PathText | None

    def __post_init__(self) -> None:
        if (self.matrix is None) == (self.path is None):
            raise UserError(
                "noise=matrix needs either noise.matrix, a list of C rows, or noise.path, a .npy or .csv file"
            )

    @property
    def nominal(self) -> None:
        """None: the rate depends on the class frequencies."""

    @property
    def expected(self) -> float:
        """The expected share of wrong labels if all classes are equally frequent."""
        rows = max(1, len(self._given()))  # a file without any is refused by its shape
        return float(1 - np.diagonal(self.transition(rows)).mean())

    def transition(self, num_classes: int) -> Transition:
        """T [C, C], validated and normalised."""
        T = self._given()
        key = "noise.matrix" if self.path is None else f"noise.path={self.path}"
        if T.shape != (num_classes, num_classes):
            raise UserError(f"{key} is {' x '.join(map(str, T.shape))}: {num_classes} rows of {num_classes} are needed")
        if (wrong := ~(T >= 0)).any():
            raise UserError(f"{key}: row {int(wrong.any(axis=1).argmax())} has an entry that is negative or no number")
        off = np.abs(T.sum(axis=1) - 1)
        if off.max() > 1e-6:
            raise UserError(
                f"{key}: row {int(off.argmax())} sums to {T[off.argmax()].sum():.6g}; every row is a distribution"
            )
        return np.asarray(T / T.sum(axis=1, keepdims=True), np.float64)

    def _given(self) -> Transition:
        if self.path is not None:
            T = _load(Path(self.path).expanduser())
            if T.ndim != 2:
                raise UserError(
                    f"noise.path={self.path} holds an array of shape {list(T.shape)}: C rows of C numbers are needed"
                )
            return T
        try:
            return np.array(self.matrix, dtype=np.float64).reshape(len(self.matrix or ()), -1)
        except ValueError:
            raise UserError("noise.matrix: its rows must be numbers, equally many in each") from None

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """Draw the given labels."""
        return transmit(true_labels(dataset), self.transition(dataset.num_classes), stream(seed, "noise"))

    def files(self) -> tuple[Path, ...]:
        """The files that the outcome depends on."""
        return () if self.path is None else (Path(self.path).expanduser(),)


def transmit(labels: Labels, T: Transition, rng: np.random.Generator) -> Labels:
    """Draw each label [N] from its row of ``T``; classes of probability zero are never drawn."""
    u = rng.random(len(labels))
    given = labels.copy()
    for c in np.unique(labels):
        members = labels == c
        edges = np.cumsum(T[c])
        given[members] = np.searchsorted(edges / edges[-1], u[members], side="right")
    return given


def true_labels(dataset: Dataset) -> Labels:
    """The true labels, from which all simulated noise starts.

    Raises:
        UserError: if the data set has none.
    """
    if dataset.truth is None:
        raise UserError(f"simulated noise needs true labels, and {dataset.name} has none: set noise=none")
    return dataset.truth


def _load(path: Path) -> Transition:
    if not path.is_file():
        raise UserError(f"noise.path={path}: no such file")
    try:
        if path.suffix == ".npy":
            T = np.load(path, allow_pickle=False)
            if not isinstance(T, np.ndarray) or T.dtype.kind not in "biuf":
                raise ValueError("it is not an array of real numbers")
            return T.astype(np.float64)
        with warnings.catch_warnings(action="ignore"):  # about empty files, which are refused by their shape
            return np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"noise.path={path} cannot be read ({reason}); a .npy or .csv file is needed") from error
