"""The check of every key and value of a composed configuration.

A value is checked against the annotation of the field it will become, so a range is stated once, at the field.
"""

from __future__ import annotations

import collections.abc
import inspect
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import MinLen
from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, TypeAdapter, ValidationError

from flnl.config.compose import build, options, resolved
from flnl.config.folders import CONF
from flnl.config.given import takers
from flnl.config.groups import not_an_option
from flnl.config.override_text import key_of
from flnl.config.pinning import pin
from flnl.config.protocol import SETTINGS
from flnl.config.schema import GROUPS, METHOD, Root
from flnl.config.short_keys import DECLARATIONS, declared
from flnl.config.written import source, texts
from flnl.console.suggestions import did_you_mean
from flnl.console.words import counted
from flnl.core.errors import UserError, shortened
from flnl.core.importing import imported, located
from flnl.core.optimizer import SGD
from flnl.core.ranges import Length
from flnl.core.run_logger import Logger
from flnl.core.training import Training

Fault = tuple[str, str]
"""A key, and what is wrong with it."""
NO_KEY = " is not a key"
"""How that begins where there is no such key."""


def check_config(cfg: DictConfig) -> None:
    """Check every key and value of a composed configuration.

    Raises:
        UserError: one phrase for each fault, naming the key that a person would type.
    """
    names = {key: cfg.method._get_node(key)._value() for key in ("name", "like") if key in cfg.method}
    faults = [fault for key, name in names.items() for fault in _wrong(f"method.{key}", name, Name)]
    _refuse(cfg, faults)  # what others take from the protocol goes by them
    if "like" in names and names["like"] not in (known := options("method")):
        raise UserError(f"method.{not_an_option('like', str(names['like']), known)}")
    _refuse_unread(cfg)
    if takers(cfg):  # of the noise's rate, which can be worked out from right values only
        noise = OmegaConf.to_container(cfg.noise, resolve=True)
        _refuse(cfg, list(_group("noise", noise)))
    plain = resolved(cfg)
    faults = list(_faults("", {k: v for k, v in plain.items() if k not in (*GROUPS, LOGGER)}, Root))
    faults += _loggers(plain[LOGGER])
    for group in _slots().groups:
        faults += _group(group, plain[group])
    faults += _method(plain["method"])
    _refuse(cfg, faults)
    _refuse(cfg, list(_contradictions(plain)))


LOGGER = "logger"


def _loggers(node: Any) -> Iterator[Fault]:
    """What is wrong with the loggers, each of which has a name."""
    if not isinstance(node, Mapping):
        yield LOGGER, f"={_value(node)}: choose some with {LOGGER}=[{','.join(options(LOGGER))}]"
        return
    for name, part in node.items():
        yield from _part(f"{LOGGER}.{name}", part, Slot((Logger,), choices=LOGGER))


def _refuse(cfg: DictConfig, faults: Sequence[Fault]) -> None:
    if faults:
        raise UserError("; ".join(dict.fromkeys(f"{source(cfg, key)}{reason}" for key, reason in faults)))


def faults_of(values: Mapping[str, Any]) -> str:
    """What is wrong with some keys and some groups of a configuration, in one line; empty where nothing is."""
    others = {key: value for key, value in values.items() if key not in GROUPS}
    faults = [fault for fault in _faults("", others, Root) if fault[0].split(".")[0] in others]
    for group, slot in _slots().groups.items():
        faults += _part(group, values[group], slot) if group in values else ()
    faults += _method(values["method"]) if "method" in values else ()
    return "; ".join(dict.fromkeys(f"{key}{fault}" for key, fault in faults))


def faults_among(schema: type, values: Mapping[str, Any]) -> str:
    """What is wrong with the types of ``values`` as fields of a dataclass, in one line; empty where nothing is."""
    hints = field_types(schema)
    return "; ".join(
        f"{key}{fault}" for name, value in values.items() for key, fault in _wrong(name, value, hints[name])
    )


RELAYS = ("protocol", "rounds", "fraction")
"""Keys that are there for others to take their values from."""


