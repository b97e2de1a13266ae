"""Partitions: which client holds which sample.

A partition returns one owner per sample, so clients cannot overlap and no sample is lost unnoticed. Schemes that follow
labels only decide *how many* samples of each class a client holds; which ones is always a uniform draw.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.core.ranges import PathText, Positive, PositiveCount, Share
from flnl.data.owner_file import read_owners
from flnl.data.owners import LEFT_OUT, Owners
from flnl.numerics.rounding import TOLERANCE

DRAWS = 1000
"""Number of draws that may leave a client with too few samples before the setting is refused as infeasible."""

MOST_CLIENTS = 1_000_000
"""``partition.num_clients`` above it is refused as a mistake: most clients would hold no sample."""

By = Literal["truth", "given"]
"""Which labels a scheme follows. Given labels require noise that is drawn before the partition."""


@dataclass(frozen=True, eq=False)
class Pool:
    """The input of a partition: one label per sample, and the data set's natural clients if it has any."""

    labels: Labels  # [N]
    num_classes: int
    clients: Indices | None = None  # [N]
    ids: Sequence[str] | None = None  # [N]
    client_names: tuple[str, ...] | None = None  # [K], of ``clients``; None: they are called by their numbers

    @cached_property
    def counts(self) -> Indices:
        """Samples of each class, [C]."""
        return np.bincount(self.labels, minlength=self.num_classes).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Split:
    """The outcome: ``owner`` [N] is each sample's client, or ``LEFT_OUT``."""

    owner: Indices
    num_clients: int
    names: tuple[str, ...] | None = None  # [num_clients], what the clients are called; None: by their numbers

    @cached_property
    def clients(self) -> tuple[Indices, ...]:
        """The positions that each client holds, ascending; disjoint, and complete except for ``dropped``."""
        order = np.argsort(self.owner, kind="stable").astype(np.int64)  # stable: ascending within a client
        edges = np.searchsorted(self.owner[order], np.arange(self.num_clients + 1))
        return tuple(order[a:b] for a, b in pairwise(edges.tolist()))

    @cached_property
    def dropped(self) -> Indices:
        """The positions that no client holds, ascending."""
        return np.flatnonzero(self.owner == LEFT_OUT).astype(np.int64)


class Partition(Protocol):
    """A way to divide samples among clients. Schemes that follow labels also have a field ``by``.

    One under which all clients have the same distribution of classes, but for chance, says so by ``alike = True``:
    defaults of methods may depend on it (``${noniid:...}``). One that takes the data set's natural clients says so by
    ``natural = True``; of others, a run tells that they do not.
    """

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Draw the owners."""


@dataclass(frozen=True)
class IIDUniform:
    """A random permutation, cut into equal parts: sizes differ by at most one, class counts vary by chance.

    The IID setting of FedCorr and FedES, but without dropping the remainder.
    """

    alike: ClassVar[bool] = True
    num_clients: PositiveCount

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Draw the owners."""
        n = _enough(pool, self.num_clients)
        owner = np.empty(n, np.int64)
        for client, part in enumerate(np.array_split(rng.permutation(n), self.num_clients)):
            owner[part] = client
        return Split(owner, self.num_clients)


