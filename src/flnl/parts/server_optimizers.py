"""Server optimisers: the cohort's mean change is a gradient, with which the server takes a step of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from flnl.core.findings import Finding, Scalar
from flnl.core.messages import ClientState
from flnl.core.parts import ServerUpdate
from flnl.core.payload import Params, Payload, is_learned
from flnl.core.ranges import Positive
from flnl.core.stored import stored
from flnl.numerics.roots import square_root

Beta = Annotated[float, Interval(ge=0, lt=1)]
"""Decay of a running average, in [0, 1)."""


@dataclass(frozen=True)
class Momentum(ServerUpdate):
    """``m ← β m + Δ``, ``θ ← θ + η m`` with ``Δ = θ̄ - θ_t`` of the combined model θ̄ (FedAvgM, Hsu et al. 2019).

    A constant Δ moves the model by ``η Δ / (1 - β)`` a round. ``nesterov`` takes the step ``η (Δ + β m)``. Running
    statistics and integer buffers are those of the combined model. At β = 0 and η = 1 it is the combined model to the
    bit. The state is m, by parameter name.
    """

    restarts: ClassVar[bool] = True

    beta: Beta
    rate: Positive
    nesterov: bool

    def init(self, params: Params) -> Params:
        return {name: torch.zeros_like(p) for name, p in params.items() if is_learned(name, p)}

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Params
    ) -> tuple[Params, Params]:
        if self.beta == 0 and self.rate == 1:
            return combined, state
        moved, moments = dict(combined), {}
        for name, kept in state.items():
            change = _change(params, combined, name)
            moment = self.beta * kept.to(change) + change
            step = change + self.beta * moment if self.nesterov else moment
            moved[name] = _stepped(params[name], self.rate * step)
            moments[name] = moment.to(kept.dtype)
        return moved, moments


@stored("AdaptiveState")
class AdaptiveState:
    """The state of an adaptive server optimiser, by parameter name."""

    m: Params
    v: Params
    steps: int


@dataclass(frozen=True)
class Adaptive(ServerUpdate):
    """``m ← β1 m + (1 - β1) Δ``, ``θ ← θ + η m / (√v + τ)`` with ``Δ = θ̄ - θ_t`` (Reddi et al. 2021, Algorithm 2).

    ``rule`` says how v gathers Δ²: ``adam`` ``β2 v + (1 - β2) Δ²``, ``yogi`` ``v - (1 - β2) Δ² sign(v - Δ²)``,
    ``adagrad`` ``v + Δ²``. v starts at τ² or 0. ``bias_correction`` multiplies the step by
    ``√(1 - β2^t) / (1 - β1^t)`` in round t, as some programs do; the paper does not.

    Running statistics and integer buffers are those of the combined model: an adaptive step could make a variance
    negative. While ``|Δ|`` is far above τ, a coordinate moves by about η a round, whatever ``|Δ|`` is.
    """

    restarts: ClassVar[bool] = True

    rule: Literal["adam", "yogi", "adagrad"]
    rate: Positive
    beta1: Beta
    beta2: Beta
    tau: Positive
    v_init: Literal["tau2", "zero"]
    bias_correction: bool

    def init(self, params: Params) -> AdaptiveState:
        zeros = {name: torch.zeros_like(p) for name, p in params.items() if is_learned(name, p)}
        start = self.tau**2 if self.v_init == "tau2" else 0.0
        return AdaptiveState(zeros, {name: torch.full_like(p, start) for name, p in zeros.items()}, 0)

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: AdaptiveState
    ) -> tuple[Params, AdaptiveState]:
        steps = state.steps + 1
        rate = self.rate
        if self.bias_correction:
            gathered = 1.0 if self.rule == "adagrad" else 1 - self.beta2**steps
            rate *= gathered**0.5 / (1 - self.beta1**steps)
        moved, m, v = dict(combined), {}, {}
        for name, kept in state.m.items():
            change = _change(params, combined, name)
            moment = self.beta1 * kept.to(change) + (1 - self.beta1) * change
            square = self._gathered(state.v[name].to(change), change.square())
            moved[name] = _stepped(params[name], rate * moment / (square_root(square) + self.tau))
            m[name], v[name] = moment.to(kept.dtype), square.to(kept.dtype)
        return moved, AdaptiveState(m, v, steps)

    def _gathered(self, v: Tensor, square: Tensor) -> Tensor:
        if self.rule == "adagrad":
            return v + square
        if self.rule == "adam":
            return self.beta2 * v + (1 - self.beta2) * square
        return v - (1 - self.beta2) * square * torch.sign(v - square)

    def findings(
        self, state: AdaptiveState | None, clients: Mapping[int, ClientState], known: Payload
    ) -> tuple[Finding, ...]:
        """Means over all coordinates of √v, which clients' disagreement raises, and of ``|m| / √v``."""
        if state is None:
            return ()
        roots = {name: square_root(v.double()) for name, v in state.v.items()}
        total = sum(v.numel() for v in roots.values())
        ratios = (state.m[name].double().abs() / root.clamp_min(1e-30) for name, root in roots.items())
        return (
            Scalar("server_root_v", _mean(iter(roots.values()), total)),
            Scalar("server_m_over_root_v", _mean(ratios, total)),
        )


def _mean(tensors: Iterator[Tensor], total: int) -> float:
    return float(torch.stack([t.sum() for t in tensors]).sum()) / total


def _change(params: Params, combined: Params, name: str) -> Tensor:
    """``θ̄ - θ_t`` of one parameter, float64."""
    return combined[name].double() - params[name].double()


def _stepped(received: Tensor, step: Tensor) -> Tensor:
    return (received.double() + step).to(received.dtype)
