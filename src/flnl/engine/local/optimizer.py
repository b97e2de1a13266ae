"""Torch's fused SGD kernel without the overhead of ``torch.optim`` around it."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from flnl.config.schema import Training


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

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that has a gradient."""
        parameters, momenta = self.parameters, self.momenta
        gradients = [p.grad for p in parameters if p.grad is not None]
        if len(gradients) < len(parameters):
            reached = [i for i, p in enumerate(parameters) if p.grad is not None]
            parameters = [parameters[i] for i in reached]
            momenta = [momenta[i] for i in reached] if momenta else momenta
        if gradients:
            torch._fused_sgd_(parameters, gradients, momenta, **self._settings)


class Sgd(torch.optim.SGD):
    """``FusedSgd`` as one of torch's optimisers, as a LightningModule must return it."""

    def __init__(
        self, parameters: Iterable[Tensor], training: Training, momenta: Mapping[Tensor, Tensor] | None = None
    ) -> None:
        """Create the optimiser; the arguments are those of ``FusedSgd``."""
        super().__init__(parameters, training.lr, training.momentum, weight_decay=training.weight_decay, fused=True)
        self._fused = FusedSgd(self.param_groups[0]["params"], training, momenta)
        for parameter, momentum in zip(self._fused.parameters, self._fused.momenta, strict=False):
            self.state[parameter]["momentum_buffer"] = momentum

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch returns a closure's loss
        """Update every parameter that has a gradient."""
        assert closure is None
        self._fused.step()

    step.hooked = True  # type: ignore[attr-defined]  # keeps torch from wrapping it in a profiler record
