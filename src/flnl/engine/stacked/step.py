"""One training step of several clients: one forward pass, one backward pass and one optimiser step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from flnl.core.onto import onto
from flnl.core.payload import Params
from flnl.core.training import Training
from flnl.engine.local.objective import backward
from flnl.engine.local.optimizer import FusedAdam, FusedSgd, fused
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.stacked.compiled_update import CompiledUpdate
from flnl.engine.stacked.lower_precision import at_once
from flnl.engine.stacked.network import Outputs, StackedNetwork
from flnl.engine.stacked.objective import Batch, Objective


class Leaves:
    """Views of some clients' tensors in the layers' layout, and an optimiser on them; made when they are first used."""

    def __init__(
        self,
        many: StackedNetwork,
        training: Training,
        clients: int,
        kept: Params,
        momenta: Mapping[str, Params],
        rate: Tensor | None,
    ) -> None:
        self._many, self._training, self._clients = many, training, clients
        self._kept, self._momenta, self._rate = kept, momenta, rate

    @cached_property
    def tensors(self) -> Params:
        """Views of the parameters and buffers."""
        tensors = {name: self._many.leaf(name, t).detach() for name, t in self._kept.items()}
        for name in self._many.trainable:
            tensors[name].requires_grad_()
        return tensors

    @cached_property
    def live(self) -> Params:
        """The trainable ones of them."""
        return {name: self.tensors[name] for name in self._many.trainable}

    @cached_property
    def optimizer(self) -> FusedSgd | FusedAdam:
        """An optimiser of these."""
        buffers = {buffer: dict(zip(self.live.values(), of, strict=True)) for buffer, of in self._buffers().items()}
        return fused(self._training, self.live.values(), buffers, self._rate, self._clients)

    @cached_property
    def rounded(self) -> CompiledUpdate:
        """An optimiser of these that keeps copies in bfloat16."""
        many = self._many
        return CompiledUpdate(self._training, self.live, many.converted, self._buffers(), self._rate, many.updates)

    def _buffers(self) -> dict[str, list[Tensor]]:
        """The optimiser's buffers in the layers' layout, by name, in the order of ``live``."""
        scalars = {buffer.name for buffer in self._training.buffers if buffer.scalar}
        return {
            buffer: [stored[n] if buffer in scalars else self._many.leaf(n, stored[n]) for n in self.live]
            for buffer, stored in self._momenta.items()
        }

    def renew(self) -> None:
        """Take in what others have written to the parameters since the last step."""
        if "rounded" in self.__dict__:
            self.rounded.renew()

    def without_gradients(self) -> None:
        """Free the gradients."""
        for parameter in self.live.values():
            parameter.grad = None
        if "rounded" in self.__dict__:
            for copy in self.rounded.copies.values():
                copy.grad = None


@dataclass(frozen=True)
class View:
    """Parameters and buffers of some clients, and an optimiser on them."""

    members: tuple[int, ...]  # clients, by rank
    kept: Params  # parameters and buffers of the network in the stored layout, [K, ...]
    momenta: Mapping[str, Params]  # the optimiser's buffers, by name, likewise; numbers are [K]
    leaves: Leaves

    @classmethod
    def of(
        cls,
        many: StackedNetwork,
        training: Training,
        members: tuple[int, ...],
        kept: Params,
        momenta: Mapping[str, Params],
        rate: Tensor | None,
    ) -> Self:
        """Create the view of ``members``: a step updates ``kept`` and ``momenta`` in place.

        ``rate`` is the learning rate as a tensor, None for the number in ``training``; see ``learning_rate``.
        """
        return cls(members, kept, momenta, Leaves(many, training, len(members), kept, momenta, rate))

    @property
    def tensors(self) -> Params:
        """Views of ``kept`` in the layers' layout."""
        return self.leaves.tensors

    @property
    def live(self) -> Params:
        """The trainable ones of ``tensors``."""
        return self.leaves.live

    def gradients(self) -> Params:
        """The gradients, by name, in the layers' layout."""
        return {name: p.grad for name, p in self.live.items() if p.grad is not None}

    def everything(self) -> list[Tensor]:
        """All tensors that a step updates, in an order that is the same for views of equally many clients."""
        return [*self.kept.values(), *(t for stored in self.momenta.values() for t in stored.values())]


def learning_rate(training: Training, network: Network) -> Tensor | None:
    """The rate as a tensor on the network's device, so that recorded steps follow a rate that changes between rounds.

    None on a CPU, where nothing is recorded, and in float64: the kernel reads such a rate as float32.
    """
    if network.device.type == "cpu" or network.dtype != torch.float32:
        return None
    return onto(torch.tensor(training.lr, dtype=torch.float32), network.device)


