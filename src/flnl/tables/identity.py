"""Which run some words make: its key, and what is known of its cost before it starts.

Composing takes a third of a second, and the tables have a thousand cells. So what chooses files is composed once and
values are set on copies, in Hydra's own way; what was found is kept beside the runs, until the configuration changes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from flnl.cli import explain
from flnl.config import compose, identity, resolvers, schema, short_keys
from flnl.config import identity as identities
from flnl.config.registry import stored_name
from flnl.core.errors import UserError
from flnl.storage.atomic import write_atomically

NAME = "identities.json"
SETTING = re.compile(r"method\.\w+|method\.local\.\w+\.(?!_)\w+|(?:train|partition)\.(?!_)\w+")
MANY = 50
"""New settings from which on it is said that they are read, and after which they are kept."""


@dataclass(frozen=True)
class Identity:
    """What a run is, known before it starts."""

    key: str  # 64 hex digits
    method: str
    dataset: str  # with its size, where not all of it is used
    model: str  # its class and arguments
    trainings: int  # local trainings until its end
    epochs: int  # of a local training
    batch: int
    clients: int
    settings: Mapping[str, Any]  # what readers of a table are told of: constants, training, partition; by dotted key

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return self.key[:16]

    def passes(self, trainings: int) -> float:
        """Passes over the training data that so many local trainings are, each over a client's share of it."""
        return trainings * self.epochs / self.clients


class Identities:
    """The identities of words, composed where they are not known yet."""

    def __init__(self, root: Path) -> None:
        self._file = root / NAME
        self._digest = _digest()
        self._known = self._read()
        self._fresh = 0
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def of(self, words: Sequence[str]) -> Identity:
        """The identity of the run that ``words`` make.

        Raises:
            UserError: if they make none.
        """
        name = " ".join(words)
        if name not in self._known:
            self._fresh += 1
            if self._fresh == MANY:
                print("reading the settings of the cells; once, until conf/ changes", file=sys.stderr, flush=True)
            self._known[name] = self._identified(words)
            if self._fresh % MANY == 0:
                self.save()  # what ends this process now does not end it for nothing
        return self._known[name]

    def save(self) -> None:
        """Keep what was found; where that cannot be, it is found again."""
        if not self._fresh:
            return
        text = {"digest": self._digest, "known": {name: asdict(found) for name, found in self._known.items()}}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, json.dumps(text).encode())
        except OSError:
            return

    def _read(self) -> dict[str, Identity]:
        try:
            found = json.loads(self._file.read_text())
            if found["digest"] == self._digest:
                return {name: Identity(**said) for name, said in found["known"].items()}
        except (OSError, ValueError, LookupError, TypeError):
            pass
        return {}

    def _identified(self, words: Sequence[str]) -> Identity:
        try:
            plain = compose.resolved(self._set(words))
        except (UserError, HydraException, OmegaConfBaseException) as error:
            raise UserError(explain.explain(error, words)) from None
        return Identity(
            key=identities.run_key(plain),
            method=str(plain["method"]["name"]),
            dataset=_sized(plain["dataset"]),
            model=_called(plain["model"]),
            trainings=trainings(plain),
            epochs=int(plain["train"]["epochs"]),
            batch=int(plain["train"]["batch_size"]),
            clients=int(plain["partition"].get("num_clients") or 1),
            settings={key: value for key, value in identity.flatten(plain) if SETTING.fullmatch(key)},
        )

    def _set(self, words: Sequence[str]) -> DictConfig:
        """The composed configuration of ``words``, as ``compose.load`` gives it."""
        chosen = tuple(word for word in words if _chooses(word))
        if chosen not in self._composed:
            self._composed[chosen] = compose.composed(chosen)
        found = copy.deepcopy(self._composed[chosen])
        values = OverridesParser.create().parse_overrides([word for word in words if not _chooses(word)])
        ConfigLoaderImpl._apply_overrides_to_config(values, found)
        short_keys.connect(found, words)
        return found


def _chooses(word: str) -> bool:
    """Whether a word chooses a file of a group."""
    return (resolvers.CONF / word.lstrip("+~").split("=")[0].split("@")[0]).is_dir()


def _sized(dataset: Mapping[str, Any]) -> str:
    sizes = [f"{name}={dataset[name]}" for name in ("train_size", "test_size") if dataset.get(name) is not None]
    return " ".join([str(dataset["name"]), *sizes])


def _called(model: Mapping[str, Any]) -> str:
    arguments = ", ".join(f"{name}={value}" for name, value in sorted(model.items()) if not name.startswith("_"))
    return f"{stored_name(str(model['_target_']))}({arguments})"


def trainings(plain: Mapping[str, Any]) -> int:
    """Local trainings of a run with this resolved configuration: visits of clients over all stages.

    A stage's passes visit every client; its rounds visit a cohort, of its own sampler's fraction where that has one.
    """
    clients = int(plain["partition"].get("num_clients") or 0)
    total = 0
    for stage in plain["method"]["stages"].values():
        if "passes" in stage:
            total += int(stage["passes"]) * clients
        else:
            fraction = float(stage.get("sampler", {}).get("fraction", plain["fraction"]))
            total += int(stage["rounds"]) * max(1, round(fraction * clients))
    return total


def _digest() -> str:
    """Of all that a key depends on besides the words."""
    skipped = {resolvers.CONF / folder for folder in schema.NO_GROUPS}
    files = sorted(path for path in resolvers.CONF.rglob("*.yaml") if path.parent not in skipped)
    found = hashlib.sha256(os.environ.get("FLNL_DATA", "").encode())
    for path in (*map(Path, (compose.__file__, short_keys.__file__, identities.__file__, __file__)), *files):
        found.update(path.name.encode() + path.read_bytes())
    for path in sorted(Path(identities.__file__).parents[1].rglob("*.py")):
        text = path.read_bytes()
        if b"Neutral(" in text:  # a class that says which of its values do not count
            found.update(path.name.encode() + text)
    return found.hexdigest()
