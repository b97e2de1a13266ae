"""Labels by several people as one soft label: the share of people who gave each class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import BatchRule, LossTerm, Part, Setting
from flnl.core.step import Step
from flnl.parts.losses.targets import of_labels


@dataclass(frozen=True)
class Shares:
    """The term's state during one visit."""

    people: Tensor  # float [n, K], the share of people who gave each class; rows sum to 1


def shares(people: Tensor, classes: int) -> Tensor:
    """The shares [n, K] of labels int64 [A, n], where -1 is no label.

    >>> shares(torch.tensor([[0, 1], [2, -1], [2, -1]]), 3)
    tensor([[0.3333, 0.0000, 0.6667],
            [0.0000, 1.0000, 0.0000]])
    """
    votes = (people[:, :, None] == torch.arange(classes, device=people.device)).sum(0)
    return votes / votes.sum(1, keepdim=True)


@dataclass(frozen=True)
class SoftLabels(LossTerm):
    """``-Σ_c q_c log p_c`` per sample, with q_c the share of people who gave it class c (Peterson et al., ICCV 2019).

    Of a sample that one person labelled, or whose label a method has corrected to one that nobody gave, it is
    cross-entropy.
    """

    fits_labels: ClassVar[bool] = True

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        if any(isinstance(part, BatchRule) and part.overrides("mixing") for part in stage):
            return "soft labels are those of single samples, and batches are mixed: choose method/batch=plain"
        return None

    def begin(self, network: Model, task: ClientTask, state: Any) -> Shares:
        people = task.samples.people
        found = shares(task.labels.cpu()[None] if people is None else people, network.num_classes)
        return Shares(onto(found, network.device, network.dtype))

    def __call__(self, step: Step, state: Shares) -> tuple[Tensor, Shares]:
        q, losses = state.people[step.positions].to(step.logits.dtype), -step.logits.log_softmax(1)
        soft = (q * torch.where(q > 0, losses, 0.0)).sum(1)  # a loss may be infinite where q is 0
        return torch.where(of_labels(q, step.labels) > 0, soft, of_labels(losses, step.labels)), state
