"""Apple's pfl: its simulated backend in one process.

``python -m bench.peers.pfl JOB.json``

The cohorts are ours. A client's samples are in the order of our first epoch; pfl divides them into batches once per
visit and uses these in every epoch. Batch-norm statistics are not averaged: the model keeps those of the last client.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from bench.turns import Turns
from bench.workloads import Job, cohort, model, orders, read


class Classifier(nn.Module):
    """A network with the loss and the metrics that pfl needs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of one batch of local training."""
        self.train()
        return F.cross_entropy(self.network(inputs), labels)

    @torch.no_grad()
    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        """The metrics of one batch of the evaluation."""
        self.eval()
        return {"accuracy": Weighted(int((self.network(inputs).argmax(1) == labels).sum()), len(labels))}


class Border(TrainingProcessCallback):
    """Waits at the end of every round."""

    def __init__(self) -> None:
        self.turns = Turns()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Whether to stop, and no metrics."""
        score = aggregate_metrics[StringMetricName("Central val | accuracy")]
        return not self.turns.border(accuracy=score.overall_value), Metrics()


class Cohorts:
    """The clients of consecutive rounds, one by one."""

    def __init__(self, job: Job) -> None:
        self.workload, self.number, self.left = job.workload, -1, list[int]()

    def __call__(self) -> int:
        """The next client."""
        if not self.left:
            self.number += 1
            self.left = cohort(self.workload, self.number)
        return self.left.pop(0)


def main() -> None:
    """Run the simulation until no further round is requested."""
    torch.set_num_threads(1)
    job = Job.load(Path(sys.argv[1]))
    w, data, cohorts, border = job.workload, read(job), Cohorts(job), Border()

    def user(client: int) -> Dataset:
        order = orders(w, cohorts.number, client)[0]
        return Dataset((data.inputs[client][order], data.labels[client][order]), user_id=str(client))

    def sgd(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr, w.momentum, fused=True)

    network = Classifier(model(w))
    wrapped = PyTorchModel(network, sgd, torch.optim.SGD(network.parameters(), 1.0))
    clients = FederatedDataset(user, cohorts)
    backend = SimulatedBackend(clients, clients, postprocessors=[WeightByDatapoints()])
    test = Dataset((data.test_inputs, data.test_labels))
    evaluation = NNEvalHyperParams(local_batch_size=512)
    FederatedAveraging().run(
        NNAlgorithmParams(
            # users are also evaluated in rounds whose number is divisible by this
            central_num_iterations=10**6,
            evaluation_frequency=10**6,
            train_cohort_size=w.cohort,
            val_cohort_size=0,
        ),
        backend,
        wrapped,
        NNTrainHyperParams(local_batch_size=w.batch, local_num_epochs=w.epochs, local_learning_rate=w.lr),
        evaluation,
        callbacks=[CentralEvaluationCallback(test, evaluation), border],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
