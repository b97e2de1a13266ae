"""MaskedOptim's aggregator: a geometric median of models, to which noisy clients have come only part of the way."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from flnl.core.messages import ClientResult
from flnl.core.payload import Params, Payload
from flnl.core.ranges import Share
from flnl.parts.aggregators.geometric_median import GeometricMedian
from flnl.parts.aggregators.models import Models
from flnl.parts.messages import ClientTags


def drawn_back(received: Params, trained: Params, share: float) -> Params:
    """``share · received + (1 - share) · trained``, running statistics included; integers as trained."""
    return {
        name: (share * received[name].double() + (1 - share) * tensor.double()).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in trained.items()
    }


@dataclass(frozen=True)
class DrawnBackMedian(GeometricMedian):
    """The geometric median of ``θ_k`` of clean clients and ``r θ_t + (1 - r) θ_k`` of noisy ones (MaskedOptim's code).

    θ_t is the model that clients received and r is ``received``. In the authors' program, noisy clients send the
    mixture; here it is computed where models are combined, from the same numbers. Nobody is noisy until clients have
    been compared.
    """

    reads: ClassVar[tuple[type, ...]] = (ClientTags,)
    received: Share

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> Models:
        """The models of a few clients, those of noisy ones drawn back."""
        noisy = {*known.one(ClientTags).noisy.nonzero()[:, 0].tolist()}
        back = [
            replace(r, params=drawn_back(params, r.params, self.received))
            if r.client in noisy and r.params is not None
            else r
            for r in results
        ]
        return super().block(params, back, known)
