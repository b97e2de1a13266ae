"""Federations, networks and parts small enough to be followed by hand, and the vectors that formulas are held against.

Nothing here computes what a test is about: tests bring their own arithmetic.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flnl.config import compose
from flnl.config.check import check_config
from flnl.core.inputs import Preparation
from flnl.core.messages import Broadcast, ClientState, ClientTask, Clock, Fit, Observation, Samples
from flnl.core.method import Method, assemble
from flnl.core.parts import Exchange, LossTerm
from flnl.core.payload import Params, Payload
from flnl.core.stage import Stage
from flnl.core.state import FederatedState, RoundResult
from flnl.core.step import Step
from flnl.core.training import Training
from flnl.data.dataset import Dataset
from flnl.data.federation.build import Federation, from_config
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform
from flnl.engine import loop
from flnl.engine.executors.sequential import Sequential
from flnl.engine.network import Network, initial_params
from flnl.engine.placement import placement_for
from flnl.evaluation.evaluator import Evaluator
from flnl.parts.aggregators.mean import Mean
from flnl.parts.batches import Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.parts.samplers.uniform import Uniform
from flnl.parts.servers import Replace

# --------------------------------------------------------------------------------------------------------- vectors

VECTORS = Path(__file__).parent / "vectors/vectors_seed_methods.json"
PRINTED = 5e-12
"""The file's numbers are rounded to 12 digits."""


@dataclass(frozen=True)
class Vector:
    """One entry of the file: what goes in, what must come out."""

    inputs: Mapping[str, Any]
    expected: Mapping[str, Any]
    tolerance: float
    relative: bool

    def approx(self, name: str) -> Any:
        """The expected value, to compare with at the entry's tolerance."""
        return self.near(self.expected[name])

    def near(self, value: Any) -> Any:
        """Any value, at the entry's tolerance."""
        if self.relative:
            return pytest.approx(value, rel=self.tolerance + PRINTED, abs=PRINTED)
        largest = float(np.abs(np.asarray(value, float)).max())
        return pytest.approx(value, rel=0, abs=self.tolerance + PRINTED * max(1.0, largest))


@cache
def _vectors() -> dict[str, Vector]:
    entries = json.loads(VECTORS.read_text())["vectors"]
    return {
        e["id"]: Vector(e["inputs"], e["expected"], float(e["tolerance"]), "relative" in e.get("note", ""))
        for e in entries
    }


def vector(name: str) -> Vector:
    """The entry of this name."""
    return _vectors()[name]


# -------------------------------------------------------------------------------------------------------- networks


class Point(nn.Module):
    """One parameter w; its first "logit" is w minus the sample's only pixel."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start], dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, 2]."""
        away = self.w - inputs.flatten(1)[:, :1]
        return torch.cat([away, torch.zeros_like(away)], 1)


class Logits(nn.Module):
    """A network whose logits are the pixels, times a parameter that starts at one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, C]."""
        return inputs.flatten(1) * self.scale


def mlp(inputs: int, classes: int, *, hidden: int = 5, dropout: float = 0.0, norm: bool = False) -> nn.Module:
    """A small network, with dropout or batch norm on demand; its initialisation is always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body: list[nn.Module] = [nn.Flatten(), nn.Linear(inputs, hidden)]
        body += [nn.BatchNorm1d(hidden)] if norm else []
        body += [nn.ReLU()] + ([nn.Dropout(dropout)] if dropout else [])
        return nn.Sequential(*body, nn.Linear(hidden, classes))


def network(
    module: nn.Module, *, classes: int = 3, precision: int | str = 64, transform: Preparation | None = None
) -> Network:
    """The module behind the interface that the loop uses."""
    return Network(module, transform or PLAIN, classes, placement_for("cpu", precision))


# ------------------------------------------------------------------------------------------------------------ data

PLAIN = Transform(size=(2, 2), mean=(0.0,), std=(1.0,), scale=1.0)
"""Pixels are inputs."""


def federation(
    pixels: Sequence[Tensor], labels: Sequence[Tensor], *, classes: int = 3, transform: Preparation | None = None
) -> Federation:
    """Client k holds ``pixels[k]`` [n_k, 1, H, W] with ``labels[k]``; the given labels are the truth."""
    sizes = [len(p) for p in pixels]
    ends = np.cumsum([0, *sizes])
    images = TensorImages(torch.cat(list(pixels)).float())
    given = torch.cat(list(labels)).long()
    shape = images.shape
    data = Dataset(
        name="toy",
        classes=tuple(map(str, range(classes))),
        train=images,
        test=images,
        test_labels=given.numpy(),
        transform=transform or Transform(size=(shape[1], shape[2]), mean=(0.0,), std=(1.0,), scale=1.0),
        truth=None,
        given=given.numpy(),
    )
    clients = tuple(np.arange(a, b) for a, b in pairwise(ends))
    nobody = np.array([], np.int64)
    return Federation(data, clients, nobody, nobody, given, given, None, "toy")


def of_images(data: Dataset) -> Transform:
    """The transform of a data set of images."""
    assert isinstance(data.transform, Transform)
    return data.transform


def random_federation(
    sizes: Sequence[int],
    *,
    classes: int = 3,
    seed: int = 0,
    transform: Preparation | None = None,
    shape: tuple[int, int, int] = (1, 2, 2),
) -> Federation:
    """Clients of these sizes with pixels of ``shape`` and labels drawn from ``seed``."""
    rng = torch.Generator().manual_seed(seed)
    pixels = [torch.randn(n, *shape, generator=rng) for n in sizes]
    labels = [torch.randint(0, classes, (n,), generator=rng) for n in sizes]
    return federation(pixels, labels, classes=classes, transform=transform)


START = Clock(0, 1)
"""Before the first round."""


def task(
    module: nn.Module,
    samples: Samples,
    *,
    client: int = 0,
    round: int = 0,
    stage: int = 1,
    seed: int = 1,
    state: ClientState | None = None,
    extras: Payload | None = None,
) -> ClientTask:
    """One client's task that starts from what ``module`` holds now."""
    params = {name: t.detach().clone() for name, t in module.state_dict().items()}
    broadcast = Broadcast(round, stage, params, extras or Payload())
    return ClientTask(client, samples, broadcast, state or ClientState(), seed)


