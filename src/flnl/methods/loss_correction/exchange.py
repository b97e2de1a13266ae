"""Each client estimates its transition matrix once and keeps it: nothing is sent, and nothing is averaged."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from flnl.core.execution import ClientJob
from flnl.core.findings import EstimatedNoise, Finding
from flnl.core.messages import ClientState, ClientTask, Opened
from flnl.core.model import Model
from flnl.core.parts import Exchange, Setting
from flnl.core.payload import Payload
from flnl.core.ranges import PositiveCount, Share
from flnl.core.stored import stored
from flnl.methods.loss_correction.transition import confident_counts, from_anchors, normalized, without_empty_columns

Estimator = Literal["confident", "anchor"]
Percentile = Annotated[float, Interval(ge=0, le=100)]


@stored("TransitionMatrix")
@dataclass(frozen=True)
class TransitionMatrix:
    """Kept on the client: its estimate of T, and the classes that its samples were predicted to be of."""

    values: Tensor  # float64 [K, K], from the true class (row) to the given label (column); rows sum to 1
    predicted: Tensor  # float64 [K], share of its samples that the model predicts as each class

    @property
    def noise(self) -> float:
        """The share of wrong labels that T implies, ``Σ_i s_i (1 - T_ii)`` with s the predicted shares."""
        return float(self.predicted @ (1 - self.values.diagonal()))


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
    stage: PositiveCount

    @property
    def available_from(self) -> int:
        """The stage before which clients estimate."""
        return self.stage

    def init(self, clients: int) -> int:
        """The number of clients; the server learns nothing else."""
        return clients

    def before_stage(self, stage: int) -> ClientJob[Opened] | None:
        """The estimation, before stage ``self.stage`` only."""
        if stage != self.stage:
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

    def findings(self, state: int, clients: Mapping[int, ClientState]) -> tuple[Finding, ...]:
        """The noise levels that the matrices imply, once they are estimated."""
        kept = {client: own.extras.get(TransitionMatrix) for client, own in clients.items()}
        known = {client: estimate.noise for client, estimate in kept.items() if estimate is not None}
        if not known:
            return ()
        levels = torch.full((state,), torch.nan, dtype=torch.float64)
        levels[list(known)] = torch.tensor(list(known.values()), dtype=torch.float64)
        return (EstimatedNoise(levels),)