def check_read(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse values of the protocol among ``overrides`` that nothing in the configuration takes.

    Raises:
        UserError: naming the first.
    """
    for override in overrides:
        key = key_of(override)
        if key.startswith("protocol.") and key != "protocol.name" and not _is_read(cfg, key):
            raise UserError(f"{override}: nothing in a run of method={cfg.method.name} takes {key}; leave it out")


def _is_read(cfg: DictConfig, key: str) -> bool:
    """Whether another value of ``key`` makes another configuration."""
    other = cfg.copy()
    OmegaConf.update(other, key, "another value", merge=False, force_add=True)
    try:
        plain, changed = resolved(cfg), resolved(other)
    except UserError:
        return True  # whoever takes it cannot do with that
    return any(plain[name] != changed[name] for name in plain if name not in RELAYS)


def check_machine(cfg: DictConfig) -> None:
    """Refuse what this machine cannot do.

    Raises:
        UserError: naming the key.
    """
    cores = os.cpu_count() or 1
    if cfg.threads > cores:
        raise UserError(f"threads={cfg.threads}: this machine has {counted(cores, 'core')}")
    if cfg.reproducible:
        pin()
    for logger in build(cfg[LOGGER]).values():
        logger.check()


# ----------------------------------------------------------------------------------------------------------- slots


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


def _among(hint: Any, kinds: Collection[type]) -> bool:
    """Whether a type is one of these, or a class of one."""
    return any(one in getattr(hint, "__mro__", (hint,)) for one in kinds)


@dataclass(frozen=True)
class Slots:
    """All slots, by their keys: of the configuration, of a method or a stage, and of its parts that have names."""

    groups: Mapping[str, Slot]
    method: Mapping[str, Slot]
    named: Mapping[str, Slot]


@cache
def _slots() -> Slots:
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


OF_HYDRA = ("_target_", "_partial_")
"""Keys of a part that Hydra reads. It knows more, but none that a part here could do with."""


def _group(group: str, node: Any) -> Iterator[Fault]:
    """What is wrong with what a group chose. An experiment may have set a key that only another choice has."""
    for key, reason in _part(group, node, _slots().groups[group]):
        if reason.startswith(NO_KEY) and key.count(".") == 1:
            reason = f"{NO_KEY} (if an experiment sets it, ~{key} leaves it out){reason.removeprefix(NO_KEY)}"
        yield key, reason


def _part(key: str, node: Any, slot: Slot) -> Iterator[Fault]:
    """What is wrong with what stands in a slot."""
    from flnl.core.parts import Part  # imports torch

    if slot.may_be_empty and (node is None or node == {}):
        return
    if not isinstance(node, Mapping) or "_target_" not in node:
        yield key, f"={_value(node)}: {slot.wanted}"
        return
    kind = imported(node["_target_"])
    if isinstance(kind, str):
        yield f"{key}._target_", f"={_value(node['_target_'])}: {kind}"
        return
    if not slot.admits(kind):
        wanted = f", as it is no {' or '.join(one.__name__ for one in slot.kinds)}" if slot.kinds else ""
        yield f"{key}._target_", f"={_value(node['_target_'])}: cannot stand there{wanted}; {key} {slot.wanted}"
        return
    if Part in kind.__mro__ and not is_dataclass(kind):
        how = "the class has no fields to be set; decorate it with @dataclass(frozen=True)"
        yield f"{key}._target_", f"={_value(node['_target_'])}: {how}"
        return
    for name in (name for name in node if str(name).startswith("_") and name not in OF_HYDRA):
        yield f"{key}.{name}", " is not a key of a part"
    values = {k: v for k, v in node.items() if not str(k).startswith("_")}
    adds = [hint for hint in field_types(kind).values() if _among(hint, slot.adds)] if is_dataclass(kind) else []
    unfinished = node.get("_partial_", False)
    if unfinished is not bool(adds) and (is_dataclass(kind) or not isinstance(unfinished, bool)):
        right = "true: the run adds what is missing" if adds else "false, or left out"
        yield f"{key}._partial_", f"={_value(node.get('_partial_'))}: must be {right}"
    elif is_dataclass(kind):
        yield from _faults(f"{key}.", values, kind, adds)
    else:
        yield from _unbound(key, values, kind, missing=not unfinished)
        for name, value in values.items():
            yield from _inner(f"{key}.{name}", value)


def _inner(key: str, node: Any) -> Iterator[Fault]:
    """What is wrong with the parts inside a value whose type nothing says."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield from _part(key, node, Slot())
        else:
            for name, value in node.items():
                yield from _inner(f"{key}.{name}", value)
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _inner(f"{key}.{i}", value)


def _unbound(key: str, values: Mapping[str, Any], kind: type, *, missing: bool) -> Iterator[Fault]:
    """What is wrong with the keys of a class that does not annotate its fields; ``missing``: also what is not there."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind == p.VAR_KEYWORD for p in parameters):
        yield from ((f"{key}.{k}", f"{NO_KEY}{_nearest(k, named)}") for k in values if k not in named)
    needed = [p.name for p in parameters if missing and p.name in named and p.default is p.empty]
    yield from (_missing(f"{key}.{name}") for name in needed if name not in values)


# ---------------------------------------------------------------------------------------------------------- method


def _method(method: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong with a method: its own parts, and those of its stages."""
    yield from _parts_of("method", method)
    yield from _wrong("method.name", method.get("name"), Name)
    yield from _wrong("method.networks", method.get("networks"), Literal[1, 2])
    stages = method.get("stages")
    if not isinstance(stages, Mapping):
        yield "method.stages", f"={_value(stages)}: must have a section a stage"
        return
    for name, stage in stages.items():
        where = f"method.stages.{name}"
        if not isinstance(stage, Mapping):
            yield where, f"={_value(stage)}: must say what the stage is made of"
            continue
        yield from _parts_of(where, stage, required=False)
        for key in STAGE_VALUES:
            if key in stage:
                yield from _wrong(f"{where}.{key}", stage[key], STAGE_VALUES[key])
        if isinstance(train := stage.get("train", {}), Mapping):
            yield from _values(f"{where}.train.", train, Training)
        else:
            yield f"{where}.train", f"={_value(train)}: set one of {', '.join(field_types(Training))} in it"
        if isinstance(correct := stage.get("correct"), Mapping):
            yield from _faults(f"{where}.correct.", correct, Correct)
        elif correct is not None:
            yield f"{where}.correct", f"={_value(correct)}: must be null, or a rule and when"


def _contradictions(plain: Mapping[str, Any]) -> Iterator[Fault]:
    """Values of local training, each right by itself, that contradict each other: of the run and of each stage."""
    run = plain["train"]
    sections = {"train": run} | {
        f"method.stages.{name}.train": stage["train"]
        for name, stage in plain["method"]["stages"].items()
        if stage.get("train")
    }
    for where, own in sections.items():
        here = {**run, **own}
        optimizer = located(here["optimizer"]["_target_"]) if "optimizer" in here else SGD
        if here["momentum"] and optimizer is not None and not issubclass(optimizer, SGD):
            key = f"{where}.momentum" if "momentum" in own else f"{where}.optimizer"
            yield key, f": {optimizer.__name__} has no momentum of SGD's (it is {here['momentum']:g}); set it to 0"
        linear = here.get("linear_from")
        if here.get("cosine") and linear is not None:
            key = f"{where}.cosine" if "cosine" in own else f"{where}.linear_from"
            yield key, f": the rate falls along a cosine or linearly from round {linear} on; set one of them"
        elif here.get("cosine_every") is not None and not here.get("cosine"):
            yield f"{where}.cosine_every", f"={here['cosine_every']}: there is no cosine; set cosine=true"
        elif here.get("visit_cosine") and here.get("min_lr", 0.0) > here["lr"]:
            yield f"{where}.visit_cosine", f": the rate falls to min_lr, which is above lr={here['lr']:g}"
        elif (here.get("cosine") or linear is not None) and here.get("min_lr", 0.0) > here["lr"]:
            fall = "cosine" if here.get("cosine") else "linear_from"
            key = next((f"{where}.{name}" for name in ("min_lr", "lr") if name in own), f"{where}.{fall}")
            what = "cosine" if here.get("cosine") else "linear fall"
            yield key, f"={here[key.rpartition('.')[2]]:g}: the {what} ends at min_lr, which is above lr={here['lr']:g}"


def _refuse_unread(cfg: DictConfig) -> None:
    """Refuse keys of a method that are no short keys, and that nothing in the configuration refers to."""
    known = [*METHOD, "like", *declared(cfg)]
    interpolations = " ".join(text for _, text in texts(cfg) if "${" in text)
    unread = [
        f"method.{name}: no part of method={cfg.method.name} reads it{_nearest(name, known)}"
        for name in map(str, cfg.method)
        if name not in (*known, DECLARATIONS, SETTINGS)
        and not re.search(rf"\bmethod\.{re.escape(name)}\b", interpolations)
    ]
    if unread:
        raise UserError("; ".join(unread))


Name = Annotated[str, MinLen(1)]
STAGE_VALUES: Mapping[str, Any] = {"rounds": Length, "passes": Length, "restart": bool, "silent": list[str]}
"""What a stage says besides its parts, its values of local training, and how it corrects labels."""


@dataclass(frozen=True)
class Correct:
    """How a stage corrects labels: by which of the corrector's rules, and when."""

    rule: Name
    when: Literal["pass", "end"]


def _parts_of(where: str, node: Mapping[str, Any], *, required: bool = True) -> Iterator[Fault]:
    """What is wrong with the parts of a method, or with those that a stage has in their place."""
    slots = _slots()
    for name, slot in slots.method.items():
        if name in node or (required and not slot.may_be_empty):
            yield from _part(f"{where}.{name}", node.get(name), slot)
    for name, slot in slots.named.items():
        if name not in node and not required:
            continue
        parts = node.get(name)
        if not isinstance(parts, Mapping):
            yield f"{where}.{name}", f"={_value(parts)}: must have a part a name; choose some with method/{name}=[...]"
            continue
        for key, part in parts.items():
            yield from _part(f"{where}.{name}.{key}", part, slot)


# ---------------------------------------------------------------------------------------------------------- values


def _faults(prefix: str, node: Mapping[str, Any], schema: type, added: Collection[type] = ()) -> Iterator[Fault]:
    """What is wrong with keys and values, by the annotations of a dataclass.

    Fields of the types ``added`` may be missing.
    """
    yield from _values(prefix, node, schema)
    optional = {f.name for f in fields(schema) if f.default is not MISSING or f.default_factory is not MISSING}
    hints = field_types(schema)
    missing = (key for key, hint in hints.items() if key not in node and hint not in added and key not in optional)
    yield from (_missing(f"{prefix}{key}") for key in missing)


def _missing(key: str) -> Fault:
    """What is wrong where a key that has no default was deleted, or a file lacks it."""
    return key, f" is missing: write {key}=... in place of ~{key}, or set it in the file that lacks it"


def _values(prefix: str, node: Mapping[str, Any], schema: type) -> Iterator[Fault]:
    """As ``_faults``, for the fields that are there."""
    hints = field_types(schema)
    for key, value in node.items():
        name = f"{prefix}{key}"
        if key not in hints:
            yield name, f"{NO_KEY}{_nearest(str(key), list(hints))}"
        elif schema is Root and is_dataclass(hints[key]):
            if isinstance(value, Mapping):
                yield from _faults(f"{name}.", value, hints[key])
            else:
                yield (
                    name,
                    f"={_value(value)}: set one of {', '.join(f'{name}.{inner}' for inner in field_types(hints[key]))}",
                )
        elif (slot := _slot_of(hints[key])) is not None:
            group = name.replace(".", "/")
            yield from _part(name, value, replace(slot, choices=group) if (CONF / group).is_dir() else slot)
        elif isinstance(value, Mapping) and "_target_" in value and not _is_plain(hints[key]):
            yield from _part(name, value, Slot())
        else:
            yield from _wrong(name, value, hints[key])


@cache
def field_types(schema: type) -> dict[str, Any]:
    """The fields that a dataclass is built from, with their annotations."""
    hints = get_type_hints(schema, include_extras=True)
    return {f.name: hints[f.name] for f in fields(schema) if f.init and not f.name.startswith("_")}


def _slot_of(hint: Any) -> Slot | None:
    """The slot that a field is, by its annotation: a class of parts, or what makes one of further arguments."""
    if get_origin(hint) is Annotated:
        return _slot_of(get_args(hint)[0])
    if is_dataclass(hint) and isinstance(hint, type):
        return Slot((hint,))
    if get_origin(hint) is collections.abc.Callable:
        arguments, made = get_args(hint)
        return Slot((made,), adds=tuple(arguments)) if isinstance(made, type) else None
    return None


def _is_plain(hint: Any) -> bool:
    """Whether a field is a value and no part."""
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        return _is_plain(arguments[0])
    if get_origin(hint) is Literal or not arguments:
        return get_origin(hint) is Literal or hint in (int, float, str, bool, type(None))
    return all(map(_is_plain, arguments))


def _wrong(key: str, value: Any, hint: Any) -> Iterator[Fault]:
    """What is wrong with a value. Strictly: the part is built from the value as it stands, unconverted."""
    try:
        _adapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        messages = (re.sub(r"^\w+ should", "must", str(e["msg"]).removeprefix("Value error, ")) for e in error.errors())
        wanted = " or ".join(dict.fromkeys(messages)) + _as_text(key, error)
        place = ".".join(str(part) for part in error.errors()[0]["loc"] if isinstance(part, int))
        yield key, f"{f'[{place}]' if place else ''}={_value(value)}: {wanted}"


def _as_text(key: str, error: ValidationError) -> str:
    """How to type a number, true or false where a text is wanted; empty where that is not the fault."""
    for one in error.errors():
        if one["type"] == "string_type" and isinstance(one["input"], bool | int | float):
            quoted = f'"{str(one["input"]).lower()}"'
            return (
                f"; as text, it has quotes within quotes: '{key}={f'[{quoted}]' if one['loc'][:1] == (0,) else quoted}'"
            )
    return ""


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))


def _value(value: Any) -> str:
    """A value as it is typed, or as much of it as a line can hold."""
    return "null" if value is None else shortened(str(value))


def _nearest(word: str, known: Sequence[str]) -> str:
    return f"; {did_you_mean(word, known, 'there are ' + ', '.join(sorted(known)))}"
