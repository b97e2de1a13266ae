"""Whether a GPU computes what the CPU computes: the same short runs on both, in double precision."""

from __future__ import annotations

import contextlib
import io
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from torch import Tensor

from flnl.config import compose
from flnl.config.folders import CONF
from flnl.config.quoting import quoted
from flnl.core.errors import in_one_line
from flnl.engine import loop
from flnl.engine.executors.stacked import Stacked
from flnl.run import opening

FILE = CONF / "doctor" / "agreement.yaml"
TOLERANCE = 1e-6
"""Largest difference of a parameter, relative to the largest entry of its tensor; devices sum in different orders."""
QUIET = ("wandb.mode=disabled", "figures=false", "products=false", "precision=64")

WAYS: Mapping[str, Sequence[str]] = {
    "one by one": ("executor=sequential",),
    "stacked": ("executor=stacked", "executor.graphs=false"),
    "recorded": ("executor=stacked", "executor.graphs=branches"),
}
"""How clients are trained on the GPU, by title."""


@dataclass(frozen=True)
class Trained:
    """The end of a run."""

    params: Mapping[str, Tensor]  # on the CPU
    seconds: float
    refusals: Sequence[str] = ()  # why steps could not be recorded


@dataclass(frozen=True)
class Agreement:
    """A method's run in one way on the GPU, compared with the CPU's."""

    method: str
    way: str
    seconds_on_cpu: float
    difference: float | None = None  # see ``TOLERANCE``; None if it did not run
    repeats: bool = False  # a second run gave the same bits
    seconds: float = 0.0
    failure: str = ""  # why it did not run, or not in this way

    @property
    def agrees(self) -> bool:
        """Whether the GPU computes what the CPU computes, the same each time, and in the way asked for."""
        return self.difference is not None and self.difference <= TOLERANCE and self.repeats and not self.failure


def agreements(device: str) -> Iterator[Agreement]:
    """The results of every method in every way on ``device``, one after another; a run that fails is one of them.

    Raises:
        Exception: what a run on the CPU raises.
    """
    text = yaml.safe_load(FILE.read_text())
    for method, overrides in text["runs"].items():
        words = [*text["common"], *overrides]
        reference = trained([*words, "device=cpu", "executor=sequential"])
        for way, chosen in WAYS.items():
            try:
                one, two = (trained([*words, f"device={device}", *chosen]) for _ in range(2))
            except Exception as error:  # drivers and libraries may raise anything
                yield Agreement(method, way, reference.seconds, failure=in_one_line(error))
                continue
            repeats = difference(one.params, two.params) == 0
            apart = difference(one.params, reference.params)
            refused = f"steps could not be recorded, because {'; '.join(one.refusals)}" if one.refusals else ""
            yield Agreement(method, way, reference.seconds, apart, repeats, two.seconds, refused)


def trained(overrides: Sequence[str]) -> Trained:
    """Run all rounds of a configuration without a word; its folder is removed.

    Raises:
        UserError: if the configuration cannot be run here.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        words = [*overrides, *QUIET, f"output={quoted(str(Path(folder) / 'run'))}"]
        cfg = compose.load(words)
        session = opening.open_session(cfg, words, opening.claim(cfg, words, None))
        try:
            begun = time.perf_counter()
            state = session.state
            for result in loop.rounds(session.federated(), state):
                state = result.state
            params = {name: tensor.cpu() for name, tensor in state.server.params.items()}
            refusals = session.executor.refusals if isinstance(session.executor, Stacked) else ()
            return Trained(params, time.perf_counter() - begun, refusals)
        finally:
            session.release()


def difference(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference of two models' entries, relative to the largest entry of the tensor; inf beside a NaN."""
    worst = 0.0
    for name, tensor in one.items():
        if not tensor.numel():
            continue
        first, second = tensor.double(), other[name].double()
        apart = float((first - second).abs().max() / first.abs().max().clamp_min(1e-12))
        worst = max(worst, math.inf if math.isnan(apart) else apart)
    return worst
