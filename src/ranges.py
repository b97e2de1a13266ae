"""The ranges that configuration values must lie in, as types: a field annotated so is checked before anything runs.

``src.config.check`` validates every field of every configured part against its annotation, so a part states its
ranges once, here, and needs no checks of its own for single values.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Interval

Share = Annotated[float, Interval(ge=0, le=1)]
"""A fraction or a probability, ends included."""

PositiveShare = Annotated[float, Interval(gt=0, le=1)]
"""A fraction that may not be zero."""

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Count = Annotated[int, Interval(ge=0, lt=2**63)]
"""How many; zero is a number."""

PositiveCount = Annotated[int, Interval(ge=1, lt=2**63)]
Seed = Annotated[int, Interval(ge=0, lt=2**63)]


@dataclass(frozen=True)
class FromFiles:
    """In an annotation: the value of a field where its part is read from a file.

    For fields that reach out of this machine or fetch something: only a command line may set them.
    """

    value: Any


@dataclass(frozen=True)
class Neutral:
    """In an annotation: the value with which a field does nothing, so that its part is what it was without it.

    A field that is added to a part that runs have been made with is given one, as in
    ``Annotated[float, Ge(0), Neutral(0.0)]``; at this value it does not enter the run's key, and those runs are found.
    The value of a part is its stored name with its other fields, as in ``{"_target_": "SGD"}``.
    """

    value: Any
