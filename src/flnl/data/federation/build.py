"""A federation: a data set, divided among clients, with their given labels. Drawn once, then read-only.

The true labels are only in ``Federation.truth``: clients' samples have no such field, and the federation's data set has
the given labels instead.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core import streams
from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.core.messages import Samples
from flnl.core.shift import Shift
from flnl.core.special import refuse_special
from flnl.core.streams import stream
from flnl.data import checked
from flnl.data.dataset import Dataset
from flnl.data.images import TensorImages
from flnl.data.noise import ClientNoise, Noise, corrupt
from flnl.data.noise.transition import Clean
from flnl.data.owners import LEFT_OUT, called
from flnl.data.partition import Partition, Pool, Split
from flnl.data.preparations import described
from flnl.numerics import label_flips, rounding
from flnl.numerics.rounding import whole
from flnl.storage import csv_lines, spreadsheet, written_names

if TYPE_CHECKING:
    from omegaconf import DictConfig

from flnl.core.ranges import Share

log = logging.getLogger(__name__)

PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients, their samples and their given labels."""

    dataset: Dataset  # images, test set and transform; its ``given`` are the labels below, its ``truth`` is None
    clients: tuple[Indices, ...]  # [K] ascending positions in ``dataset.train``: each client's training samples
    validation: Indices  # [V], ascending: held out of the clients' samples, with equally noisy labels
    dropped: Indices  # samples of no client, ascending
    given: Tensor  # int64 [N]
    truth: Tensor | None  # int64 [N], only for the evaluator
    nominal: tuple[float, ...] | None  # [K], each client's rate in the noise model, which defines its meaning
    fingerprint: str  # sha256 of all of the above
    benchmark: Indices = field(default_factory=lambda: np.zeros(0, np.int64))  # the server's samples of the test set
    names_fingerprint: str | None = None  # the same, with paths and sizes of files; None if there are no files
    client_names: tuple[str, ...] | None = None  # [K], what the clients are called; None: by their numbers
    files: Mapping[str, str] = field(
        default_factory=dict
    )  # sha256 of the files that partition and noise read, by group
    held_out_by: Indices = field(default_factory=lambda: np.zeros(0, np.int64))  # [V], whose each of ``validation`` is

    @property
    def by_names(self) -> bool:
        """Whether the fingerprint covers only paths and sizes of files."""
        return self.fingerprint == self.names_fingerprint

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The fingerprints by which a record may name this federation."""
        return (self.fingerprint,) if self.names_fingerprint is None else (self.fingerprint, self.names_fingerprint)

    @property
    def contents(self) -> dict[str, tuple[str, ...]]:
        """The digests by which a record may name the data set and the files of partition and noise, by group."""
        names = (self.dataset.fingerprint, self.dataset.names_fingerprint)
        return {"dataset": tuple(filter(None, names)), **{group: (digest,) for group, digest in self.files.items()}}

    @property
    def num_clients(self) -> int:
        """The number of clients K, including those without data."""
        return len(self.clients)

    def called(self, client: int) -> str:
        """What a client is called: its name, or else its number."""
        return called(self.client_names, client)

    @property
    def num_classes(self) -> int:
        """The number of classes C."""
        return self.dataset.num_classes

    @cached_property
    def tested(self) -> Indices:
        """Positions in the test set on which models are scored: all that the server does not hold."""
        return np.setdiff1d(np.arange(len(self.dataset.test_labels)), self.benchmark)

    @cached_property
    def sizes(self) -> dict[int, int]:
        """The number of training samples n_k of each client."""
        return {k: len(index) for k, index in enumerate(self.clients)}

    @cached_property
    def with_data(self) -> tuple[int, ...]:
        """The clients that hold samples, in order: the only ones that can be sampled."""
        return tuple(k for k, n in self.sizes.items() if n)

    @property
    def counts(self) -> list[int]:
        """The number of training samples of each client in ``with_data``."""
        return [self.sizes[client] for client in self.with_data]

    @cached_property
    def held(self) -> Indices:
        """Positions [n] in ``dataset.train`` of all clients' training samples, by client and then by position."""
        return np.concatenate([self.clients[k] for k in self.with_data])

    @property
    def holders(self) -> Indices:
        """The client [n] that holds each sample of ``held``."""
        return np.repeat(np.array(self.with_data, np.int64), self.counts)

    def class_counts(self, labels: Tensor) -> NDArray[np.int64]:
        """Training samples of each class on each client, [clients, K], by ``labels`` int64 [N]."""
        K = self.num_classes
        counts = [np.bincount(labels[torch.from_numpy(index)].numpy(), minlength=K) for index in self.clients]
        return np.array(counts, np.int64).reshape(-1, K)

    @property
    def names(self) -> list[int] | list[str]:
        """The data set's name [n] of each sample of ``held``, or its position if it has none."""
        positions, ids = self.held.tolist(), self.dataset.ids
        return positions if ids is None else [ids[i] for i in positions]

    def samples(self, client: int) -> Samples:
        """A client's data as methods see it; all clients share the image store."""
        index = torch.from_numpy(self.clients[client])
        people = None if self.dataset.people is None else torch.from_numpy(self.dataset.people[:, self.clients[client]])
        return Samples(images=self.dataset.train, index=index, given=self.given[index], people=people)


