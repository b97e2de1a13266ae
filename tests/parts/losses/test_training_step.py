"""The loss that a LightningModule of the user's own computes."""

import copy
from dataclasses import replace
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.core.errors import UserError
from flnl.core.messages import Broadcast
from flnl.core.parts import Setting
from flnl.core.step import Mixing
from flnl.data.transforms import Transform
from flnl.engine.network import Network
from flnl.engine.placement import placement_for
from flnl.models.lightning_module import not_called
from flnl.parts.batches import Mixup, Plain
from flnl.parts.losses.training_step import TrainingStep
from tests.toys import ONE_STEP
from tests.toys import step as toy_step


class Doubled(L.LightningModule):
    """Its loss is twice the cross-entropy, plus the number of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, 2]."""
        logits: Tensor = self.layer(inputs.flatten(1))
        return logits

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The loss, logged."""
        inputs, labels = batch
        loss = 2 * F.cross_entropy(self(inputs), labels) + batch_idx
        self.log("loss", loss)
        return loss


class Named(Doubled):
    """Its loss is in a dictionary; it does not take the number of the batch; it has an optimiser of its own."""

    def training_step(self, batch: Any) -> Any:  # type: ignore[override]
        """The loss by name."""
        return {"loss": super().training_step(batch, 0), "more": 1}

    def configure_optimizers(self) -> Any:
        """Adam."""
        return torch.optim.Adam(self.parameters())


class Rows(Doubled):
    """Gives a loss for each sample."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """[B]."""
        return F.cross_entropy(self(batch[0]), batch[1], reduction="none")


class Nothing(Doubled):
    """Gives nothing."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """None."""


class Asking(Doubled):
    """Asks for its Trainer."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """As many as there are."""
        return self.trainer.max_epochs


class Manual(Doubled):
    """Takes steps itself."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class NoStep(L.LightningModule):
    """Without a loss."""


def step_of(module: nn.Module, **changes: Any) -> Any:
    """A step on five images in which ``module`` is trained."""
    network = Network(module, Transform((2, 2), (0.0,), (1.0,), 1.0), 2, placement_for("cpu", 32))
    passes = network.passes(Broadcast(0, 1, network.params()))
    values: dict[str, Any] = {
        "inputs": torch.randn(5, 1, 2, 2),
        "labels": torch.tensor([0, 1, 1, 0, 1]),
        "number": 3,
    } | changes
    return replace(toy_step(logits=torch.zeros(5, 2)), passes=passes, **values)


@pytest.mark.parametrize(("kind", "number"), [(Doubled, 3), (Named, 0)])
def test_the_loss_is_that_of_the_training_step(kind: type[Doubled], number: int) -> None:
    step = step_of(kind())
    loss, state = TrainingStep()(step, "kept")
    module = step.passes.network.module
    torch.testing.assert_close(loss, 2 * F.cross_entropy(module(step.inputs), step.labels) + number)
    assert loss.shape == ()
    assert state == "kept"
    loss.backward()
    assert module.layer.weight.grad is not None


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Rows, r"Rows.training_step gives a tensor \[5\]; it must return the loss of the batch, a scalar tensor"),
        (Nothing, "Nothing.training_step gives a NoneType; it must"),
        (Asking, "Asking.training_step asks for its Trainer, but a run has none"),
    ],
)
def test_what_is_no_loss(kind: type[Doubled], words: str) -> None:
    with pytest.raises(UserError, match=words):
        TrainingStep()(step_of(kind()), None)


def test_one_number_cannot_be_mixed_or_weighted() -> None:
    with pytest.raises(UserError, match="use method/batch=plain"):
        TrainingStep()(step_of(Doubled(), mixing=Mixing(0.5, torch.arange(5))), None)
    with pytest.raises(UserError, match="this method weights samples"):
        TrainingStep()(step_of(Doubled(), weight=torch.ones(5)), None)


def test_networks_and_stages_that_it_refuses() -> None:
    part, plain, setting = TrainingStep(), Plain(), Setting({0: 4}, (3,), ONE_STEP)
    assert part.refuses(Doubled(), [part, plain], setting) is None
    assert "is no LightningModule" in str(part.refuses(nn.Linear(2, 2), [part, plain], setting))
    assert "NoStep, has no training_step" in str(part.refuses(NoStep(), [part, plain], setting))
    assert "automatic_optimization=False" in str(part.refuses(Manual(), [part, plain], setting))
    assert "Mixup mixes them; use method/batch=plain" in str(
        part.refuses(Doubled(), [part, Mixup(1.0, True, None)], setting)
    )


def test_hooks_that_nothing_calls() -> None:
    assert not_called(Named()) == ["configure_optimizers"]
    assert not_called(Doubled()) == []
    assert not_called(nn.Linear(2, 2)) == []
    assert not_called(copy.deepcopy(Named())) == ["configure_optimizers"]
