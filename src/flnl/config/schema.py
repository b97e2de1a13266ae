"""The keys of a run outside its groups, as dataclasses whose annotations say what is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from annotated_types import Interval, MinLen
from pydantic import AfterValidator

from flnl.core.ranges import Count, Neutral, NonNegative, PathText, Positive, PositiveCount, PositiveShare, Seed


def _is_device(kind: str) -> str:
    if kind in ("auto", "cpu", "cuda"):
        return kind
    import torch  # not needed to check what everybody uses

    if kind != torch._C._get_privateuse1_backend_name() or not hasattr(torch, kind):
        raise ValueError("must be auto, cpu or cuda, or an accelerator that a package has registered with torch")
    return kind


Device = Annotated[str, AfterValidator(_is_device)]
"""Where networks are trained: ``auto``, or a kind of device; besides torch's own, one that extends it (PrivateUse1)."""


@dataclass(frozen=True)
class Training:
    """``train``: local SGD. A stage may set some of the values in place of the run's: ``method.stages.NAME.train``."""

    lr: Positive
    momentum: Annotated[float, Interval(ge=0, lt=1)]
    weight_decay: NonNegative
    batch_size: PositiveCount
    epochs: PositiveCount
    lr_decay: PositiveShare
    milestones: Annotated[list[PositiveCount], Neutral(())] = field(default_factory=list)
    milestone_decay: Annotated[PositiveShare, Neutral(0.1)] = 0.1
    keep_momentum: Annotated[bool, Neutral(False)] = False

    def at(self, round: int, of_stage: Mapping[str, Any] | None = None, stage_round: int = 0) -> Training:
        """What holds in a round: the rate is ``lr · lr_decay^r · milestone_decay^m``, with m the milestones up to r.

        r counts the rounds before this one: within the stage for a schedule (``lr_decay``, ``milestones``) that the
        stage sets itself, over all stages for one that is the run's.

        A round is one aggregation, as "communication round" is in FedCorr (Sec. 3.2), whose iterations over the clients
        are made of many: each of a chain of single clients counts.

        Args:
            round: number of the round, from 0, over all stages.
            of_stage: the values that the round's stage sets, by the names of these fields.
            stage_round: number of the round, from 0, within its stage.
        """
        own = of_stage or {}
        here = replace(self, **own)
        decays = stage_round if "lr_decay" in own else round
        reached = stage_round if "milestones" in own else round
        steps = sum(milestone <= reached for milestone in here.milestones)
        return replace(here, lr=here.lr * here.lr_decay**decays * here.milestone_decay**steps)


@dataclass(frozen=True)
class Eval:
    """``eval``: when and on what."""

    every: PositiveCount | None
    validation: Annotated[float, Interval(ge=0, lt=1)]
    benchmark: Annotated[float, Interval(ge=0, lt=1), Neutral(0.0)]
    memorization: bool
    cohort: bool


@dataclass(frozen=True)
class Audit:
    """``audit``: whether and how class probabilities are recorded for a label audit."""

    record: Literal["auto"] | bool
    window: PositiveShare


@dataclass(frozen=True)
class Checkpoints:
    """``checkpoint``: how often, how many."""

    every: PositiveCount | None
    keep: PositiveCount


@dataclass(frozen=True)
class Wandb:
    """``wandb``: the mirror of the metrics."""

    mode: Literal["auto", "online", "offline", "disabled"]
    project: Annotated[str, MinLen(1)]
    group: str | None
    tags: list[str]


@dataclass(frozen=True)
class Root:
    """The keys of a run outside its groups."""

    seed: Seed
    data_seed: Seed
    max_rounds: PositiveCount | None
    resume: bool | PathText
    output: PathText | None
    output_root: PathText
    cache: PathText
    device: Device
    precision: Literal[32, 64, "bf16"]
    threads: Annotated[int, Interval(ge=1, le=1024)]
    memory_format: Literal["auto", "contiguous", "channels_last"]
    client_memory: NonNegative
    centralized: Annotated[bool, Neutral(False)]
    rounds: Count
    fraction: PositiveShare
    on_nonfinite: Literal["drop", "stop"]
    products: bool
    figures: bool
    train: Training
    eval: Eval
    audit: Audit
    checkpoint: Checkpoints
    wandb: Wandb


NO_GROUPS = ("table", "scale", "doctor")
"""Folders of ``conf/`` that say nothing of a single run: ``flnl.tables`` and ``flnl.doctor`` read them."""

GROUPS = ("protocol", "dataset", "partition", "noise", "model", "method", "executor")

METHOD = (
    *("name", "networks", "stages", "exchange", "corrector"),
    *("sampler", "batch", "local", "gradient", "aggregator", "server"),
)
"""What is read of ``method``. Its other keys are short keys for values of these, and count there."""