@dataclass(frozen=True, eq=False)
class Draw:
    """The random part of a federation: everything except the data set."""

    owner: Indices  # [N], each sample's client, or LEFT_OUT
    num_clients: int
    held_out: NDArray[np.bool_]  # [N], whether a sample is for validation
    given: Labels  # [N]
    nominal: NDArray[np.float64] | None  # [K]
    names: tuple[str, ...] | None = None  # [K]

    def pooled(self) -> Draw:
        """The same samples and labels, all of one client; its nominal rate is the mean over samples."""
        owned = self.owner != LEFT_OUT
        nominal = None
        if self.nominal is not None and owned.any():
            nominal = np.array([self.nominal[self.owner[owned]].mean()])
        return replace(self, owner=np.where(owned, 0, LEFT_OUT), num_clients=1, nominal=nominal, names=None)

    def digest(self) -> str:
        """The sha256 of every value, but for the names, which change nothing."""
        digest = hashlib.sha256(str(self.num_clients).encode())
        nominal = np.zeros(0) if self.nominal is None else self.nominal
        for array in (self.owner, self.held_out, self.given, nominal):
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


@runtime_checkable
class ReadsFiles(Protocol):
    """A part whose outcome depends on files."""

    def files(self) -> tuple[Path, ...]:
        """The files."""


def build(
    dataset: Dataset,
    partition: Partition,
    noise: Noise,
    seed: int,
    validation: float = 0.0,
    cache: Path | None = None,
    benchmark: float = 0.0,
    centralized: bool = False,
    shift: Shift | None = None,
) -> Federation:
    """Divide a data set among clients and add label noise.

    The noise decides the order: noise of the whole set is drawn before the partition, noise inside clients after it.

    Args:
        dataset: the data set.
        partition: divides the samples among clients.
        noise: draws the given labels.
        seed: seed of partition, noise and validation samples.
        validation: share of every client's samples that is held out, rounded down, so that no client loses its last.
        cache: folder where draws are cached; a draw that does not match its checksum is repeated.
        benchmark: share of the test set that the server holds; models are not scored on it.
        centralized: give everything to one client: the federation's samples with the same labels, the same held out.
        shift: how the images of clients differ, None for not at all.

    Raises:
        UserError: if the parts do not match each other or the data.
    """
    files = {name: digest for name, part in (("partition", partition), ("noise", noise)) if (digest := _files(part))}
    file = _cache_file(cache, dataset, partition, noise, files, seed, validation)
    drawn = _load(file, len(dataset.labels)) if file is not None else None
    if drawn is None:
        drawn = draw(dataset, partition, noise, seed, validation)
        if file is not None:
            _save(file, drawn)
    if shift is not None and shift.level:
        dataset = _shifted(dataset, drawn, shift, seed)
    if centralized:
        drawn = drawn.pooled()
    held = np.where(drawn.held_out, LEFT_OUT, drawn.owner)
    return Federation(
        dataset=replace(dataset, given=drawn.given, truth=None),
        clients=Split(held, drawn.num_clients).clients,
        validation=np.flatnonzero(drawn.held_out).astype(np.int64),
        dropped=Split(drawn.owner, drawn.num_clients).dropped,
        given=torch.from_numpy(drawn.given),
        truth=None if dataset.truth is None else torch.from_numpy(dataset.truth),
        nominal=None if drawn.nominal is None else tuple(drawn.nominal.tolist()),
        fingerprint=_fingerprint(dataset.fingerprint, drawn),
        names_fingerprint=dataset.names_fingerprint and _fingerprint(dataset.names_fingerprint, drawn),
        benchmark=held_by_server(dataset.test_labels, benchmark),
        client_names=drawn.names,
        files=files,
        held_out_by=drawn.owner[drawn.held_out],
    )


def _fingerprint(dataset: str, drawn: Draw) -> str:
    return hashlib.sha256(f"{dataset}{drawn.digest()}".encode()).hexdigest()