@dataclass(frozen=True)
class IIDClass:
    """Every client holds equally many samples of each class (FedDiv, FLR).

    The remainder of each class is dealt one sample per client, continuing around the clients from a random start across
    classes, so that clients' totals also differ by at most one.
    """

    alike: ClassVar[bool] = True
    num_clients: PositiveCount
    by: By

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Draw the owners."""
        _enough(pool, self.num_clients)
        counts = np.repeat(pool.counts[None] // self.num_clients, self.num_clients, axis=0)
        start = int(rng.integers(self.num_clients))
        for c, over in enumerate(pool.counts % self.num_clients):
            counts[(start + np.arange(over)) % self.num_clients, c] += 1
            start += int(over)
        return deal(pool, counts, rng)


@dataclass(frozen=True)
class FedCorr:
    """FedCorr's non-IID setting (Section 3.1): Bernoulli(p) decides who holds a class, Dirichlet(alpha) how much of it.

    Every sample of a class draws its client from q ~ Dir(alpha, ..., alpha) over the class's holders. Clients without a
    class and classes without a client are redrawn; if a client still ends up without a sample, everything is redrawn.
    ``minimum_one`` gives each holder one sample of its class before the rest is drawn (FLR).
    """

    num_clients: PositiveCount
    p: Share
    alpha: Positive
    minimum_one: bool
    by: By

    def __post_init__(self) -> None:
        if self.p == 0:
            raise UserError("partition.p=0 lets no client hold any class: give a probability above 0, up to 1")

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Draw the owners."""
        _enough(pool, self.num_clients)

        def draw() -> Indices:
            holds = _holdings(
                lambda rows, columns: rng.random((rows, columns)) < self.p,
                (self.num_clients, pool.num_classes),
                unfit=lambda holds: np.asarray(~holds.any(axis=1)),
                cover=True,
                advice=f"partition.p={self.p} is too small: raise it, or lower partition.num_clients",
            )
            counts = np.zeros(holds.shape, np.int64)
            for c, n in enumerate(pool.counts):
                holders = np.flatnonzero(holds[:, c])
                first = int(self.minimum_one and n > 0)
                if first * len(holders) > n:
                    return np.zeros_like(counts)  # too few samples to give every holder one: draw again
                rest = rng.multinomial(n - first * len(holders), shares(self.alpha, len(holders), rng))
                counts[holders, c] = first + rest
            return counts

        advice = f"partition.p={self.p} and partition.alpha={self.alpha} are too skewed for partition.num_clients="
        advice += f"{self.num_clients}: raise p or alpha, or lower num_clients"
        if self.minimum_one:
            advice += "; partition.minimum_one=true also asks for a sample in every class that a client may hold"
        return deal(pool, _until(1, draw, advice), rng)


@dataclass(frozen=True)
class Dirichlet:
    """Each class is split in proportions p ~ Dir(alpha, ..., alpha) over all clients (Li et al., NIID-Bench).

    With ``balance``, a client that already holds N/K samples gets nothing of the following classes. The draw is
    repeated until every client holds ``minimum`` samples; None means the number of classes (FedLab). FedES uses this
    scheme.
    """

    num_clients: PositiveCount
    alpha: Positive
    balance: bool
    minimum: PositiveCount | None
    by: By

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Draw the owners."""
        n = _enough(pool, self.num_clients)
        least = pool.num_classes if self.minimum is None else self.minimum
        _affordable(n, self.num_clients, least)

        def draw() -> Indices:
            counts = np.zeros((self.num_clients, pool.num_classes), np.int64)
            for c, size in enumerate(pool.counts):
                p = shares(self.alpha, self.num_clients, rng)
                if self.balance:
                    room = counts.sum(axis=1) < n / self.num_clients
                    p = np.where(room, p, 0.0)
                    room = room if room.any() else ~room  # all samples are dealt: only empty classes follow
                    p = p / p.sum() if p.sum() > 0 else room / room.sum()
                counts[:, c] = cut(int(size), p)
            return counts

        advice = f"partition.alpha={self.alpha} is too small for partition.num_clients={self.num_clients}: raise alpha,"
        return deal(pool, _until(least, draw, f"{advice} or lower num_clients or partition.minimum"), rng)


@dataclass(frozen=True)
class Shards:
    """Samples sorted by label are cut into equal shards; each client gets ``shards`` random ones (McMahan et al.).

    Shard sizes differ by at most one. With few shards per client, a client sees few classes.
    """

    num_clients: PositiveCount
    shards: PositiveCount
    by: By

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Draw the owners."""
        n = _enough(pool, self.num_clients)
        total = self.num_clients * self.shards
        if total > n:
            raise UserError(
                f"partition.shards={self.shards} for partition.num_clients={self.num_clients} asks for {total} shards "
                f"of {n} samples: at most {n // self.num_clients} a client"
            )
        shuffled = rng.permutation(n)
        order = shuffled[np.argsort(pool.labels[shuffled], kind="stable")]
        holder = rng.permutation(np.repeat(np.arange(self.num_clients), self.shards))
        owner = np.empty(n, np.int64)
        for client, shard in zip(holder, np.array_split(order, total), strict=True):
            owner[shard] = client
        return Split(owner, self.num_clients)


