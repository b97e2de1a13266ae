"""The identity of a run, from its overrides: its key, and the settings that determine its cost.

Composing a configuration takes a third of a second, and the tables have a thousand cells. So each combination of group
choices is composed once, values are set on copies with Hydra's own code, successive seeds of a setting differ in the
seed alone, and many settings are composed in several processes.
The identities are cached in a file beside the runs until the configuration changes.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from flnl.config import compose, explain, schema, short_keys
from flnl.config import identity as identities
from flnl.config.check import check_config
from flnl.config.folders import CONF, SEARCH_PATH
from flnl.config.override_text import choices_of, key_of
from flnl.config.written import texts
from flnl.console.counting import counting
from flnl.core.errors import UserError
from flnl.run import budget
from flnl.run.budget import clients, dataset_name, epochs, model_name, trainings
from flnl.storage.atomic import write_atomically
from flnl.storage.input_file import read_json_file
from flnl.sweep.moved import FOLDER

NAME = "identities.json"
SETTING = re.compile(
    r"method\.\w+|method\.local\.\w+\.(?!_)\w+|method\.stages\.\w+\.train\.\w+|(?:train|partition)\.(?!_)\w+"
    r"|rounds|fraction|centralized"
)
KEY = re.compile("[0-9a-f]{64}")
SEED = re.compile(r"seed=(\d+)")
REFERS = re.compile(r"\$\{.*seed")
FOLLOWING = {"data_seed": "${seed}"}
"""The values of ``conf/config.yaml`` that refer to the seed."""
MANY = 200
"""From this many new identities on they are composed in several processes; they are saved after every ``MANY``."""
PROCESSES = 8
"""The most processes that compose identities."""


@dataclass(frozen=True)
class Identity:
    """What is known of a run before it starts."""

    key: str  # 64 hex digits
    folder: str  # the name of the run's folder, 16 hex digits
    method: str
    dataset: str  # with its size, if only a part of it is used
    model: str  # class and arguments
    trainings: int  # budget of local trainings
    epochs: float  # per local training, mean over the budget
    batch: int
    precision: str
    clients: int
    settings: Mapping[str, Any]  # for notes: the method's constants, training, partition; by dotted key

    def __post_init__(self) -> None:
        """Check the key and the folder, which may be from a file; the latter's name becomes part of an override."""
        if not KEY.fullmatch(self.key) or not FOLDER.fullmatch(self.folder):
            raise ValueError(f"{self.key!r} is no key of a run, or {self.folder!r} is not named by one")

    @classmethod
    def of(cls, key: str, folder: str, plain: Mapping[str, Any]) -> Identity:
        """The identity of the run with this key, name of its folder and resolved configuration."""
        return cls(
            key=key,
            folder=folder,
            method=str(plain["method"]["name"]),
            dataset=dataset_name(plain["dataset"]),
            model=model_name(plain["model"]),
            trainings=trainings(plain),
            epochs=epochs(plain),
            batch=int(plain["train"]["batch_size"]),
            precision=str(plain.get("precision", 32)),
            clients=clients(plain),
            settings=_settings(plain),
        )

    def passes(self, trainings: int) -> float:
        """Convert local trainings, each over one client's average share of the data, to passes over all data."""
        return trainings * self.epochs / self.clients


class Identities:
    """Identities of runs by their overrides, cached in a file below ``root``."""

    def __init__(self, root: Path) -> None:
        self._file = root / NAME
        self._digest = _digest()
        self._known = self._read()
        self._fresh = 0
        self.composer = Composer()

    def prepare(self, wanted: Iterable[Sequence[str]]) -> None:
        """Compose those of ``wanted`` that are new, if they are many: in as many processes as there are cores.

        Those that cannot be composed are left out; ``of`` then raises their errors.
        """
        new = {_name(overrides): overrides for overrides in wanted}
        new = {name: overrides for name, overrides in new.items() if name not in self._known}
        if len(new) < MANY:
            return
        from joblib import Parallel, cpu_count, delayed

        together: dict[tuple[str, ...], list[Sequence[str]]] = {}
        for overrides in new.values():
            together.setdefault(choices_of(overrides), []).append(overrides)
        parallel = Parallel(n_jobs=min(cpu_count(), PROCESSES), return_as="generator_unordered")
        with counting(
            len(new),
            bar="reading settings once",
            begins=f"reading the settings of {len(new)} runs; once, until conf/ changes",
            after=lambda done: f"read the settings of {done} of {len(new)} runs",
        ) as advance:
            for size, found in parallel(delayed(_identities)(group) for group in together.values()):
                for name, identity in found.items():
                    self._add(name, identity)
                advance(size)

    def of(self, overrides: Sequence[str]) -> Identity:
        """The identity of the run with these overrides.

        Raises:
            UserError: if no configuration can be composed from them.
        """
        name = _name(overrides)
        if name not in self._known:
            self._add(name, self.composer.identity(overrides))
        return self._known[name]

    def save(self) -> None:
        """Write the new identities to the cache; if it cannot be written, they are composed again next time."""
        if not self._fresh:
            return
        kept = {name: asdict(one) for name, one in self._known.items() if SEARCH_PATH not in name}  # not of own files
        text = {"digest": self._digest, "known": kept}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._file, json.dumps(text).encode())
        except OSError:
            return

    def _add(self, name: str, identity: Identity) -> None:
        self._known[name] = identity
        self._fresh += 1
        if self._fresh % MANY == 0:
            self.save()  # an interrupted process keeps what it has composed

    def _read(self) -> dict[str, Identity]:
        try:
            cache = read_json_file(self._file)
            if cache["digest"] == self._digest:
                return {name: Identity(**fields) for name, fields in cache["known"].items()}
        except (OSError, ValueError, LookupError, TypeError):
            pass
        return {}


