"""FedNoRo's objective: logit adjustment by the client's classes, and distillation on noisy clients."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import LossTerm, Setting
from flnl.core.ranges import Count, Positive, Share, StageNumber
from flnl.core.step import Step
from flnl.numerics.ramp import exponential_ramp
from flnl.parts.losses.logit_adjustment import adjusted, distilled, log_prior
from flnl.parts.losses.targets import expected
from flnl.parts.messages import ClientTag


@dataclass(frozen=True)
class FedNoRo(LossTerm):
    """``-log softmax(z + log π)_y`` on clean clients; on noisy ones mixed with distillation (FedNoRo, Sec. 3.3).

    π [K] are the shares of the classes among the client's labels. On a noisy client the loss is
    ``(1 - λ_t) (-log softmax(z + log π)_y) + λ_t KL(softmax(z_t / τ) ‖ softmax(z + log π))`` with z_t the logits of the
    received model in eval mode on the same inputs. λ_t rises from stage ``stage`` on; from round ``ramp_end`` on (from
    0, over all stages) it is ``distillation``. Until clients have been compared, all are trained as clean ones.
    """

    reads: ClassVar[tuple[type, ...]] = (ClientTag,)
    fits_labels: ClassVar[bool] = True
    temperature: Positive
    distillation: Share
    ramp_end: Count
    stage: StageNumber

    def begin(self, network: Model, task: ClientTask, state: Any) -> Tensor:
        """The logarithms of π, [K]; -inf for classes that the client does not hold."""
        return log_prior(network, task)

    def __call__(self, step: Step, state: Tensor) -> tuple[Tensor, Tensor]:
        logs = adjusted(step.logits, state)
        fitted = expected(-logs, step.targets)
        tag = step.broadcast.extras.get(ClientTag)
        if tag is None or tag.noisy is False:
            return fitted, state
        round, since = step.broadcast.round, step.broadcast.clock.since(self.stage)
        most = exponential_ramp(round, round - since, self.ramp_end, self.distillation)
        share = logs.new_full((), most) * tag.noisy  # of clients that are trained together, only some may be noisy
        distillation = distilled(logs, step.received(step.inputs), self.temperature)
        return (1 - share) * fitted + share * distillation, state

    def caution(self, setting: Setting) -> str | None:
        rounds = sum(setting.lengths)
        if self.distillation == 0 or self.ramp_end < rounds:
            return None
        return (
            f"method/local=[fednoro] distils less than asked for: λ rises to {self.distillation:g} in round "
            f"{self.ramp_end} (ramp_end), and the run has {rounds}; raise rounds or lower ramp_end"
        )
