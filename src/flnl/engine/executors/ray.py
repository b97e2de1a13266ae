"""Workers as Ray actors, on this machine or on a cluster.

Images are put into Ray's object store once, parameters once per call; actors on one machine share them. A placement
group reserves all workers of a run together or none, so two runs on one cluster cannot deadlock.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from annotated_types import MinLen

from flnl.console.cores import usable_cores
from flnl.console.extras import install
from flnl.core.errors import UserError
from flnl.core.images import Images
from flnl.core.payload import Params
from flnl.core.ranges import FromFiles, NonNegative, PositiveCount
from flnl.engine.executors.dispatch import LostWorker, PooledExecutor, WorkerPool
from flnl.engine.executors.processes import python_path
from flnl.engine.executors.serialization import Packed, Shared, decode, pack
from flnl.engine.executors.worker_context import Inner, Recipe, WorkerContext

log = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds to wait for workers on the cluster before logging that the run is waiting."""


LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At 0, Ray listens on 127.0.0.1 only; otherwise it replaces 127.0.0.1 by the machine's address."""


@dataclass(frozen=True)
class Ray(PooledExecutor):
    """Clients on Ray actors.

    ``address=null`` starts Ray on this machine and ends it with the run; ``auto`` or HOST:PORT joins a cluster.
    ``num_cpus`` and ``num_gpus`` are reserved for each worker; fractions of a GPU are allowed. ``workers=null`` starts
    as many workers as fit.
    """

    workers: PositiveCount | None
    num_cpus: NonNegative
    num_gpus: NonNegative
    address: Annotated[Annotated[str, MinLen(1)] | None, FromFiles(None)]
    _cluster: list[_Cluster] = field(init=False, repr=False, compare=False, default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.network.device.type == "cuda" and not self.num_gpus:
            raise UserError(f"executor.num_gpus={self.num_gpus}, but device=cuda: give each worker a share of a GPU")
        self._cluster.append(_Cluster.of(self))

    @property
    def count(self) -> int:
        """Maximum number of workers."""
        return self._cluster[0].workers

    def open(self, images: Sequence[Images], params: Params) -> WorkerPool:
        """Create the actors, reserved together."""
        recipe = Recipe.of(self.network)
        if self.num_gpus:
            recipe = replace(recipe, device="cuda", layout=self.network.asked_layout)  # auto is another on a GPU
        return Actors(self.count, recipe, self.inner, images, {"CPU": self.num_cpus, "GPU": self.num_gpus})

    def settings(self) -> dict[str, Any]:
        """The effective settings."""
        asked = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "address": self.address}
        return {**super().settings(), **asked}

    def close(self) -> None:
        """End the workers, and Ray itself if this run started it."""
        super().close()
        self._cluster[0].leave()


@dataclass
class _Cluster:
    """The Ray cluster that this process has joined."""

    workers: int
    started: bool  # this run started or joined it, and leaves it at the end

    @classmethod
    def of(cls, asked: Ray) -> _Cluster:
        """Join or start Ray and check that the requested resources exist, since Ray would wait for them forever.

        Raises:
            UserError: names the key that asks for too much.
        """
        if asked.address is None:
            os.environ.setdefault(LOOPBACK, "0")  # read when Ray is imported
        ray = _ray()
        joined = ray.is_initialized()
        if not joined:
            with _signals_kept():
                _init(ray, asked)
        cluster = cls(0, started=not joined)
        try:
            cluster.workers = _granted(ray, asked)
        except BaseException:
            cluster.leave()
            raise
        return cluster

    def leave(self) -> None:
        """Leave the cluster if this run joined it; shut it down if this run started it."""
        if self.started:
            self.started = False
            _ray().shutdown()


def _ray() -> Any:
    """Import the optional package ``ray``.

    Raises:
        UserError: if it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UserError(f"executor=ray needs Ray: {install('ray')}") from None
    return ray


def _init(ray: Any, asked: Ray) -> None:
    quiet = {"include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False}
    paths = {"env_vars": {"PYTHONPATH": python_path()}}
    if asked.address is None:
        ray.init(num_cpus=usable_cores(), _node_ip_address="127.0.0.1", runtime_env=paths, **quiet)
        if any(node["NodeManagerAddress"] != "127.0.0.1" for node in ray.nodes()):
            log.warning("this run's Ray also accepts connections from other machines")
        return
    try:
        ray.init(address=asked.address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"executor.address={asked.address}: no Ray answers there ({reason})") from None


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces: on a signal, a run finishes its round first."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _granted(ray: Any, asked: Ray) -> int:
    """Number of workers that fit the cluster.

    Raises:
        UserError: if not even one fits, or fewer than ``executor.workers``.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wants = {"num_cpus": ("CPU", asked.num_cpus), "num_gpus": ("GPU", asked.num_gpus)}
    for key, (kind, want) in wants.items():
        if all(node.get(kind, 0) < want for node in nodes):
            most = max(node.get(kind, 0) for node in nodes)
            raise UserError(f"executor.{key}={want:g}: no machine of this Ray has more than {most:g}")
    room = sum(
        int(min((node.get(kind, 0) / want + 1e-9 for kind, want in wants.values() if want), default=1))
        for node in nodes
    )
    if not room or (asked.workers or 0) > room:
        raise UserError(
            f"executor.workers={asked.workers} of num_cpus={asked.num_cpus:g} and num_gpus={asked.num_gpus:g}: "
            f"this Ray has room for {room}"
        )
    return asked.workers or room


