"""What a site lets out: which types of message, how often, and how much of its labels' privacy."""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock

from flnl.core.method import Method
from flnl.core.parts import ClientSampler, Exchange
from flnl.core.stored import name_of
from flnl.core.training import Training
from flnl.sites.messages import RefusedError
from flnl.storage.atomic import write_atomically

SECONDS = 60.0
"""How long to wait for another process that writes the ledger."""
Streams = Literal["run", "own"]
AUDIT = "CountedLabels"
"""What ``allow`` must name for an audit of labels."""
TRIES = 3
"""How often a job of one round may be asked for with other contents, as by a server that restarts the round."""


@dataclass(frozen=True)
class Policy:
    """The rules of a site."""

    allow: Collection[str] = ()  # types that ``Exchange.reveals`` names and that may leave
    max_epsilon: float | None = None  # sum over all releases of labels, of all runs; None for no limit
    least_samples: int = 1  # with fewer the site takes no part
    approve: str = "any"  # the key of the run that was approved, or any
    counts: bool = True  # whether the numbers of flagged and of changed labels may leave
    min_count: int = 20  # of held-out samples, with fewer of which nothing is told of a model
    streams: Streams = "run"  # what the draws of training come from: the run's seed, or the site's secret
    to_allow: str = "add it by executor.allow=[{}]"  # what would let out a type of this name

    def admit_key(self, key: str, samples: int) -> None:
        """Let a run with this key be looked at, of which nothing is made yet.

        Raises:
            RefusedError: if it is not approved, or there are too few samples.
        """
        if self.approve not in ("any", key):
            raise RefusedError(f"this run is not approved; its key is {key}")
        if samples < self.least_samples:
            raise RefusedError(f"the site takes part with {self.least_samples} samples at least, and has fewer")

    def admit(self, method: Method) -> None:
        """Let a run begin.

        Raises:
            RefusedError: saying what would have to be allowed.
        """
        for kind, epsilon in revealed(method).items():
            name = name_of(kind)
            if math.isinf(epsilon) and name not in self.allow:
                raise self._not_allowed(method.name, name)
            if len({one.reveals[kind] for one in method.exchange.values() if kind in one.reveals}) > 1:
                raise RefusedError(f"{method.name} sends {name} with several ε, which would be other draws of one cost")

    def admit_visits(self, method: Method, training: Training, size: int) -> None:
        """Let clients train: a model that was trained on a few samples tells of single ones.

        Raises:
            RefusedError: if a visit of some stage has fewer samples than the site and ``least_samples``.
        """
        for stage in method.stages:
            of_stage = stage.training(training)
            seen = size if of_stage.steps is None else of_stage.steps * of_stage.batch_size
            if seen < min(size, self.least_samples):
                raise RefusedError(
                    f"a visit of {stage.name} trains on {seen} samples, the site on {self.least_samples} at least: set "
                    "train.steps higher"
                )

    def admit_audit(self) -> None:
        """Let a server audit labels: its sums tell how many samples of each class there are.

        Raises:
            RefusedError: saying what would have to be allowed.
        """
        if AUDIT not in self.allow:
            raise self._not_allowed("an audit", AUDIT)

    def _not_allowed(self, who: str, name: str) -> RefusedError:
        return RefusedError(f"{who} sends {name}, which is not allowed there: {self.to_allow.format(name)}")


def revealed(method: Method) -> dict[type, float]:
    """The types of a method that only leave a site if they are allowed, or that cost ε, which is the value.

    They are types of messages, and of samplers' jobs. Of a type that several exchanges send, the largest ε counts: it
    is in the clear if any of them sends it so.
    """
    found: dict[type, float] = {}
    parts: list[Exchange | ClientSampler] = [*method.exchange.values(), *(stage.sampler for stage in method.stages)]
    for part in parts:
        for kind, epsilon in part.reveals.items():
            found[kind] = max(epsilon, found.get(kind, 0.0))
    return found


@dataclass(frozen=True)
class Release:
    """A line of a ledger."""

    run: str
    type: str
    epsilon: float | None  # None: in the clear
    draw: str  # the same text for the same draw; it tells nothing of the labels


class Ledger:
    """The releases of a site's label information, in a file of JSON lines; a draw that is repeated costs nothing."""

    def __init__(self, path: Path, secret: bytes) -> None:
        self._path, self._secret = path, secret
        self._lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=SECONDS)

    @property
    def releases(self) -> list[Release]:
        """All so far, also those of other processes."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [Release(**json.loads(line)) for line in lines]

    def release(
        self, run: str, kinds: Iterable[type], costs: Mapping[type, float], labels: bytes, most: float | None
    ) -> None:
        """Record that values of these ``kinds`` leave, before they do.

        Args:
            run: the run.
            kinds: types that leave.
            costs: the ε of those that have one, infinite in the clear; others are not recorded.
            labels: the labels that they are about.
            most: the largest sum of ε; None for no limit.

        Raises:
            RefusedError: if the sum would be larger.
        """
        new: list[Release] = []
        for kind in kinds:
            if kind not in costs:
                continue
            name, epsilon = name_of(kind), None if math.isinf(costs[kind]) else costs[kind]
            about = f"{name} {epsilon!r}\n".encode() + labels
            draw = hmac.new(self._secret, about, "sha256").hexdigest()[:32]
            new.append(Release(run, name, epsilon, draw))
        if not new:
            return
        with self._lock:
            before = self.releases
            after = [*before, *(one for one in new if one not in before)]
            if most is not None and _sum(after) > max(most, _sum(before)):
                raise RefusedError(f"the labels' ε would add up to {_sum(after):g}, and the site allows {most:g}")
            if len(after) > len(before):
                write_atomically(self._path, "".join(json.dumps(asdict(one)) + "\n" for one in after).encode())


def _sum(releases: Iterable[Release]) -> float:
    """ε of different draws."""
    return sum({one.draw: one.epsilon or 0.0 for one in releases}.values())
