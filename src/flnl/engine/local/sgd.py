"""Local training of one client: epochs of mini-batch SGD on the sum of the method's loss terms.

``batching`` provides the batches and all random draws: augmentation, mixing and the terms' draws.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flnl.config.schema import Training
from flnl.core.messages import ClientResult, ClientState, ClientTask, Fit, Observation, Samples
from flnl.core.model import Model
from flnl.core.parts import BatchRule, Exchange, GradientTransform, LossTerm
from flnl.core.payload import Params, Payload, all_finite
from flnl.core.step import Step
from flnl.core.streams import torch_seeded
from flnl.engine.local.batching import Draws, batch_sizes, chunks, inherits
from flnl.engine.local.lightning import ClientModule, Objective, backward, mean_over_steps
from flnl.engine.local.momentum import continued
from flnl.engine.network import Network
from flnl.numerics.distance import squared_move


@dataclass(frozen=True)
class LocalTraining:
    """Job: train from the received parameters and report."""

    training: Training
    batch: BatchRule
    terms: Mapping[str, LossTerm]
    gradient: GradientTransform | None
    exchanges: Mapping[str, Exchange]
    observed: bool = False  # add an observation of the trained model to the result

    def __call__(self, network: Model, task: ClientTask) -> ClientResult:
        """Train on ``task`` and report; afterwards the network holds the client's parameters."""
        assert isinstance(network, Network), "training needs a full Network, not only the Model protocol"
        task = self.begun(network, task)
        network.load(task.broadcast.params)
        with torch_seeded(task.torch_seed("dropout"), network.device):
            states, loss, steps, momentum = self._train(network, task)
        params = network.params()
        fit = Fit(params, states, loss, steps, all_finite(params), self.training.lr, momentum)
        return self.report(network, task, fit)

    @property
    def keeps_momentum(self) -> bool:
        """Whether clients keep the optimiser's momentum for their next visit."""
        return self.training.keep_momentum and self.training.momentum != 0

    def begun(self, network: Network, task: ClientTask) -> ClientTask:
        """The task, with what exchanges leave on the client before training; the network may then hold any model."""
        kept = [value for exchange in self.exchanges.values() for value in exchange.begin(network, task)]
        return replace(task, state=task.state.keeping(*kept)) if kept else task

    def states(self, network: Network, task: ClientTask) -> dict[str, Any]:
        """Each loss term's state on this client at the start of training; the network must hold the received model."""
        return {name: term.begin(network, task, task.state.terms.get(name)) for name, term in self.terms.items()}

    def report(self, network: Network, task: ClientTask, fit: Fit) -> ClientResult:
        """The client's result; the network must hold the client's parameters.

        A fit that diverged changes no state and reports nothing.
        """
        outcome = (fit.loss, fit.steps, fit.finite)
        if not fit.finite:
            return ClientResult(task.client, len(task.samples), fit.params, task.state, Payload(), *outcome)
        terms = dict(task.state.terms)  # states of other stages' terms are kept
        for name, term in self.terms.items():
            after = term.finish(network, task, fit, fit.states[name])
            if after is not None:
                terms[name] = after
        sent, kept = Payload(), task.state.extras
        for exchange in self.exchanges.values():
            up, keep = exchange.report(network, task, fit)
            sent, kept = sent.including(*up), kept.including(*keep)
        labels = self.batch.relabels(network, task)
        held = task.state.labels if labels is None else labels
        state = ClientState(held, task.state.weight, terms, kept, fit.momentum)
        return ClientResult(
            task.client, len(task.samples), fit.params, state, sent, *outcome, self._observe(network, task, fit.params)
        )

    def _observe(self, network: Network, task: ClientTask, params: Params) -> Observation | None:
        """Observe ``params``, which the network holds, on the worker, so that no model has to be sent."""
        if not self.observed:
            return None
        moved = squared_move(task.broadcast.params, params, network.trainable())
        return Observation(moved, network.logits(task.samples).argmax(1))

    def _train(self, network: Network, task: ClientTask) -> tuple[Mapping[str, Any], float, int, Params | None]:
        """Run all steps on the loaded network.

        Returns:
            The terms' states, the mean loss, the number of steps, and the momentum if the client keeps it.
        """
        module = network.module
        trainable = network.trainable()
        momentum = continued(task.state.momentum, trainable) if self.keeps_momentum else None
        buffers = None if momentum is None else {trainable[name]: buffer for name, buffer in momentum.items()}
        client = ClientModule(module, self.training, buffers)
        optimizer = client.configure_optimizers()
        live = list(trainable.values())
        objective = Objective(self.terms, self.states(network, task))
        losses: list[Tensor] = []
        scaled = self.gradient is not None and not inherits(self.gradient, GradientTransform, "update")
        module.train()
        for step in self._steps(network, task, trainable):
            if network.has_batch_norm:  # a batch of one has no statistics: use the running ones
                statistics = len(step.inputs) > 1
                if module.training != statistics:
                    module.train(statistics)
            for parameter in live:
                parameter.grad = None
            with network.autocast():
                loss = client.training_step(step, objective)
            backward(loss)
            if self.gradient is not None:
                with torch.no_grad():
                    gradients = {name: p.grad for name, p in trainable.items() if p.grad is not None}
                    for name, new in self.gradient(gradients, step).items():
                        trainable[name].grad = _as(trainable[name], new)
            before = [p.detach().clone() for p in live] if scaled else []
            optimizer.step()
            if scaled:
                self._rescale(trainable, before, step)
            losses.append(loss.detach())
        module.eval()
        kept = None if momentum is None else {name: buffer.contiguous() for name, buffer in momentum.items()}
        return objective.states, mean_over_steps(losses), len(losses), kept

    def _rescale(self, trainable: Params, before: list[Tensor], step: Step) -> None:
        """Replace the optimiser's update by the gradient transform's version of it."""
        assert self.gradient is not None
        with torch.no_grad():
            previous = dict(zip(trainable, before, strict=True))
            for name, new in self.gradient.update(previous, trainable, step).items():
                trainable[name].copy_(new)

    def _steps(self, network: Network, task: ClientTask, trainable: Params) -> Iterator[Step]:
        """All batches of all epochs; inputs are prepared for a chunk of batches at a time."""
        draws = Draws(task, self.batch, self.terms)
        samples = replace(task.samples, images=network.here(task.samples.images))
        stored, fixed = self._together(network, samples)
        held = task.labels.to(network.device)
        passes = network.passes(task.broadcast)
        weight = None if task.state.weight is None else task.state.weight.to(network.device, network.dtype)
        size = self.training.batch_size
        for epoch in range(self.training.epochs):
            selected = self.batch.select(network, task, epoch)
            order = draws.order(None if selected is None else selected.positions)
            labels = held
            if selected is not None and selected.labels is not None:
                labels = selected.labels.to(network.device, non_blocking=True)
            sizes = batch_sizes(len(order), size, join_last_of_one=network.has_batch_norm)
            together = list(chunks(sizes, network.together(size)))
            parts = order.split([sum(chunk) for chunk in together])
            number = 0
            prepared = self._inputs(network, samples, parts, stored, fixed, draws)
            for chunk, where, inputs in zip(together, parts, prepared, strict=True):
                there = where.to(network.device, non_blocking=True)
                given = labels[there]
                for batch, batch_labels, positions in zip(
                    inputs.split(chunk), given.split(chunk), there.split(chunk), strict=True
                ):
                    draw = draws.mixing(len(batch_labels))
                    mixed, targets = self.batch.mix(batch, batch_labels, network.num_classes, draw)
                    yield Step(
                        inputs=mixed,
                        labels=batch_labels,
                        targets=targets,
                        positions=positions,
                        weight=None if weight is None else self.batch.weigh(weight[positions], draw),
                        draws=draws.of_terms(len(batch_labels)),
                        number=number,
                        unmixed=batch,
                        mixing=draw,
                        passes=passes,
                        params=trainable,
                        broadcast=task.broadcast,
                        kept=task.state.extras,
                    )
                    number += 1

    def _inputs(
        self,
        network: Network,
        samples: Samples,
        parts: Sequence[Tensor],
        stored: Tensor | None,
        fixed: Tensor | None,
        draws: Draws,
    ) -> Iterator[Tensor]:
        """Inputs of the samples at each of ``parts``, augmented if the data set uses augmentation."""
        if fixed is not None:
            yield from (fixed[part.to(network.device, non_blocking=True)] for part in parts)
            return
        held = (
            samples.read_each(parts, augmented=True)
            if stored is None
            else (stored.index_select(0, part.to(stored.device, non_blocking=True)) for part in parts)
        )
        for images in held:
            height, width = images.shape[-2:]
            yield network.prepare(images, draws.crops(network.transform, len(images), (height, width)))

    def _together(self, network: Network, samples: Samples) -> tuple[Tensor | None, Tensor | None]:
        """The client's stored images, if they fit one chunk; and its inputs, if they need no augmentation.

        Each is None otherwise.
        """
        if len(samples) > network.chunk(1):
            return None, None
        stored = samples.read(augmented=True)
        random = network.transform.random((stored.shape[-2], stored.shape[-1]))
        return stored, None if random else network.prepare(stored)


def _as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the parameter's memory layout, as the fused kernel needs it."""
    same = gradient.stride() == parameter.stride()
    return gradient if same else torch.empty_like(parameter).copy_(gradient)
