"""Local training of one client: mini-batch steps of the optimiser on the sum of the method's loss terms."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from flnl.core import checked
from flnl.core.messages import ClientResult, ClientState, ClientTask, Fit, Observation
from flnl.core.model import Model
from flnl.core.parts import BatchRule, Exchange, GradientTransform, LossTerm
from flnl.core.payload import Params, Payload, all_finite
from flnl.core.step import Step
from flnl.core.streams import OfEngine, torch_seeded
from flnl.core.tally import Tally
from flnl.core.training import Training
from flnl.engine.local.momentum import as_kept, continued
from flnl.engine.local.objective import Objective, backward, mean_over_steps
from flnl.engine.local.optimizer import Buffers
from flnl.engine.local.steps import Steps
from flnl.engine.network import Network
from flnl.engine.trees import tree_to
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
        network.load(task.broadcast.params)
        task = self.begun(network, task)
        with torch_seeded(task.engine_seed(OfEngine.DROPOUT), network.device):
            states, loss, steps, momentum = self._train(network, task)
        params = network.params()
        fit = Fit(params, states, loss, steps, all_finite(params), self.training.lr, momentum)
        return self.report(network, task, fit)

    @cached_property
    def updates(self) -> bool:
        """Whether the gradient transform changes the optimiser's update."""
        return self.gradient is not None and self.gradient.overrides("update")

    def begun(self, network: Network, task: ClientTask) -> ClientTask:
        """The task, with what exchanges begin the visit with; the network holds the received model."""
        visit: list[Any] = []
        kept: list[Any] = []
        for name, exchange in self.exchanges.items():
            with network.lent():
                read, keep = checked.begun(name, exchange.begin(network, task))
            visit += read
            kept += keep
        if not visit and not kept:
            return task
        return replace(task, visit=Payload().including(*visit), state=task.state.keeping(*kept))

    def states(self, network: Network, task: ClientTask) -> dict[str, Any]:
        """Each loss term's state on this client at the start of training; the network holds the received model."""
        states = {}
        for name, term in self.terms.items():
            kept = tree_to(task.state.terms.get(name), network.device)  # a run that began on the CPU left it there
            with network.lent():
                states[name] = term.begin(network, task, kept)
        return states

    def report(self, network: Network, task: ClientTask, fit: Fit) -> ClientResult:
        """The client's result; the network must hold the client's parameters.

        A fit that diverged changes no state and reports nothing.
        """
        outcome = (fit.loss, fit.steps, fit.finite)
        if not fit.finite:
            return ClientResult(task.client, len(task.samples), fit.params, task.state, Payload(), *outcome)
        terms = dict(task.state.terms)  # states of other stages' terms are kept
        for name, term in self.terms.items():
            with network.lent():
                after = term.finish(network, task, fit, fit.states[name])
            if after is not None:
                terms[name] = after
        sent, kept = Payload(), task.state.extras
        for name, exchange in self.exchanges.items():
            with network.lent():
                up, keep = checked.report(name, exchange.report(network, task, fit))
            sent, kept = sent.including(*up), kept.including(*keep)
        with network.lent():
            labels = checked.relabelled(self.batch, self.batch.relabels(network, task), task, network.num_classes)
        held = task.state.labels if labels is None else labels
        state = ClientState(held, task.state.weight, terms, kept, fit.momentum)
        return ClientResult(
            task.client, len(task.samples), fit.params, state, sent, *outcome, self._observe(network, task, fit.params)
        )

    def _observe(self, network: Network, task: ClientTask, params: Params) -> Observation | None:
        """Observe ``params``, which the network holds, on the worker, so that no model has to be sent.

        It is for the record, so its passes are not the method's.
        """
        if not self.observed:
            return None
        moved = squared_move(task.broadcast.params, params, network.trainable())
        with network.meter.into(Tally()):
            return Observation(moved, network.logits(task.samples).argmax(1))

    def _train(self, network: Network, task: ClientTask) -> tuple[Mapping[str, Any], float, int, Params | None]:
        """Run all steps on the loaded network.

        Returns:
            The terms' states, the mean loss, the number of steps, and the optimiser's buffers if the client keeps them.
        """
        from flnl.engine.local.lightning import ClientModule

        module = network.module
        trainable = network.trainable()
        kept = self.continued(task, trainable) if self.training.keep_momentum else None
        client = ClientModule(module, self.training, None if kept is None else _by_parameter(kept, trainable))
        optimizer = client.configure_optimizers()
        live = list(trainable.values())
        objective = Objective(self.terms, tree_to(self.states(network, task), network.device))
        everything = module.state_dict() if objective.followers else {}  # its tensors are the module's own
        losses: list[Tensor] = []
        clip = self.training.clip
        module.train()
        for step in Steps(self.training, self.batch, self.terms, network, task, trainable):
            if network.has_batch_norm:  # a batch of one has no statistics: use the running ones
                statistics = step.samples > 1
                if module.training != statistics:
                    module.train(statistics)
            for parameter in live:
                parameter.grad = None
            with network.autocast():
                loss = client.training_step(step, objective)
            backward(loss, 1 / len(loss) if loss.dim() else 1.0)  # a number, or rows [B]
            if self.gradient is not None:
                with torch.no_grad():
                    gradients = {name: p.grad for name, p in trainable.items() if p.grad is not None}
                    new = checked.changed(self.gradient, "__call__", self.gradient(gradients, step), trainable)
                    for name, gradient in new.items():
                        trainable[name].grad = _as(trainable[name], gradient)
            if clip is not None:
                nn.utils.clip_grad_norm_(live, clip)
            before = [p.detach().clone() for p in live] if self.updates else []
            if self.training.visit_cosine:
                optimizer.fused.at(self.training.within_visit(self._share(step, len(losses))))
            optimizer.step()
            if self.updates:
                self._update(trainable, before, step)
            if everything:
                objective.stepped(everything)
            losses.append(loss.detach())
        module.eval()
        momentum = None if kept is None else {name: t.contiguous() for name, t in as_kept(kept).items()}
        return objective.states, mean_over_steps(losses), len(losses), momentum

    def _share(self, step: Step, taken: int) -> float:
        """The share of the visit's steps that are ``taken`` before this one; each phase of an epoch begins anew."""
        if self.training.steps is not None:
            return taken / self.training.steps
        assert step.progress is not None, "clients are trained one by one"
        return (step.progress.epoch + step.number / step.progress.batches) / step.progress.epochs

    def continued(self, task: ClientTask, parameters: Params) -> dict[str, Params]:
        """The buffers with which the client continues, by the buffer's name, then by that of the parameter."""
        return {b.name: continued(task.state.momentum, parameters, b) for b in self.training.buffers}

    def _update(self, trainable: Params, before: list[Tensor], step: Step) -> None:
        """Replace the optimiser's update by the gradient transform's version of it."""
        assert self.gradient is not None
        with torch.no_grad():
            previous = dict(zip(trainable, before, strict=True))
            gradients = {name: p.grad for name, p in trainable.items() if p.grad is not None}
            new = self.gradient.update(previous, trainable, gradients, step)
            for name, parameter in checked.changed(self.gradient, "update", new, trainable).items():
                trainable[name].copy_(parameter)


def _by_parameter(buffers: Mapping[str, Params], parameters: Params) -> Buffers:
    return {
        buffer: {parameters[name]: tensor for name, tensor in tensors.items()} for buffer, tensors in buffers.items()
    }


def _as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient in the parameter's memory layout, as the fused kernel needs it."""
    same = gradient.stride() == parameter.stride()
    return gradient if same else torch.empty_like(parameter).copy_(gradient)
