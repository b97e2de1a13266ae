"""Noise of the set by a class-to-class transition: T[i, j] is the probability that true class i is given as j.

Rows sum to one. ``matrix`` states the law; where ``count`` is not ``bernoulli``, the law holds in expectation only.
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
from flnl.data.noise.maps import MapName, class_map
from flnl.numerics.label_flips import choose, redraw, remap

Transition = NDArray[np.float64]
Counting = Literal["bernoulli", "exact", "per_class"]


@dataclass(frozen=True)
class Clean:
    """Labels as they came: correct where the data set knows the truth only, noisy where it brought its own."""

    @property
    def nominal(self) -> None:
        """Nothing is asked for."""

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """The data set's own labels."""
        return dataset.labels.copy()


@dataclass(frozen=True)
class Symmetric:
    """A share eta of the labels changes to another class, uniformly; with ``include_true`` it is drawn from all.

    T = (1 - eta) I + eta/(C-1) (11' - I), or (1 - eta) I + eta/C 11', of which eta (C-1)/C is wrong.
    """

    eta: Share
    include_true: bool
    count: Counting

    @property
    def nominal(self) -> float:
        """The rate asked for."""
        return self.eta

    def matrix(self, num_classes: int) -> Transition:
        """T [C, C]."""
        spread = self.eta / (num_classes if self.include_true else num_classes - 1)
        T = np.full((num_classes, num_classes), spread)
        np.fill_diagonal(T, 1 - self.eta + (spread if self.include_true else 0.0))
        return T

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """The given labels."""
        truth, rng = true_labels(dataset), stream(seed, "noise")
        picked = choose(truth, self.eta, self.count, rng)
        return redraw(truth, picked, np.arange(dataset.num_classes), rng, include_true=self.include_true)


@dataclass(frozen=True)
class Asymmetric:
    """A share eta of each class changes to its partner in ``map``; a class that is its own partner stays.

    T[i, i] = 1 - eta, T[i, map(i)] = eta. Half of CIFAR-10's classes have a partner, so eta/2 of its labels are wrong.
    """

    eta: Share
    map: MapName
    count: Counting

    @property
    def nominal(self) -> float:
        """The rate asked for."""
        return self.eta

    def matrix(self, dataset: Dataset) -> Transition:
        """T [C, C]."""
        identity = np.eye(dataset.num_classes)
        return (1 - self.eta) * identity + self.eta * identity[class_map(self.map, dataset)]

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """The given labels."""
        truth = true_labels(dataset)
        return remap(truth, choose(truth, self.eta, self.count, stream(seed, "noise")), class_map(self.map, dataset))


@dataclass(frozen=True)
class Random:
    """Each class is confused in its own random way (FedPeer's "random" noise, after Zhu et al.).

    T[i, i] = 1 - eta + U(-spread, spread), clipped to [0, 1]; the rest of the row is (1 - T[i, i]) Dir(1, ..., 1). The
    paper prints eta + U, which would make eta the share of correct labels. One T for the whole set.
    """

    eta: Share
    spread: Share

    @property
    def nominal(self) -> float:
        """The rate asked for."""
        return self.eta

    def matrix(self, num_classes: int, seed: int) -> Transition:
        """The T [C, C] of a seed."""
        rng = stream(seed, "noise.matrix")
        keep = np.clip(1 - self.eta + rng.uniform(-self.spread, self.spread, num_classes), 0.0, 1.0)
        T = np.zeros((num_classes, num_classes))
        T[~np.eye(num_classes, dtype=bool)] = rng.dirichlet(np.ones(num_classes - 1), num_classes).ravel()
        return T * (1 - keep)[:, None] + np.diag(keep)

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """The given labels."""
        return transmit(true_labels(dataset), self.matrix(dataset.num_classes, seed), stream(seed, "noise"))


@dataclass(frozen=True)
class Matrix:
    """A transition matrix of one's own, as rows or as a ``.npy`` or ``.csv`` file of C lines of C numbers."""

    matrix: list[list[float]] | None
    path: PathText | None

    def __post_init__(self) -> None:
        if (self.matrix is None) == (self.path is None):
            raise UserError(
                "noise=matrix needs either noise.matrix, a list of C rows, or noise.path, a .npy or .csv file"
            )

    @property
    def nominal(self) -> None:
        """Left open: the rate depends on how often each class occurs."""

    def transition(self, num_classes: int) -> Transition:
        """T [C, C], checked."""
        T = np.array(self.matrix, dtype=np.float64) if self.path is None else _load(Path(self.path))
        key = "noise.matrix" if self.path is None else f"noise.path={self.path}"
        if T.shape != (num_classes, num_classes):
            raise UserError(f"{key} is {' x '.join(map(str, T.shape))}: {num_classes} rows of {num_classes} are needed")
        if not (T >= 0).all():
            raise UserError(f"{key}: row {int((T < 0).any(axis=1).argmax())} has a negative entry")
        off = np.abs(T.sum(axis=1) - 1)
        if off.max() > 1e-6:
            raise UserError(
                f"{key}: row {int(off.argmax())} sums to {T[off.argmax()].sum():.6g}; every row is a distribution"
            )
        return np.asarray(T / T.sum(axis=1, keepdims=True), np.float64)

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """The given labels."""
        return transmit(true_labels(dataset), self.transition(dataset.num_classes), stream(seed, "noise"))

    def files(self) -> tuple[Path, ...]:
        """What else the outcome depends on."""
        return () if self.path is None else (Path(self.path),)


def transmit(labels: Labels, T: Transition, rng: np.random.Generator) -> Labels:
    """Each label [N] drawn from its row of ``T``; what has probability zero is never drawn."""
    u = rng.random(len(labels))
    given = labels.copy()
    for c in np.unique(labels):
        members = labels == c
        edges = np.cumsum(T[c])
        given[members] = np.searchsorted(edges / edges[-1], u[members], side="right")
    return given


def true_labels(dataset: Dataset) -> Labels:
    """The true labels, which every simulated noise starts from."""
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
                raise ValueError("it is no array of real numbers")
            return T.astype(np.float64)
        with warnings.catch_warnings(action="ignore"):  # of an empty file, whose shape will be refused
            return np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"noise.path={path} cannot be read ({reason}); a .npy or .csv file is needed") from error
