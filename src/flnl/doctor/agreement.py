"""Whether a GPU computes what the CPU computes: the same short runs on both, in double precision."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from torch import Tensor

from flnl.config import compose
from flnl.config.folders import CONF
from flnl.engine import loop
from flnl.run import opening

FILE = CONF / "doctor" / "agreement.yaml"
TOLERANCE = 1e-6
"""Largest difference of a parameter, relative to the largest entry of its tensor; devices sum in different orders."""
QUIET = ("wandb.mode=disabled", "figures=false", "products=false", "precision=64")

WAYS: Mapping[str, Sequence[str]] = {
    "one by one": ("executor=sequential",),
    "stacked": ("executor=stacked", "executor.graphs=false"),
    "recorded": ("executor=stacked", "executor.graphs=true"),
}
"""How clients are trained on the GPU, by title."""


@dataclass(frozen=True)
class Trained:
    """The end of a run."""

    params: Mapping[str, Tensor]  # on the CPU
    seconds: float


@dataclass(frozen=True)
class Agreement:
    """A method's run in one way on the GPU, compared with the CPU's."""

    method: str
    way: str
    difference: float  # see ``TOLERANCE``
    repeats: bool  # a second run gave the same bits
    seconds: float
    seconds_on_cpu: float

    @property
    def agrees(self) -> bool:
        """Whether the GPU computes what the CPU computes, and the same each time."""
        return self.difference <= TOLERANCE and self.repeats


def agreements(device: str) -> Iterator[Agreement]:
    """The results of every method in every way on ``device``, one after another."""
    text = yaml.safe_load(FILE.read_text())
    for method, overrides in text["runs"].items():
        words = [*text["common"], *overrides]
        reference = trained([*words, "device=cpu", "executor=sequential"])
        for way, chosen in WAYS.items():
            one, two = (trained([*words, f"device={device}", *chosen]) for _ in range(2))
            repeats = difference(one.params, two.params) == 0
            apart = difference(one.params, reference.params)
            yield Agreement(method, way, apart, repeats, two.seconds, reference.seconds)


def trained(overrides: Sequence[str]) -> Trained:
    """Run all rounds of a configuration without a word; its folder is removed.

    Raises:
        UserError: if the configuration cannot be run here.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        words = [*overrides, *QUIET, f"output={Path(folder) / 'run'}"]
        cfg = compose.load(words)
        session = opening.open_session(cfg, words, opening.claim(cfg, words, None))
        try:
            begun = time.perf_counter()
            state = session.state
            for result in loop.rounds(session.federated(), state):
                state = result.state
            params = {name: tensor.cpu() for name, tensor in state.server.params.items()}
            return Trained(params, time.perf_counter() - begun)
        finally:
            session.release()


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference of two models' entries, relative to the largest entry of the tensor."""
    worst = 0.0
    for name, tensor in one.items():
        first, second = tensor.double(), other[name].double()
        scale = float(first.abs().max().clamp_min(1e-12)) if first.numel() else 1.0
        worst = max(worst, float((first - second).abs().max()) / scale if first.numel() else 0.0)
    return worst