def fitted(params: Params, *, steps: int = 1, loss: float = 0.0, lr: float = 0.1) -> Fit:
    """The outcome of a training that ended with ``params``."""
    return Fit(params, {}, loss, steps, finite=True, lr=lr)


def step(
    *,
    logits: Tensor | None = None,
    targets: Tensor | None = None,
    params: Params | None = None,
    received: Params | None = None,
    extras: Payload | None = None,
    number: int = 1,
) -> Step:
    """One batch for a term that reads only what is given here."""
    inputs = torch.zeros(1, 1) if logits is None else logits
    size = len(inputs)
    labels = torch.zeros(size, dtype=torch.int64)
    return Step(
        inputs=inputs,
        labels=labels,
        targets=labels if targets is None else targets,
        positions=torch.arange(size),
        weight=None,
        draws={},
        number=number,
        unmixed=inputs,
        mixing=None,
        passes=network(nn.Identity()).passes(Broadcast(0, 1, {})),
        params=params or {},
        broadcast=Broadcast(0, 1, received or {}, extras or Payload()),
        kept=Payload(),
    )


# ------------------------------------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class Toward(LossTerm):
    """``(w - x)²/2``: with ``Point``, one step at rate r moves w to w + r (x - w)."""

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """[B]."""
        return step.logits[:, 0].square() / 2, state


@dataclass(frozen=True)
class NoEvaluation:
    """Nobody looks."""

    def model(self, params: Params, after: FederatedState) -> Mapping[str, float]:
        """A constant."""
        return {"accuracy": 0.0}

    def cohort(self, seen: Mapping[int, Observation]) -> Mapping[str, float]:
        """Nothing."""
        return {}

    def correction(self, before: FederatedState, after: FederatedState, asked: Sequence[int]) -> Mapping[str, Any]:
        """Who was asked."""
        return {"asked": list(asked)}

    def aid(self, kinds: Collection[type]) -> Payload:
        """None."""
        return Payload()


ONE_STEP = Training(lr=0.5, momentum=0.0, weight_decay=0.0, batch_size=100, epochs=1, lr_decay=1.0)


def stage(**parts: Any) -> Stage:
    """A stage of one round of FedAvg with all clients, but for ``parts``."""
    own: dict[str, Any] = {
        "name": "toy",
        "number": 1,
        "rounds": 1,
        "passes": None,
        "sampler": Uniform(1.0),
        "batch": Plain(),
        "local": {"cross_entropy": CrossEntropy()},
        "gradient": None,
        "aggregator": Mean("samples"),
        "server": Replace(),
        "exchange": {},
        "correct": None,
    }
    return Stage(**{**own, **parts})


def method(*stages: Stage, exchange: Mapping[str, Exchange] | None = None) -> Method:
    """A method of these stages, numbered as they come."""
    numbered = tuple(replace(s, number=n) for n, s in enumerate(stages, start=1))
    return Method("toy", numbered, exchange or {})


def rounds(
    method: Method,
    federation: Federation,
    module: nn.Module,
    training: Training = ONE_STEP,
    *,
    seed: int = 1,
    precision: int | str = 64,
    on_nonfinite: Literal["drop", "stop"] = "drop",
    eval_every: int | None = None,
) -> list[RoundResult]:
    """Every round of a method, from what ``module`` holds now."""
    data = federation.dataset
    net = Network(module, data.transform, data.num_classes, placement_for("cpu", precision))
    settings = loop.Settings(seed, training, eval_every, on_nonfinite)
    start = loop.initial_state(net.params())
    run = loop.Federated(method, federation, Sequential(net), NoEvaluation(), settings)
    return list(loop.rounds(run, start))


@dataclass(frozen=True)
class Composed:
    """What a command line describes, assembled as a run assembles it, and its rounds."""

    method: Method
    federation: Federation
    network: Network
    start: Params
    rounds: list[RoundResult]


TINY = (
    "model=mlp",
    "model.hidden=[8]",
    "dataset=digits",
    "dataset.train_size=120",
    "dataset.test_size=20",
    "partition=iid_uniform",
    "partition.num_clients=4",
    "fraction=0.5",
    "train.epochs=1",
    "train.batch_size=10",
    "precision=64",
    "device=cpu",
    "threads=1",
)


def composed(*overrides: str) -> Composed:
    """The whole of ``python -m src.main`` on a tiny setting, but for its folder."""
    cfg = compose.load([*TINY, *overrides])
    check_config(cfg)
    made = assemble(compose.build(cfg.method))
    dealt = from_config(cfg)
    data = dealt.dataset
    module, _ = initial_params(lambda: compose.build(cfg.model)(data.train.shape, data.num_classes), cfg.seed)
    net = Network(module, data.transform, data.num_classes, placement_for("cpu", cfg.precision))
    start = net.params()
    settings = loop.Settings(cfg.seed, compose.training(cfg), cfg.eval.every, cfg.on_nonfinite)
    run = loop.Federated(made, dealt, Sequential(net), Evaluator(dealt, net, made), settings)
    results = loop.rounds(run, loop.initial_state(start))
    return Composed(made, dealt, net, start, list(results))


def equal(a: Params, b: Params) -> bool:
    """Whether two models are the same to the bit."""
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)
