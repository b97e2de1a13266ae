"""DivideMix's batch rule: in each epoch, each network is trained on the other's division of the samples."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import BatchRule
from flnl.core.ranges import Share
from flnl.core.step import Phase
from flnl.methods.dividemix.division import NETWORKS, Fitting, Judgement

FEW = 5
"""Local epochs of a visit up to which ``refit=auto`` fits once."""


@dataclass(frozen=True)
class CoDivide(BatchRule):
    """An epoch has a phase for each network: clean samples, beside those whose labels are not used (Algorithm 1).

    Which are clean, says the other network, by the mixture of its losses at the start of the visit or of the epoch.
    Both divisions are made before either network is trained. The phase's facts are each sample's probability of a right
    label, [n].
    """

    networks: ClassVar[int | None] = 2
    reads: ClassVar[tuple[type, ...]] = (Judgement,)
    views: ClassVar[int] = 2
    alone: ClassVar[str | None] = "has several phases in an epoch, and a second pool of samples"
    fitting: Fitting
    threshold: Share
    refit: Literal["auto", "visit", "epoch"]  # auto: in every epoch of visits of more than 5 epochs

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        """The phases ``first`` and ``second``, each named after the network that it trains."""
        judgement = task.state.extras.one(Judgement)
        if epoch > 0 and (self.refit == "epoch" or (self.refit == "auto" and epochs > FEW)):
            judgement = self.fitting.by_trained(network, task, judgement)
        right = onto(judgement.probability, network.device, network.dtype)
        for trained, judge in zip(NETWORKS, (1, 0), strict=True):
            clean, others = judgement.division(judge, self.threshold)
            yield Phase(trained, clean, beside=others, facts=right[judge])
