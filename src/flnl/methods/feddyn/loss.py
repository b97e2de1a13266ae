"""FedDyn's dynamic regulariser: corrects each client's objective by the sum of its earlier updates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flnl.core.messages import ClientTask, Fit
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.optimizer import SGD
from flnl.core.parts import LossTerm, Part, Setting
from flnl.core.payload import is_learned
from flnl.core.ranges import NonNegative, Positive
from flnl.core.step import Step
from flnl.numerics.distance import squared_distance


class ServerPart:
    """Marker base class of FedDyn's server update, by which the loss term checks that it is present."""


@dataclass(frozen=True)
class FedDyn(LossTerm):
    """``α_k ⟨w − θ_t, h_k⟩ + (α_k/2) ‖w − θ_t‖²`` with θ_t the received model (Acar et al. 2021, Algorithm 1).

    ``h_k ← h_k + (θ_k − θ_t)`` after each visit, from zero, so that ``−α_k h_k`` is the gradient of the client's loss
    at the point where its training stopped. Parameters only. Use it with ``method/server=feddyn``.

    α_k is α, or ``α · mean_samples / n_k`` if ``mean_samples``, the mean number of samples per client, is set: then the
    fixed point is the optimum of the sample-weighted loss, as in the authors' program.

    State: ``h``, by parameter name, on the CPU between visits; ``alpha``, a scalar. It starts over where a stage
    restarts from the initial model: the updates that it sums have led to another one.
    """

    restarts: ClassVar[bool] = True
    copies: ClassVar[float] = 1

    alpha: NonNegative
    mean_samples: Positive | None

    def lacks(self, stage: Sequence[Part]) -> Sequence[str]:
        """The server update: without it, the clients' objectives have no common fixed point."""
        return () if any(isinstance(part, ServerPart) for part in stage) else ("method/server=feddyn",)

    def caution(self, setting: Setting) -> str | None:
        """Warns of another optimiser than SGD."""
        if isinstance(setting.training.optimizer, SGD):
            return None
        name = type(setting.training.optimizer).__name__
        return f"{setting.key}: FedDyn is for SGD; a memory of steps of {name} is no sum of gradients"

    def begin(self, network: Model, task: ClientTask, state: dict[str, Any] | None) -> dict[str, Any]:
        """At the first visit, ``h`` = 0 and the client's α_k."""
        if state is not None:
            return state
        learned = {name: torch.zeros_like(p) for name, p in task.broadcast.params.items() if is_learned(name, p)}
        share = 1.0 if self.mean_samples is None else self.mean_samples / len(task.samples)
        return {"h": learned, "alpha": next(iter(learned.values())).new_full((), self.alpha * share)}

    def __call__(self, step: Step, state: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """The regulariser, a scalar; the returned ``h`` is on the parameters' device."""
        received = step.broadcast.params
        h = {name: onto(state["h"][name], p) for name, p in step.params.items()}
        alpha = onto(state["alpha"], next(iter(h.values())))
        linear = torch.stack([((p - received[name]) * h[name]).sum() for name, p in step.params.items()]).sum()
        loss = alpha * linear + alpha / 2 * squared_distance(step.params, received)
        return loss, {"h": {**state["h"], **h}, "alpha": alpha}

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: dict[str, Any]) -> dict[str, Any]:
        """The state with ``h_k + (θ_k − θ_t)``."""
        received = task.broadcast.params
        h = {name: h.cpu() + (fit.params[name] - received[name]).cpu() for name, h in state["h"].items()}
        return {"h": h, "alpha": state["alpha"].cpu()}