@dataclass(frozen=True)
class QuantitySkew:
    """Clients of unequal size but equal distribution: sizes are N Dir(alpha, ..., alpha), and no sample is lost."""

    alike: ClassVar[bool] = True
    num_clients: PositiveCount
    alpha: Positive
    minimum: PositiveCount

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Draw the owners."""
        n = _enough(pool, self.num_clients)
        _affordable(n, self.num_clients, self.minimum)
        sizes = _until(
            self.minimum,
            lambda: cut(n, shares(self.alpha, self.num_clients, rng))[:, None],
            f"partition.alpha={self.alpha} is too small for partition.num_clients={self.num_clients}: raise alpha, "
            "or lower num_clients or partition.minimum",
            draws=100 * DRAWS,  # FedNoisy's setting succeeds in one of 1,500, and a draw is cheap
        )[:, 0]
        owner = np.empty(n, np.int64)
        owner[rng.permutation(n)] = np.repeat(np.arange(self.num_clients), sizes)
        return Split(owner, self.num_clients)


@dataclass(frozen=True)
class LabelsPerClient:
    """Every client holds ``labels`` of the classes: class k mod C, and others that are drawn (FedNoisy, NIID-Bench).

    A class is divided among its holders, in sizes that differ by at most one. Samples of a class that nobody holds,
    which there may be with fewer clients than classes, are left out.
    """

    num_clients: PositiveCount
    labels: PositiveCount
    by: By

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Draw the owners."""
        _enough(pool, self.num_clients)
        classes = pool.num_classes
        if self.labels > classes:
            raise UserError(f"partition.labels={self.labels} is more than the {classes} classes there are")

        def draw() -> Indices:
            holds = np.zeros((self.num_clients, classes), bool)
            for k in range(self.num_clients):
                others = np.delete(np.arange(classes), k % classes)
                holds[k, [k % classes, *rng.choice(others, self.labels - 1, replace=False)]] = True
            counts = np.zeros(holds.shape, np.int64)
            for c in np.flatnonzero(holds.any(axis=0)):
                holders = np.flatnonzero(holds[:, c])
                counts[holders, c] = [len(part) for part in np.array_split(np.arange(pool.counts[c]), len(holders))]
            return counts

        advice = f"partition.labels={self.labels} leaves clients without samples at partition.num_clients="
        return deal(pool, _until(1, draw, f"{advice}{self.num_clients}: raise labels, or lower num_clients"), rng)


