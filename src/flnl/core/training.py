"""How clients train: rate and schedule, batches, epochs, optimiser."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from annotated_types import Interval

from flnl.core.optimizer import SGD, Buffer, Optimizer
from flnl.core.ranges import Count, Neutral, NonNegative, Positive, PositiveCount, PositiveShare


@dataclass(frozen=True)
class Training:
    """``train``: local training. A stage may set values of its own: ``method.stages.NAME.train``."""

    lr: Positive
    momentum: Annotated[float, Interval(ge=0, lt=1)]
    weight_decay: NonNegative
    batch_size: PositiveCount
    epochs: PositiveCount
    lr_decay: PositiveShare
    milestones: Annotated[list[PositiveCount], Neutral(())] = field(default_factory=list)
    milestone_decay: Annotated[PositiveShare, Neutral(0.1)] = 0.1
    keep_momentum: Annotated[bool, Neutral(False)] = False
    milestone_every: Annotated[PositiveCount | None, Neutral(None)] = None
    cosine: Annotated[bool, Neutral(False)] = False
    cosine_every: Annotated[PositiveCount | None, Neutral(None)] = None
    linear_from: Annotated[Count | None, Neutral(None)] = None
    min_lr: Annotated[NonNegative, Neutral(0.0)] = 0.0
    steps: Annotated[PositiveCount | None, Neutral(None)] = None
    clip: Annotated[Positive | None, Neutral(None)] = None
    optimizer: Annotated[Optimizer, Neutral({"_target_": "SGD"})] = field(default_factory=SGD)
    visit_cosine: Annotated[bool, Neutral(False)] = False
    warmup: Annotated[Count, Neutral(0)] = 0

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers of the optimiser beside each parameter."""
        return self.optimizer.buffers(self.momentum)

    def continues(self, before: Training) -> bool:
        """Whether clients go on with the buffers that they have kept from a stage that trained as ``before``."""
        same = type(self.optimizer) is type(before.optimizer) and self.buffers == before.buffers
        return self.keep_momentum and same

    def at(
        self,
        round: int,
        of_stage: Mapping[str, Any] | None = None,
        stage_round: int = 0,
        *,
        rounds: int | None = None,
        stage_rounds: int | None = None,
    ) -> Training:
        """What holds in a round: the rate is ``lr · lr_decay^r · milestone_decay^m``, with m the milestones up to r.

        It may fall to ``min_lr``, as ``min_lr + (lr - min_lr) s``. Under ``cosine``, ``s = (1 + cos(π r / R)) / 2``
        with R rounds in all; with ``cosine_every`` the cosine starts again after as many rounds, which are its R
        (Loshchilov and Hutter, ICLR 2017, Eq. 5). From round ``linear_from`` = F on, ``s = (R - r) / (R - F)``.

        In the first ``warmup`` = W rounds it is ``(r + 1) / W`` of that; a cosine has the rounds after these, of R - W.

        r counts the rounds before this one: within the stage for values of the schedule that the stage sets itself,
        over all stages for those of the run.

        A round is one aggregation, as "communication round" is in FedCorr (Sec. 3.2), whose iterations over the clients
        are made of many: each of a chain of single clients counts.

        Args:
            round: number of the round, from 0, over all stages.
            of_stage: the values that the round's stage sets, by the names of these fields.
            stage_round: number of the round, from 0, within its stage.
            rounds: number of rounds of all stages; only a fall that has begun and goes on to the last round needs it.
            stage_rounds: number of rounds of the stage; likewise, for a fall that the stage sets.
        """
        own = of_stage or {}
        here = replace(self, **own)

        def before(name: str) -> int:
            return stage_round if name in own else round

        reached = sum(milestone <= before("milestones") for milestone in here.milestones)
        if here.milestone_every is not None:
            reached += before("milestone_every") // here.milestone_every
        lr = here.lr * here.lr_decay ** before("lr_decay") * here.milestone_decay**reached

        def passed(name: str, start: int = 0, every: int | None = None) -> float:
            done = before(name) - start
            length = every or (stage_rounds if name in own else rounds)
            if done <= 0:
                return 0.0
            assert length is not None, f"{name} needs the number of rounds"
            return done % every / every if every else done / (length - start)

        warming = here.warmup if ("warmup" in own) == ("cosine" in own) else 0
        if here.cosine and (share := passed("cosine", warming, here.cosine_every)):
            lr = here.min_lr + (lr - here.min_lr) * (1 + math.cos(math.pi * share)) / 2
        if here.linear_from is not None and (share := passed("linear_from", here.linear_from)):
            lr = here.min_lr + (lr - here.min_lr) * (1 - share)
        if (done := before("warmup")) < here.warmup:
            lr *= (done + 1) / here.warmup
        return replace(here, lr=lr)

    def within_visit(self, share: float) -> float:
        """The rate after this share of a visit's steps under ``visit_cosine``: half a cosine from ``lr`` to ``min_lr``.

        The last of S steps is taken after (S - 1)/S of them, so its rate is above ``min_lr``. Where an epoch has
        several phases, each of them goes through the epoch's part of the cosine.
        """
        return self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * share)) / 2

    def described(self) -> str:
        """The settings in a few words, for people, such as ``lr 0.05, batch 10, 3 epochs``."""
        kind = type(self.optimizer)
        words = [] if kind is SGD else [kind.__name__]
        words += [f"lr {self.lr:g}{self._falling()}", f"batch {self.batch_size}"]
        words += [f"{self.epochs} epochs" if self.steps is None else f"{self.steps} steps"]
        words += ["rate falling along a cosine in each visit"] if self.visit_cosine else []
        words += [] if self.clip is None else [f"gradients clipped to {self.clip:g}"]
        return ", ".join(words)

    def _falling(self) -> str:
        """How the rate changes over rounds; nothing if it does not."""
        factors = [] if self.lr_decay == 1 else [f"{self.lr_decay:g} a round"]
        if self.milestones:
            factors.append(f"{self.milestone_decay:g} after rounds {', '.join(map(str, self.milestones))}")
        if self.milestone_every is not None:
            factors.append(f"{self.milestone_decay:g} every {self.milestone_every} rounds")
        fall = f" falling to {self.min_lr:g}" if self.cosine or self.linear_from is not None else ""
        if self.cosine:
            fall += " along a cosine" + (f" every {self.cosine_every} rounds" if self.cosine_every else "")
        elif fall:
            fall += " linearly" + (f" after round {self.linear_from}" if self.linear_from else "")
        rise = f" after {self.warmup} rounds of warm-up" if self.warmup else ""
        return rise + (f" times {' and '.join(factors)}" if factors else "") + fall
