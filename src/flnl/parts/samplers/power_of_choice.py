"""Power-of-choice: samples the candidates with the largest losses (Cho et al. 2020)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from flnl.core.execution import ClientJob
from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import ClientSampler, Sampling
from flnl.core.ranges import PositiveCount, PositiveShare
from flnl.core.step import LOGITS
from flnl.core.stored import stored
from flnl.numerics.losses import sample_losses
from flnl.numerics.rounding import cohort_size
from flnl.parts.samplers.uniform import draw_clients


@stored("MeanLoss")
class MeanLoss(ClientJob[float]):
    """Job: the mean cross-entropy of the received model on the client's samples with their current labels.

    ``batch`` is the number of samples to draw, without replacement; null uses all.
    """

    batch: PositiveCount | None

    def __call__(self, network: Model, task: ClientTask) -> float:
        """The mean loss, in eval mode and without augmentation."""
        samples, labels = task.samples, task.labels
        if self.batch is not None and self.batch < len(samples):
            drawn = task.stream("candidate batch").choice(len(samples), self.batch, replace=False)
            chosen = torch.from_numpy(drawn)
            samples, labels = samples.at(chosen), labels[chosen]
        outputs = network.at(task.broadcast.params).outputs(samples)
        return float(sample_losses(outputs[LOGITS], labels).mean())


@dataclass(frozen=True)
class PowerOfChoice(ClientSampler):
    """Of d candidates, samples those with the largest loss under the global model (Cho et al. 2020).

    Candidates are drawn without replacement, with probabilities proportional to n_k (``draw=samples``) or equal
    (``uniform``). Each receives the model and returns its mean loss on all its samples, or on ``batch`` of them (the
    paper's cpow-d). A loss that is not finite is the largest. Ties are broken at random. ``first_round=uniform`` draws
    the cohort of the run's first round uniformly, without candidates. d is raised to the size of the cohort, and
    limited to the number of clients.
    """

    asks: ClassVar[tuple[type, ...]] = (MeanLoss,)
    fraction: PositiveShare
    d: PositiveCount
    draw: Literal["samples", "uniform"]
    batch: PositiveCount | None
    first_round: Literal["losses", "uniform"]

    def __call__(self, sampling: Sampling) -> list[int]:
        """``max(⌊γN⌋, 1)`` clients, in order of decreasing loss."""
        count = self.size(len(sampling.clients))
        if self.first_round == "uniform" and sampling.clock.round == 0:
            return draw_clients(sampling, sampling.clients, count)
        candidates = self.candidates(sampling, max(self.d, count))
        (job,) = self.jobs()
        losses = sampling.ask(job, candidates)
        ties = sampling.stream("ties").permutation(len(candidates))
        order = np.lexsort((ties, -np.nan_to_num(losses, nan=np.inf, posinf=np.inf)))
        return [candidates[i] for i in order[:count]]

    @property
    def reveals(self) -> Mapping[type, float]:
        """The loss on a few samples tells of single ones."""
        return {} if self.batch is None else {MeanLoss: math.inf}

    def jobs(self) -> tuple[MeanLoss]:
        """The mean loss on the client's samples, or on ``batch`` of them."""
        return (MeanLoss(self.batch),)

    def candidates(self, sampling: Sampling, count: int) -> list[int]:
        """Draw at most ``count`` clients, in order of their number."""
        sizes = np.array([sampling.num_samples[client] for client in sampling.clients], float)
        share = sizes / sizes.sum() if self.draw == "samples" else None
        rng = sampling.stream("candidates")
        drawn = rng.choice(len(sizes), min(count, len(sizes)), replace=False, p=share)
        return [sampling.clients[i] for i in sorted(drawn)]

    def size(self, clients: int) -> int:
        return cohort_size(self.fraction, clients)