@dataclass(frozen=True)
class FNBench:
    """The Dirichlet partition of FNBench's program, which is the same for every seed.

    It is ``Dirichlet`` with ``balance``, but each class is drawn from NumPy's old generator with its own number as the
    seed, so who holds what depends on the labels alone. If a client had fewer than ``minimum`` samples, the program
    would make the same draw again without end.
    """

    num_clients: PositiveCount
    alpha: Positive
    minimum: PositiveCount
    by: By

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Determine the owners; nothing is drawn from ``rng``."""
        n = _enough(pool, self.num_clients)
        owner, sizes = np.empty(n, np.int64), np.zeros(self.num_clients, np.int64)
        for c in range(pool.num_classes):
            theirs = np.random.RandomState(c)
            p = np.nan_to_num(theirs.dirichlet(np.full(self.num_clients, self.alpha))) * (sizes < n / self.num_clients)
            members = np.flatnonzero(pool.labels == c)
            theirs.shuffle(members)
            p = p / p.sum() if p.sum() > 0 else np.eye(self.num_clients)[0]
            edges = (np.cumsum(p) * len(members)).astype(np.int64)
            for client, part in enumerate(np.split(members, edges[:-1])):
                owner[part] = client
                sizes[client] += len(part)
        if sizes.min() < self.minimum:
            raise UserError(
                f"partition.alpha={self.alpha} gives the smallest of partition.num_clients={self.num_clients} clients "
                f"{sizes.min()} samples, whatever the seed, and partition.minimum is {self.minimum}: lower it, take "
                "another alpha, or set partition=dirichlet"
            )
        return Split(owner, self.num_clients)


@dataclass(frozen=True)
class Openset:
    """Every client sees some but not all of the classes (FedPeer, Section 3.2): class k with probability ``q``.

    A class is split among its holders in equal shares (``uniform``) or in Dir(1) shares (``nonuniform``). With
    ``rounding: largest_remainder`` no sample is lost; ``floor`` is the paper's literal division. A class without
    holders is left out (``missing: drop``, as the paper accepts) or drawn again (``redraw``).
    """

    num_clients: PositiveCount
    q: Annotated[float, Interval(gt=0, lt=1)]
    allocation: Literal["uniform", "nonuniform"]
    rounding: Literal["largest_remainder", "floor"]
    missing: Literal["drop", "redraw"]
    by: By

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Draw the owners."""
        _enough(pool, self.num_clients)
        if pool.num_classes < 3:
            raise UserError(
                f"partition=openset needs a data set of 3 classes or more, this one has {pool.num_classes}: "
                "with two, every client would own a single class"
            )

        def draw() -> Indices:
            holds = _holdings(
                lambda rows, columns: rng.random((rows, columns)) < self.q,
                (self.num_clients, pool.num_classes),
                unfit=lambda holds: np.asarray(~holds.any(axis=1) | holds.all(axis=1)),
                cover=self.missing == "redraw",
                advice=f"partition.q={self.q} with partition.num_clients={self.num_clients} and "
                f"partition.missing={self.missing} cannot be met: bring q nearer to 0.5, or take more clients",
            )
            counts = np.zeros(holds.shape, np.int64)
            for c, n in enumerate(pool.counts):
                holders = np.flatnonzero(holds[:, c])
                if len(holders):
                    even = self.allocation == "uniform"
                    p = np.full(len(holders), 1 / len(holders)) if even else shares(1.0, len(holders), rng)
                    counts[holders, c] = apportion(int(n), p, rng if self.rounding == "largest_remainder" else None)
            return counts

        advice = f"partition.q={self.q} leaves clients without samples at partition.num_clients={self.num_clients}: "
        return deal(pool, _until(1, draw, f"{advice}raise q, or lower num_clients"), rng)


