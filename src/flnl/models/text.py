"""A network of texts: the mean of the embeddings of a text's words."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.core.inputs import PAD, UNKNOWN, Kind
from flnl.core.ranges import PositiveCount
from flnl.models.layers import Classifier, Shape


class MeanEmbedding(nn.Embedding):
    """The mean [B, d] of the embeddings of the tokens of each text in [B, L] that are not ``PAD``.

    A text of pads alone counts as one unknown word.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The means of token ids int64 [B, L]."""
        return masked_mean(input, self.weight)


def masked_mean(ids: Tensor, table: Tensor, first: Tensor | int = 0) -> Tensor:
    """The mean [..., d] over the last axis of ``ids`` [..., L] of rows of ``table``, where ids are not ``PAD``.

    ``first`` is added to ids before rows are taken.
    """
    empty = (ids == PAD).all(-1, keepdim=True)
    ids = torch.where(empty, UNKNOWN, ids)  # as often as the text is long, which has the same mean
    weight = (ids != PAD).to(table.dtype)
    weight = weight / weight.sum(-1, keepdim=True)
    return (F.embedding(ids + first, table) * weight.unsqueeze(-1)).sum(-2)


@dataclass(frozen=True)
class FastText:
    """The mean of word embeddings of width ``embedding``, a linear layer to ``hidden``, and a linear head.

    There is no non-linearity (FNBench's network for AG News, after Joulin et al., 2017).
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("tokens",)
    vocabulary: PositiveCount  # number of token ids
    embedding: PositiveCount
    hidden: PositiveCount

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for texts of any length."""
        body = nn.Sequential(MeanEmbedding(self.vocabulary, self.embedding), nn.Linear(self.embedding, self.hidden))
        return Classifier(body, nn.Linear(self.hidden, num_classes))
