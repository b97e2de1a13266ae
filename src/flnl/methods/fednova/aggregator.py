"""FedNova's aggregator: the normalised mean of the cohort's changes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import nn

from flnl.core.messages import ClientResult, Combined
from flnl.core.optimizer import SGD
from flnl.core.parts import Aggregator, GradientTransform, Part, Setting
from flnl.core.payload import Params, Payload, is_learned
from flnl.methods.fednova.exchange import LocalSteps, StepLengths
from flnl.numerics.averaging import WeightedSum, divided, models_of, weighted_sum
from flnl.parts.losses.proximal import Proximal


@dataclass(frozen=True)
class Normalised:
    """A block's contribution."""

    models: WeightedSum  # for running statistics and integer buffers, and where all lengths are equal
    changes: dict[str, torch.Tensor]  # float64 Σ_k n_k (θ_k - θ_t) / ‖a_k‖₁
    lengths: tuple[float, ...]  # ‖a_k‖₁ of the clients that have moved
    effective: float  # Σ_k n_k ‖a_k‖₁, or Σ_k n_k τ_k


@dataclass(frozen=True)
class NormalisedMean(Aggregator[Normalised]):
    """``θ_t + τ_eff Σ_k p_k (θ_k - θ_t) / ‖a_k‖₁`` with ``p_k = n_k / Σ n`` of the cohort (Wang et al. 2020).

    ``τ_eff = Σ_k p_k ‖a_k‖₁``, or with ``tau_eff=steps`` the mean number of steps, as in the authors' program beside a
    proximal term. Clients without a step count for nothing. Where all lengths are equal, it is FedAvg to the bit.
    Running statistics are averaged with p_k; integer buffers take the maximum.
    """

    by_samples: ClassVar[bool] = True
    tau_eff: Literal["length", "steps"]

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        """Why what the steps add up to is not known, not defined, or not what clients send."""
        told = next((part for part in stage if isinstance(part, StepLengths)), None)
        if told is None:
            return "FedNova's mean needs what clients' steps add up to; add method/exchange=[fednova_steps]"
        training = setting.training
        if type(training.optimizer) is not SGD:
            name = type(training.optimizer).__name__.lower()
            return f"FedNova divides by what SGD's steps add up to; with train/optimizer={name} they have no such sum"
        if any(isinstance(part, GradientTransform) and part.overrides("update") for part in stage):
            return "FedNova divides by what SGD's steps add up to; a gradient transform that changes updates changes it"
        if training.momentum != told.momentum:
            return (
                f"method.exchange.step_lengths.momentum={told.momentum:g}, but clients train with {training.momentum:g}"
            )
        if training.visit_cosine:
            return "FedNova counts steps of one rate; with train.visit_cosine=true it falls within the visit"
        if training.keep_momentum and told.momentum:
            return "FedNova counts the steps of one visit; with train.keep_momentum=true they depend on those before"
        pulls = [part for part in stage if isinstance(part, Proximal) and part.mu]
        if any(pull.form != "squared_half" for pull in pulls):
            return "FedNova's steps are those of a linear pull; choose form=squared_half for the proximal term"
        mu = sum(pull.mu for pull in pulls)
        if mu != told.mu:
            return f"method.exchange.step_lengths.mu={told.mu:g}, but the proximal term has {mu:g}; set them alike"
        if mu * training.lr >= 2:
            return (
                f"train.lr times mu is {mu * training.lr:g}: the proximal term diverges; both together must be below 2"
            )
        return None

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> Normalised:
        sent = [(r, r.reports.one(LocalSteps)) for r in results if r.steps]
        models = models_of([r for r, _ in sent])
        weights = [float(r.num_samples) for r, _ in sent]
        changes = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in params.items() if is_learned(name, p)}
        for (_, steps), model, weight in zip(sent, models, weights, strict=True):
            for name, total in changes.items():
                total.add_(model[name].double() - params[name].double(), alpha=weight / steps.length)
        counted = (steps.length if self.tau_eff == "length" else float(steps.steps) for _, steps in sent)
        return Normalised(
            weighted_sum(params, models, weights),
            changes,
            tuple(steps.length for _, steps in sent),
            sum(weight * count for weight, count in zip(weights, counted, strict=True)),
        )

    def combine(self, params: Params, values: Iterable[Normalised], known: Payload) -> Combined:
        """The next model; ``params`` itself if there are no contributions."""
        blocks = [block for block in values if block.models.weight]
        if not blocks:
            return Combined(params)
        total = sum(block.models.weight for block in blocks)
        mean = divided(params, [block.models for block in blocks])
        effective = sum(block.effective for block in blocks) / total
        facts = {"tau_eff": effective}
        lengths = {length for block in blocks for length in block.lengths}
        if len(lengths) == 1 and self.tau_eff == "length":
            return Combined(mean, facts=facts)
        for name in blocks[0].changes:
            change = torch.stack([block.changes[name] for block in blocks]).sum(0)
            mean[name] = (params[name].double() + effective / total * change).to(params[name].dtype)
        return Combined(mean, facts=facts)
