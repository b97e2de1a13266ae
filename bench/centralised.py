"""The bound: a plain loop over the pooled samples, without clients; as many steps a round as the federation has.

``python -m bench.centralised JOB.json``

The same network, batch size, thread and evaluation as a round of the other ways; one model is trained throughout.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from bench.hand import accuracy, cropped, train
from bench.turns import Turns
from bench.workloads import SEED, Job, model, normalise, read
from flnl.core.streams import stream


class CentralisedLoop:
    """One model, trained on the samples of all clients in random order."""

    def __init__(self, job: Job) -> None:
        self.workload, self.data = job.workload, read(job)
        self.inputs = torch.cat(self.data.images if self.workload.crop else self.data.inputs)
        self.labels = torch.cat(self.data.labels)
        self.data.inputs.clear()
        self.network = model(self.workload)
        self.number = 0
        self._left = torch.empty(0, dtype=torch.int64)  # of the order of the current epoch

    def round(self) -> float:
        """Take the steps of a round and return the accuracy after them."""
        train(self.network, self.workload, self._batches())
        return accuracy(self.network, self.data.test_inputs, self.data.test_labels)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of a round, prepared for as many samples at a time as a client has."""
        workload = self.workload
        for _ in range(workload.cohort * workload.epochs):
            positions = self._positions(workload.samples)
            inputs, labels = self.inputs[positions], self.labels[positions]
            if workload.crop:
                rng = stream(SEED, "augmentation", self.number, len(self._left))
                inputs = normalise(cropped(workload, inputs, torch.arange(len(inputs)), rng), workload.dtype)
            yield from zip(inputs.split(workload.batch), labels.split(workload.batch), strict=True)

    def _positions(self, count: int) -> Tensor:
        """The next positions of the epoch; a new order once fewer are left."""
        if len(self._left) < count:
            self._left = torch.from_numpy(stream(SEED, "centralised", self.number).permutation(len(self.labels)))
            self.number += 1
        positions, self._left = self._left[:count], self._left[count:]
        return positions


def main() -> None:
    """Run rounds on request."""
    torch.set_num_threads(1)
    turns, loop = Turns(), CentralisedLoop(Job.load(Path(sys.argv[1])))
    while turns.border(accuracy=loop.round()):
        pass


if __name__ == "__main__":
    main()
