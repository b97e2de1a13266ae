"""Each client estimates its transition matrix once and keeps it: nothing is sent, and nothing is averaged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Interval

from flnl.core.execution import ClientJob
from flnl.core.findings import EstimatedNoise, Finding, Scalar
from flnl.core.messages import ClientState, ClientTask, Clock, Opened
from flnl.core.model import Model
from flnl.core.parts import Exchange, Setting
from flnl.core.payload import Params, Payload
from flnl.core.ranges import PositiveCount, Share, StageNumber
from flnl.methods.loss_correction.transition import (
    Slack,
    TransitionMatrix,
    confident_counts,
    from_anchors,
    normalized,
    without_empty_columns,
)

Estimator = Literal["confident", "anchor"]
Percentile = Annotated[float, Interval(ge=0, le=100)]


@dataclass(frozen=True)
class EstimateTransition:
    """Job: estimate a client's transition matrix from the received model, on images without augmentation."""

    estimator: Estimator
    threshold: Share
    min_count: PositiveCount
    percentile: Percentile | None

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        """Keep the estimate on the client; report nothing."""
        probabilities = network.received(task).double().softmax(1)
        if self.estimator == "confident":
            matrix = normalized(confident_counts(probabilities, task.labels, self.threshold), self.min_count)
        else:
            matrix = from_anchors(probabilities, self.percentile)
        counts = torch.bincount(probabilities.argmax(1), minlength=network.num_classes).double()
        estimate = TransitionMatrix(without_empty_columns(matrix), counts / counts.sum().clamp_min(1))
        return Opened(task.client, Payload(), Payload(estimate))


@dataclass(frozen=True)
class TransitionEstimate(Exchange):
    """All clients estimate their transition matrices before the first round of stage ``stage``.

    ``estimator=confident`` counts given labels of the samples that the model predicts with a probability above
    ``threshold``; a class of fewer than ``min_count`` such samples keeps its labels (FedPeer, App. C). ``anchor`` takes
    the predictions of one sample a class, after a filter by ``percentile``; null for no filter (Patrini et al. 2017).
    """

    keeps: ClassVar[tuple[type, ...]] = (TransitionMatrix,)
    estimator: Estimator
    threshold: Share
    min_count: PositiveCount
    percentile: Percentile | None
    stage: StageNumber

    @property
    def available_from(self) -> int:
        return self.stage

    def init(self, clients: int, params: Params) -> int:
        """The number of clients; the server learns nothing else."""
        return clients

    def before_round(self, state: int, clock: Clock) -> ClientJob[Opened] | None:
        """The estimation, before the first round of the stage only."""
        if (clock.stage, clock.stage_round) != (self.stage, 0):
            return None
        return EstimateTransition(self.estimator, self.threshold, self.min_count, self.percentile)

    def caution(self, setting: Setting) -> str | None:
        """Warns that the matrices are estimated from the initial model, which knows no class."""
        if sum(setting.lengths[: self.stage - 1]) > 0:
            return None
        return (
            f"{setting.key} estimates transition matrices before the first round, from a model that has learned "
            "nothing; choose stages with training before, such as method/stages=forward_correction"
        )

    def findings(self, state: int, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The noise levels that the matrices imply, once they are estimated; the mean ``‖Δ‖₁`` where T is revised."""
        levels, sizes = torch.full((state,), torch.nan, dtype=torch.float64), []
        for client, kept in clients.items():
            if (estimate := kept.extras.get(TransitionMatrix)) is None:
                continue
            slack = next((term for term in kept.terms.values() if isinstance(term, Slack)), None)
            levels[client] = estimate.noise(slack)
            sizes += [] if slack is None else [float(slack.values.abs().sum())]
        found: tuple[Finding, ...] = () if bool(levels.isnan().all()) else (EstimatedNoise(levels),)
        return (*found, Scalar("slack_l1", sum(sizes) / len(sizes))) if sizes else found
