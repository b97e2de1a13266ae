"""The places of a configuration that parts stand in, and what may stand in each."""

from __future__ import annotations

import collections.abc
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from flnl.config.compose import options


@dataclass(frozen=True)
class Slot:
    """A place of the configuration that a part stands in.

    Args:
        kinds: classes of which the part must be one.
        called_with: numbers of arguments, with one of which a part of no such class must be callable.
        adds: types of what the run still adds to its values, so that Hydra leaves the part unfinished.
        may_be_empty: whether nothing may stand there.
        choices: the group of ``conf/`` that it is chosen from.
    """

    kinds: tuple[type, ...] = ()
    called_with: tuple[int, ...] = ()
    adds: tuple[type, ...] = ()
    may_be_empty: bool = False
    choices: str = ""

    def admits(self, kind: type) -> bool:
        """Whether a part of this class may stand there."""
        if not self.kinds and not self.called_with:
            return True
        if any(one in kind.__mro__ for one in self.kinds):
            return True
        call = next((vars(one)["__call__"] for one in kind.__mro__ if "__call__" in vars(one)), None)
        return callable(call) and any(_binds(call, count + 1) for count in self.called_with)

    @property
    def wanted(self) -> str:
        """What must stand there."""
        chosen = f"; choose one with {self.choices}={', '.join(options(self.choices))}" if self.choices else ""
        return f"must be a part, with a _target_ and its values{', or null' if self.may_be_empty else ''}{chosen}"


def _binds(call: Any, count: int) -> bool:
    """Whether something can be called with so many arguments; True where it does not say."""
    try:
        inspect.signature(call).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


@dataclass(frozen=True)
class Slots:
    """All slots, by their keys: of the configuration, of a method or a stage, and of its parts that have names."""

    groups: Mapping[str, Slot]
    method: Mapping[str, Slot]
    named: Mapping[str, Slot]


@cache
def slots() -> Slots:
    """All slots of a configuration."""
    from flnl.core import execution
    from flnl.core.images import ReadDataset
    from flnl.core.model import RunModel
    from flnl.core.parts import (  # torch takes seconds to import
        Aggregator,
        BatchRule,
        ClientSampler,
        Exchange,
        GradientTransform,
        LabelCorrector,
        LossTerm,
        ServerUpdate,
    )

    return Slots(
        groups={
            "dataset": Slot((ReadDataset,), called_with=(0,), choices="dataset"),
            "partition": Slot(called_with=(2,), choices="partition"),  # the pool, and chance
            "noise": Slot(called_with=(2, 4), choices="noise"),  # of the set, or inside clients
            "model": Slot(called_with=(2,), choices="model"),  # the shape of an image, and the number of classes
            "executor": Slot((execution.Executor, execution.ExecutorChoice), adds=(RunModel,), choices="executor"),
        },
        method={
            "sampler": Slot((ClientSampler,), choices="method/sampler"),
            "batch": Slot((BatchRule,), choices="method/batch"),
            "gradient": Slot((GradientTransform,), may_be_empty=True, choices="method/gradient"),
            "aggregator": Slot((Aggregator,), choices="method/aggregator"),
            "server": Slot((ServerUpdate,), choices="method/server"),
            "corrector": Slot((LabelCorrector,), may_be_empty=True, choices="method/corrector"),
        },
        named={"local": Slot((LossTerm,)), "exchange": Slot((Exchange,))},
    )


def slot_of(hint: Any) -> Slot | None:
    """The slot that a field is, by its annotation: a class of parts, or what makes one of further arguments."""
    if get_origin(hint) is Annotated:
        return slot_of(get_args(hint)[0])
    if is_dataclass(hint) and isinstance(hint, type):
        return Slot((hint,))
    if get_origin(hint) is collections.abc.Callable:
        arguments, made = get_args(hint)
        return Slot((made,), adds=tuple(arguments)) if isinstance(made, type) else None
    return None


def is_plain(hint: Any) -> bool:
    """Whether a field is a value and no part."""
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        return is_plain(arguments[0])
    if get_origin(hint) is Literal or not arguments:
        return get_origin(hint) is Literal or hint in (int, float, str, bool, type(None))
    return all(map(is_plain, arguments))
