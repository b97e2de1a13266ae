"""What tests of all methods know of one: ``tests/methods/NAME/entry.py`` has it, and they collect it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path

METHODS = Path(__file__).parent / "methods"

TINY = (
    "dataset.train_size=170",
    "dataset.test_size=50",
    "partition.num_clients=8",  # 21 or 22 samples each: with batches of 7, the last one may be of one sample
    "fraction=0.75",  # 6 clients: more than one block
    "model=mlp",
    "model.hidden=[8]",
    "train.batch_size=7",
    "train.epochs=2",
    "executor=sequential",  # the others are held against it in tests/engine/executors
    "wandb.mode=disabled",
    "figures=false",
)
"""A data set, a network and a protocol small enough for a run to take a second; for every entry."""

ONE_STAGE = ("rounds=5",)
NORMED = ("model=resnet8", "model.width=4", "model.blocks=[1]", "~model.hidden")
DROPOUT = ("model=cnn", "model.widths=[4,8]", "model.dropout=0.3", "~model.hidden")
CLEAN = ("eval.benchmark=0.2", *ONE_STAGE)
"""The server has clean samples."""
FEDAVG = ("method=fedavg", "rounds=4")
UNIFORM = (*FEDAVG, "method/aggregator=uniform_mean")
HALVES = ("method.T_wu=2", "method.T=2")
ASSESSED = (1, 2, 4)
"""Of 5 rounds: before clients are compared, just after, inside the second stage."""

Words = tuple[str, ...]
"""Overrides of one run."""


@dataclass(frozen=True)
class Entry:
    """One method or combination."""

    name: str
    overrides: tuple[str, ...]
    acting: Mapping[str, str]  # stage by stage, as ``tests.properties.test_parts`` puts it
    cuts: tuple[int, ...] = (1, 3)  # rounds after which a run is stopped and gone on with
    testing: bool = False  # has parts that only tests have, which the command line does not know

    @property
    def words(self) -> list[str]:
        """The overrides of a tiny run; what the entry says itself comes last."""
        own = {word.lstrip("+~").split("=")[0] for word in self.overrides if not word.startswith("~")}
        gone = {word[1:] for word in self.overrides if word.startswith("~")}
        kept = [word for word in TINY if word.split("=")[0] not in own | gone]
        return [*kept, *(word for word in self.overrides if not word.startswith("~"))]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Known:
    """The methods whose parts are in one folder ``flnl/methods/NAME``, as the tests of all methods see them."""

    entries: tuple[Entry, ...]
    """Of the registry: each method, and its parts beside others."""
    golden: Mapping[str, Words]
    """By name, runs whose trajectories are in ``trajectories.json`` beside this."""
    neutral: Mapping[str, tuple[Words, Words]] = field(default_factory=dict)
    """By name, a run with neutral values, and the run that it equals to the bit."""
    alive: Mapping[str, Words] = field(default_factory=dict)
    """By name, a run near a neutral one that must differ from FedAvg."""
    switches: Mapping[Words, Words] = field(default_factory=dict)
    """Of a run, overrides each of which must move it; several words may be one switch."""
    needed: Mapping[str, Words] = field(default_factory=dict)
    """By the part's file, as ``local/NAME``: what FedCorr must have to compose with it."""


@cache
def of_methods() -> Mapping[str, Known]:
    """What there is of each folder, by its name."""
    names = sorted(file.parent.name for file in METHODS.glob("*/entry.py"))
    return {name: import_module(f"tests.methods.{name}.entry").KNOWN for name in names}


def fedavg(
    batch: str = "Plain",
    terms: str = "cross_entropy",
    rest: str = "Mean(samples), Replace",
    sampler: str = "Uniform",
) -> dict[str, str]:
    return {"training": f"5 rounds: {sampler}, {batch}, {terms}, {rest}"}


def of(terms: str) -> dict[str, str]:
    """FedAvg with another loss."""
    return fedavg(terms=terms)
