"""FedStabilize's server update: the model that is evaluated classifies by prototypes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from flnl.core.parts import Part, ServerUpdate, Setting
from flnl.core.payload import Params
from flnl.methods.fedstabilize.prototypes import Prototypes, head_of, why_no_prototypes


@dataclass(frozen=True)
class PrototypeHead(ServerUpdate):
    """The combined model is the next one; ``keep=true``: the received one is, and what clients have trained is dropped.

    The class that is predicted is that of the prototype of largest cosine to the features: the model that is evaluated
    and saved has the prototypes as weights of its last layer, and no bias. ``prediction=head``: its own last layer.
    """

    networks: ClassVar[int | None] = 1
    prediction: Literal["prototypes", "head"]
    keep: bool
    prototypes: Prototypes

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        return why_no_prototypes(network)

    def init(self, params: Params) -> Tensor:
        """The prototypes [K, d]."""
        return self.prototypes.of(params)

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Tensor
    ) -> tuple[Params, Tensor]:
        return params if self.keep else combined, state

    def shown(self, params: Params, state: Tensor) -> Params:
        name = head_of(params)
        if self.prediction == "head" or name is None:
            return params
        bias = f"{name.removesuffix('weight')}bias"
        zero = {bias: torch.zeros_like(params[bias])} if bias in params else {}
        return {**params, name: state.to(params[name]), **zero}
