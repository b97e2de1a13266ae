"""FedStabilize's exchange: a loss up, once, a flag down; noisy clients then choose samples by prototypes."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from flnl.core.findings import Finding, NoisyClients, Scalar, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange, Part, Setting
from flnl.core.payload import Params, Payload
from flnl.core.ranges import Share, StageNumber
from flnl.core.step import FEATURES
from flnl.core.stored import stored
from flnl.methods.fedstabilize.prototypes import Prototypes, attainable, cosines, why_no_prototypes
from flnl.numerics.losses import sample_losses
from flnl.numerics.mixture import two_gaussians
from flnl.numerics.scaling import min_max
from flnl.parts.messages import ClientTag, ClientTags, UsedSamples

log = logging.getLogger(__name__)
FEWEST = 4
"""Number of clients below which nobody is noisy."""


@stored("ClientMeanLoss")
class MeanLoss:
    """Sent to the server once: the mean loss of the client's trained model on its own labels."""

    value: float


@stored("PrototypeLabels")
class PrototypeLabels:
    """Kept on a noisy client, and read in its visit: what the received model makes of its samples."""

    used: Tensor  # bool [n], samples whose features are near a prototype
    labels: Tensor  # int64 [n], the class of the nearest prototype
    cosine: Tensor  # float64 [n], to it
    judged: Tensor  # int64 [n], the labels that the client held


@stored("StabilizeState")
class StabilizeState:
    """The server's state."""

    losses: Tensor  # float64 [N]; NaN for a client that has sent none
    noisy: Tensor  # bool [N]
    unreachable: Tensor  # int64, classes that no features without negative entries can be near to

    @property
    def compared(self) -> bool:
        """Whether clients have been compared."""
        return not bool(self.losses.isnan().all())


@dataclass(frozen=True)
class ByPrototypes(Exchange):
    """In stage ``stage``, clients are split by the mean losses of their trained models; in later stages noisy ones
    choose samples whose features have a cosine above ``threshold`` to a prototype, and take its class as label.

    ``relative=true``: above ``threshold`` times what features without negative entries can reach for this class.
    ``loss=ce_of_softmax`` is what the authors' program measures; ``use=all``: samples that are near no prototype keep
    their label instead of being left out.
    """

    sends: ClassVar[tuple[type, ...]] = (ClientTag, PrototypeLabels)
    reports: ClassVar[tuple[type, ...]] = (MeanLoss, UsedSamples)
    keeps: ClassVar[tuple[type, ...]] = (PrototypeLabels,)
    knows: ClassVar[tuple[type, ...]] = (ClientTags,)
    threshold: Share
    relative: bool
    use: Literal["confident", "all"]
    loss: Literal["ce", "ce_of_softmax"]
    prototypes: Prototypes
    stage: StageNumber

    @property
    def available_from(self) -> int:
        return self.stage + 1

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        return why_no_prototypes(network)

    def caution(self, setting: Setting) -> str | None:
        """Warns that clients are never compared, as the stage has no rounds."""
        if setting.lengths[self.stage - 1]:
            return None
        return f"{setting.key} compares clients in stage {self.stage}, which has no rounds: nobody is noisy"

    def init(self, clients: int, params: Params) -> StabilizeState:
        can = attainable(self.prototypes.of(params).double())
        return StabilizeState(
            torch.full((clients,), torch.nan, dtype=torch.float64),
            torch.zeros(clients, dtype=torch.bool),
            (can <= self._least(can)).nonzero()[:, 0].cpu(),
        )

    def _least(self, can: Tensor) -> Tensor:
        """The cosine that a sample must exceed, for each class [K]."""
        return self.threshold * can if self.relative else torch.full_like(can, self.threshold)

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        """On a noisy client, the samples near a prototype, for this visit and for the record."""
        tag = task.broadcast.extras.get(ClientTag)
        if tag is None or not tag.noisy:
            return Payload(), Payload()
        prototypes = self.prototypes.of(task.broadcast.params).double().cpu()
        cosine, labels = cosines(network.received(task, output=FEATURES).double(), prototypes).max(1)
        found = PrototypeLabels(cosine > self._least(attainable(prototypes))[labels], labels, cosine, task.labels)
        return Payload(found), Payload(found)

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """The mean loss in the stage of the comparison; later, of a noisy client, the number of samples used."""
        if task.broadcast.stage == self.stage:
            losses = sample_losses(network.logits(task.samples), task.labels, of_softmax=self.loss == "ce_of_softmax")
            return Payload(MeanLoss(float(losses.mean()))), Payload()
        chosen = task.visit.get(PrototypeLabels)
        if chosen is None or self.use == "all":
            return Payload(), Payload()
        return Payload(UsedSamples(int(chosen.used.sum()))), Payload()

    def receive(self, state: StabilizeState, reports: Mapping[int, Payload], seed: int) -> StabilizeState:
        """Split the clients by their losses, if there are any."""
        sent = {client: one.value for client, report in reports.items() if (one := report.get(MeanLoss)) is not None}
        if not sent:
            return state
        losses, noisy = torch.full_like(state.losses, torch.nan), torch.zeros_like(state.noisy)
        clients, values = list(sent), torch.tensor(list(sent.values()), dtype=torch.float64)
        losses[clients] = values
        if len(clients) >= FEWEST:
            noisy[clients] = torch.from_numpy(two_gaussians(min_max(values.numpy())).upper)
        if not noisy.any():
            log.warning("clients' mean losses are not told apart: nobody is noisy")
        elif len(state.unreachable):
            log.warning(
                "no sample of a noisy client can have a cosine above theta=%g to the prototype of class %s, if its "
                "features are never negative, as after a ReLU; these clients then never learn it: relative=true asks "
                "for a share of what can be reached",
                self.threshold,
                ", ".join(map(str, state.unreachable.tolist())),
            )
        return StabilizeState(losses, noisy, state.unreachable)

    def send(self, state: StabilizeState, client: int, clock: Clock) -> tuple[Any, ...]:
        """Whether the client is noisy, in stages after the comparison."""
        return (ClientTag(bool(state.noisy[client])),) if state.compared and clock.stage > self.stage else ()

    def known(self, state: StabilizeState) -> tuple[Any, ...]:
        return (ClientTags(state.noisy),)

    def own(self, state: StabilizeState, client: int) -> StabilizeState:
        """Whether the client is noisy, and its loss; 0 if it has sent none and others were compared."""
        losses, noisy = torch.full_like(state.losses, torch.nan), torch.zeros_like(state.noisy)
        if state.compared:
            losses[client], noisy[client] = state.losses[client].nan_to_num(), state.noisy[client]
        return StabilizeState(losses, noisy, torch.zeros_like(state.unreachable[:0]))

    def findings(
        self, state: StabilizeState, clients: Mapping[int, ClientState], known: Payload
    ) -> tuple[Finding, ...]:
        """The split; samples whose nearest prototype is of another class; how many classes no sample can be near to."""
        if not state.compared:
            return ()
        suspects = (
            SuspectedSamples(client, kept.labels != kept.judged, kept.cosine, kept.judged, kept.labels)
            for client, kept in kept_by_client(clients, PrototypeLabels).items()
        )
        unreachable = Scalar("unreachable_classes", float(len(state.unreachable)))
        return NoisyClients(state.noisy, {"mean_loss": state.losses}), unreachable, *suspects
