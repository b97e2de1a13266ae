"""Jobs and parts that tell where they ran, or do there what must be survived; a worker can import them."""

import os
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flnl.core.errors import UserError
from flnl.core.execution import Block
from flnl.core.messages import Broadcast, ClientState, ClientTask, Samples
from flnl.core.model import Model
from flnl.core.parts import BatchRule
from flnl.core.payload import Params
from flnl.core.step import WHOLE, Phase
from flnl.data.images import TensorImages


@dataclass(frozen=True)
class Answer:
    """What a job saw."""

    client: int
    process: int
    value: Any


class Where:
    """Which client ran in which process."""

    def __call__(self, network: Model, task: ClientTask) -> Answer:
        return Answer(task.client, os.getpid(), None)


@dataclass(frozen=True)
class Uses:
    """Uses so many seconds of CPU and so many bytes of memory."""

    seconds: float
    bytes: int

    def __call__(self, network: Model, task: ClientTask) -> Answer:
        until = time.process_time() + self.seconds
        held = torch.ones(self.bytes, dtype=torch.uint8)
        while time.process_time() < until:
            held[0] += 1
        return Answer(task.client, os.getpid(), None)


class Sum:
    """Of all parameters that were received."""

    def __call__(self, network: Model, task: ClientTask) -> Answer:
        return Answer(task.client, os.getpid(), sum(float(p.sum()) for p in task.broadcast.params.values()))


class Received:
    """The received parameters and images themselves."""

    def __call__(self, network: Model, task: ClientTask) -> Answer:
        return Answer(task.client, os.getpid(), (task.broadcast.params, task.samples.images))


class Reading:
    """How much memory of its own the process has after reading all images, kB more than before; and their sum."""

    def __call__(self, network: Model, task: ClientTask) -> Answer:
        before = own_memory()
        images = task.samples.images
        total = sum(float(images.read(torch.tensor([i])).float().sum()) for i in range(len(images)))
        return Answer(task.client, os.getpid(), (own_memory() - before, total))


def own_memory() -> int:
    """KB of this process that are neither a file's nor shared on purpose."""
    rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Anonymous"))


@dataclass(frozen=True)
class Dies:
    """Kills its process at one client, until it has done so a number of times."""

    client: int
    times: int
    folder: Path

    def __call__(self, network: Model, task: ClientTask) -> Answer:
        if task.client == self.client and len(list(self.folder.iterdir())) < self.times:
            (self.folder / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return Answer(task.client, os.getpid(), None)


@dataclass(frozen=True)
class ScoresAndDies(Dies):
    """As ``Dies``, after it has scored the client's samples."""

    def __call__(self, network: Model, task: ClientTask) -> Answer:
        network.received(task)
        return super().__call__(network, task)


class AwkwardError(Exception):
    """An error that cannot be made again from its message."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


@dataclass(frozen=True)
class Raises:
    """Raises at one client."""

    client: int
    awkward: bool = False

    def __call__(self, network: Model, task: ClientTask) -> Answer:
        if task.client == self.client:
            raise AwkwardError(1, 2) if self.awkward else UserError("dataset.root: gone")
        return Answer(task.client, os.getpid(), None)


IMPORTED_BY = os.getpid()


@dataclass(frozen=True)
class Deadly(BatchRule):
    """Kills whatever process trains, unless it is the one that has imported this."""

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterable[Phase]:
        if os.getpid() != IMPORTED_BY:
            os.kill(os.getpid(), signal.SIGKILL)
        return (WHOLE,)


def tasks(params: Params, images: TensorImages, sizes: Sequence[int]) -> list[ClientTask]:
    """A client a size, all of which received the same parameters."""
    made, first = [], 0
    for client, size in enumerate(sizes):
        index = torch.arange(first, first + size) % len(images)
        samples = Samples(images, index, torch.zeros(size, dtype=torch.int64))
        made.append(ClientTask(client, samples, Broadcast(0, 1, params), ClientState(), 1))
        first += size
    return made


def clients(results: list[Answer]) -> Block[tuple[int, list[int]], Answer]:
    """Reduces to the process that reduces, and the clients of the block."""
    return Block((os.getpid(), [r.client for r in results]), results)


@dataclass(frozen=True)
class Endless(BatchRule):
    """Trains for ever wherever it is not what has imported this."""

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterable[Phase]:
        while os.getpid() != IMPORTED_BY:
            time.sleep(1)
        return (WHOLE,)


class Frozen:
    """The first output of the received model on the client's first image, as parts see it beside the one trained."""

    def __call__(self, network: Model, task: ClientTask) -> Answer:
        return Answer(task.client, os.getpid(), float(network.received(task)[0, 0]))
