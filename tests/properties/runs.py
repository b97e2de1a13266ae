"""Runs in this process: tiny, from overrides to a folder or straight to states, and comparison to the bit."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flnl.config import compose
from flnl.core.execution import Executor
from flnl.core.method import Method
from flnl.core.payload import Payload
from flnl.core.state import FederatedState, RoundResult
from flnl.data.federation.build import Federation
from flnl.engine import loop
from flnl.evaluation.evaluator import Evaluator
from flnl.run import checkpoint
from flnl.run.opening import claim, open_session
from flnl.run.train import train


@dataclass(frozen=True)
class Ran:
    """What a run left in its folder."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def state(self) -> FederatedState:
        """The state in the newest checkpoint."""
        found = checkpoint.newest(self.folder / "checkpoints")
        assert found is not None
        return found.state

    @property
    def lines(self) -> list[dict[str, Any]]:
        """``metrics.jsonl`` without the times."""
        return without_times(self.folder / "metrics.jsonl")

    @property
    def corrections(self) -> list[dict[str, Any]]:
        """``corrections.jsonl``."""
        return without_times(self.folder / "corrections.jsonl")


def without_times(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines, without what the clock says."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def run(words: Sequence[str], folder: Path, *more: str) -> Ran:
    """Train in this process with ``folder`` as the run's."""
    overrides = [*words, f"output={folder}", f"cache={folder.parent / 'cache'}", *more]
    return Ran(folder, train(compose.load(overrides), overrides).record.raw)


@dataclass(frozen=True)
class Assembled:
    """A run before its first round, to be changed before it runs."""

    run: loop.Federated
    evaluator: Evaluator
    state: FederatedState

    @property
    def method(self) -> Method:
        """The run's method."""
        return self.run.method

    @property
    def federation(self) -> Federation:
        """The run's federation."""
        return self.run.federation

    @property
    def executor(self) -> Executor:
        """The run's executor."""
        return self.run.executor

    @property
    def settings(self) -> loop.Settings:
        """The run's settings of the loop."""
        return self.run.settings

    def rounds(self, state: FederatedState | None = None, **changed: Any) -> Iterator[RoundResult]:
        """The rounds, from another state or with fields of the run changed."""
        return loop.rounds(replace(self.run, **changed), state or self.state)

    def results(self, **other: Any) -> list[RoundResult]:
        """As ``rounds``, all of them."""
        return list(self.rounds(**other))


@contextmanager
def assembled(words: Sequence[str], folder: Path, *more: str) -> Iterator[Assembled]:
    """What a run is made of, before its first round."""
    overrides = [*words, f"output={folder}", f"cache={folder.parent / 'cache'}", *more]
    cfg = compose.load(overrides)
    session = open_session(cfg, overrides, claim(cfg, overrides, None))
    try:
        yield Assembled(session.federated(), session.evaluator, session.state)
    finally:
        session.release()


def rounds(words: Sequence[str], folder: Path, *more: str) -> list[RoundResult]:
    """All rounds of a run that writes nothing down."""
    with assembled(words, folder, *more) as parts:
        return parts.results()


def difference(one: Any, other: Any, at: str = "", *, tolerance: float = 0.0) -> str | None:
    """Where two values differ, None where nowhere: tensors to the bit, or floats by more than ``tolerance``."""

    def found(a: Any, b: Any, place: str) -> str | None:
        return difference(a, b, place, tolerance=tolerance)

    if isinstance(one, Tensor):
        if not isinstance(other, Tensor) or one.dtype != other.dtype or one.shape != other.shape:
            return at
        if tolerance and one.is_floating_point():
            near = torch.allclose(one.detach(), other.detach(), rtol=tolerance, atol=tolerance, equal_nan=True)
            return None if near else at
        same = one.detach().cpu().numpy().tobytes() == other.detach().cpu().numpy().tobytes()
        return None if same else at
    if isinstance(one, Payload):
        return found(list(one), list(other), at) if isinstance(other, Payload) else at
    if isinstance(one, Mapping):
        if not isinstance(other, Mapping) or sorted(one, key=str) != sorted(other, key=str):
            return at
        return _first(found(value, other[key], f"{at}[{key}]") for key, value in one.items())
    if is_dataclass(one) and not isinstance(one, type):
        if type(one) is not type(other):
            return at
        return _first(found(getattr(one, f.name), getattr(other, f.name), f"{at}.{f.name}") for f in fields(one))
    if isinstance(one, list | tuple):
        if not isinstance(other, type(one)) or len(one) != len(other):
            return at
        return _first(found(a, b, f"{at}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True)))
    if tolerance and isinstance(one, float) and isinstance(other, float):
        return None if one == pytest.approx(other, rel=tolerance, abs=tolerance, nan_ok=True) else at
    return None if one == other or (one != one and other != other) else at


def _first(found: Iterator[str | None]) -> str | None:
    return next((place for place in found if place is not None), None)


def same_params(one: FederatedState, other: FederatedState) -> bool:
    """Whether two global models are equal to the bit."""
    return difference(one.server.params, other.server.params) is None


def copied(state: FederatedState) -> FederatedState:
    """The state with tensors of its own, to see later whether somebody wrote into the first."""
    clone: FederatedState = checkpoint.decode(torch.utils._pytree.tree_map(_clone, checkpoint.encode(state)))
    return clone


def _clone(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf
