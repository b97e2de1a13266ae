"""The loss of the network's own ``training_step``, for a LightningModule of the user's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from flnl.core.errors import UserError
from flnl.core.parts import BatchRule, LossTerm, Part, Setting
from flnl.core.step import Step
from flnl.models.lightning_module import why_no_loss

MIXED = "training_step gets the labels of single samples, but {} mixes them; use method/batch=plain"


@dataclass(frozen=True)
class TrainingStep(LossTerm):
    """What ``training_step((inputs, labels), number)`` returns, a scalar; labels are the client's current ones.

    It replaces cross-entropy and goes with terms that add to it, such as a proximal term. Samples cannot be weighted or
    mixed: the loss of a batch is one number.
    """

    fits_labels: ClassVar[bool] = True
    networks: ClassVar[int | None] = 1
    alone: ClassVar[str | None] = "asks the network for its loss, of one client's batch"

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        """Why the network's loss cannot be used: it has none, or batches are mixed."""
        mixing = [part for part in stage if getattr(type(part), "mixing", BatchRule.mixing) is not BatchRule.mixing]
        return why_no_loss(network) or (MIXED.format(type(mixing[0]).__name__) if mixing else None)

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        if step.mixing is not None:
            raise UserError(MIXED.format("the batch rule"))
        if step.weight is not None:
            raise UserError("training_step gives one loss for a batch, but this method weights samples")
        return step.passes.training_loss(step.inputs, step.labels, step.number), state
