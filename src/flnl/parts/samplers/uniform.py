"""Who takes part in a round. Clients without data are never among the candidates."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from flnl.core.errors import UserError
from flnl.core.model import Model
from flnl.core.parts import ClientJob, ClientSampler, ClientTask, Samples, Sampling
from flnl.core.ranges import PositiveCount, PositiveShare, Share
from flnl.core.streams import stream
from flnl.methods.fedcorr.exchange import NoiseLevels
from flnl.methods.fedes.exchange import ClientQualities
from flnl.methods.fedes.quality import of_quality
from flnl.numerics.mixture import sample_losses

log = logging.getLogger(__name__)


def cohort_size(fraction: float, clients: int) -> int:
    """``max(⌊γN⌋, 1)``; the product is nudged, since 0.29 · 100 is 28.999… in binary.

    >>> cohort_size(0.29, 100)
    29
    """
    return max(int(fraction * clients + 1e-9), 1)


def draw_clients(sampling: Sampling, candidates: Sequence[int], count: int) -> list[int]:
    """At most ``count`` of ``candidates``, uniformly and without replacement."""
    chosen = sampling.stream("cohort").choice(len(candidates), min(count, len(candidates)), replace=False)
    return [candidates[i] for i in chosen]


@dataclass(frozen=True)
class Uniform(ClientSampler):
    """A fresh uniform draw without replacement each round (McMahan et al. 2017)."""

    fraction: PositiveShare

    def __call__(self, sampling: Sampling) -> list[int]:
        """``max(⌊γN⌋, 1)`` clients."""
        return draw_clients(sampling, sampling.clients, self.size(len(sampling.clients)))

    def size(self, clients: int) -> int:
        """``max(⌊γN⌋, 1)``."""
        return cohort_size(self.fraction, clients)


@dataclass(frozen=True)
class OnePass(ClientSampler):
    """Every client once a pass, in a fresh random order cut into groups of ``fraction`` of them.

    FedCorr's fraction scheduling (Sec. 3.2): with groups of one, the model is handed from client to client.
    ``fraction=null`` means 1/N. ``start=parallel_average`` has all clients of a pass start from the same model, one
    of the readings of Algorithm 1.
    """

    fraction: PositiveShare | None
    start: Literal["chain", "parallel_average"]

    def __post_init__(self) -> None:
        if self.start == "parallel_average" and self.fraction is not None:
            raise UserError(
                f"method.gamma1={self.fraction} cuts a pass into groups, and method.stage1=parallel_average takes it "
                "whole: leave one of them out"
            )

    def __call__(self, sampling: Sampling) -> list[int]:
        """The next group of this pass."""
        count, size = len(sampling.clients), self.size(len(sampling.clients))
        groups = math.ceil(count / size)
        group = sampling.stage_round % groups
        first = sampling.round - group  # the global round in which this pass began, so that stages do not repeat orders
        order = stream(sampling.seed, "pass", first).permutation(count)
        return [sampling.clients[i] for i in order[group * size : (group + 1) * size]]

    def size(self, clients: int) -> int:
        """Clients in a group."""
        if self.start == "parallel_average":
            return clients
        return 1 if self.fraction is None else cohort_size(self.fraction, clients)


@dataclass(frozen=True)
class CleanOnly(ClientSampler):
    """A uniform draw among the clients whose estimated noise level is at most κ (FedCorr, Sec. 3.3).

    Where no client is that clean, the cohort is the ``⌊γN⌋`` cleanest.
    """

    reads: ClassVar[tuple[type, ...]] = (NoiseLevels,)
    fraction: PositiveShare
    kappa: Share

    def __call__(self, sampling: Sampling) -> list[int]:
        """At most ``max(⌊γN⌋, 1)`` of the clean clients."""
        level = sampling.known.one(NoiseLevels).level
        clean = [client for client in sampling.clients if float(level[client]) <= self.kappa]
        count = self.size(len(sampling.clients))
        if clean:
            return draw_clients(sampling, clean, count)
        if sampling.stage_round == 0:
            log.warning("no client has a noise level up to kappa=%s; the %d cleanest take part", self.kappa, count)
        everyone = torch.tensor(sampling.clients)
        order = np.argsort(level[everyone].numpy(), kind="stable")
        return [int(everyone[i]) for i in order[:count]]

    def size(self, clients: int) -> int:
        """``max(⌊γN⌋, 1)``."""
        return cohort_size(self.fraction, clients)


@dataclass(frozen=True)
class MeanLoss(ClientJob[float]):
    """The job of a candidate: the mean cross-entropy of the received model on its labels, as they are held now.

    ``batch`` draws that many of its samples, without replacement; null takes all.
    """

    batch: PositiveCount | None

    def __call__(self, network: Model, task: ClientTask) -> float:
        """One number, in eval mode and without augmentation."""
        network.load(task.broadcast.params)
        samples = task.samples
        if self.batch is not None and self.batch < len(samples):
            drawn = task.stream("candidate batch").choice(len(samples), self.batch, replace=False)
            chosen = torch.from_numpy(drawn)
            samples = Samples(samples.images, samples.index[chosen], samples.labels[chosen])
        return float(sample_losses(network.logits(samples), samples.labels).mean())


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


@dataclass(frozen=True)
class OfQuality(ClientSampler):
    """A uniform draw among the clients whose estimated quality is at least ``threshold`` (FedES, Table 5, CS)."""

    reads: ClassVar[tuple[type, ...]] = (ClientQualities,)
    fraction: PositiveShare
    threshold: Share

    def __call__(self, sampling: Sampling) -> list[int]:
        """At most ``max(⌊γN⌋, 1)`` of them; the best clients of all where there is none."""
        rho = sampling.known.one(ClientQualities).value[list(sampling.clients)].numpy()
        good = [
            client for client, enough in zip(sampling.clients, of_quality(rho, self.threshold), strict=True) if enough
        ]
        if not good:
            good = [client for client, own in zip(sampling.clients, rho, strict=True) if own == rho.max()]
        return draw_clients(sampling, good, self.size(len(sampling.clients)))

    def size(self, clients: int) -> int:
        """``max(⌊γN⌋, 1)``."""
        return cohort_size(self.fraction, clients)
