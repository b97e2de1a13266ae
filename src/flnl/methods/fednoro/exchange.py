"""FedNoRo's exchange: clients send their mean loss on each class once, the server sends back who is noisy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flnl.core.execution import ClientJob
from flnl.core.findings import Finding, NoisyClients
from flnl.core.messages import ClientState, ClientTask, Clock, Opened
from flnl.core.model import Model
from flnl.core.parts import Exchange, Setting
from flnl.core.payload import Params, Payload
from flnl.core.ranges import StageNumber
from flnl.core.reported import MayBeInfinite, PerClass
from flnl.core.stored import stored
from flnl.methods.fednoro.detection import noisy_clients, scaled
from flnl.numerics.losses import sample_losses
from flnl.parts.messages import ClientTag, ClientTags


@stored("ClassLosses")
class ClassLosses:
    """Sent to the server once: the mean cross-entropy of the client's samples of each class."""

    # NaN for a class without samples, inf for one with a loss that is not finite:
    values: Annotated[PerClass, MayBeInfinite()]


@stored("TagState")
class TagState:
    """The server's state."""

    noisy: Tensor  # bool [N]
    losses: Tensor  # float64 [N, K], as reported; [N, 0] until clients have been compared

    @property
    def compared(self) -> bool:
        """Whether clients have been compared."""
        return self.losses.shape[1] > 0


@dataclass(frozen=True)
class MeasureClassLosses:
    """Job: measure the received model's mean loss on each class of the labels that the client holds."""

    inference_augment: bool

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        """Report the losses."""
        logits = network.received(task, task.stream("class losses") if self.inference_augment else None)
        losses = sample_losses(logits, task.labels).nan_to_num(torch.inf, posinf=torch.inf)
        classes = network.num_classes
        counts = torch.bincount(task.labels, minlength=classes)
        sums = torch.zeros(classes, dtype=torch.float64).index_add_(0, task.labels, losses)
        return Opened(task.client, Payload(ClassLosses(sums / counts)))


@dataclass(frozen=True)
class ClientDetection(Exchange):
    """Before the first round of stage ``stage``, all clients report class losses, by which they are split in two.

    The losses are plain cross-entropies of the received model in eval mode (FedNoRo, Sec. 3.2), on images without
    augmentation unless ``inference_augment``.
    """

    sends: ClassVar[tuple[type, ...]] = (ClientTag,)
    reports: ClassVar[tuple[type, ...]] = (ClassLosses,)
    knows: ClassVar[tuple[type, ...]] = (ClientTags,)
    reveals: ClassVar[Mapping[type, float]] = {ClassLosses: math.inf}  # which classes it lacks, how hard each is
    inference_augment: bool
    stage: StageNumber

    @property
    def available_from(self) -> int:
        return self.stage

    def init(self, clients: int, params: Params) -> TagState:
        return TagState(torch.zeros(clients, dtype=torch.bool), torch.empty(clients, 0, dtype=torch.float64))

    def before_round(self, state: TagState, clock: Clock) -> ClientJob[Opened] | None:
        """The measurement, before the first round of the stage only."""
        first = (clock.stage, clock.stage_round) == (self.stage, 0)
        return MeasureClassLosses(self.inference_augment) if first else None

    def caution(self, setting: Setting) -> str | None:
        """Warns that clients are compared by the initial model, which knows no class."""
        if sum(setting.lengths[: self.stage - 1]) > 0:
            return None
        return (
            f"{setting.key} compares clients before the first round, by a model that has learned nothing; choose "
            "stages with training before, such as method/stages=fednoro"
        )

    def receive(self, state: TagState, reports: Mapping[int, Payload], seed: int) -> TagState:
        """Split the clients by the reported losses, if there are any; a client without a report is not noisy."""
        reported = {c: sent.values for c, report in reports.items() if (sent := report.get(ClassLosses)) is not None}
        if not reported:
            return state
        clients, rows = list(reported), torch.stack(list(reported.values()))
        losses = torch.full((len(state.noisy), rows.shape[1]), torch.nan, dtype=torch.float64)
        losses[clients] = rows
        noisy = torch.zeros_like(state.noisy)
        noisy[clients] = torch.from_numpy(noisy_clients(rows.numpy()))
        return TagState(noisy, losses)

    def send(self, state: TagState, client: int, clock: Clock) -> tuple[Any, ...]:
        """Whether this client is noisy, once clients have been compared."""
        return (ClientTag(bool(state.noisy[client])),) if state.compared else ()

    def known(self, state: TagState) -> tuple[Any, ...]:
        return (ClientTags(state.noisy),)

    def findings(self, state: TagState, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The split, and each client's mean scaled loss, once clients have been compared."""
        if not state.compared:
            return ()
        mean = torch.from_numpy(np.asarray(scaled(state.losses.numpy()).mean(1)))
        return (NoisyClients(state.noisy, {"class_loss": mean}),)
