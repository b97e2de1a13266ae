"""FedDyn's server update: the combined model plus the mean of all clients' accumulated updates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from flnl.core.parts import Aggregator, Part, ServerUpdate
from flnl.core.payload import Params, is_learned
from flnl.methods.feddyn.loss import FedDyn as FedDynTerm
from flnl.methods.feddyn.loss import ServerPart

UNIFORM = ("method/aggregator=uniform_mean",)


@dataclass(frozen=True)
class FedDyn(ServerPart, ServerUpdate):
    """The combined model plus the mean of all clients' accumulated updates (FedDyn, Acar et al. 2021).

    ``θ_{t+1} = θ̄ + H`` with ``H ← H + (|S|/N) (θ̄ − θ_t)`` and θ̄ the combined model: if θ̄ is the unweighted mean of the
    cohort S, then H is the mean over all N clients of the ``h_k`` kept by the loss term ``feddyn``. Running statistics
    and integer buffers are those of the combined model. The state is H, by parameter name. Like the ``h_k``, it is 0
    again where a stage restarts from the initial model.

    ``evaluate=server`` evaluates the model that is sent next, which the paper returns; ``cohort`` evaluates the
    combined model, as the authors' program does.
    """

    restarts: ClassVar[bool] = True

    evaluate: Literal["server", "cohort"]

    def lacks(self, stage: Sequence[Part]) -> Sequence[str]:
        """The loss term that keeps ``h_k``, and an unweighted mean as aggregator."""
        term = any(isinstance(part, FedDynTerm) for part in stage)
        by_samples = any(isinstance(part, Aggregator) and part.by_samples for part in stage)
        return (() if term else ("method/local=[...,feddyn]",)) + (UNIFORM if by_samples else ())

    def init(self, params: Params) -> Params:
        return {name: torch.zeros_like(p) for name, p in params.items() if is_learned(name, p)}

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Params
    ) -> tuple[Params, Params]:
        share = len(cohort) / clients
        moved = {name: h.to(params[name]) + share * (combined[name] - params[name]) for name, h in state.items()}
        return {name: p + moved[name] if name in moved else p for name, p in combined.items()}, moved

    def shown(self, params: Params, state: Params) -> Params:
        """``θ_{t+1} − H``, the combined model, under ``evaluate=cohort``."""
        if self.evaluate == "server":
            return params
        return {name: p - state[name].to(p) if name in state else p for name, p in params.items()}
