"""The networks, images and batches of the papers, and how they train here."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import yaml

from flnl.config import compose
from flnl.config.folders import CONF
from flnl.core.execution import as_list
from flnl.core.messages import Broadcast, ClientState, ClientTask, Samples
from flnl.core.training import Training
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.placement import placement_for
from flnl.engine.stacked.eligibility import why_not
from flnl.engine.stacked.graph import LEAST
from flnl.parts.batches import Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.run.budget import passes, training_kind

FILE = CONF / "doctor" / "networks.yaml"
COHORT = 10
"""Clients in a round on a GPU, which trains them together if it can. On a CPU one client is enough."""
MOST_STEPS = 256
"""Of a client in a round."""


@dataclass(frozen=True)
class Setting:
    """What is timed."""

    title: str
    overrides: Sequence[str]
    images: int  # in the training set
    classes: int
    shape: tuple[int, int, int]  # (C, H, W) of an image

    @cached_property
    def plain(self) -> Mapping[str, Any]:
        """The resolved configuration."""
        return compose.resolved(compose.load(list(self.overrides)))

    @property
    def kind(self) -> tuple[str, str, int]:
        """Data set, network and batch size, as in a ``Pace``."""
        dataset, model, _, batch = training_kind(self.plain)
        return dataset, model, batch

    @property
    def method(self) -> str:
        """The method of a run with these overrides, by default that of ``conf/config.yaml``."""
        return str(self.plain["method"]["name"])

    @property
    def passes(self) -> float:
        """Passes over all training images in such a run."""
        return passes(self.plain)


def settings() -> list[Setting]:
    """What ``conf/doctor/networks.yaml`` lists."""
    rows = yaml.safe_load(FILE.read_text())
    return [Setting(**{**row, "shape": tuple(row["shape"])}) for row in rows]


@dataclass(frozen=True)
class Rate:
    """How much trains at once."""

    runs: int  # a process each
    images_a_second: float  # of all together
    stacked: bool  # each trains the clients of a round together


class Trainer:
    """Rounds of local training of a setting, where clients train together if a GPU can do that.

    It has trained one round, in which libraries initialise and steps are recorded.
    """

    def __init__(self, setting: Setting, device: str, precision: int | str) -> None:
        self._network = network = _network(setting, device, precision)
        training = replace(Training(**compose.build(setting.plain["train"])), lr=0.01, epochs=1)
        self._job = LocalTraining(training, Plain(), {"cross_entropy": CrossEntropy()}, None, {})
        on_gpu = device != "cpu"
        self.stacked = on_gpu and why_not(self._job, network) is None
        self._executor: Any = Stacked(network, COHORT, None) if self.stacked else Sequential(network)
        self._clients = COHORT if self.stacked else 1
        self._steps = LEAST if self.stacked else 2  # of a client; fewer equal steps would not be recorded
        self.round()

    @property
    def images(self) -> int:
        """Images of a round."""
        return self._clients * self._steps * self._job.training.batch_size

    def lengthen(self, seconds: float) -> float:
        """Lengthen rounds until one takes this many seconds, or has ``MOST_STEPS``; return the seconds of the last."""
        while True:
            took = self.round()
            if took >= seconds or self._steps >= MOST_STEPS:
                return took
            self._steps = min(MOST_STEPS, max(2 * self._steps, int(self._steps * 1.2 * seconds / max(took, 1e-3))))

    def round(self) -> float:
        """Seconds of a round."""
        return _round(self._executor, self._job, self._network, self._clients, self.images // self._clients)


def _network(setting: Setting, device: str, precision: int | str) -> Network:
    """The network with random weights; those that a paper starts from take as long."""
    model = setting.plain["model"]
    if "pretrained" in model:
        model = {**model, "pretrained": "none"}
    torch.manual_seed(0)
    module = compose.build(model)(setting.shape, setting.classes)
    channels, *size = setting.shape
    transform = Transform((size[0], size[1]), (0.5,) * channels, (0.25,) * channels, padding=4, flip=True)
    return Network(module, transform, setting.classes, placement_for(device, precision))


def _round(executor: Any, job: LocalTraining, network: Network, clients: int, samples: int) -> float:
    """Seconds of the local training of ``clients`` clients of ``samples`` images each."""
    shape = network.transform.shape
    store = TensorImages(torch.randint(0, 256, (samples, *shape), dtype=torch.uint8))
    labels = torch.randint(0, network.num_classes, (samples,))
    sent = Broadcast(0, 1, network.params())
    tasks = [
        ClientTask(k, Samples(store, torch.arange(samples), labels), sent, ClientState(), 1) for k in range(clients)
    ]
    _synchronize(network.device)
    begun = time.perf_counter()
    for _ in executor.map(job, tasks, as_list):
        pass
    _synchronize(network.device)
    return time.perf_counter() - begun


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()
