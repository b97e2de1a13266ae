"""The baseline: a minimal hand-written FedAvg in plain PyTorch, with one process and one thread.

``python -m bench.hand JOB.json``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.turns import Turns
from bench.workloads import SEED, Job, Workload, cohort, model, normalise, orders, read
from flnl.core.streams import stream

State = dict[str, Tensor]


def local_sgd(network: nn.Module, workload: Workload, inputs: Tensor, labels: Tensor, epochs: Sequence[Tensor]) -> None:
    """Train ``network`` in place on one client's normalised inputs."""
    train(network, workload, ((inputs[i], labels[i]) for order in epochs for i in order.split(workload.batch)))


def train(network: nn.Module, workload: Workload, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
    """Train ``network`` in place on batches of inputs and labels, with a new optimiser."""
    network.train()
    optimizer = torch.optim.SGD(network.parameters(), workload.lr, workload.momentum, fused=True)
    for inputs, labels in batches:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(network(inputs), labels).backward()
        optimizer.step()


def accuracy(network: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """The share of correct predictions, computed on 512 inputs at a time."""
    network.eval()
    with torch.no_grad():
        parts = zip(inputs.split(512), labels.split(512), strict=True)
        right = sum(int((network(x).argmax(1) == y).sum()) for x, y in parts)
    return right / len(labels)


def cropped(workload: Workload, images: Tensor, order: Tensor, rng: np.random.Generator) -> Tensor:
    """The images [n, C, H, W] in this order, randomly cropped with 4 pixels of black padding, and randomly flipped."""
    count, pad = len(order), 4
    tops, lefts = (rng.integers(0, 2 * pad + 1, count).tolist() for _ in range(2))
    flips = (rng.random(count) < 0.5).tolist()
    source = F.pad(images[order], [pad] * 4).numpy()
    cropped = np.empty(images.shape, np.uint8)
    _, h, w = workload.shape
    for i, (top, left, flip) in enumerate(zip(tops, lefts, flips, strict=True)):
        window = source[i, :, top : top + h, left : left + w]
        cropped[i] = window[:, :, ::-1] if flip else window
    return torch.from_numpy(cropped)


class HandLoop:
    """A server and its clients in one loop."""

    def __init__(self, job: Job) -> None:
        self.workload, self.data = job.workload, read(job)
        self.network = model(self.workload)
        self.state: State = {k: v.clone() for k, v in self.network.state_dict().items()}
        self.number = 0

    def round(self) -> float:
        """Run one round and return the accuracy after it."""
        totals: State = {}
        clients = cohort(self.workload, self.number)
        weight = 1 / len(clients)  # all clients hold equally many samples
        for client in clients:
            self.network.load_state_dict(self.state)
            self._client(client)
            for name, value in self.network.state_dict().items():
                if value.is_floating_point():
                    totals[name] = totals[name].add_(value, alpha=weight) if name in totals else value * weight
                else:
                    totals[name] = value.clone()
        self.state = totals
        self.network.load_state_dict(self.state)
        self.number += 1
        return accuracy(self.network, self.data.test_inputs, self.data.test_labels)

    def _client(self, client: int) -> None:
        workload, data = self.workload, self.data
        epochs = orders(workload, self.number, client)
        if not workload.crop:
            local_sgd(self.network, workload, data.inputs[client], data.labels[client], epochs)
            return
        rng = stream(SEED, "augmentation", self.number, client)

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for order in epochs:
                inputs = normalise(cropped(workload, data.images[client], order, rng), workload.dtype)
                labels = data.labels[client][order]
                yield from zip(inputs.split(workload.batch), labels.split(workload.batch), strict=True)

        train(self.network, workload, batches())


def main() -> None:
    """Run rounds on request."""
    torch.set_num_threads(1)
    turns, loop = Turns(), HandLoop(Job.load(Path(sys.argv[1])))
    while turns.border(accuracy=loop.round()):
        pass


if __name__ == "__main__":
    main()
