"""Traces which non-tensor values a step reads."""

from collections.abc import Callable
from functools import cache
from typing import Any, Never

from flnl.core.messages import Broadcast
from flnl.core.step import Step
from flnl.engine.stacked.errors import NotStackable

NUMBER, ROUND, RECEIVED = "number", "round", "received"


def refuse(name: str) -> Never:
    """Refuse to give what each client has of a step for itself.

    Raises:
        NotStackable: always.
    """
    raise NotStackable(f"it reads step.{name}, and each client has its own")


class RefusingStep(Step):
    """A step that refuses to give some attributes; the others are read as fast as of any step."""

    @classmethod
    def of(cls, step: Step, refused: frozenset[str], **others: Any) -> Step:
        """A copy of ``step`` that refuses these, with some ``others`` of its attributes."""
        made = object.__new__(_refusing(refused))
        made.__dict__.update(vars(step), **others)
        return made


@cache
def _refusing(names: frozenset[str]) -> type[RefusingStep]:
    """The class of steps that refuse these: a property counts more than an attribute of the same name."""

    def refusing(name: str) -> property:
        return property(lambda _: refuse(name))

    return type("RefusingStep", (RefusingStep,), {name: refusing(name) for name in names})


class WatchedStep(Step):
    """A step that calls ``reading`` with the name of each of its attributes before it is read."""

    reading: Callable[[str], object]

    @classmethod
    def of(cls, step: Step, reading: Callable[[str], object]) -> Step:
        """A watched copy of ``step``."""
        watched = object.__new__(cls)
        object.__getattribute__(watched, "__dict__").update(vars(step), reading=reading)
        return watched

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "reading")(name)
        return super().__getattribute__(name)


class WatchedBroadcast(Broadcast):
    """A broadcast that records in ``asked`` whether its round is read."""

    asked: set[str]

    @classmethod
    def of(cls, broadcast: Broadcast, asked: set[str]) -> Broadcast:
        """A watched copy of ``broadcast``."""
        watched = object.__new__(cls)
        watched.__dict__.update(vars(broadcast), asked=asked)
        return watched

    def __getattribute__(self, name: str) -> Any:
        if name == ROUND:
            object.__getattribute__(self, "asked").add(name)
        return super().__getattribute__(name)
