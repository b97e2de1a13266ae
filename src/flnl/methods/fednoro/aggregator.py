"""FedNoRo's mean of models, in which noisy clients count the less, the further they are from clean ones."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from flnl.core.messages import ClientResult, ClientState, Combined
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload, is_learned
from flnl.numerics.averaging import divided, summed
from flnl.parts.messages import ClientTags

Distance = Literal["sum_of_norms", "flat_l2"]


def model_distance(one: Params, other: Params, distance: Distance, *, buffers: bool) -> float:
    """The distance of two models: the sum of ``‖θ_i - θ'_i‖`` over tensors, or the norm of all differences together.

    Integers never count; running statistics only with ``buffers``.
    """
    found = [
        torch.linalg.vector_norm(tensor.double() - other[name].double())
        for name, tensor in one.items()
        if is_learned(name, tensor) or (buffers and tensor.is_floating_point())
    ]
    norms = torch.stack(found).tolist() if found else []  # a device is waited for once
    return sum(norms) if distance == "sum_of_norms" else math.hypot(*norms)


def distances(
    models: Mapping[int, Params], noisy: Iterable[int], distance: Distance, *, buffers: bool
) -> dict[int, float]:
    """Each client's distance from the nearest clean one; 0 for clean ones, and for all if nobody is clean."""
    far = dict.fromkeys(models, 0.0)
    suspected = {*noisy} & models.keys()
    clean = [client for client in models if client not in suspected]
    if clean:
        for client in suspected:
            far[client] = min(model_distance(models[client], models[c], distance, buffers=buffers) for c in clean)
    return far


@dataclass(frozen=True)
class DistanceAware(Aggregator[tuple[ClientResult, ...]]):
    """``Σ_k w_k θ_k / Σ_k w_k`` with ``w_k = n_k exp(-d_k / max_j d_j)`` (FedNoRo, Sec. 3.3).

    d_k is the distance of a noisy client's model from the nearest model of a clean client of the cohort, 0 for clean
    clients. Without any distance, as before clients have been compared, it is the mean weighted by samples. Running
    statistics are averaged like parameters; integer buffers take the maximum. All models are in memory at once.
    """

    reads: ClassVar[tuple[type, ...]] = (ClientTags,)
    by_samples: ClassVar[bool] = True  # always: the distance is a factor beside the number of samples
    distance: Distance
    buffers: bool

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> tuple[ClientResult, ...]:
        """The models of a few clients, without what stays on clients."""
        return tuple(replace(r, state=ClientState(), reports=Payload(), observation=None) for r in results)

    def combine(self, params: Params, values: Iterable[tuple[ClientResult, ...]], known: Payload) -> Combined:
        """The mean; ``params`` itself if there are no contributions."""
        blocks = list(values)
        models = {r.client: r.params for block in blocks for r in block if r.params is not None}
        noisy = known.one(ClientTags).noisy.nonzero()[:, 0].tolist()
        far = distances(models, noisy, self.distance, buffers=self.buffers)
        largest = max(far.values(), default=0.0)
        shrink = {client: math.exp(-d / largest) if largest > 0 else 1.0 for client, d in far.items()}
        weights = {r.client: r.num_samples * shrink[r.client] for block in blocks for r in block}
        sums = [summed(params, block, [weights[r.client] for r in block]) for block in blocks]
        facts = {"noisy_clients": float(len({*noisy} & models.keys())), "largest_distance": largest}
        return Combined(divided(params, sums), weights, facts)
