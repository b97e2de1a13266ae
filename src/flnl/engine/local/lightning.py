"""The client's model as a LightningModule: a training step and an optimiser, driven by the loop in ``sgd``.

The training step is a pure function of its argument: no ``self.log``, no state, no branch on a tensor's value.

Importing Lightning takes as long as importing torch, so only what trains clients one by one imports this module.
"""

from collections.abc import Mapping

import lightning as L
from torch import Tensor, nn

from flnl.config.schema import Training
from flnl.core.step import Step
from flnl.engine.local.objective import Objective
from flnl.engine.local.optimizer import Sgd


class ClientModule(L.LightningModule):
    """Local training of one client, under Lightning's method names."""

    def __init__(self, module: nn.Module, training: Training, momenta: Mapping[Tensor, Tensor] | None = None) -> None:
        """``momenta``: each trainable parameter's momentum buffer, updated in place; None to start from zero."""
        super().__init__()
        self.module = module
        self.training_settings = training
        self._momenta = momenta

    def training_step(self, step: Step, objective: Objective) -> Tensor:
        """The objective on one batch, a scalar or [B]."""
        return objective(step)

    def configure_optimizers(self) -> Sgd:
        """SGD on the trainable parameters; new for every client and round."""
        return Sgd([p for p in self.module.parameters() if p.requires_grad], self.training_settings, self._momenta)
