"""The keys of a run outside its groups, as dataclasses whose annotations say what is accepted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Interval, MinLen
from pydantic import AfterValidator

from flnl.core.fault import Fault
from flnl.core.ranges import Length, Neutral, NonNegative, PathText, PositiveCount, PositiveShare, Seed
from flnl.core.shift import Shift
from flnl.core.training import Training


def _is_device(device: str) -> str:
    kind = re.sub(r":[0-9]{1,4}\Z", "", device)
    if device in ("auto", "cpu") or kind == "cuda":
        return device
    import torch  # not needed to check what everybody uses

    if kind != torch._C._get_privateuse1_backend_name() or not hasattr(torch, kind):
        raise ValueError(
            "must be auto, cpu, cuda or, with several GPUs, one of them as in cuda:1, or an accelerator that a package "
            "has registered with torch"
        )
    return device


Name = Annotated[str, MinLen(1)]

Device = Annotated[str, AfterValidator(_is_device)]
"""Where networks are trained: ``auto``, or a kind of device, with a number where there are several; besides torch's
own, one that extends it (PrivateUse1)."""


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
    """``wandb``: the settings of ``logger=wandb``."""

    mode: Literal["auto", "online", "offline", "disabled"]
    project: Name
    group: str | None
    tags: list[str]
    artifacts: bool = False


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
    precision: Literal[32, 64, "bf16", "tf32"]
    threads: Annotated[int, Interval(ge=1, le=1024)]
    reproducible: bool
    memory_format: Literal["auto", "contiguous", "channels_last"]
    client_memory: NonNegative
    centralized: Annotated[bool, Neutral(False)]
    rounds: Length
    fraction: PositiveShare
    on_nonfinite: Literal["drop", "stop"]
    products: bool
    figures: bool
    train: Training
    fault: Fault
    shift: Shift
    eval: Eval
    audit: Audit
    checkpoint: Checkpoints
    wandb: Wandb


NO_GROUPS = ("table", "scale", "doctor", "benchmark")
"""Folders of ``conf/`` that say nothing of a single run: the tables and the doctor read them."""

GROUPS = ("protocol", "dataset", "partition", "noise", "model", "method", "executor")

METHOD = (
    *("name", "networks", "stages", "exchange", "corrector"),
    *("sampler", "batch", "local", "gradient", "aggregator", "server"),
)
"""What is read of ``method``. Its other keys are short keys for values of these, and count there."""

STAGE_VALUES: Mapping[str, Any] = {"rounds": Length, "passes": Length, "restart": bool, "silent": list[str]}
"""What a stage says besides its parts, its values of local training, and how it corrects labels."""


@dataclass(frozen=True)
class Correct:
    """How a stage corrects labels: by which of the corrector's rules, and when."""

    rule: Name
    when: Literal["pass", "end"]
