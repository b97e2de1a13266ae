"""Annotated types for the ranges of configuration values, checked before a run starts.

``flnl.config.check`` validates every field of every configured part against its annotation, so parts need no further
checks for single values.
"""

import os
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt, Interval, MinLen
from pydantic import AfterValidator

Share = Annotated[float, Interval(ge=0, le=1)]
"""A fraction or a probability in [0, 1]."""

PositiveShare = Annotated[float, Interval(gt=0, le=1)]
"""A fraction in (0, 1]."""

Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Count = Annotated[int, Interval(ge=0, lt=2**63)]
"""A count; may be zero."""

Length = Annotated[int, Interval(ge=0, le=10**6)]
"""A number of rounds or of passes over the clients; what a run plans for each round fits into memory."""

PositiveCount = Annotated[int, Interval(ge=1, lt=2**63)]


class OfStage:
    """In an annotation: the value is the number of a stage, of which the method must have so many."""


StageNumber = Annotated[int, Interval(ge=1, lt=2**63), OfStage]
"""The number of a stage, from 1."""

Seed = Annotated[int, Interval(ge=0, lt=2**63)]


@dataclass(frozen=True)
class FromFiles:
    """In an annotation: the value that a field gets when its part is read from a file.

    For fields that access other machines or download something: only the command line may set them.
    """

    value: Any


@dataclass(frozen=True)
class NamesCode:
    """In an annotation: the field is the dotted path of Python code that the part imports.

    A command line may name any path; a file that a run has written only one that configuration files name, or that the
    reader of the file trusts by its path.
    """


@dataclass(frozen=True)
class Neutral:
    """In an annotation: the value at which a field has no effect, so that its part behaves as without the field.

    Use it when adding a field to an existing part: ``Annotated[float, Ge(0), Neutral(0.0)]``. At this value the field
    is not part of the run's key, so earlier runs keep their keys. For a field that is itself a part, the value is its
    stored name with its fields, as in ``{"_target_": "SGD"}``.
    """

    value: Any


NAME_BYTES = 255
PATH_BYTES = 4096 - 512
"""Most systems allow 4,096; the rest is left for the files that a run puts below a path."""


def _is_path(text: str) -> str:
    if "\0" in text:
        raise ValueError("must have no NUL character")
    if len(os.fsencode(text)) > PATH_BYTES:
        raise ValueError(f"must have at most {PATH_BYTES} bytes")
    if max(map(len, os.fsencode(text).split(b"/"))) > NAME_BYTES:
        raise ValueError(f"must have at most {NAME_BYTES} bytes between two slashes")
    return text


PathText = Annotated[str, MinLen(1), AfterValidator(_is_path)]
"""A path or URL of a valid form and length; it need not exist."""
