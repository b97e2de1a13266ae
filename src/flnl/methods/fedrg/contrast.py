"""FedRG's first stage: two views of an image have near projections, others far ones; no label is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.core.inputs import WORDS
from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import LossTerm, Part, Setting
from flnl.core.payload import Params
from flnl.core.ranges import Positive, PositiveCount
from flnl.core.step import FEATURES, Step
from flnl.core.streams import of_part, stream
from flnl.models.outputs import why_no_features
from flnl.parts.shared_layers import Descent, Layers, SharedLayers
from flnl.parts.strong_view import StrongDraw, drawn_view, strong_inputs

EPSILON = 1e-5
"""Added to variances in batch norm."""


def info_nce(projections: Tensor, temperature: float) -> Tensor:
    """The loss [2b] of 2b projections [2b, d]: the first b are of one view, the last b of the other.

    ``-log exp(s_ij / τ) / Σ_{k ≠ i} exp(s_ik / τ)`` with cosines s and j the other view of i (Chen et al., ICML 2020).
    """
    unit = F.normalize(projections, dim=1)
    own = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    similar = (unit @ unit.T / temperature).masked_fill(own, -torch.inf)
    other = own.roll(len(unit) // 2, 1)
    return similar.logsumexp(1) - torch.where(other, similar, 0.0).sum(1)


def projected(layers: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Projections [B, w] of features [B, d]: a layer, batch norm by this batch, ReLU, a layer."""
    hidden = features @ layers["first.weight"].T + layers["first.bias"]
    centred = hidden - hidden.mean(0)
    normed = centred * (centred.square().mean(0) + EPSILON).rsqrt() * layers["norm.weight"] + layers["norm.bias"]
    return F.relu(normed) @ layers["second.weight"].T + layers["second.bias"]


@dataclass(frozen=True)
class Projector(Layers):
    """The term's state during one visit."""

    pixels: tuple[Tensor, Tensor]  # mean and standard deviation [C, 1, 1]: inputs are (pixel - mean) / std


@dataclass(frozen=True)
class Contrast(LossTerm):
    """``info_nce`` of the projections of a batch's features and of those of its strong view (SimCLR).

    The projector, of ``hidden`` and ``width`` units, is trained by the term itself with ``descent``. The last layer of
    the network is not used.
    """

    without_labels: ClassVar[bool] = True
    networks: ClassVar[int | None] = 1
    temperature: Positive
    hidden: PositiveCount
    width: PositiveCount
    descent: Descent

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        if setting.kind != "image":
            return f"its two views are of images, not of {WORDS[setting.kind]}: set method.T_pre=0"
        return why_no_features(network)

    def begin(self, network: Model, task: ClientTask, state: Any) -> Projector:
        """The projector as it was sent; at first, drawn as torch draws layers, equally on all clients."""
        sent = task.broadcast.extras.get(SharedLayers)
        values = self._drawn(network, task) if sent is None else sent.values
        mean, std = (tensor.clone() for tensor in network.normalisation)
        return Projector.of(values, network, (mean, std))

    def _drawn(self, network: Model, task: ClientTask) -> Params:
        features = network.at(task.broadcast.params).outputs(task.samples.at(torch.tensor([0])), names=(FEATURES,))
        sizes = features[FEATURES].shape[1], self.hidden, self.width
        rng = stream(task.seed, of_part("projector"))
        layers = {"norm.weight": torch.ones(self.hidden), "norm.bias": torch.zeros(self.hidden)}
        for name, (before, after) in zip(("first", "second"), pairwise(sizes), strict=True):
            for kind, shape in (("weight", (after, before)), ("bias", (after,))):
                layers[f"{name}.{kind}"] = torch.from_numpy(rng.uniform(-1, 1, shape)) / before**0.5
        return layers

    def draw(self, rng: np.random.Generator, size: int) -> StrongDraw:
        return drawn_view(rng, size)

    def __call__(self, step: Step, state: Projector) -> tuple[Tensor, Projector]:
        """The loss, a scalar, and the projector after a step on this batch."""
        strong = strong_inputs(step.inputs, step.draw, state.pixels)
        features = torch.cat([step.output(FEATURES), step.output(FEATURES, strong)])
        seen = features.detach()

        def mean(layers: Params) -> Tensor:
            return info_nce(projected(layers, seen), self.temperature).mean()

        after = state.after(torch.func.grad(mean)(dict(state.values)), self.descent)
        return info_nce(projected(state.values, features), self.temperature).mean(), after
