"""FedRG's objective: symmetric cross-entropy of all samples, forward correction of those that clusters contradict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.inputs import WORDS
from flnl.core.messages import ClientState, ClientTask, Fit
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import BatchRule, LossTerm, Part, Setting
from flnl.core.payload import Payload
from flnl.core.ranges import NonNegative, PositiveCount, PositiveShare, Share
from flnl.core.step import FEATURES, Step
from flnl.core.stored import stored
from flnl.methods.fedrg.clusters import FeatureClusters, unit
from flnl.models.outputs import why_no_features
from flnl.numerics.losses import weighted_mean
from flnl.numerics.mixture import two_gaussians
from flnl.parts.losses.symmetric_cross_entropy import SymmetricCrossEntropy
from flnl.parts.losses.targets import of_labels
from flnl.parts.strong_view import StrongDraw, drawn_view, strong_inputs

FEWEST, ITERATIONS, REGULARISATION = 4, 100, 1e-6
"""Scores that a mixture needs; of its fit (FedRG's program)."""
CHUNK = 512
"""Samples of which views are made at once."""
TINY, SMALLEST = 1e-12, 1e-6
"""Added to a probability in a logarithm; the least entry of a transition matrix."""


def corrected(logits: Tensor, labels: Tensor, matrix: Tensor) -> Tensor:
    """``-log((p T)_y + 1e-12)`` [B] with T [K, K] from the true class (row) to the label, int64 [B]."""
    return -(of_labels(logits.softmax(1) @ matrix.to(logits.dtype), labels) + TINY).log()


def mean_of_noisy(losses: Tensor, noisy: Tensor) -> Tensor:
    """The mean of the losses [B] of samples that are ``noisy`` bool [B], a scalar; 0 if there are none."""
    noisy = noisy.to(losses.dtype)
    return (losses * noisy).sum() / (noisy.sum() + 1e-8)


def split(scores: Tensor) -> Tensor:
    """Which samples have wrong labels, bool [n], by two Gaussians of ``1 - s`` with scores s [n].

    Those of the lower one, with a probability of at least a half, are right. So are all if fewer than four, or equal.
    """
    values = 1 - scores.double().numpy()
    if np.isfinite(values).sum() < FEWEST:
        return torch.zeros(len(scores), dtype=torch.bool)
    return torch.from_numpy(two_gaussians(values, variance=REGULARISATION, iterations=ITERATIONS).upper)


@stored("ClusterMemory")
class ClusterMemory:
    """Kept on the client, never sent."""

    clusters: FeatureClusters
    matrix: Tensor  # float [K, K], from the true class (row) to the given label
    noisy: Tensor  # bool [n], as the last visit began
    scores: Tensor  # float64 [n]
    judged: Tensor  # int64 [n], the labels that the client held


@dataclass(frozen=True)
class Visit:
    """The term's state during one visit."""

    clusters: FeatureClusters
    matrix: Tensor  # float [K, K]
    velocity: Tensor  # float [K, K], of its descent
    noisy: Tensor  # bool [n]
    scores: Tensor  # float64 [n]
    judged: Tensor  # int64 [n]
    pixels: tuple[Tensor, Tensor] | None  # mean and standard deviation [C, 1, 1]; None if the views are equal


@dataclass(frozen=True)
class FedRG(LossTerm):
    """``λ_s SCE`` of all samples, and ``λ_n`` times the mean of ``-log((p T)_y)`` over those with wrong labels.

    As a visit begins, the received model's features of two views of each sample are compared with the client's clusters
    (``FeatureClusters``), and samples whose clusters are not typical for their label have wrong ones. The clusters
    follow the features of every batch, and T, at first the identity, follows the gradient of the second summand; both
    stay on the client. No gradient flows through the clusters.

    ``density``: responsibilities of the mixture's densities instead of those of the authors' program; ``pull_absent``:
    classes without a clean sample in a batch lose what is typical for them, as there. ``view=plain``: one view.
    """

    fits_labels: ClassVar[bool] = True
    networks: ClassVar[int | None] = 1
    symmetric: SymmetricCrossEntropy
    symmetric_weight: NonNegative
    noisy_weight: NonNegative
    clusters: PositiveCount | None
    momentum: PositiveShare
    density: bool
    pull_absent: bool
    matrix_lr: NonNegative
    matrix_momentum: Share
    view: Literal["strong", "plain"]

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        """Why labels cannot be judged: batches are mixed, samples are no images, or there are no features."""
        if any(isinstance(part, BatchRule) and part.overrides("mixing") for part in stage):
            return "FedRG judges the label of each sample, and mixed batches have none: choose method/batch=plain"
        if setting.kind != "image" and self.view == "strong":
            return f"strong views are of images, not of {WORDS[setting.kind]}: set {setting.key}.view=plain"
        return why_no_features(network)

    def begin(self, network: Model, task: ClientTask, state: ClusterMemory | None) -> Visit:
        """The split of the client's samples by its clusters; at the first visit these are drawn at random."""
        views = [unit(features) for features in self._views(network, task)]
        classes, first = network.num_classes, views[0]
        if state is None:
            shape = self.clusters or classes, first.shape[1]
            means = torch.from_numpy(task.stream("clusters").standard_normal(shape)).to(first.dtype)
            clusters, matrix = FeatureClusters.of(means, classes), torch.eye(classes, dtype=first.dtype)
        else:
            clusters, matrix = state.clusters, state.matrix
        here = clusters.to(torch.device("cpu"))
        kappas = here.agreeing(first, views[-1])
        found = here.with_median(kappas, 1.0) if bool(here.median.isnan()) else here
        responsibilities = found.responsibilities(first, kappas, density=self.density)
        scores = found.scores(responsibilities, task.labels).double()
        pixels = None
        if self.view == "strong":
            mean, std = (tensor.clone() for tensor in network.normalisation)
            pixels = mean, std
        matrix = onto(matrix, network.device, network.dtype)
        moving = clusters.to(network.device)
        return Visit(moving, matrix, torch.zeros_like(matrix), split(scores), scores, task.labels, pixels)

    def _views(self, network: Model, task: ClientTask) -> list[Tensor]:
        """Features of the received model [n, d] of a weak view of each sample and, if there is one, of a strong."""
        weak = network.received(task, task.stream("weak view"), output=FEATURES)
        if self.view == "plain":
            return [weak]
        forward, constants = network.frozen(task.broadcast, output=FEATURES), network.normalisation
        rng, strong = task.stream("strong view"), []
        with torch.no_grad():
            for positions in torch.arange(len(task.samples)).split(CHUNK):
                inputs = network.prepare(task.samples.read(positions))
                strong.append(forward(strong_inputs(inputs, drawn_view(rng, len(positions)), constants)).cpu())
        return [weak, torch.cat(strong)]

    def draw(self, rng: np.random.Generator, size: int) -> StrongDraw | None:
        return drawn_view(rng, size) if self.view == "strong" else None

    def __call__(self, step: Step, state: Visit) -> tuple[Tensor, Visit]:
        """The loss; the state with this batch in the clusters and in T."""
        rows = self.symmetric_weight * self.symmetric(step, None)[0]
        noisy = state.noisy[step.positions]
        after = self._followed(step, state, noisy)
        if not self.noisy_weight:
            return rows, after
        second = mean_of_noisy(corrected(step.logits, step.labels, state.matrix), noisy)
        return weighted_mean(rows, step.weight) + self.noisy_weight * second, after

    def _followed(self, step: Step, state: Visit, noisy: Tensor) -> Visit:
        with torch.no_grad():
            first = unit(step.output(FEATURES).detach().to(state.clusters.means.dtype))
            second = first
            if state.pixels is not None:
                strong = strong_inputs(step.inputs, step.draw, state.pixels)
                second = unit(step.opinions(FEATURES, [strong])[0].to(first.dtype))
            kappas = state.clusters.agreeing(first, second)
            clusters = state.clusters.with_median(kappas, self.momentum)
            found = clusters.responsibilities(first, kappas, density=self.density)
            clusters = clusters.updated(first, found, step.labels, ~noisy, self.momentum, absent=self.pull_absent)
        logits = step.logits.detach()

        def mean(matrix: Tensor) -> Tensor:
            return self.noisy_weight * mean_of_noisy(corrected(logits, step.labels, matrix), noisy)

        velocity = self.matrix_momentum * state.velocity + torch.func.grad(mean)(state.matrix)
        matrix = (state.matrix - self.matrix_lr * velocity).clamp_min(SMALLEST)
        return replace(state, clusters=clusters, matrix=matrix / matrix.sum(1, keepdim=True), velocity=velocity)

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Visit) -> ClusterMemory:
        """Clusters, T, and the split with which the visit began."""
        return ClusterMemory(state.clusters, state.matrix, state.noisy, state.scores, state.judged)

    def findings(
        self, state: Mapping[int, ClusterMemory], clients: Mapping[int, ClientState], known: Payload
    ) -> tuple[Finding, ...]:
        return tuple(
            SuspectedSamples(client, own.noisy.cpu(), 1 - own.scores.cpu(), own.judged.cpu())
            for client, own in state.items()
        )
