"""The interface of the network for parts of a method: a model whose parameters are loaded before use."""

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
    """Marker base class of a run's network, which executors receive at construction."""


class Model(Protocol):
    """The process's network, as exchanges, correctors, batch rules and client jobs see it.

    Outputs are computed in eval mode, in full precision, without gradients, and without augmentation unless a random
    stream for it is given. Loaded parameters stay loaded until the next ``load``, or the end of a call
    during a visit: what one part loads, no other sees.
    """

    @property
    def num_classes(self) -> int:
        """K, the number of classes."""

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of parameters and inputs: float32, or float64 under ``precision=64``."""

    @property
    def normalisation(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, [C, 1, 1] each: inputs are ``(pixel - mean) / std`` of pixels in [0, 1]."""

    def load(self, params: Params) -> None:
        """Write ``params`` into the model, in place."""

    def params(self) -> Params:
        """A copy of the loaded parameters, with buffers."""

    def trainable(self) -> Params:
        """The parameters that training changes, by name (not copies): no buffers, and none that are frozen."""

    def logits(self, samples: Samples, augment: np.random.Generator | None = None, *, output: str = LOGITS) -> Tensor:
        """Outputs of the loaded parameters on ``samples``, on the CPU, in the order of the samples.

        ``output`` is ``logits`` [n, K], ``features`` [n, d], or ``first`` or ``second`` of a pair of networks.
        """

    def scored(self, inputs: Tensor) -> Tensor:
        """Logits [B, K] of the loaded parameters on ``inputs`` [B, C, H, W], on the device."""

    def outputs(self, images: Images, index: Tensor, *, output: str = LOGITS) -> Tensor:
        """As ``logits``, for the images at ``index`` [n]."""

    def received(self, task: ClientTask, augment: np.random.Generator | None = None, *, output: str = LOGITS) -> Tensor:
        """As ``logits``, for the model that ``task`` received, whatever is loaded now.

        Without augmentation, it is computed once per task.
        """

    def frozen(self, broadcast: Broadcast) -> Callable[[Tensor], Tensor]:
        """The model received with ``broadcast``, from inputs [B, C, H, W] to outputs [B, K], whatever is loaded now.

        There is only one such model: calling a later result of this method changes the model of earlier results.
        """
