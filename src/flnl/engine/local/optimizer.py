"""Torch's fused kernels of optimisers without the overhead of ``torch.optim`` around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from flnl.core import optimizer as settings
from flnl.core.optimizer import MOMENTUM
from flnl.core.training import Training

Buffers = Mapping[str, Mapping[Tensor, Tensor]]
"""The tensor that an optimiser keeps beside each parameter, by the name of the buffer."""


def made(training: Training, parameters: Iterable[Tensor], buffers: Buffers | None = None) -> Sgd | Adam:
    """The optimiser of ``training`` as one of torch's; the arguments and errors are those of ``fused``."""
    kind = training.optimizer
    if isinstance(kind, settings.SGD):
        return Sgd(parameters, training, _momenta(buffers))
    if isinstance(kind, settings.Adam):
        return Adam(parameters, training, kind, buffers)
    raise _unknown(kind)


def fused(
    training: Training,
    parameters: Iterable[Tensor],
    buffers: Buffers | None = None,
    rate: Tensor | None = None,
    clients: int = 1,
) -> FusedSgd | FusedAdam:
    """The kernel of the optimiser of ``training``.

    Args:
        training: its settings.
        parameters: what is trained, of one device and dtype; of several clients, side by side in the first dimension.
        buffers: the tensors to keep each parameter's buffers in; None for zeros.
        rate: scalar float32 tensor on the parameters' device to read the learning rate from at each step.
        clients: number of clients in each parameter.

    Raises:
        TypeError: if there is no such optimiser.
    """
    kind = training.optimizer
    if isinstance(kind, settings.SGD):
        return FusedSgd(parameters, training, _momenta(buffers), rate)
    if isinstance(kind, settings.Adam):
        return FusedAdam(parameters, training, kind, buffers, rate, clients)
    raise _unknown(kind)


def _momenta(buffers: Buffers | None) -> Mapping[Tensor, Tensor] | None:
    return None if buffers is None else buffers.get(MOMENTUM.name)


def _unknown(kind: settings.Optimizer) -> TypeError:
    return TypeError(f"{type(kind).__name__} is no optimiser of local training")


