"""FedExP's aggregator: the mean change of the cohort, extrapolated."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flnl.core.messages import ClientResult, Combined
from flnl.core.optimizer import SGD
from flnl.core.parts import Aggregator, Setting
from flnl.core.payload import Params, Payload, is_learned
from flnl.core.ranges import NonNegative
from flnl.numerics.averaging import WeightedSum, divided, models_of, weighted_sum
from flnl.numerics.distance import squared_move


@dataclass(frozen=True)
class Moved:
    """A block's contribution: the weighted sums of its models and of their squared distances from the one sent."""

    models: WeightedSum
    squares: float  # Σ_k n_k ‖Δ_k‖²
    clients: int


@dataclass(frozen=True)
class Extrapolated(Aggregator[Moved]):
    """``θ_t + η_g Δ̄`` with ``Δ̄ = Σ_k p_k Δ_k`` and ``η_g = max(1, Σ_k p_k ‖Δ_k‖² / (2 (‖Δ̄‖² + ε)))``.

    ``Δ_k = θ_k - θ_t``, and ``p_k`` is ``n_k / Σ n`` or 1/m (Jhunjhunwala et al. 2023; their program weights by
    samples and takes ``‖Δ̄‖² + m ε``: ``epsilon_by=client``). Running statistics are averaged and not extrapolated: a
    variance could become negative. Integer buffers take the maximum. ``aggregation/eta_g`` is in the round's metrics.
    """

    weights: Literal["samples", "uniform"]
    epsilon: NonNegative
    epsilon_by: Literal["round", "client"]

    def caution(self, setting: Setting) -> str | None:
        """Warns of another optimiser than SGD."""
        if isinstance(setting.training.optimizer, SGD):
            return None
        name = type(setting.training.optimizer).__name__
        return f"{setting.key}: FedExP is for SGD; steps of {name} are about as long for any gradient"

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> Moved:
        weights = [float(r.num_samples) if self.by_samples else 1.0 for r in results]
        models = models_of(results)
        squares = sum(w * _squared_change(params, model) for w, model in zip(weights, models, strict=True))
        return Moved(weighted_sum(params, models, weights), squares, len(results))

    def combine(self, params: Params, values: Iterable[Moved], known: Payload) -> Combined:
        """The extrapolated model; ``params`` itself if there are no contributions."""
        blocks = list(values)
        total = sum(block.models.weight for block in blocks)
        mean = divided(params, [block.models for block in blocks])
        if not total:
            return Combined(params)
        epsilon = self.epsilon * (sum(block.clients for block in blocks) if self.epsilon_by == "client" else 1)
        below = 2 * (_squared_change(params, mean) + epsilon)
        squares = sum(block.squares for block in blocks) / total
        eta = max(1.0, squares / below) if below else 1.0  # nobody has moved, or all ways cancel and epsilon is 0
        if eta == 1:
            return Combined(mean, facts={"eta_g": 1.0})
        further = {
            name: (params[name].double() + eta * (p.double() - params[name].double())).to(p.dtype)
            if is_learned(name, p)
            else p
            for name, p in mean.items()
        }
        return Combined(further, facts={"eta_g": eta})


def _squared_change(params: Params, model: Params) -> float:
    """``‖θ - θ_t‖²`` over the parameters, in float64."""
    return squared_move(params, model, [name for name, p in params.items() if is_learned(name, p)])
