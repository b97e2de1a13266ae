"""Noise inside clients: each client's rate, and which of its labels change.

Each client has separate streams for its rate and its labels, so removing a client changes no other. If the number of
noisy clients is exact, those with the smallest random keys are noisy; the keys also come from each client's stream.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import Labels
from flnl.core.ranges import NonNegative, Share
from flnl.core.streams import stream
from flnl.data.dataset import Dataset
from flnl.data.noise import Rates, limited
from flnl.data.noise.maps import MapName, class_map, local_map
from flnl.numerics.label_flips import Mask, bernoulli, exactly, redraw, remap
from flnl.numerics.rounding import nearest, whole

Kind = Literal["symmetric", "asymmetric"]
Counting = Literal["bernoulli", "exact"]
Space = Literal["local", "global"]


@dataclass(frozen=True)
class FedCorr:
    """A client is noisy with probability rho; its level is U(tau, 1), the share of its labels that is redrawn.

    mu_k = u_k if noisy, else 0, with u_k ~ U(tau, 1) (FedCorr, Eq. 4). A new label is uniform over all classes,
    so one in C stays the same, and a share mu_k (C-1)/C is wrong. ``count: exact`` makes round(rho K) clients noisy and
    redraws round(mu_k n_k) labels. ``label_space: first10`` follows the released code: 0...9 for every data set.
    """

    rho: Share
    tau: Share
    count: Counting
    label_space: Literal["all", "first10"]

    @property
    def nominal(self) -> float:
        """The mean level over clients: rho (1 + tau) / 2."""
        return self.rho * (1 + self.tau) / 2

    def rates(self, num_clients: int, seed: int) -> Rates:
        """The levels mu [K]."""
        return noisy_levels(self.rho, self.tau, self.count, num_clients, seed)

    def __call__(self, labels: Labels, rate: float, dataset: Dataset, rng: np.random.Generator, /) -> Labels:
        """Draw one client's given labels."""
        n = len(labels)
        picked = bernoulli(n, rate, rng) if self.count == "bernoulli" else exactly(n, nearest(rate * n), rng)
        classes = dataset.num_classes if self.label_space == "all" else min(10, dataset.num_classes)
        return redraw(labels, picked, np.arange(classes), rng, include_true=True)


@dataclass(frozen=True)
class FLR:
    """FedCorr's noise with fixed ratios: round(rho K) noisy clients, round(r_k n_k) of their samples (FLR, Section 3).

    Symmetric: r_k ~ U(tau, 1), and new labels are uniform over all classes. Asymmetric: classes change by ``map``, and
    r_k = tau (``asymmetric_level: fixed``); with tau as a lower bound, more than half would flip at the paper's 0.4.
    """

    rho: Share
    tau: Share
    kind: Kind
    asymmetric_level: Literal["fixed", "uniform"]
    map: MapName

    @property
    def nominal(self) -> float:
        """The mean ratio over clients: rho (1 + tau) / 2, or rho tau with fixed asymmetric levels."""
        fixed = self.kind == "asymmetric" and self.asymmetric_level == "fixed"
        return self.rho * (self.tau if fixed else (1 + self.tau) / 2)

    def rates(self, num_clients: int, seed: int) -> Rates:
        """The ratios r [K]."""
        levels = noisy_levels(self.rho, self.tau, "exact", num_clients, seed)
        if self.kind == "asymmetric" and self.asymmetric_level == "fixed":
            noisy = noisy_levels(self.rho, 1.0, "exact", num_clients, seed)  # levels of U(1, 1): 1 for noisy clients
            return noisy * self.tau
        return levels

    def __call__(self, labels: Labels, rate: float, dataset: Dataset, rng: np.random.Generator, /) -> Labels:
        """Draw one client's given labels."""
        picked = exactly(len(labels), nearest(rate * len(labels)), rng)
        if self.kind == "asymmetric":
            return remap(labels, picked, class_map(self.map, dataset))
        return redraw(labels, picked, np.arange(dataset.num_classes), rng, include_true=True)


@dataclass(frozen=True)
class FedES:
    """Every client's rate is clip(N(mu, sigma), 0, 1), and int(rate n_k) of its labels change (FedES, Eq. 4).

    Rates are clipped, not truncated, so some clients are entirely clean or entirely wrong. Symmetric noise takes
    another class, asymmetric noise follows ``map``. ``space: local`` restricts both to the true classes of the client,
    as in FedNoisy, on which FedES is based.
    """

    mu: Share
    sigma: NonNegative
    kind: Kind
    space: Space
    map: MapName

    @property
    def nominal(self) -> float:
        """The mean mu of the rates before they are clipped."""
        return self.mu

    @property
    def expected(self) -> float:
        """The mean of the clipped rates."""
        return limited.clipped_normal(self.mu, self.sigma)

    def rates(self, num_clients: int, seed: int) -> Rates:
        """The rates tau [K]."""
        drawn = [stream(seed, "noise.rate", k).normal(self.mu, self.sigma) for k in range(num_clients)]
        return np.clip(np.array(drawn, np.float64), 0.0, 1.0)

    def __call__(self, labels: Labels, rate: float, dataset: Dataset, rng: np.random.Generator, /) -> Labels:
        """Draw one client's given labels."""
        picked = exactly(len(labels), whole(rate * len(labels)), rng)
        return _change(labels, picked, self.kind, self.space, self.map, dataset, rng)


