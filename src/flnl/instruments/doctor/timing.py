"""How long local training takes here, for the networks, images and batches of the papers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import torch
import yaml

from flnl.config import compose
from flnl.config.folders import CONF
from flnl.core.errors import in_one_line
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
from flnl.run.budget import dataset_name, model_name, passes
from flnl.storage.paces import Pace, Paces

FILE = CONF / "doctor" / "networks.yaml"
COHORT = 10
"""Clients in a round on a GPU, which trains them together if it can. On a CPU one client is enough."""
LONG_ENOUGH = 1.0
"""Seconds that a measurement takes at least."""
MOST_STEPS = 256


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
        plain = self.plain
        return dataset_name(plain["dataset"]), model_name(plain["model"]), int(plain["train"]["batch_size"])

    @property
    def method(self) -> str:
        """The method of a run with these overrides, by default that of ``conf/config.yaml``."""
        return str(self.plain["method"]["name"])

    @property
    def passes(self) -> float:
        """Passes over all training images in such a run."""
        return passes(self.plain)


@dataclass(frozen=True)
class Timed:
    """A measurement, or why there is none."""

    setting: Setting
    batch: int
    precision: str
    pace: Pace | None
    stacked: bool = False  # the clients of a round were trained together
    failure: str = ""
    error: str = ""  # what was raised, if it was not that the memory is too small


def settings() -> list[Setting]:
    """What ``conf/doctor/networks.yaml`` lists."""
    rows = yaml.safe_load(FILE.read_text())
    return [Setting(**{**row, "shape": tuple(row["shape"])}) for row in rows]


def timings(device: str, name: str, chosen: Sequence[Setting]) -> Iterator[Timed]:
    """Time every setting on ``device``, whose name is ``name``; one that fails does not keep the others from it."""
    for setting, precision in product(chosen, precisions(device)):
        row = setting, setting.kind[2], str(precision)
        try:
            seconds, stacked = _seconds_of_an_image(setting, device, precision)
        except torch.OutOfMemoryError:
            yield Timed(*row, None, failure="does not fit the memory")
            continue
        except Exception as error:  # drivers and libraries may raise anything
            yield Timed(*row, None, failure="FAILED", error=in_one_line(error))
            continue
        pace = Pace(*setting.kind, name, device != "cpu", seconds * setting.images, str(precision))
        yield Timed(*row, pace, stacked)


def precisions(device: str) -> Sequence[int | str]:
    """Those in which to time, as ``precision``: on a GPU bf16, too."""
    return (32,) if device == "cpu" else (32, "bf16")


def known(paces: Paces, name: str, chosen: Sequence[Setting]) -> list[Timed]:
    """What of the settings was measured before on GPUs of this ``name``."""
    return [
        Timed(setting, pace.batch, pace.precision, pace, stacked=True)
        for setting in chosen
        for pace in paces.values
        if (pace.dataset, pace.model, pace.batch, pace.device) == (*setting.kind, name)
    ]


def _seconds_of_an_image(setting: Setting, device: str, precision: int | str) -> tuple[float, bool]:
    network = _network(setting, device, precision)
    training = replace(Training(**compose.build(setting.plain["train"])), lr=0.01, epochs=1)
    job = LocalTraining(training, Plain(), {"cross_entropy": CrossEntropy()}, None, {})
    on_gpu = device != "cpu"
    stacked = on_gpu and why_not(job, network) is None
    executor: Any = Stacked(network, COHORT, None) if stacked else Sequential(network)
    clients = COHORT if stacked else 1
    steps = LEAST if stacked else 2  # fewer equal steps would not be recorded
    _round(executor, job, network, clients, steps * job.training.batch_size)  # libraries initialise
    while True:
        images = clients * steps * job.training.batch_size
        seconds = _round(executor, job, network, clients, steps * job.training.batch_size)
        if seconds >= LONG_ENOUGH or steps >= MOST_STEPS:
            return seconds / images, stacked
        steps = min(MOST_STEPS, max(2 * steps, int(steps * 1.2 * LONG_ENOUGH / max(seconds, 1e-3))))


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