@dataclass(frozen=True)
class Stepper:
    """Runs steps; holds everything they need besides the members' tensors and the batch."""

    job: LocalTraining
    network: Network
    many: StackedNetwork
    objective: Objective
    rate: Tensor | None = None  # the learning rate, where it is a tensor
    compiled: bool = False  # whether steps of full batches run compiled code
    masks: Sequence[torch.Generator] = ()  # by rank, what dropout draws from; empty if the network has none

    def __call__(self, view: View, batch: Batch) -> Tensor:
        """Update the members' tensors; return the losses before the step, [K] or rows [K, B]."""
        if self.network.has_batch_norm:  # a batch of one has no statistics: use the running ones
            self.mode(training=batch.labels.shape[1] > 1)
        compiled = self.compiled and batch.labels.shape[1] == self.job.training.batch_size
        leaves, tensors = view.leaves, view.leaves.tensors
        optimizer = leaves.rounded if compiled and self._rounds else leaves.optimizer
        self.many.bind(self._weights(tensors, optimizer))
        if self.masks:
            self.many.draw_from([self.masks[k] for k in view.members])
        leaves.without_gradients()
        with self.network.autocast():
            outputs = self.many.outputs(batch.inputs, len(view.members), compiled=compiled)
            self.network.count(batch.labels.numel())
            loss = self.objective.loss(view.members, tensors, outputs, batch)
        backward(loss, 1 / loss.shape[1] if loss.dim() == 2 else 1.0)  # losses [K], or rows [K, B]
        self.many.bind(tensors)
        if self.job.gradient is not None:
            self._transform(view, Outputs({name: t.detach() for name, t in outputs.items()}), batch)
        if self.job.training.clip is not None:
            clip(list(view.gradients().values()), len(view.members), self.job.training.clip)
        before = {name: p.detach().clone() for name, p in view.live.items()} if self.job.updates else {}
        optimizer.step()
        if self.job.updates:
            self._update(view, before, Outputs({name: t.detach() for name, t in outputs.items()}), batch)
        if self.objective.followers:
            self.objective.stepped(view.members, self._by_client(view, tensors))
        return loss.detach()

    @property
    def _rounds(self) -> bool:
        """Whether a compiled optimiser steps: on gradients as the backward pass leaves them, in mixed precision."""
        job = self.job
        return at_once(self.network.placement) and job.gradient is None and job.training.clip is None

    def _weights(self, tensors: Params, optimizer: FusedSgd | FusedAdam | CompiledUpdate) -> Params:
        """The tensors that a step computes with."""
        if isinstance(optimizer, CompiledUpdate):
            return {**tensors, **optimizer.copies}
        return self.many.in_bfloat16(tensors) if at_once(self.network.placement) else tensors

    def mode(self, *, training: bool) -> None:
        """Set the mode of both networks."""
        for module in (self.many.module, self.network.module):
            if module.training != training:
                module.train(training)

    def _transform(self, view: View, outputs: Outputs, batch: Batch) -> None:
        """Replace the gradients by the gradient transform's version of them."""
        tensors = {name: t.detach() for name, t in view.tensors.items()}
        gradients = self._by_client(view, view.gradients())
        for name, new in self.objective.transformed(view.members, tensors, outputs, batch, gradients).items():
            view.live[name].grad = self.many.leaf(name, self.many.kept(name, new))

    def _update(self, view: View, before: Params, outputs: Outputs, batch: Batch) -> None:
        """Replace the optimiser's update by the gradient transform's version of it."""
        tensors = {name: t.detach() for name, t in view.tensors.items()}
        moved = [self._by_client(view, of) for of in (before, view.live, view.gradients())]
        for name, new in self.objective.updated(view.members, tensors, outputs, batch, *moved).items():
            tensors[name].copy_(self.many.leaf(name, self.many.kept(name, new)))

    def _by_client(self, view: View, tensors: Params) -> Params:
        """Tensors in the layers' layout as [K, *shape]."""
        return {name: self.many.client(name, t.detach(), len(view.members)) for name, t in tensors.items()}


def clip(gradients: Sequence[Tensor], clients: int, most: float) -> None:
    """Scale each client's gradients down, in place, to a norm of ``most``, as ``torch.nn.utils.clip_grad_norm_`` does.

    Args:
        gradients: in the layers' layout, the clients side by side in the first dimension.
        clients: number of clients in each.
        most: largest norm over all of a client's gradients.
    """
    dense = [gradient if gradient.is_contiguous() else gradient.permute(0, 2, 3, 1) for gradient in gradients]
    rows = [gradient.view(clients, -1) for gradient in dense]
    if not rows:
        return
    norms = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows]), dim=0)
    scale = (most / (norms + 1e-6)).clamp(max=1.0)
    for row in rows:
        row.mul_(scale[:, None])


def summed(losses: Sequence[Tensor]) -> Tensor:
    """Sum each client's losses over steps, float64 [K]; rows [K, B] are averaged over B first."""
    together = torch.stack(list(losses))
    return (together if together.dim() == 2 else together.mean(2)).double().sum(0)