class FusedSgd:
    """One kernel call a step; bit-identical to ``torch.optim.SGD(fused=True)``, on parameters of one device and dtype.

    Torch's work around the kernel (hooks, profiler records, grouping parameters by device and dtype) takes a third of
    a small network's step, and its first optimiser imports torch's compiler, a second that stacks do not need. No
    closure, no gradient scaler. If a parameter gets its first gradient late, the other momenta continue; torch's fused
    form restarts all of them.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        training: Training,
        momenta: Mapping[Tensor, Tensor] | None = None,
        rate: Tensor | None = None,
    ) -> None:
        """Create the optimiser.

        Args:
            parameters: what is trained.
            training: learning rate, momentum and weight decay.
            momenta: the tensors to keep each parameter's momentum in; None for zeros.
            rate: scalar float32 tensor on the parameters' device to read the learning rate from at each step.
        """
        self.parameters = list(parameters)
        self._values = [p.detach() for p in self.parameters]  # so that no step has to turn gradients off
        self.momenta: list[Tensor] = []
        if training.momentum != 0:
            self.momenta = [torch.zeros_like(p) if momenta is None else momenta[p] for p in self.parameters]
        self._settings: dict[str, Any] = {
            "lr": training.lr if rate is None else rate,
            "momentum": training.momentum,
            "weight_decay": training.weight_decay,
            "dampening": 0.0,
            "nesterov": False,
            "maximize": False,
            "is_first_step": False,  # starting from zero momentum gives the same first step
        }

    def at(self, rate: float) -> None:
        """Take the next steps at another learning rate."""
        self._settings["lr"] = rate

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        values, momenta = self._values, self.momenta
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        if len(gradients) < len(values):
            reached = [i for i, p in enumerate(self.parameters) if p.grad is not None]
            values = [values[i] for i in reached]
            momenta = [momenta[i] for i in reached] if momenta else momenta
        if gradients:
            torch._fused_sgd_(values, gradients, momenta, **self._settings)


class FusedAdam:
    """Torch's fused Adam or AdamW in one kernel call; each parameter of each client counts its own steps.

    The bias correction depends on this number, in which the clients of a stack differ. So the kernel is given a slice
    of each parameter for each client.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        training: Training,
        kind: settings.Adam,
        buffers: Buffers | None = None,
        rate: Tensor | None = None,
        clients: int = 1,
    ) -> None:
        """Create the optimiser; the arguments are those of ``fused``. A ``step`` buffer is float32 [clients] or []."""
        self._parameters = list(parameters)
        self._clients = clients

        def kept(name: str) -> list[Tensor]:
            if buffers is not None:
                return [buffers[name][p] for p in self._parameters]
            return [torch.zeros_like(p) for p in self._parameters]

        averages, squares = kept("exp_avg"), kept("exp_avg_sq")
        self._steps = (
            [torch.zeros((), dtype=torch.float32, device=p.device) for p in self._parameters]
            if buffers is None
            else [buffers["step"][p] for p in self._parameters]
        )
        self._pieces = list(zip(*map(self._split, (self._detached(), averages, squares)), strict=True))
        self._counts = [list(t.view(-1).unbind()) for t in self._steps]
        self._kernel = torch._fused_adamw_ if isinstance(kind, settings.AdamW) else torch._fused_adam_
        self._settings: dict[str, Any] = {
            "lr": training.lr if rate is None else rate,
            "beta1": kind.beta1,
            "beta2": kind.beta2,
            "weight_decay": training.weight_decay,
            "eps": kind.eps,
            "amsgrad": False,
            "maximize": False,
        }

    def _detached(self) -> list[Tensor]:
        return [p.detach() for p in self._parameters]

    def _split(self, tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Each tensor's slices by client."""
        if self._clients == 1:
            return [(t,) for t in tensors]
        return [t.split(len(t) // self._clients) for t in tensors]

    def at(self, rate: float) -> None:
        """Take the next steps at another learning rate."""
        self._settings["lr"] = rate

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        reached = [i for i, p in enumerate(self._parameters) if p.grad is not None]
        if not reached:
            return
        gradients = self._split([g for i in reached if (g := self._parameters[i].grad) is not None])
        torch._foreach_add_([self._steps[i] for i in reached], 1)
        pieces = [self._pieces[i] for i in reached]
        parameters, averages, squares = ([t for piece in pieces for t in piece[kind]] for kind in range(3))
        counts = [count for i in reached for count in self._counts[i]]
        flat = [g for of_one in gradients for g in of_one]
        self._kernel(parameters, flat, averages, squares, [], counts, **self._settings)


class Sgd(torch.optim.SGD):
    """``FusedSgd`` as one of torch's optimisers, as a LightningModule must return it."""

    def __init__(
        self, parameters: Iterable[Tensor], training: Training, momenta: Mapping[Tensor, Tensor] | None = None
    ) -> None:
        """Create the optimiser; the arguments are those of ``FusedSgd``."""
        super().__init__(parameters, training.lr, training.momentum, weight_decay=training.weight_decay, fused=True)
        self.fused = FusedSgd(self.param_groups[0]["params"], training, momenta)
        for parameter, momentum in zip(self.fused.parameters, self.fused.momenta, strict=False):
            self.state[parameter]["momentum_buffer"] = momentum

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch returns a closure's loss
        """Update every parameter that has a gradient."""
        assert closure is None
        self.fused.step()

    step.hooked = True  # type: ignore[attr-defined]  # keeps torch from wrapping it in a profiler record


class Adam(torch.optim.Optimizer):
    """``FusedAdam`` as one of torch's optimisers."""

    def __init__(
        self, parameters: Iterable[Tensor], training: Training, kind: settings.Adam, buffers: Buffers | None = None
    ) -> None:
        """Create the optimiser; the arguments are those of ``FusedAdam``."""
        super().__init__(list(parameters), {"lr": training.lr})
        self.fused = FusedAdam(self.param_groups[0]["params"], training, kind, buffers)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch returns a closure's loss
        """Update every parameter that has a gradient."""
        assert closure is None
        self.fused.step()

    step.hooked = True  # type: ignore[attr-defined]  # keeps torch from wrapping it in a profiler record
