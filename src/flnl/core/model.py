"""What a part may ask of the network that it is lent: a model whose parameters are loaded before it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from flnl.core.step import LOGITS

if TYPE_CHECKING:
    from flnl.core.images import Images
    from flnl.core.messages import Broadcast, ClientTask, Samples
    from flnl.core.payload import Params


class RunModel:
    """Marks the network of a run, which executors are given when they are made."""


class Model(Protocol):
    """The network of a process, as exchanges, correctors, batch rules and jobs of clients see it.

    Outputs are taken in eval mode, in full precision, without gradients and without augmentation unless a stream for it
    is given. Whoever loads parameters leaves them loaded.
    """

    @property
    def num_classes(self) -> int:
        """K, the number of classes."""

    @property
    def device(self) -> torch.device:
        """Where the parameters lie."""

    @property
    def dtype(self) -> torch.dtype:
        """Of parameters and inputs: float32, or float64 under ``precision=64``."""

    def load(self, params: Params) -> None:
        """Write ``params`` into the model, in place."""

    def params(self) -> Params:
        """A copy of what is loaded now."""

    def logits(self, samples: Samples, augment: np.random.Generator | None = None, *, output: str = LOGITS) -> Tensor:
        """Outputs of the loaded parameters on ``samples``, on the CPU, in the order of the samples.

        ``output`` names which: ``logits`` [n, K], ``features`` [n, d], or ``first`` and ``second`` of a pair of
        networks.
        """

    def outputs(self, images: Images, index: Tensor, *, output: str = LOGITS) -> Tensor:
        """As ``logits``, of the images at ``index`` [n]."""

    def received(self, task: ClientTask, augment: np.random.Generator | None = None, *, output: str = LOGITS) -> Tensor:
        """As ``logits``, of the model that ``task`` brought, whatever is loaded now; computed once a task."""

    def frozen(self, broadcast: Broadcast) -> Callable[[Tensor], Tensor]:
        """The model that ``broadcast`` brought, from inputs [B, C, H, W] to outputs [B, K], whatever is loaded now.

        There is one at a time: what this gave before is another model once the next has been called.
        """
