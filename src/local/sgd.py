"""Local training of one client: epochs of mini-batch SGD over the sum of the method's terms.

All randomness is drawn from the task before it is used: which samples make a batch, augmentation, mixing and the
terms' own draws each have their stream, so that switching one off leaves the others as they were.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from src.config import Training
from src.core import (
    BatchRule,
    ClientResult,
    ClientState,
    ClientTask,
    Exchange,
    GradientTransform,
    LossTerm,
    Payload,
    Step,
    all_finite,
)
from src.local.lightning import ClientModule, Objective
from src.network import Network


def batches(order: Tensor, batch_size: int, *, join_last_of_one: bool) -> list[Tensor]:
    """``order`` [n] cut into batches; the last may be short.

    A last batch of a single sample has no statistics for batch norm, so with ``join_last_of_one`` it joins the batch
    before it.

    >>> [len(b) for b in batches(torch.arange(7), 3, join_last_of_one=True)]
    [3, 4]
    """
    parts = list(order.split(batch_size))
    if join_last_of_one and len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


@dataclass(frozen=True)
class LocalTraining:
    """The job that a cohort is given: train from the received parameters and report."""

    training: Training
    batch: BatchRule
    terms: Mapping[str, LossTerm]
    gradient: GradientTransform | None
    exchanges: Mapping[str, Exchange]

    def __call__(self, network: Network, task: ClientTask) -> ClientResult:
        """Train on ``task`` and report; the network is left holding the client's parameters."""
        network.load(task.broadcast.params)
        devices = [network.device] if network.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(task.torch_seed("dropout"))
            objective, loss, steps = self._train(network, task)
        params = network.params()
        finite = all_finite(params)
        if not finite:
            return ClientResult(task.client, len(task.samples), params, task.state, Payload(), loss, steps, finite)
        terms = dict(task.state.terms)  # those of other stages stay as they are
        for name, term in self.terms.items():
            after = term.finish(task.broadcast, params, objective.states[name])
            if after is not None:
                terms[name] = after
        sent, kept = Payload(), task.state.extras
        for exchange in self.exchanges.values():
            up, keep = exchange.report(network, task, params)
            sent, kept = sent.including(*up), kept.including(*keep)
        state = ClientState(task.state.labels, task.state.weight, terms, kept)
        return ClientResult(task.client, len(task.samples), params, state, sent, loss, steps, finite)

    def _train(self, network: Network, task: ClientTask) -> tuple[Objective, float, int]:
        client = ClientModule(network.module, self.training)
        optimizer = client.configure_optimizers()
        trainable = network.trainable()
        count = len(task.samples)
        objective = Objective(self.terms, {name: task.state.terms.get(name) for name in self.terms})
        for name, term in self.terms.items():
            if objective.states[name] is None:
                objective.states[name] = term.init(task.broadcast.params, count, network.num_classes)
        losses = torch.zeros((), dtype=torch.float64, device=network.device)
        steps = 0
        network.module.train()
        for step in self._steps(network, task, trainable):
            if network.has_batch_norm:  # a batch of one has no statistics; the running ones serve
                network.module.train(len(step.inputs) > 1)
            optimizer.zero_grad(set_to_none=True)
            with network.fabric.autocast():
                loss = client.training_step(step, objective)
            network.fabric.backward(loss)
            if self.gradient is not None:
                with torch.no_grad():
                    found = {name: p.grad for name, p in trainable.items() if p.grad is not None}
                    for name, new in self.gradient(found, step).items():
                        trainable[name].grad = new
            optimizer.step()
            losses += loss.detach()
            steps += 1
        network.module.eval()
        return objective, float(losses) / max(steps, 1), steps

    def _steps(self, network: Network, task: ClientTask, trainable: dict[str, Tensor]) -> Iterator[Step]:
        """Every batch of every epoch, inputs prepared a chunk of batches at a time."""
        order_rng, crop_rng, mix_rng = (task.stream(purpose) for purpose in ("batches", "augmentation", "mixing"))
        term_rngs = {name: task.stream(f"term {name}") for name in self.terms}
        stored, fixed = self._resident(network, task)
        labels = task.samples.labels.to(network.device)
        weight = None if task.state.weight is None else task.state.weight.to(network.device, network.dtype)
        for epoch in range(self.training.epochs):
            chosen = self.batch.select(network, task, epoch)
            used = torch.arange(len(task.samples)) if chosen is None else chosen
            order = used[torch.from_numpy(order_rng.permutation(len(used)))]
            parts = batches(order, self.training.batch_size, join_last_of_one=network.has_batch_norm)
            together = max(1, network.chunk(self.training.batch_size) // self.training.batch_size)
            for first in range(0, len(parts), together):
                chunk = parts[first : first + together]
                inputs = self._inputs(network, task, torch.cat(chunk), stored, fixed, crop_rng)
                for number, (where, batch) in enumerate(
                    zip(chunk, inputs.split([len(part) for part in chunk]), strict=True), start=first
                ):
                    draw = self.batch.draw(mix_rng, len(where), task.broadcast.stage)
                    positions = where.to(network.device)
                    mixed, targets = self.batch.mix(batch, labels[positions], network.num_classes, draw)
                    yield Step(
                        module=network.module,
                        params=trainable,
                        broadcast=task.broadcast,
                        inputs=mixed,
                        labels=labels[positions],
                        targets=targets,
                        positions=positions,
                        weight=None if weight is None else self.batch.weigh(weight[positions], draw),
                        draws={name: term.draw(term_rngs[name], len(where)) for name, term in self.terms.items()},
                        number=number,
                    )

    def _inputs(
        self,
        network: Network,
        task: ClientTask,
        order: Tensor,
        stored: Tensor | None,
        fixed: Tensor | None,
        rng: np.random.Generator,
    ) -> Tensor:
        """Inputs of the samples at ``order``, augmented where the data set is."""
        if fixed is not None:
            return fixed[order.to(network.device)]
        images = task.samples.read(order, augmented=True) if stored is None else stored[order]
        return network.prepare(images, network.transform.draw(rng, len(order), (images.shape[-2], images.shape[-1])))

    def _resident(self, network: Network, task: ClientTask) -> tuple[Tensor | None, Tensor | None]:
        """The client's stored images, if they fit a chunk; and its inputs, if nothing about them is random."""
        if len(task.samples) > network.chunk(1):
            return None, None
        stored = task.samples.read(augmented=True)
        nothing = network.transform.draw(np.random.default_rng(0), 0, (stored.shape[-2], stored.shape[-1])) is None
        return stored, network.prepare(stored) if nothing else None
