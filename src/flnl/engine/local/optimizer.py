"""Stochastic gradient descent as torch has it, with nothing around its kernel."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from flnl.config.schema import Training


class Sgd(torch.optim.SGD):
    """``torch.optim.SGD(fused=True)`` to the bit, for parameters of one device and type.

    What torch does around the kernel at every step (hooks, a profiler's record, sorting parameters by device and type)
    takes a third of a small network's whole step; here a step is the kernel's call. No closure, no gradient scaler.
    Where a parameter's first gradient comes late, the other momenta go on; torch's fused form lets all start anew.
    """

    def __init__(
        self, parameters: Iterable[Tensor], training: Training, momenta: Mapping[Tensor, Tensor] | None = None
    ) -> None:
        """``momenta``: where to keep each parameter's momentum, zeros at first; by default new tensors."""
        super().__init__(parameters, training.lr, training.momentum, weight_decay=training.weight_decay, fused=True)
        self._parameters: list[Tensor] = self.param_groups[0]["params"]
        self._momenta: list[Tensor] = []
        if training.momentum != 0:
            self._momenta = [torch.zeros_like(p) if momenta is None else momenta[p] for p in self._parameters]
            for parameter, momentum in zip(self._parameters, self._momenta, strict=True):
                self.state[parameter]["momentum_buffer"] = momentum
        self._settings: dict[str, Any] = {
            "lr": training.lr,
            "momentum": training.momentum,
            "weight_decay": training.weight_decay,
            "dampening": 0.0,
            "nesterov": False,
            "maximize": False,
            "is_first_step": False,  # a momentum of zeros is what a first step makes
        }

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch returns a closure's loss
        """Move every parameter that has a gradient."""
        assert closure is None
        parameters, momenta = self._parameters, self._momenta
        gradients = [p.grad for p in parameters if p.grad is not None]
        if len(gradients) < len(parameters):
            reached = [i for i, p in enumerate(parameters) if p.grad is not None]
            parameters = [parameters[i] for i in reached]
            momenta = [momenta[i] for i in reached] if momenta else momenta
        if gradients:
            torch._fused_sgd_(parameters, gradients, momenta, **self._settings)

    step.hooked = True  # type: ignore[attr-defined]  # or torch would wrap it in a profiler's record
