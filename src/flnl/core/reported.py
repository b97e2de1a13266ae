"""Marks in the annotations of what clients send to the server: what a value must be, beside its type.

A client of a simulation sends what its part has made. One that is a site may send anything of the type, and an error
that a wrong shape, an infinite number or a count of ``2**60`` samples leads to later would name nobody. So a site's
report is held against these marks, and against ranges (``ranges.Share``). Without a mark, numbers must be finite, and
whole numbers not negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor


@dataclass(frozen=True)
class Shaped:
    """A tensor of a kind, as ``torch`` names it, and a shape: ``K`` classes, ``n`` samples of the client.

    A number is that length. Dimensions of other names are of any length, the same one for all clients. The kind
    ``float`` is any of floats.
    """

    kind: str
    shape: tuple[str, ...]


class OfSamples:
    """A number of the client's samples, or numbers of different ones: together at most as many as it has."""


class OfModel:
    """Tensors by name, each of the shape and type of the model's entry of this name."""


class MayBeInfinite:
    """A number, or numbers, of which NaN and infinite ones have a meaning."""


PerClass = Annotated[Tensor, Shaped("float64", ("K",))]
PerSample = Annotated[Tensor, Shaped("float64", ("n",))]
SamplesPerClass = Annotated[Tensor, Shaped("int64", ("K",)), OfSamples()]
