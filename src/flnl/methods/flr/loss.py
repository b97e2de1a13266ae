"""FLR's regulariser as a loss term; it keeps each sample's running averages between visits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.messages import Broadcast, ClientTask, Fit
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import LossTerm, Setting
from flnl.core.ranges import Count, NonNegative, PositiveCount, Share, StageNumber
from flnl.core.step import Step
from flnl.methods.flr.pseudo_label import (
    AlphaSchedule,
    Clamp,
    Init,
    Mixing,
    PseudoLabel,
    Schedule,
    Special,
    Warmup,
    bounded,
    mixture,
    regulariser,
    running_average,
)
from flnl.parts.losses.targets import mixed_pair


@dataclass(frozen=True)
class FLR(LossTerm):
    """``λ log(1 - ⟨p, t⟩)`` per sample, with ``t = α s + (1 - α) m`` (FLR, Eq. 1 and Algorithm 1). It uses no labels.

    s [n, K] is the running average of the received model's predictions, m [n, K] that of the model being trained; both
    use the same augmented view. They stay on the client, with ``seen`` bool [n], whether a sample has been averaged
    yet. An average that α = 0 or α = 1 leaves unused is not kept.

    r counts the rounds from the start of stage ``first_stage``; ``R=null`` means the number of these rounds. In a round
    without regulariser (λ = 0, ``pseudo_label=vanilla``, the warm-up with cross-entropy, an earlier stage) the term is
    exactly zero and the averages do not change.

    With mixed batches, the averages use predictions on the unmixed inputs, in eval mode, and the prediction on the
    mixed input is compared with the mixed pseudo label ``λ_M t_a + (1 - λ_M) t_b``.

    ``clamp=normalised`` bounds each probability to [1 - ``inner_max``, ``inner_max``]; the averages are of these over
    their sum. With ``init_average=zero``, α = 0 and constant γ, this is ELR's code (Liu et al., NeurIPS 2020).

    ``server_pred=once`` updates s once per round, on a sample's first view; ``batch`` with every batch.
    """

    lam: NonNegative
    alpha: Share
    beta: Share
    gamma: Share
    R: PositiveCount | None
    R_w: Count
    first_stage: StageNumber
    alpha_schedule: AlphaSchedule
    warmup: Warmup
    pseudo_label: PseudoLabel
    special: Special | None
    server_pred: Literal["batch", "once"]
    init_average: Init
    clamp: Clamp
    inner_max: Share

    def __post_init__(self) -> None:
        """Check that the pseudo label is not set twice.

        Raises:
            UserError: if both ``special`` and a row of Table 1 (``pseudo_label``) are set.
        """
        if self.special is not None and self.pseudo_label != "mixture":
            raise UserError(
                f"special={self.special} and pseudo_label={self.pseudo_label} both define the pseudo label: set only "
                "one of them"
            )

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        """Empty averages at the first visit; None if there is nothing to average."""
        schedule = self._schedule(1)
        if schedule is None or state is not None:
            return state
        count, num_classes = len(task.samples), network.num_classes
        like = next(p for p in task.broadcast.params.values() if p.is_floating_point())
        none = like.new_zeros(count, num_classes)
        state = {"seen": torch.zeros(count, dtype=torch.bool, device=like.device)}
        if schedule.uses_client:
            state["client"] = none
        if schedule.uses_server:
            state["server"] = none
            if self.server_pred == "once":
                state["viewed"] = torch.full((count,), -1, dtype=torch.int64, device=like.device)
        return state

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The regulariser [B], and the averages updated with this batch."""
        now = self._at(step.broadcast)
        if now is None:
            return step.logits.new_zeros(()), state
        at, after = step.positions, dict(state)
        first = ~state["seen"][at]
        averages = {}
        if "client" in state:
            averages["client"] = self._averaged(state["client"][at], step.unmixed_logits, now.gamma, first)
        if "server" in state:
            averages["server"] = self._averaged(state["server"][at], step.received_logits, now.beta, first)
            if self.server_pred == "once":
                again = state["viewed"][at] == step.broadcast.round
                averages["server"] = torch.where(again[:, None], state["server"][at], averages["server"])
                after["viewed"] = state["viewed"].index_copy(0, at, torch.full_like(at, step.broadcast.round))
        for name, average in averages.items():
            after[name] = state[name].index_copy(0, at, average)
        after["seen"] = state["seen"].index_copy(0, at, torch.ones_like(first))
        target = (
            mixture(averages["server"], averages["client"], now.alpha)
            if len(averages) == 2
            else next(iter(averages.values()))
        )
        if step.mixing is not None:
            target = mixed_pair(target, target[onto(step.mixing.partner, target.device)], step.mixing.share)
        loss = regulariser(step.logits, target, inner_max=self.inner_max, clamp=self.clamp)
        return self.lam * loss, after

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        """The averages; None after a round without regulariser, which leaves the stored ones as they are."""
        return None if self._at(task.broadcast) is None else state

    def begins(self, lengths: Sequence[int]) -> int:
        """The first round with a regulariser; the number of rounds if none has one that should."""
        if self._schedule(1) is None or self.pseudo_label == "vanilla":
            return 0
        rounds = range(sum(lengths))
        on = (round for round in rounds if self._at(Broadcast(round, 1, {}, lengths=tuple(lengths))) is not None)
        return next(on, len(rounds))

    def caution(self, setting: Setting) -> str | None:
        """The regulariser is off in every round: the warm-up on cross-entropy is as long as the run."""
        if self.begins(setting.lengths) < sum(setting.lengths):
            return None
        return (
            f"{setting.key}.R_w={self.R_w}: the regulariser never acts, since it has no more rounds than these, "
            f"{sum(setting.lengths[self.first_stage - 1 :])}; raise rounds or lower this value"
        )

    def _averaged(self, kept: Tensor, logits: Tensor, past: float, first: Tensor) -> Tensor:
        prediction = torch.softmax(logits, dim=1, dtype=kept.dtype)
        if self.clamp == "normalised":
            prediction = bounded(prediction, self.inner_max)
            prediction = prediction / prediction.sum(1, keepdim=True)
        return running_average(kept, prediction, past, first, init=self.init_average)

    def _schedule(self, rounds: int) -> Schedule | None:
        """The schedule for this number of rounds; None if there is no regulariser."""
        if self.lam == 0:
            return None
        whole = Schedule(
            self.alpha, self.beta, self.gamma, self.R or rounds, self.R_w, self.alpha_schedule, self.warmup
        )
        return whole.labelled_by(self.pseudo_label) if self.special is None else whole.as_special(self.special)

    def _at(self, broadcast: Broadcast) -> Mixing | None:
        """The coefficients of this round; None if the regulariser is not active in it."""
        schedule = self._schedule(max(1, sum(broadcast.lengths[self.first_stage - 1 :])))
        round = broadcast.clock.since(self.first_stage)
        if schedule is None or round < 0:
            return None
        now = schedule.at(round)
        return now if now.regularised else None
