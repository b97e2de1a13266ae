"""Inside local training nothing waits for the device: no value is looked at, no shape depends on one.

On a CPU such an operation costs nothing, so it is looked for; what copies between a GPU and the host is seen in
``tests/cuda`` alone.
"""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from flnl.engine.cuda_graph import Waits
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local import sgd
from flnl.engine.local.objective import mean_over_steps
from flnl.engine.stacked import training
from tests.properties.runs import assembled
from tests.registry import Entry, others_slow

EXCEPTIONS: Mapping[str, str] = {
    "phases": "a rule that plans an epoch by the client's own model looks at its outputs before each phase",
}
"""Functions that may wait, and why."""


@contextmanager
def watched(found: set[str]) -> Iterator[None]:
    """``found`` gets every place that waits."""

    def tell(reason: str) -> None:
        stack = traceback.extract_stack()
        frames = [f for f in stack if "/flnl/" in f.filename and "cuda_graph.py" not in f.filename]
        if not any(f.name in EXCEPTIONS for f in stack):
            last = frames[-1] if frames else None
            found.add(f"{reason} in {Path(last.filename).name}:{last.lineno} {last.name}" if last else reason)

    with Waits(tell):
        yield


def unwatched(call: Callable[..., Any]) -> Callable[..., Any]:
    """What comes before the first step, or after the last, may wait."""

    def after(*args: Any) -> Any:
        with _disable_current_modes():
            return call(*args)

    return after


@pytest.mark.parametrize("entry", others_slow(), ids=str)
def test_nothing_waits_inside_an_epoch(entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: set[str] = set()
    alone, together = sgd.LocalTraining._train, training.Turns.run

    def one(*args: Any) -> Any:
        with watched(found):
            return alone(*args)

    def many(*args: Any) -> Any:
        with watched(found):
            return together(*args)

    monkeypatch.setattr(sgd.LocalTraining, "_train", one)
    monkeypatch.setattr(sgd, "mean_over_steps", unwatched(mean_over_steps))
    monkeypatch.setattr(sgd.LocalTraining, "states", unwatched(sgd.LocalTraining.states))
    monkeypatch.setattr(training.Turns, "run", many)
    with assembled(entry.words, tmp_path / "run") as parts:
        net = parts.evaluator.network
        parts.results(executor=Sequential(net))
        parts.results(executor=Stacked(net, 5, 1.0))
    assert not found


def test_what_waits_is_found() -> None:
    """An operation of each kind, and none of a step's usual ones."""
    tensor, found = torch.arange(6.0), list[str]()
    mask, places = tensor > 2, torch.tensor([1, 4])
    for waits in (
        lambda: tensor.sum().item(),
        lambda: bool(mask.any()),
        lambda: float(tensor[0]),
        lambda: mask.nonzero(),
        lambda: tensor[mask],
        lambda: tensor.masked_select(mask),
        lambda: tensor.unique(),
        lambda: tensor.equal(tensor),
    ):
        found.clear()
        with Waits(found.append):
            waits()
        assert found
    found.clear()
    with Waits(found.append):
        weight = torch.ones(6, 2, requires_grad=True)
        loss = torch.where(mask, tensor, 0.0)[places].sum() * weight.softmax(1).square().sum()
        loss.backward()
        tensor.index_copy(0, places, tensor[places]).to("meta")
    assert found == ["copies between the host and the device (_to_copy)"]
