"""The interface of the network for parts of a method: the model that is loaded, the received one, and any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


class Another(Protocol):
    """A model with the network's architecture, besides the one that is loaded."""

    def outputs(
        self, samples: Samples, augment: np.random.Generator | None = None, names: Sequence[str] = (LOGITS,)
    ) -> Mapping[str, Tensor]:
        """Its outputs on ``samples`` by name, in one pass; otherwise as ``Model.logits``."""


class Model(Protocol):
    """The process's network, as exchanges, correctors, batch rules and client jobs see it.

    Outputs are computed in eval mode, in full precision, without gradients, and without augmentation unless a random
    stream for it is given. What is loaded is the engine's choice; parts ask other models by ``at`` and ``received``.
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

    def params(self) -> Params:
        """A copy of the loaded parameters, with buffers."""

    def trainable(self) -> Params:
        """The parameters that training changes, by name (not copies): no buffers, and none that are frozen."""

    def logits(self, samples: Samples, augment: np.random.Generator | None = None, *, output: str = LOGITS) -> Tensor:
        """Outputs of the loaded parameters on ``samples``, on the CPU, in the order of the samples.

        ``output`` is ``logits`` [n, K], ``features`` [n, d], or ``first`` or ``second`` of a pair of networks.
        """

    def prepare(self, stored: Tensor) -> Tensor:
        """The network's inputs, on the device, of samples as they are stored [b, ...], without augmentation."""

    def scored(self, inputs: Tensor) -> Tensor:
        """Logits [B, K] of the loaded parameters on ``inputs`` [B, C, H, W], on the device."""

    def outputs(self, images: Images, index: Tensor, *, output: str = LOGITS) -> Tensor:
        """As ``logits``, for the images at ``index`` [n]."""

    def received(self, task: ClientTask, augment: np.random.Generator | None = None, *, output: str = LOGITS) -> Tensor:
        """As ``logits``, for the model that ``task`` received, whatever is loaded now.

        Without augmentation, it is computed once per task.
        """

    def at(self, params: Params) -> Another:
        """The model with these parameters and buffers, such as one that another client has sent; loads nothing."""

    def frozen(self, broadcast: Broadcast, *, output: str = LOGITS) -> Callable[[Tensor], Tensor]:
        """One output of the model received with ``broadcast``, from inputs [B, C, H, W], whatever is loaded now.

        There is only one such model: calling a later result of this method changes the model of earlier results.
        """
