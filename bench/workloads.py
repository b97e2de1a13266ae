"""The workloads: models, sizes and data, the same for all ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from flnl.core.streams import stream, torch_seed

SEED = 1


@dataclass(frozen=True)
class Workload:
    """A federation, and the settings of FedAvg on it."""

    name: str
    title: str
    model: Literal["mlp", "cnn", "lenet5", "resnet18", "resnet18_imagenet", "public"]
    data: Literal["digits", "pixels"]  # real 8x8 digits, or random 32x32 colour images
    cohort: int
    turn: int  # rounds per turn, so that a turn is long enough to be timed
    clients: int = 20
    samples: int = 70  # per client
    test: int = 1000
    batch: int = 10
    epochs: int = 5
    lr: float = 0.03
    momentum: float = 0.5
    crop: bool = False  # random crop with 4 pixels of padding, and flip
    peers: bool = True  # whether other frameworks run it
    repeats: int | None = None  # limit on the repeats, if a round is long
    double: bool = False  # float64, to test that the loops agree

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images."""
        return (1, 8, 8) if self.data == "digits" else (3, 32, 32)

    @property
    def steps(self) -> int:
        """Optimiser steps per round."""
        return self.cohort * self.epochs * -(-self.samples // self.batch)

    @property
    def dtype(self) -> torch.dtype:
        """The type of parameters and inputs."""
        return torch.float64 if self.double else torch.float32


WORKLOADS = {
    w.name: w
    for w in (
        Workload("mlp", "MLP, digits", "mlp", "digits", cohort=10, turn=10),
        Workload("mlp-20", "MLP, digits, 20 a round", "mlp", "digits", cohort=20, turn=5),
        Workload("cnn", "small CNN, digits", "cnn", "digits", cohort=10, turn=20),
        Workload("cnn-20", "small CNN, digits, 20 a round", "cnn", "digits", cohort=20, turn=10),
        Workload("lenet5", "LeNet-5, 3x32x32", "lenet5", "pixels", cohort=10, turn=1, samples=500),
        Workload(
            "lenet5-crop",
            "LeNet-5, crop and flip",
            "lenet5",
            "pixels",
            cohort=10,
            turn=1,
            samples=500,
            crop=True,
            peers=False,
            repeats=3,
        ),
        Workload(
            "resnet18",
            "ResNet-18, 3x32x32",
            "resnet18",
            "pixels",
            cohort=10,
            turn=1,
            samples=20,
            epochs=1,
            test=100,
            repeats=3,
        ),
        Workload(
            "public",
            "pfl-research's CIFAR-10 setting",
            "public",
            "pixels",
            cohort=50,
            turn=1,
            clients=1000,
            samples=50,
            epochs=1,
            lr=0.1,
            momentum=0.0,
        ),
        Workload("mlp-100", "MLP, digits, 100 a round", "mlp", "digits", cohort=100, turn=2, clients=100, peers=False),
    )
}


@dataclass(frozen=True)
class Job:
    """A workload and the file of its arrays: the input of a process."""

    workload: Workload
    data: Path

    def save(self, path: Path) -> Path:
        """Write the job as JSON."""
        path.write_text(json.dumps({"workload": asdict(self.workload), "data": str(self.data)}))
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what ``save`` wrote."""
        content = json.loads(path.read_text())
        return cls(Workload(**content["workload"]), Path(content["data"]))


def write_arrays(workload: Workload, path: Path) -> Path:
    """Write images (uint8), labels and owners as the data set ``arrays`` reads them."""
    rng = np.random.default_rng(0)
    count = workload.clients * workload.samples
    if workload.data == "digits":
        images, labels = _digits()
        train, test = np.resize(np.arange(1400), count), np.resize(np.arange(1400, len(images)), workload.test)
        x_train, y_train, x_test, y_test = images[train], labels[train], images[test], labels[test]
    else:
        x_train, x_test = (rng.integers(0, 256, (n, *workload.shape), dtype=np.uint8) for n in (count, workload.test))
        y_train, y_test = (rng.integers(0, 10, n) for n in (count, workload.test))
    np.savez(
        path,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        clients=np.repeat(np.arange(workload.clients), workload.samples),
        classes=np.array(list("0123456789")),
    )
    return path


def _digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Scikit-learn's digits in a fixed random order, with their 17 grey values scaled to 0..240."""
    from sklearn.datasets import load_digits

    source = load_digits()
    order = np.random.default_rng(0).permutation(len(source.target))
    return (source.images[order, None] * 15).astype(np.uint8), source.target[order].astype(np.int64)


@dataclass(frozen=True)
class Data:
    """The arrays as tensors, one entry per client: stored images and network inputs."""

    images: list[Tensor]  # uint8 [n, C, H, W]
    inputs: list[Tensor]  # normalised, of the workload's type
    labels: list[Tensor]  # int64 [n]
    test_inputs: Tensor
    test_labels: Tensor


def read(job: Job) -> Data:
    """Read and normalise what ``write_arrays`` wrote."""
    workload = job.workload
    with np.load(job.data) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in ("x_train", "y_train", "x_test", "y_test")}
    images = list(arrays["x_train"].split(workload.samples))
    return Data(
        images,
        [normalise(part, workload.dtype) for part in images],
        list(arrays["y_train"].split(workload.samples)),
        normalise(arrays["x_test"], workload.dtype),
        arrays["y_test"],
    )


def normalise(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Pixels 0..255 as -1..1."""
    return (images.to(dtype) / 255).sub_(0.5).div_(0.5)


# --------------------------------------------------------------------------------- the same draws for all ways


def model(workload: Workload) -> nn.Module:
    """The network with the initial parameters of a run with seed ``SEED``."""
    from bench.networks import PublicCNN
    from flnl.models.cnn import CNN
    from flnl.models.imagenet import ResNet18ImageNet
    from flnl.models.lenet import LeNet5
    from flnl.models.mlp import MLP
    from flnl.models.resnet import ResNet

    makers: dict[str, Callable[[tuple[int, int, int], int], nn.Module]] = {
        "mlp": MLP([64], 0.0),
        "cnn": CNN([16, 32], 0.0),
        "lenet5": LeNet5(batch_norm=False),
        "resnet18": ResNet(64, [2] * 4),
        "resnet18_imagenet": ResNet18ImageNet("none"),
        "public": PublicCNN(),
    }
    torch.manual_seed(torch_seed(SEED, "initialisation"))
    return makers[workload.model](workload.shape, 10).to(workload.dtype)


def cohort(workload: Workload, number: int) -> list[int]:
    """The clients of round ``number`` (from 0), ascending."""
    chosen = stream(SEED, "cohort", number).choice(workload.clients, workload.cohort, replace=False)
    return sorted(int(client) for client in chosen)


def orders(workload: Workload, number: int, client: int) -> list[Tensor]:
    """The order of a client's samples in each epoch of round ``number``."""
    rng = stream(SEED, "batches", number, client)
    return [torch.from_numpy(rng.permutation(workload.samples)) for _ in range(workload.epochs)]
