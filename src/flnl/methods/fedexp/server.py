"""FedExP's server update: train from the last iterate, evaluate the mean of the last two."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from flnl.core.parts import ServerUpdate
from flnl.core.payload import Params


@dataclass(frozen=True)
class LastTwo(ServerUpdate):
    """The combined model is the next one; what is evaluated and saved is ``(θ_t + θ_{t+1}) / 2``.

    Extrapolated iterates oscillate, and their mean does not. Running statistics are averaged, too; integer buffers are
    those of the last. ``evaluate=last`` evaluates the model that is sent next. The state is the model before it.
    """

    restarts: ClassVar[bool] = True

    evaluate: Literal["mean", "last"]

    def init(self, params: Params) -> Params:
        return params

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Params
    ) -> tuple[Params, Params]:
        return combined, params

    def shown(self, params: Params, state: Params) -> Params:
        """The mean of the last two models, or the last one."""
        if self.evaluate == "last":
            return params
        return {
            name: ((state[name].to(p).double() + p.double()) / 2).to(p.dtype) if p.is_floating_point() else p
            for name, p in params.items()
        }