def _shifted(dataset: Dataset, drawn: Draw, shift: Shift, seed: int) -> Dataset:
    """The data set with each client's training images as of its own device, under another fingerprint.

    Raises:
        UserError: if these are no images of uint8 pixels in memory.
    """
    images, scale = dataset.train, dataset.transform.scale
    if not (isinstance(images, TensorImages) and images.pixels.ndim == 4 and images.pixels.dtype == torch.uint8):
        way = ": set dataset.in_memory=true" if images.bytes_in_memory is None else ""
        raise UserError(f"shift.level={shift.level} changes images in memory, of uint8 pixels{way}; or set it to 0")
    split = Split(drawn.owner, drawn.num_clients)

    def changed(pixels: Tensor) -> Tensor:
        new = pixels.clone()
        for k, index in enumerate(split.clients):
            x = shift.of(pixels[index].double() / scale, k, drawn.num_clients, seed)
            new[index] = (x * scale).round_().to(torch.uint8)
        return new

    larger = None if images.larger is None else changed(images.larger)
    marks = [
        name and hashlib.sha256(f"{name}{seed}{shift}".encode()).hexdigest()
        for name in (dataset.fingerprint, dataset.names_fingerprint)
    ]
    return replace(
        dataset,
        train=replace(images, pixels=changed(images.pixels), larger=larger),
        fingerprint=marks[0] or "",
        names_fingerprint=marks[1],
    )


def draw(dataset: Dataset, partition: Partition, noise: Noise, seed: int, validation: float) -> Draw:
    """Draw partition, noise and held-out samples, each from a separate stream."""
    if dataset.given is not None and not isinstance(noise, Clean):
        raise UserError(
            f"the labels of {dataset.name} are given and may be wrong, and simulated noise starts from correct ones: "
            f"set noise=none to use them as they are"
        )
    by = getattr(partition, "by", None)
    if isinstance(noise, ClientNoise):
        if dataset.truth is None:
            raise UserError(f"simulated noise needs true labels, and {dataset.name} has none: set noise=none")
        if by == "given":
            raise UserError(
                "partition.by=given follows labels that do not exist yet: this noise is drawn inside each client, "
                "after the partition. Set partition.by=truth, or noise of the whole set (noise=symmetric, random ...)"
            )
        split = _split(partition, dataset, dataset.truth, seed)
        given, rates = corrupt(noise, dataset, dataset.truth, split.clients, seed)
        nominal: NDArray[np.float64] | None = rates
    else:
        if by == "truth" and dataset.truth is None:
            raise UserError(
                f"partition.by=truth needs true labels, and {dataset.name} has none: set partition.by=given"
            )
        given = checked.labels(noise, noise(dataset, seed), len(dataset.labels), dataset.num_classes)
        follows = dataset.truth if by == "truth" and dataset.truth is not None else given
        split = _split(partition, dataset, follows, seed)
        rate = getattr(noise, "nominal", None)
        nominal = None if rate is None else np.full(split.num_clients, float(rate))
        if isinstance(noise, Clean) and dataset.given is None:
            nominal = np.zeros(split.num_clients)
    held_out = np.zeros(len(given), bool)
    for k, index in enumerate(split.clients):
        if count := min(whole(validation * len(index)), max(len(index) - 1, 0)):
            held_out[stream(seed, "validation", k).permutation(index)[:count]] = True
    return Draw(split.owner, split.num_clients, held_out, given, nominal, split.names)


def from_config(cfg: DictConfig, cache: Path | None = None) -> Federation:
    """Build the federation that a composed configuration describes."""
    from flnl.config.compose import build as construct

    parts = construct(cfg.partition), construct(cfg.noise)  # first: their errors appear before data are read
    dataset = construct(cfg.dataset)
    made = dataset() if callable(dataset) else dataset
    if made.clients is not None and not (cfg.centralized or getattr(parts[0], "natural", False)):
        log.warning(
            "%s names a client for each sample, and partition (%s) does not use them; partition=file does",
            made.name,
            type(parts[0]).__name__,
        )
    shift = Shift(**(cfg.get("shift") or {}))
    return build(made, *parts, cfg.data_seed, cfg.eval.validation, cache, cfg.eval.benchmark, cfg.centralized, shift)


def _split(partition: Partition, dataset: Dataset, labels: Labels, seed: int) -> Split:
    """What the partition draws.

    Raises:
        UserError: if it is no split of the data set's samples.
    """
    pool = Pool(labels, dataset.num_classes, dataset.clients, dataset.ids, dataset.client_names)
    split, name = partition(pool, stream(seed, "partition")), f"partition ({type(partition).__name__})"
    if not isinstance(split, Split):
        raise UserError(f"{name} returned a {type(split).__name__}; should be a Split of flnl.data.partition")
    owner = checked.integers(name, split.owner, len(labels), least=LEFT_OUT, most=split.num_clients - 1, what="client")
    if split.names is not None and not (len(split.names) == len(set(split.names)) == split.num_clients):
        raise UserError(f"{name} returned {len(set(split.names))} different names for {split.num_clients} clients")
    return Split(owner, split.num_clients, split.names)


