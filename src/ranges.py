"""The ranges that configuration values must lie in, as types: a field annotated so is checked before anything runs.

``src.check`` validates every field of every configured part against its annotation, so a part states its
ranges once, here, and needs no checks of its own for single values.
"""

from typing import Annotated

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