class Actor:
    """The Ray actor: runs a worker context."""

    def __init__(self, recipe: bytes, header: bytes, *pieces: Any) -> None:
        made, inner = decode(recipe, Shared())
        images = Packed(header, pieces).value()
        self._context = WorkerContext(made.network(), inner, images)

    def begin(self, header: bytes, call: bytes, *pieces: Any) -> None:
        """Start a call of ``map``."""
        self._context.begin(Packed(header, pieces).value(), call)

    def work(self, message: bytes) -> bytes:
        """Run a piece of work; return the encoded answer."""
        return self._context.work(message)


class Actors(WorkerPool):
    """Actors in a placement group."""

    def __init__(
        self, workers: int, recipe: Recipe, inner: Inner, images: Sequence[Images], each: Mapping[str, float]
    ) -> None:
        self.workers, self._each = workers, each
        self._ray = _ray()
        self._group = self._reserve()
        packed = pack(list(images))[0]
        self._kit = (recipe.encoded(inner), *self._put(packed))
        self._call: tuple[Any, ...] = ()
        self._at: dict[int, Any] = {}
        self._begun: set[int] = set()
        self._busy: dict[Any, int] = {}  # worker by the reference of its pending answer

    def _reserve(self) -> Any:
        from ray.util.placement_group import placement_group

        bundle = {kind: amount for kind, amount in self._each.items() if amount} or {"CPU": 0.001}
        group = placement_group([bundle] * self.workers)
        if not group.wait(PATIENCE):  # unlike ready(), it starts no process
            log.warning("waiting until %d workers of %s are free on this Ray", self.workers, bundle)
            while not group.wait(PATIENCE):
                pass
        return group

    def _put(self, packed: Packed) -> tuple[Any, ...]:
        """Put the pieces into the object store; return the header and their references."""
        import numpy as np

        return packed.header, *(self._ray.put(np.frombuffer(piece, np.uint8)) for piece in packed.pieces)

    def begin(self, params: Params, call: bytes) -> None:
        """Put the parameters into the object store, from which every machine fetches them once."""
        header, *pieces = self._put(pack({name: p.cpu() for name, p in params.items()})[0])
        self._call = (header, call, *pieces)
        self._begun.clear()

    def submit(self, worker: int, work: bytes) -> None:
        """Call the worker's actor; an actor's calls run in order."""
        if worker not in self._at:
            self._at[worker] = self._start_worker(worker)
        actor = self._at[worker]
        if worker not in self._begun:
            actor.begin.remote(*self._call)
            self._begun.add(worker)
        self._busy[actor.work.remote(work)] = worker

    def _start_worker(self, worker: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=worker)
        options = {"num_cpus": self._each["CPU"], "num_gpus": self._each["GPU"], "scheduling_strategy": place}
        return self._ray.remote(**options)(Actor).remote(*self._kit)

    def answers(self) -> list[tuple[int, bytes | LostWorker]]:
        """Wait for one answer and return it."""
        ready, _ = self._ray.wait(list(self._busy), num_returns=1)
        return [self._answer(ref) for ref in ready]

    def _answer(self, ref: Any) -> tuple[int, bytes | LostWorker]:
        worker = self._busy.pop(ref)
        ended = self._ray.exceptions
        try:
            return worker, self._ray.get(ref)
        except (
            ended.RayActorError,
            ended.OutOfMemoryError,  # the actor was killed to free memory
            ended.NodeDiedError,
            ended.ObjectLostError,
        ) as error:
            self._end(worker)
            reason = (str(error).strip().splitlines() or [""])[0]
            return worker, LostWorker(f"worker {worker}", f"was lost ({reason})")

    def _end(self, worker: int) -> None:
        self._begun.discard(worker)
        self._ray.kill(self._at.pop(worker))

    def abandon(self) -> None:
        """End the busy workers."""
        for worker in self._busy.values():
            self._end(worker)
        self._busy.clear()

    def close(self) -> None:
        """End all workers and release the placement group."""
        from ray.util.placement_group import remove_placement_group

        self._busy.clear()
        for worker in list(self._at):
            self._end(worker)
        remove_placement_group(self._group)
