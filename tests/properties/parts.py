"""Parts that remember, as later methods will: a server with momentum, a term with state a client, a choice of samples.

They are no method of anybody's. They stand in the registry so that every slot of the state is saved, gone on from and
independent of order, before a method that needs it exists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flnl.core.messages import ClientTask, Fit
from flnl.core.model import Model
from flnl.core.parts import BatchRule, GradientTransform, LossTerm, Selection, ServerUpdate
from flnl.core.payload import Params
from flnl.core.step import Step


@dataclass(frozen=True)
class Momentum(ServerUpdate):
    """The server goes on in the direction of its last steps; its state is the velocity."""

    beta: float

    def init(self, params: Params) -> Any:
        return {name: torch.zeros_like(p) for name, p in params.items() if p.is_floating_point()}

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Any
    ) -> tuple[Params, Any]:
        velocity = {name: self.beta * v + combined[name] - params[name] for name, v in state.items()}
        return {
            name: params[name] + velocity[name] if name in velocity else p for name, p in combined.items()
        }, velocity


@dataclass(frozen=True)
class Pull(LossTerm):
    """Pulls the parameters towards where this client last left them, and counts its visits and its batches."""

    strength: float

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        if state is not None:
            return state
        start = {name: p.clone() for name, p in task.broadcast.params.items()}
        return {"last": start, "seen": torch.zeros(len(task.samples)), "visits": 0}

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        far = torch.stack([(p - state["last"][name]).square().sum() for name, p in step.params.items()]).sum()
        seen = state["seen"].clone()
        seen[step.positions] += 1
        return self.strength * (1 + state["visits"]) * far, {**state, "seen": seen}

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        return {**state, "last": fit.params, "visits": state["visits"] + 1}


@dataclass(frozen=True)
class Scaled(GradientTransform):
    """Gradients times a number."""

    by: float

    def __call__(self, gradients: Mapping[str, Tensor], step: Step) -> Mapping[str, Tensor]:
        return {name: self.by * gradient for name, gradient in gradients.items()}


@dataclass(frozen=True)
class HalfTheSamples(BatchRule):
    """Another half of the samples each epoch, those with the largest outputs first."""

    def select(self, network: Model, task: ClientTask, epoch: int) -> Selection | None:
        scores = network.logits(task.samples).max(1).values
        half = torch.argsort(scores, descending=True, stable=True)[: (len(task.samples) + 1) // 2]
        chosen = task.stream("half", epoch).permutation(len(half))
        return Selection(half[torch.from_numpy(chosen)].sort().values)