def _files(part: object) -> str:
    """The sha256 of the files that a part of this package reads; "" if it reads none, or where one cannot be read."""
    if not isinstance(part, ReadsFiles) or type(part).__module__.partition(".")[0] != PACKAGE:
        return ""
    try:
        for file in part.files():
            refuse_special(file)
        contents = [file.read_bytes() for file in part.files()]
    except OSError:
        return ""  # drawing will report it
    return hashlib.sha256(b"".join(contents)).hexdigest() if contents else ""


def _cache_file(
    cache: Path | None,
    dataset: Dataset,
    partition: Partition,
    noise: Noise,
    files: Mapping[str, str],
    seed: int,
    validation: float,
) -> Path | None:
    """The cache file of a draw, named after everything that determines it, including the code.

    None if there is no cache, the data set has no fingerprint, or partition or noise are not this package's: their code
    may use any other.
    """
    if cache is None or not dataset.fingerprint:
        return None
    if any(type(part).__module__.partition(".")[0] != PACKAGE for part in (partition, noise)):
        return None
    parts = {}
    for name, part in (("partition", partition), ("noise", noise)):
        if isinstance(part, ReadsFiles) and part.files() and name not in files:
            return None  # drawing will report what is missing
        parts[name] = [type(part).__qualname__, asdict(part), files.get(name)]  # type: ignore[call-overload]
    here = Path(__file__).parents[1]
    code = [
        *(
            Path(__file__),
            here / "partition.py",
            here / "natural.py",
            here / "annotators.py",
            Path(streams.__file__),
            Path(label_flips.__file__),
        ),
        Path(rounding.__file__),
        *(here / "owner_file.py", here / "owners.py"),  # read partition.path, with the next three
        *(Path(csv_lines.__file__), Path(spreadsheet.__file__), Path(written_names.__file__)),
        *(
            here / "array_pickle.py",
            here / "transforms.py",
            here / "preparations.py",
        ),  # noise=human and noise=instance use them
        *sorted((here / "noise").glob("*.py")),
    ]
    key = {
        **parts,
        "dataset": dataset.fingerprint,
        # what noise or partition may read, beside the labels and images in the fingerprint
        "name": dataset.name,
        "classes": dataset.classes,
        "transform": described(dataset.transform),
        "ids": dataset.ids if dataset.ids is None else list(dataset.ids),
        "clients": dataset.client_names,
        "seed": seed,
        "validation": validation,
        "numpy": np.__version__,  # its generators may change between versions
        "code": hashlib.sha256(b"".join(file.read_bytes() for file in code)).hexdigest(),
    }
    return cache / f"{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]}.npz"


def _save(file: Path, drawn: Draw) -> None:
    """Cache a draw atomically. If it cannot be written, only a warning is logged."""
    arrays = {
        "owner": drawn.owner,
        "num_clients": np.array(drawn.num_clients),
        "held_out": drawn.held_out,
        "given": drawn.given,
        "digest": np.array(drawn.digest()),
    }
    if drawn.nominal is not None:
        arrays["nominal"] = drawn.nominal
    if drawn.names is not None:
        arrays["names"] = np.array(drawn.names)
    half: Path | None = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=".", suffix=".npz", delete=False) as part:
            half = Path(part.name)
            np.savez(part, **arrays)  # type: ignore[arg-type]
        half.replace(file)
    except OSError as error:
        if half is not None:
            half.unlink(missing_ok=True)
        log.warning("the federation could not be cached in %s: %s", file.parent, error)


def _load(file: Path, n: int) -> Draw | None:
    """A cached draw of ``n`` samples; None if there is none, or it is damaged."""
    if not file.is_file():
        return None
    try:
        with file.open("rb") as source, np.load(source, allow_pickle=False) as kept:
            nominal = kept.get("nominal")
            names = tuple(kept["names"].tolist()) if "names" in kept else None
            drawn = Draw(kept["owner"], int(kept["num_clients"]), kept["held_out"], kept["given"], nominal, names)
            called = names is None or len(set(names)) == drawn.num_clients
            if len(drawn.owner) == n and str(kept["digest"]) == drawn.digest() and called:
                return drawn
    except Exception as error:  # a damaged file can make a reader raise anything
        log.debug("%s: %r", file, error)
    log.warning("%s is damaged; the federation is drawn again", file)
    return None


def held_by_server(labels: Labels, share: Share) -> Indices:
    """Ascending positions of a ``share`` of each class of the test ``labels`` [M], rounded down.

    They are the same for all runs on a data set, independent of the seed, so that runs of all methods are scored on the
    same remaining samples. FedES (Sec. 5.1) uses a fifth.
    """
    some = [stream(0, "benchmark", c).permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    chosen = [index[: whole(share * len(index))] for index in some]
    return np.sort(np.concatenate([*chosen, np.zeros(0, np.int64)])).astype(np.int64)
