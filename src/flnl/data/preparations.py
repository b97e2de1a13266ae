"""Preparations of samples that are no images: rows of numbers, and token ids. Nothing in them is random."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from flnl.core.inputs import PAD, Kind, Preparation
from flnl.data.transforms import Transform


@dataclass(frozen=True)
class Rows(Preparation):
    """Rows of D numbers: of length 1 with ``unit``, and then standardised column by column if there is a ``mean``."""

    kind: ClassVar[Kind] = "vector"
    width: int  # D
    mean: tuple[float, ...] = ()  # [D], or nothing
    std: tuple[float, ...] = ()
    unit: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """(D,)."""
        return (self.width,)

    def normalize(
        self,
        images: Tensor,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """Inputs [b, D] of stored rows; rows of zeros have no length and stay."""
        rows = images.to(dtype, copy=True)
        if self.unit:
            length = rows.norm(dim=1, keepdim=True)
            rows = rows / torch.where(length > 0, length, torch.ones_like(length))
        if self.mean:
            mean, std = _columns(self.mean, self.std, dtype, rows.device)
            rows = rows.sub_(mean).div_(std)
        return rows

    def example(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Normal noise, float64 [*shape, D]."""
        return torch.randn((*shape, self.width), generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Tokens(Preparation):
    """Token ids of texts, below ``vocabulary``: those of a text, and then ``PAD`` up to ``length``."""

    kind: ClassVar[Kind] = "tokens"
    vocabulary: int
    length: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(L,)."""
        return (self.length,)

    def normalize(
        self,
        images: Tensor,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """Token ids int64 [b, L]."""
        return images.to(torch.int64)

    def example(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Random words, int64 [*shape, L]; pads alone would be no text."""
        return torch.randint(
            min(PAD + 1, self.vocabulary - 1), self.vocabulary, (*shape, self.length), generator=generator
        )


@lru_cache(maxsize=8)
def _columns(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Mean and deviation, each [D]; cached, since creating them costs more than using them."""
    with torch.inference_mode(False):  # tensors created in inference mode cannot be used in training
        return torch.tensor(mean, dtype=dtype, device=device), torch.tensor(std, dtype=dtype, device=device)


KINDS: Mapping[Kind, type[Preparation]] = {
    "image": Transform,
    "vector": Rows,
    "tokens": Tokens,
}


def described(preparation: Preparation) -> dict[str, Any]:
    """A preparation as plain values; those of images, which were the first, do not name their kind."""
    values = {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(preparation).items()}  # type: ignore[call-overload]
    return values if preparation.kind == "image" else {"kind": preparation.kind, **values}


def restored(values: Mapping[str, Any]) -> Preparation:
    """The preparation that ``described`` has described.

    Raises:
        ValueError: if these are not its values.
    """
    kind: Any = KINDS.get(values.get("kind", "image"))
    if kind is None or not {*values} - {"kind"} <= {field.name for field in fields(kind)}:
        raise ValueError(f"{values} describes no inputs")
    made: Preparation = kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k != "kind"})
    return made
