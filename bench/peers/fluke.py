"""fluke: its FedAvg in one process.

``python -m bench.peers.fluke JOB.json``

fluke draws clients and batches, and shuffles every epoch as we do; its evaluator computes more than accuracy. Clients
do not keep their optimiser between visits (``persistency=False``), as in the other ways.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils.log import Log
from torch import nn

from bench.turns import Turns
from bench.workloads import SEED, Job, model, read


class Border(Log):
    """Waits at the end of every round, and writes no log."""

    def __init__(self) -> None:
        super().__init__()
        self.turns, self.score = Turns(), float("nan")

    def server_evaluation(self, round: int, eval_type: str, evals: dict[str, float], **more: Any) -> None:
        """Keep the accuracy."""
        self.score = evals.get("accuracy", self.score)

    def start_round(self, round: int, global_model: nn.Module) -> None:
        """Log nothing."""

    def end_round(self, round: int) -> None:
        """Wait."""
        if not self.turns.border(accuracy=self.score):
            raise SystemExit  # with an early stop, every client would wait for a last model

    def finished(self, round: int) -> None:
        """Log nothing."""


def main() -> None:
    """Run the simulation until no further round is requested."""
    torch.set_num_threads(1)
    job = Job.load(Path(sys.argv[1]))
    w, data = job.workload, read(job)
    env = FlukeENV()
    env.set_seed(SEED)
    env.set_device("cpu")
    env.set_inmemory(True)
    env.set_evaluator(ClassificationEval(eval_every=1, n_classes=10))
    env.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=True)
    border = Border()

    def loader(*tensors: torch.Tensor, size: int, shuffle: bool) -> FastDataLoader:
        return FastDataLoader(*tensors, num_labels=10, batch_size=size, shuffle=shuffle)

    clients = [loader(x, y, size=w.batch, shuffle=True) for x, y in zip(data.inputs, data.labels, strict=True)]
    test = loader(data.test_inputs, data.test_labels, size=512, shuffle=False)
    container = DummyDataContainer(clients, [None] * w.clients, test, num_classes=10)
    parameters = DDict(
        model=model(w),
        client=DDict(
            batch_size=w.batch,
            local_epochs=w.epochs,
            loss=nn.CrossEntropyLoss,
            optimizer=DDict(name="SGD", lr=w.lr, momentum=w.momentum, fused=True),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1),
            persistency=False,
        ),
        server=DDict(weighted=True),
    )
    federated = FedAVG(w.clients, DataSplitter(container), parameters)
    federated.set_callbacks(border)
    federated.run(10**6, w.cohort / w.clients, finalize=False)


if __name__ == "__main__":
    main()
