"""Power-of-choice: of some candidates those with the largest loss (Cho et al. 2020)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from flnl.core.execution import ClientJob
from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import ClientSampler, Sampling
from flnl.core.ranges import PositiveCount, PositiveShare
from flnl.numerics.losses import sample_losses
from flnl.parts.samplers.uniform import cohort_size, draw_clients


@dataclass(frozen=True)
class MeanLoss(ClientJob[float]):
    """The job of a candidate: the mean cross-entropy of the received model on its labels, as they are held now.

    ``batch`` draws that many of its samples, without replacement; null takes all.
    """

    batch: PositiveCount | None

    def __call__(self, network: Model, task: ClientTask) -> float:
        """One number, in eval mode and without augmentation."""
        network.load(task.broadcast.params)
        samples, labels = task.samples, task.labels
        if self.batch is not None and self.batch < len(samples):
            drawn = task.stream("candidate batch").choice(len(samples), self.batch, replace=False)
            chosen = torch.from_numpy(drawn)
            samples, labels = samples.at(chosen), labels[chosen]
        return float(sample_losses(network.logits(samples), labels).mean())


@dataclass(frozen=True)
class PowerOfChoice(ClientSampler):
    """Of d candidates those whose loss under the global model is largest (Cho et al. 2020).

    Candidates are drawn without replacement, with probabilities proportional to n_k (``draw=samples``) or equal ones
    (``uniform``). Each is sent the model and answers with its mean loss on all its samples, or on one batch of
    ``batch`` of them (the paper's cpow-d). Ties are broken at random. ``first_round=uniform`` asks nobody before the
    first round of all and draws the cohort uniformly. A cohort is never larger than the candidates: d counts as at
    least the cohort and at most all.
    """

    fraction: PositiveShare
    d: PositiveCount
    draw: Literal["samples", "uniform"]
    batch: PositiveCount | None
    first_round: Literal["losses", "uniform"]

    def __call__(self, sampling: Sampling) -> list[int]:
        """``max(⌊γN⌋, 1)`` clients, that of the largest loss first."""
        count = self.size(len(sampling.clients))
        if self.first_round == "uniform" and sampling.round == 0:
            return draw_clients(sampling, sampling.clients, count)
        candidates = self.candidates(sampling, max(self.d, count))
        losses = sampling.ask(MeanLoss(self.batch), candidates)
        ties = sampling.stream("ties").permutation(len(candidates))
        order = np.lexsort((ties, -np.asarray(losses)))
        return [candidates[i] for i in order[:count]]

    def candidates(self, sampling: Sampling, count: int) -> list[int]:
        """At most ``count`` clients, in order of their number."""
        sizes = np.array([sampling.num_samples[client] for client in sampling.clients], float)
        share = sizes / sizes.sum() if self.draw == "samples" else None
        rng = sampling.stream("candidates")
        drawn = rng.choice(len(sizes), min(count, len(sizes)), replace=False, p=share)
        return [sampling.clients[i] for i in sorted(drawn)]

    def size(self, clients: int) -> int:
        """``max(⌊γN⌋, 1)``."""
        return cohort_size(self.fraction, clients)
