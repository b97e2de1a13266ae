"""Flower's simulation on Ray: FedAvg with its message API, and the baseline's local training in the client.

``python -m bench.peers.flower JOB.json``

There is one actor per core. Flower draws the clients; each trains on our batches.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from bench.hand import accuracy, local_sgd
from bench.turns import Turns
from bench.workloads import Data, Job, model, orders, read


@cache
def _data(path: str) -> tuple[Job, Data, nn.Module]:
    """Read once in each process."""
    torch.set_num_threads(1)
    job = Job.load(Path(path))
    return job, read(job), model(job.workload)


class _OverError(Exception):
    """No further round is requested."""


class Strict(FedAvg):
    """Flower continues without failed clients, and would be fast; here they end the run."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate as ``FedAvg`` does.

        Raises:
            RuntimeError: if a client failed.
        """
        answered = list(replies)
        failed = [reply.error.reason for reply in answered if reply.has_error()]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(answered)} clients failed: {failed[0][-500:]}")
        combined: tuple[ArrayRecord | None, MetricRecord | None] = super().aggregate_train(server_round, answered)
        return combined


def client_app(path: str) -> ClientApp:
    """Local training from the received arrays."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        job, data, network = _data(path)
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client, number = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"]) - 1
        epochs = orders(job.workload, number, client)
        local_sgd(network, job.workload, data.inputs[client], data.labels[client], epochs)
        metrics = MetricRecord({"num-examples": len(data.labels[client])})
        content = RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def server_app(path: str, turns: Turns) -> ServerApp:
    """Run rounds on request, and evaluate the global model after each."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        job, data, network = _data(path)
        workload = job.workload

        def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
            if not number:
                return MetricRecord()
            network.load_state_dict(arrays.to_torch_state_dict())
            score = accuracy(network, data.test_inputs, data.test_labels)
            if not turns.border(accuracy=score):
                raise _OverError
            return MetricRecord({"accuracy": score})

        share = workload.cohort / workload.clients
        strategy = Strict(fraction_train=share, fraction_evaluate=0.0, min_available_nodes=workload.clients)
        try:
            strategy.start(grid, ArrayRecord(network.state_dict()), num_rounds=10**6, evaluate_fn=evaluate)
        except _OverError:
            return

    return app


def main() -> None:
    """Run the simulation until no further round is requested."""
    path = sys.argv[1]
    cores = len(os.sched_getaffinity(0))
    workload = Job.load(Path(path)).workload
    backend: dict[str, Any] = {
        "init_args": {"num_cpus": cores, "include_dashboard": False, "_node_ip_address": "127.0.0.1"},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    turns = Turns()
    run_simulation(server_app(path, turns), client_app(path), workload.clients, backend_config=backend)


if __name__ == "__main__":
    from bench.peers.flower import main as of_the_module

    of_the_module()  # so that Ray's workers can import the functions by name
