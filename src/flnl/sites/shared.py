"""The part of a configuration that a site needs of a server, and what a site builds of it with its own classes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from flnl.config import compose, registry
from flnl.config.check import faults_of
from flnl.config.schema import METHOD, STAGE_VALUES
from flnl.core.errors import UserError
from flnl.core.method import Method, assemble
from flnl.core.payload import Params
from flnl.core.training import Training
from flnl.data.dataset import Dataset
from flnl.data.preparations import described
from flnl.engine.network import Network
from flnl.engine.placement import placement_for
from flnl.run.opening import initial_network
from flnl.sites.federation import NAME
from flnl.sites.sockets import MOST

VALUES = ("seed", "precision", "threads", "memory_format")
SOURCE = "the server's configuration"
LONGEST, MOST_STAGES, MOST_NAMES = 2**16, 32, 256
"""Characters; stages of its method; names of stages and of parts in them."""


def shared(plain: Mapping[str, Any], dataset: Dataset) -> str:
    """What sites need of a resolved configuration, as JSON with stored names: no place, and nothing of any sample."""
    values: dict[str, Any] = {name: plain[name] for name in (*VALUES, "train", "model")}
    values["method"] = {key: value for key, value in plain["method"].items() if key in METHOD}
    values["observe"] = plain["eval"]["cohort"]
    return json.dumps(registry.named(values) | {"inputs": _inputs(dataset)})  # stages have an order


def _inputs(dataset: Dataset) -> dict[str, Any]:
    """What the network is fed with: shape and preparation of a sample."""
    return {"shape": list(dataset.train.shape), "preparation": described(dataset.transform)}


def key_of(text: str, classes: tuple[str, ...], clients: int, holders: int) -> str:
    """The key of what a site is to do: sha256 of the text that ``shared`` gives, the classes, and who takes part.

    The number of clients that hold samples decides how many rounds a stage of passes has.
    """
    return hashlib.sha256(json.dumps([text, classes, clients, holders]).encode()).hexdigest()


@dataclass(frozen=True)
class Built:
    """What a site runs jobs with. It holds nothing of any sample, so runtimes of one process may share it."""

    method: Method
    training: Training
    network: Network
    initial: Params
    model: Mapping[str, Any]  # as files name it
    observe: bool
    seed: int
    threads: int


def built(text: str, dataset: Dataset, device: str) -> Built:
    """What a site builds of a server's configuration, with the classes that its own installation names.

    Args:
        text: as ``shared`` gives it.
        dataset: the site's, whose samples must be as the configuration says.
        device: where the site computes.

    Raises:
        UserError: naming what is unknown here, wrong or different.
    """
    given = checked(text, dataset)
    cfg: DictConfig = OmegaConf.create({name: given[name] for name in (*VALUES, "train", "model", "method")})
    parts = assemble(compose.build(cfg.method), registry.option_of)
    _check_size(cfg, dataset, parts.networks)
    network, initial = initial_network(cfg, parts, dataset, placement_for(device, cfg.precision))
    model = json.loads(text)["model"]
    return Built(parts, compose.training(cfg), network, initial, model, given["observe"] is True, cfg.seed, cfg.threads)


def _check_size(cfg: DictConfig, dataset: Dataset, networks: int) -> None:
    """Refuse a network that could not be sent, before any memory is taken for it.

    Raises:
        UserError: if it has more bytes than a message.
    """
    with torch.device("meta"):
        module = compose.build(cfg.model)(dataset.train.shape, dataset.num_classes)
    size = networks * sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
    if size > MOST:
        raise UserError(f"{SOURCE} has a network of {size:,} bytes, of which {MOST:,} can be sent")


def checked(text: str, dataset: Dataset) -> dict[str, Any]:
    """The values of a server's configuration, with this installation's classes by path; none of them is made.

    Raises:
        UserError: as ``built``.
    """
    if len(text) > LONGEST:
        raise UserError(f"{SOURCE} has more than {LONGEST:,} characters")
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError(f"{SOURCE} is no JSON") from None
    expected = {*VALUES, "train", "model", "method", "observe", "inputs"}
    if not isinstance(given, dict) or given.keys() != expected:
        raise UserError(f"{SOURCE} has other keys than {', '.join(sorted(expected))}")
    if given["inputs"] != json.loads(json.dumps(_inputs(dataset))):
        raise UserError(f"{SOURCE} is for samples of another size or preparation than those here")
    values = {name: given[name] for name in VALUES}
    values["train"] = registry.restored_training(given["train"], SOURCE)
    values["model"] = registry.restored("model", given["model"], SOURCE)
    method = registry.restored_method(given["method"], SOURCE)
    stages = method.get("stages")
    stages = stages if isinstance(stages, dict) else {}
    if len(stages) > MOST_STAGES:
        raise UserError(f"{SOURCE} has more than {MOST_STAGES} stages")
    of_stage = {*METHOD, *STAGE_VALUES, "train", "correct"} - {"name", "networks", "stages"}
    if not {*method} <= {*METHOD} or not all({*stage} <= of_stage for stage in stages.values()):
        raise UserError(f"{SOURCE} has keys of a method that there are not")  # what they hold would be built unchecked
    if faults := faults_of({**values, "method": method}):
        raise UserError(f"{SOURCE}: {faults}")
    names = [method["name"], *stages, *_names(method), *(name for stage in stages.values() for name in _names(stage))]
    if len(names) > MOST_NAMES or not all(isinstance(one, str) and NAME.fullmatch(one) for one in names):
        raise UserError(f"{SOURCE} has a name that is none, or more than {MOST_NAMES}")  # they are shown to a person
    if not isinstance(given["observe"], bool):
        raise UserError(f"{SOURCE}: observe is neither true nor false")
    return {**values, "method": method, "observe": given["observe"]}


def _names(section: Mapping[str, Any]) -> list[Any]:
    """The names in a method or a stage, which whoever wrote it has chosen."""
    correct = section.get("correct")
    rule = [correct["rule"]] if isinstance(correct, Mapping) and "rule" in correct else []
    return [*(section.get("local") or ()), *(section.get("exchange") or ()), *(section.get("silent") or ()), *rule]