@dataclass(frozen=True)
class File:
    """Given clients: the data set's natural ones, or those listed in a file at ``path``.

    The file is a ``.npy`` of N names or numbers, or a CSV: one client per line in the order of the samples, or with a
    header that has a column ``client`` and, if the lines are in another order, a column ``id``. ``-1`` leaves a sample
    out. Clients are in the order of their names. With ``num_clients``, clients that are called by numbers have these
    places, and there may be clients without samples, which only this partition allows.
    """

    num_clients: PositiveCount | None
    path: PathText | None

    natural: ClassVar[bool] = True  # or those of ``path`` in their place

    def __call__(self, pool: Pool, rng: np.random.Generator, /) -> Split:
        """Read the owners."""
        if self.path is not None:
            ids = [str(i) for i in range(len(pool.labels))] if pool.ids is None else pool.ids
            owners = read_owners(Path(self.path).expanduser(), ids)
        elif pool.clients is None:
            raise UserError(
                "partition=file without partition.path takes the data set's natural clients, and this one has none: "
                "set partition.path to a .npy or .csv file with a client for each sample; or dataset.sites=true, if "
                "the outer folders of dataset=image_folder are sites"
            )
        elif pool.client_names is not None:
            owners = Owners(pool.clients, pool.client_names)
        else:
            most = int(pool.clients.max(initial=LEFT_OUT))
            owners = Owners(pool.clients.astype(np.int64), tuple(map(str, range(most + 1))))
        if len(owners.number) != len(pool.labels):
            raise UserError(
                f"partition.path={self.path} names {len(owners.number)} clients for {len(pool.labels)} samples"
            )
        if (owners.number == LEFT_OUT).all():
            raise UserError(f"partition.path={self.path} gives no sample to any client")
        return self._placed(owners)

    def _placed(self, owners: Owners) -> Split:
        """The split with ``num_clients`` clients.

        Raises:
            UserError: if there are more.
        """
        count = len(owners.names)
        if self.num_clients is None:
            return Split(owners.number, count, owners.names)
        if self.num_clients > MOST_CLIENTS:
            raise UserError(f"partition.num_clients={self.num_clients} is too many; the maximum is {MOST_CLIENTS}")
        if owners.numeric:
            places = [*map(int, owners.names)]
            if twice := [name for name in owners.names if str(int(name)) != name and str(int(name)) in owners.names]:
                raise UserError(
                    f"partition.num_clients={self.num_clients}: {twice[0]!r} and '{int(twice[0])}' are two clients of "
                    "one number; leave it out to have a client for each"
                )
            if max(places) >= self.num_clients:
                raise UserError(
                    f"partition.num_clients={self.num_clients}, but the clients are numbered up to {max(places)}; "
                    "leave it out to have a client for each number that occurs"
                )
            place = np.array([*places, LEFT_OUT], np.int64)  # LEFT_OUT reads the last one
            return Split(place[owners.number], self.num_clients)
        if self.num_clients < count:
            raise UserError(f"partition.num_clients={self.num_clients}, but there are {count} clients with names")
        more = tuple(map(str, range(count, self.num_clients)))
        return Split(owners.number, self.num_clients, (*owners.names, *more))

    def files(self) -> tuple[Path, ...]:
        """The files that the outcome depends on."""
        return () if self.path is None else (Path(self.path).expanduser(),)


def deal(pool: Pool, counts: Indices, rng: np.random.Generator) -> Split:
    """Give each client ``counts`` [K, C] samples of each class, chosen uniformly; the remainder is left out.

    >>> pool = Pool(np.array([0, 1, 1, 0, 1]), num_classes=2)
    >>> split = deal(pool, np.array([[1, 2], [1, 0]]), np.random.default_rng(0))
    >>> [len(part) for part in split.clients], len(split.dropped)
    ([3, 1], 1)
    """
    owner = np.full(len(pool.labels), LEFT_OUT, np.int64)
    members = np.split(np.argsort(pool.labels, kind="stable"), np.cumsum(pool.counts)[:-1])
    for c, positions in enumerate(members):
        holders = np.repeat(np.arange(len(counts)), counts[:, c])
        owner[rng.permutation(positions)[: len(holders)]] = holders
    return Split(owner, len(counts))


LARGEST_ALPHA, SMALLEST_ALPHA = 1e300, 1e-300
"""Beyond these, a draw equals its limit in all digits, and NumPy's intermediate sums overflow or underflow."""


