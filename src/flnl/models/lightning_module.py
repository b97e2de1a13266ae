"""A user's own LightningModule: the loss of its ``training_step``, and what of it a run uses.

Its ``forward`` gives logits, as any module's. Lightning's Trainer does not take part in a run, so nothing else of the
module is called: batches, rounds and the optimiser are the run's. Lightning is not imported here, which takes seconds.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor, nn

from flnl.core.errors import UserError

PACKAGES = ("lightning", "pytorch_lightning")
"""The packages that have a ``LightningModule``; they are two names of one program."""
NOT_CALLED = (
    *("configure_optimizers", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step"),
    *("configure_gradient_clipping", "backward", "on_before_backward", "on_after_backward"),
    *("on_before_zero_grad", "on_before_optimizer_step", "setup", "configure_model", "on_fit_start"),
    *("on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end", "on_train_epoch_end"),
    *("on_train_end", "on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"),
)
"""What a Trainer would call while it trains."""


def _base(module: nn.Module) -> type | None:
    """Lightning's class, if ``module`` is one of its modules; None otherwise."""
    for kind in type(module).__mro__:
        if kind.__name__ == "LightningModule" and kind.__module__.split(".")[0] in PACKAGES:
            return kind
    return None


def _overrides(module: nn.Module, name: str) -> bool:
    base = _base(module)
    return base is not None and getattr(type(module), name, None) is not getattr(base, name, None)


def has_training_step(module: nn.Module) -> bool:
    """Whether the module is a LightningModule with a ``training_step`` of its own."""
    return _overrides(module, "training_step")


def not_called(module: nn.Module) -> list[str]:
    """Names of the methods that a Trainer would call while it trains, and that the module defines itself."""
    return [name for name in NOT_CALLED if _overrides(module, name)]


def why_no_loss(module: nn.Module) -> str | None:
    """Why the module has no loss of its own to train by, in one line; None if it has one."""
    name = type(module).__name__
    if _base(module) is None:
        return f"the network, a {name}, is no LightningModule"
    if not has_training_step(module):
        return f"the network, {name}, has no training_step"
    if not getattr(module, "automatic_optimization", True):
        return f"{name} has automatic_optimization=False: the run takes the optimiser's steps, so it must be True"
    return None


@cache
def _takes_number(training_step: Callable[..., Any]) -> bool:
    """Whether a class's ``training_step`` has a second argument, the number of the batch."""
    try:
        inspect.signature(training_step).bind("module", "batch", "number")
    except TypeError:
        return False
    return True


def training_loss(module: nn.Module, inputs: Tensor, labels: Tensor, number: int) -> Tensor:
    """The loss that the module's ``training_step`` gives for a batch, a scalar.

    It is called with ``(inputs, labels)`` and, if it takes it, the number of the batch. Values that it logs go nowhere.

    Raises:
        UserError: if it gives no scalar, or asks for the Trainer.
    """
    name = type(module).__name__
    kind: Any = type(module)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="You are trying to `self.log")
        try:
            further = (number,) if _takes_number(kind.training_step) else ()
            given = kind.training_step(module, (inputs, labels), *further)
        except RuntimeError as error:
            if "not attached to a `Trainer`" in str(error):
                raise UserError(f"{name}.training_step asks for its Trainer, but a run has none") from error
            raise
    loss = given.get("loss") if isinstance(given, dict) else given
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        what = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise UserError(f"{name}.training_step gives {what}; it must return the loss of the batch, a scalar tensor")
    return loss.reshape(())
