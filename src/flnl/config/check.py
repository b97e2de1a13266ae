"""The check of every key and value of a composed configuration.

A value is checked against the annotation of the field it will become, so a range is stated once, at the field.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from flnl.config.compose import build, options, resolved
from flnl.config.given import takers
from flnl.config.groups import not_an_option
from flnl.config.override_text import key_of
from flnl.config.part_check import field_faults, group_faults, part_faults, present_faults
from flnl.config.pinning import pin
from flnl.config.protocol import SETTINGS
from flnl.config.schema import GROUPS, METHOD, STAGE_VALUES, Correct, Name, Root
from flnl.config.short_keys import DECLARATIONS, declared
from flnl.config.slots import Slot, slots
from flnl.config.typed_values import Fault, as_typed, field_types, suggestion, value_faults
from flnl.config.written import source, texts
from flnl.console.words import counted
from flnl.core.errors import UserError
from flnl.core.importing import located
from flnl.core.optimizer import SGD
from flnl.core.run_logger import Logger
from flnl.core.training import Training


def check_config(cfg: DictConfig) -> None:
    """Check every key and value of a composed configuration.

    Raises:
        UserError: one phrase for each fault, naming the key that a person would type.
    """
    names = {key: cfg.method._get_node(key)._value() for key in ("name", "like") if key in cfg.method}
    faults = [fault for key, name in names.items() for fault in value_faults(f"method.{key}", name, Name)]
    _refuse(cfg, faults)  # what others take from the protocol goes by them
    if "like" in names and names["like"] not in (known := options("method")):
        raise UserError(f"method.{not_an_option('like', str(names['like']), known)}")
    _refuse_unread(cfg)
    if takers(cfg):  # of the noise's rate, which can be worked out from right values only
        noise = OmegaConf.to_container(cfg.noise, resolve=True)
        _refuse(cfg, list(group_faults("noise", noise)))
    plain = resolved(cfg)
    faults = list(field_faults("", {k: v for k, v in plain.items() if k not in (*GROUPS, LOGGER)}, Root))
    faults += _loggers(plain[LOGGER])
    for group in slots().groups:
        faults += group_faults(group, plain[group])
    faults += _method_faults(plain["method"])
    _refuse(cfg, faults)
    _refuse(cfg, list(_contradictions(plain)))


LOGGER = "logger"


def _loggers(node: Any) -> Iterator[Fault]:
    """What is wrong with the loggers, each of which has a name."""
    if not isinstance(node, Mapping):
        yield LOGGER, f"={as_typed(node)}: choose some with {LOGGER}=[{','.join(options(LOGGER))}]"
        return
    for name, part in node.items():
        yield from part_faults(f"{LOGGER}.{name}", part, Slot((Logger,), choices=LOGGER))


def _refuse(cfg: DictConfig, faults: Sequence[Fault]) -> None:
    if faults:
        raise UserError("; ".join(dict.fromkeys(f"{source(cfg, key)}{reason}" for key, reason in faults)))


def faults_of(values: Mapping[str, Any]) -> str:
    """What is wrong with some keys and some groups of a configuration, in one line; empty where nothing is."""
    others = {key: value for key, value in values.items() if key not in GROUPS}
    faults = [fault for fault in field_faults("", others, Root) if fault[0].split(".")[0] in others]
    for group, slot in slots().groups.items():
        faults += part_faults(group, values[group], slot) if group in values else ()
    faults += _method_faults(values["method"]) if "method" in values else ()
    return "; ".join(dict.fromkeys(f"{key}{fault}" for key, fault in faults))


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


def _method_faults(method: Mapping[str, Any]) -> Iterator[Fault]:
    """What is wrong with a method: its own parts, and those of its stages."""
    yield from _parts_of("method", method)
    yield from value_faults("method.name", method.get("name"), Name)
    yield from value_faults("method.networks", method.get("networks"), Literal[1, 2])
    stages = method.get("stages")
    if not isinstance(stages, Mapping):
        yield "method.stages", f"={as_typed(stages)}: must have a section a stage"
        return
    for name, stage in stages.items():
        where = f"method.stages.{name}"
        if not isinstance(stage, Mapping):
            yield where, f"={as_typed(stage)}: must say what the stage is made of"
            continue
        yield from _parts_of(where, stage, required=False)
        for key in STAGE_VALUES:
            if key in stage:
                yield from value_faults(f"{where}.{key}", stage[key], STAGE_VALUES[key])
        if isinstance(train := stage.get("train", {}), Mapping):
            yield from present_faults(f"{where}.train.", train, Training)
        else:
            yield f"{where}.train", f"={as_typed(train)}: set one of {', '.join(field_types(Training))} in it"
        if isinstance(correct := stage.get("correct"), Mapping):
            yield from field_faults(f"{where}.correct.", correct, Correct)
        elif correct is not None:
            yield f"{where}.correct", f"={as_typed(correct)}: must be null, or a rule and when"


def _parts_of(where: str, node: Mapping[str, Any], *, required: bool = True) -> Iterator[Fault]:
    """What is wrong with the parts of a method, or with those that a stage has in their place."""
    for name, slot in slots().method.items():
        if name in node or (required and not slot.may_be_empty):
            yield from part_faults(f"{where}.{name}", node.get(name), slot)
    for name, slot in slots().named.items():
        if name not in node and not required:
            continue
        parts = node.get(name)
        if not isinstance(parts, Mapping):
            choose = f"choose some with method/{name}=[...]"
            yield f"{where}.{name}", f"={as_typed(parts)}: must have a part a name; {choose}"
            continue
        for key, part in parts.items():
            yield from part_faults(f"{where}.{name}.{key}", part, slot)


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
        f"method.{name}: no part of method={cfg.method.name} reads it{suggestion(name, known)}"
        for name in map(str, cfg.method)
        if name not in (*known, DECLARATIONS, SETTINGS)
        and not re.search(rf"\bmethod\.{re.escape(name)}\b", interpolations)
    ]
    if unread:
        raise UserError("; ".join(unread))