@dataclass(frozen=True)
class Localized:
    """Every client's rate is U(low, high), and that share of its labels changes (FedNoisy's "localized" noise).

    ``low = high`` gives all clients the same rate. With ``space: local``, a client with a single class stays clean.
    """

    low: Share
    high: Share
    kind: Kind
    count: Counting
    space: Space
    map: MapName

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise UserError(f"noise.low={self.low} is above noise.high={self.high}: rates are drawn between them")

    @property
    def nominal(self) -> float:
        """The middle of the interval."""
        return (self.low + self.high) / 2

    def rates(self, num_clients: int, seed: int) -> Rates:
        """The rates [K]."""
        drawn = [stream(seed, "noise.rate", k).uniform(self.low, self.high) for k in range(num_clients)]
        return np.array(drawn, np.float64)

    def __call__(self, labels: Labels, rate: float, dataset: Dataset, rng: np.random.Generator, /) -> Labels:
        """Draw one client's given labels."""
        n = len(labels)
        picked = bernoulli(n, rate, rng) if self.count == "bernoulli" else exactly(n, whole(rate * n), rng)
        return _change(labels, picked, self.kind, self.space, self.map, dataset, rng)


@dataclass(frozen=True)
class Drift:
    """A client's labels get better or worse with time: sample i of n, in the client's order, is wrong at the rate

    clip(r_k + (end - start) (i / (n - 1) - 1/2), 0, 1), i from 0, with r_k = (start + end) / 2 + U(-spread, spread).

    The order is that of the positions in the data set. Each label changes independently, to another class or to the
    partner in ``map``; ``space`` as in ``FedES``.
    """

    start: Share
    end: Share
    spread: Share
    kind: Kind
    space: Space
    map: MapName

    @property
    def nominal(self) -> float:
        """The mean rate before anything is clipped."""
        return (self.start + self.end) / 2

    @property
    def expected(self) -> float:
        """The mean rate of samples, with clients' and samples' rates clipped."""
        clients = np.clip(self.nominal + self.spread * np.linspace(-1, 1, 1001), 0.0, 1.0)
        return float(np.mean([limited.clipped_uniform(r, abs(self.end - self.start) / 2) for r in clients.tolist()]))

    def rates(self, num_clients: int, seed: int) -> Rates:
        """The rates r [K] in the middle of each client's samples, clipped to [0, 1]."""
        drawn = [stream(seed, "noise.rate", k).uniform(-self.spread, self.spread) for k in range(num_clients)]
        return np.clip(self.nominal + np.array(drawn, np.float64), 0.0, 1.0)

    def __call__(self, labels: Labels, rate: float, dataset: Dataset, rng: np.random.Generator, /) -> Labels:
        """Draw one client's given labels."""
        time = np.linspace(-0.5, 0.5, len(labels)) if len(labels) > 1 else np.zeros(len(labels))
        picked = rng.random(len(labels)) < rate + (self.end - self.start) * time
        return _change(labels, picked, self.kind, self.space, self.map, dataset, rng)


def noisy_levels(rho: float, tau: float, count: Counting, num_clients: int, seed: int) -> Rates:
    """Levels [K]: U(tau, 1) for noisy clients, 0 for clean ones."""
    draws = np.array([stream(seed, "noise.rate", k).random(2) for k in range(num_clients)]).reshape(-1, 2)
    key, u = draws[:, 0], draws[:, 1]
    noisy = key < rho
    if count == "exact":
        noisy = np.argsort(np.argsort(key)) < nearest(rho * num_clients)
    return np.where(noisy, tau + (1 - tau) * u, 0.0)


def _change(
    labels: Labels, picked: Mask, kind: Kind, space: Space, name: MapName, dataset: Dataset, rng: np.random.Generator
) -> Labels:
    """Change the picked labels, to classes of the client (``local``) or of the whole data set."""
    present = np.unique(labels)
    if kind == "symmetric":
        allowed = present if space == "local" else np.arange(dataset.num_classes)
        return redraw(labels, picked, allowed, rng, include_true=False)
    mapping = class_map(name, dataset)
    return remap(labels, picked, local_map(mapping, present) if space == "local" else mapping)
