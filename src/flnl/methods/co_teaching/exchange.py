"""What Co-teaching finds out about the samples of a client: for the record only, nothing is sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from flnl.core.findings import Finding, Scalar, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Fit, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange, Part
from flnl.core.payload import Payload
from flnl.core.stored import stored
from flnl.methods.co_teaching.loss import CoTeaching, Visit


@stored("LeftOutSamples")
class LeftOutSamples:
    """Kept on the client: what the networks made of its samples in the last epoch of its last visit."""

    mask: Tensor  # bool [n], samples that both networks left out because of their loss
    loss: Tensor  # float [n], mean of both networks' losses
    labels: Tensor | None  # int64 [n], the labels that were judged; None for the given labels
    disagreement: float  # share of the visit's predictions in which the networks differed, in [0, 1]
    round: int  # round of the visit, from 0


@dataclass(frozen=True)
class SmallLoss(Exchange):
    """Records the samples that both networks leave out, and how often the networks disagree."""

    networks: ClassVar[int | None] = 2
    keeps: ClassVar[tuple[type, ...]] = (LeftOutSamples,)

    def lacks(self, stage: Sequence[Part]) -> Sequence[str]:
        return () if any(isinstance(part, CoTeaching) for part in stage) else ("method/local=[co_teaching]",)

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        visit = fit.state_of(Visit)
        if visit is None:
            return Payload(), Payload()
        share = float(visit.differing) / max(float(visit.predictions), 1.0)
        kept = LeftOutSamples(visit.left_out.cpu(), visit.loss.cpu(), task.state.labels, share, task.broadcast.round)
        return Payload(), Payload(kept)

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The samples left out at each client's last visit, scored by loss; the last cohort's mean disagreement."""
        kept = kept_by_client(clients, LeftOutSamples)
        if not kept:
            return ()
        last = max(left.round for left in kept.values())
        shares = [left.disagreement for left in kept.values() if left.round == last]
        suspected = (SuspectedSamples(c, left.mask, left.loss, left.labels) for c, left in kept.items())
        return *suspected, Scalar("disagreement", sum(shares) / len(shares))