def shares(alpha: float, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A draw of Dir(alpha, ..., alpha), [count], including its two limits: equal shares, and everything to one.

    >>> shares(1e308, 4, np.random.default_rng(0)).tolist()
    [0.25, 0.25, 0.25, 0.25]
    >>> sorted(shares(1e-320, 4, np.random.default_rng(0)).tolist())
    [0.0, 0.0, 0.0, 1.0]
    """
    if alpha > LARGEST_ALPHA:
        return np.full(count, 1 / count, np.float64)
    if alpha > SMALLEST_ALPHA:
        drawn = rng.dirichlet(np.full(count, alpha))
        if np.isfinite(drawn).all() and drawn.sum() > 0:
            return np.asarray(drawn / drawn.sum(), np.float64)
    return np.asarray(np.eye(count)[rng.integers(count)], np.float64)  # alpha is so small that every share underflows


def cut(total: int, p: NDArray[np.float64]) -> Indices:
    """Split ``total`` at floor(cumsum(p) total): counts [K] that sum to ``total``.

    >>> cut(10, np.array([0.25, 0.25, 0.5])).tolist()
    [2, 3, 5]
    """
    edges = np.floor(np.cumsum(p) * total + TOLERANCE).astype(np.int64)
    edges[-1] = total
    return np.diff(edges, prepend=0)


def apportion(total: int, p: NDArray[np.float64], rng: np.random.Generator | None) -> Indices:
    """Split ``total`` in proportions ``p``, [K], by largest remainder, ties at random; rounded down without ``rng``.

    >>> apportion(10, np.full(3, 1 / 3), None).tolist()
    [3, 3, 3]
    >>> sorted(apportion(10, np.full(3, 1 / 3), np.random.default_rng(0)).tolist())
    [3, 3, 4]
    """
    quota = p * total
    counts = np.floor(quota + TOLERANCE).astype(np.int64)
    if rng is not None:
        lot = rng.random(len(p))
        order = np.lexsort((lot, np.round(counts - quota, 9)))
        counts[order[: total - counts.sum()]] += 1
    return counts


def _holdings(
    draw: Callable[[int, int], NDArray[np.bool_]],
    shape: tuple[int, int],
    unfit: Callable[[NDArray[np.bool_]], NDArray[np.bool_]],
    *,
    cover: bool,
    advice: str,
) -> NDArray[np.bool_]:
    """Which client may hold which class, [K, C].

    Args:
        draw: draws a boolean array of the given numbers of rows and columns.
        shape: (K, C).
        unfit: marks the clients [K] that are redrawn.
        cover: whether classes without a holder are redrawn.
        advice: the message if no valid draw is found.

    Raises:
        UserError: after too many draws.
    """
    clients, classes = shape
    holds = draw(clients, classes)
    for _ in range(10 * DRAWS):
        if (rows := unfit(holds)).any():
            holds[rows] = draw(int(rows.sum()), classes)
        elif cover and (columns := ~holds.any(axis=0)).any():
            holds[:, columns] = draw(clients, int(columns.sum()))
        else:
            return holds
    raise UserError(advice)


def _until(least: int, draw: Callable[[], Indices], advice: str, draws: int = DRAWS) -> Indices:
    """Repeat ``draw`` until its counts [K, ...] give every client at least ``least`` samples.

    Raises:
        UserError: after ``draws`` attempts, beginning with ``advice``.
    """
    best = 0
    for _ in range(draws):
        counts = draw()
        smallest = int(counts.sum(axis=1).min())
        if smallest >= least:
            return counts
        best = max(best, smallest)
    raise UserError(f"{advice} (in {draws} draws the smallest client had at best {best} samples; {least} are needed)")


def _enough(pool: Pool, num_clients: int) -> int:
    """The number of samples N.

    Raises:
        UserError: if there are fewer samples than clients.
    """
    n = len(pool.labels)
    if num_clients > n:
        raise UserError(f"partition.num_clients={num_clients} is more than the {n} samples there are: at most {n}")
    return n


def _affordable(n: int, num_clients: int, least: int) -> None:
    """Check that there are ``least`` samples for each client.

    Raises:
        UserError: if there are not.
    """
    if num_clients * least > n:
        raise UserError(
            f"partition.minimum={least} samples for each of partition.num_clients={num_clients} clients is more than "
            f"the {n} there are: at most {n // num_clients} a client"
        )