@contextmanager
def _explained(overrides: Sequence[str]) -> Iterator[None]:
    """Errors of composing a configuration as ``UserError``, for whoever wrote the overrides."""
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        raise UserError(explain.explain(error, overrides)) from None


@dataclass
class Composer:
    """Composes configurations, each combination of group choices once, and resolves those of successive seeds once."""

    _composed: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)
    _setting: tuple[str, ...] | None = None  # the latest overrides before a seed ...
    _plain: Mapping[str, Any] = field(default_factory=dict)  # ... what they resolve to ...
    _seeds: tuple[str, ...] = ()  # ... and the keys of it that are the seed

    def plain(self, overrides: Sequence[str]) -> dict[str, Any]:
        """The resolved configuration of the run with these overrides.

        Raises:
            UserError: if no configuration can be composed from them.
        """
        setting, seed = tuple(overrides[:-1]), SEED.fullmatch(overrides[-1]) if overrides else None
        if seed and setting == self._setting:
            return {**self._plain, **dict.fromkeys(self._seeds, int(seed[1]))}
        with _explained(overrides):
            config = self._set(overrides)
            plain = compose.resolved(config)
        referring = dict(one for one in texts(config) if REFERS.search(one[1]))
        if seed and referring.items() <= FOLLOWING.items():  # else a value may be computed from the seed
            self._setting, self._plain, self._seeds = setting, plain, ("seed", *referring)
        return plain

    def check(self, overrides: Sequence[str]) -> None:
        """Check every key and value of the run with these overrides, as the run will when it starts.

        Raises:
            UserError: if one is wrong, or a class is not found.
        """
        with _explained(overrides):
            check_config(self._set(overrides))

    def identity(self, overrides: Sequence[str]) -> Identity:
        """The identity of the run with these overrides.

        Raises:
            UserError: if no configuration can be composed from them.
        """
        plain = self.plain(overrides)
        return Identity.of(identities.run_key(plain), identities.placed_key(plain)[:16], plain)

    def _set(self, overrides: Sequence[str]) -> DictConfig:
        """The composed configuration, the same as ``compose.load(overrides)`` gives."""
        choices = (*(one for one in overrides if key_of(one) == SEARCH_PATH), *choices_of(overrides))
        if choices not in self._composed:
            self._composed[choices] = compose.composed(choices)
        config = copy.deepcopy(self._composed[choices])
        values = OverridesParser.create().parse_overrides([one for one in overrides if one not in choices])
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
        short_keys.connect(config, overrides)
        return config


def _identities(group: Sequence[Sequence[str]]) -> tuple[int, dict[str, Identity]]:
    """The size of a group of runs, and their identities by name, without those that cannot be composed."""
    composer, found = Composer(), {}
    for overrides in group:
        with suppress(UserError):
            found[_name(overrides)] = composer.identity(overrides)
    return len(group), found


def _name(overrides: Sequence[str]) -> str:
    return " ".join(overrides)


def _settings(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that readers of a table are told of; ``rounds`` only if the method reads it, with its one stage."""
    several = len(plain["method"]["stages"]) > 1
    return {
        key: value
        for key, value in identities.flatten(plain)
        if SETTING.fullmatch(key) and not (several and key == "rounds")
    }


def _digest() -> str:
    """A digest of everything besides the overrides that a key depends on."""
    skipped = {CONF / folder for folder in schema.NO_GROUPS}
    files = sorted(path for path in CONF.rglob("*.yaml") if path.parent not in skipped)
    digest = hashlib.sha256(os.environ.get("FLNL_DATA", "").encode())
    package = Path(identities.__file__).parents[1]
    code = sorted(
        (*package.glob("config/*.py"), *package.glob("data/noise/*.py"), Path(budget.__file__), Path(__file__))
    )
    for path in (*code, *files):
        digest.update(path.name.encode() + path.read_bytes())
    for path in sorted(package.rglob("*.py")):
        text = path.read_bytes()
        if b"Neutral(" in text:  # the class declares neutral values, which keys leave out
            digest.update(path.name.encode() + text)
    return digest.hexdigest()
