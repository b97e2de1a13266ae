"""The client's model as a LightningModule: a training step and an optimiser, driven by the loop in ``sgd``.

The training step is a pure function of its argument: no ``self.log``, no state, no branch on a tensor's value.

Importing Lightning takes as long as importing torch, so only what trains clients one by one imports this module.
"""

import lightning as L
from torch import Tensor, nn

from flnl.core.step import Step
from flnl.core.training import Training
from flnl.engine.local.objective import Objective
from flnl.engine.local.optimizer import Adam, Buffers, Sgd, made


class ClientModule(L.LightningModule):
    """Local training of one client, under Lightning's method names."""

    def __init__(self, module: nn.Module, training: Training, buffers: Buffers | None = None) -> None:
        """``buffers``: those of the optimiser beside each parameter, updated in place; None to start from zero."""
        super().__init__()
        self.module = module
        self.training_settings = training
        self._kept = buffers

    def training_step(self, step: Step, objective: Objective) -> Tensor:
        """The objective on one batch, a scalar or [B]."""
        return objective(step)

    def configure_optimizers(self) -> Sgd | Adam:
        """The optimiser of the trainable parameters; new for every client and round."""
        return made(self.training_settings, [p for p in self.module.parameters() if p.requires_grad], self._kept)
