"""What a GPU refuses, so that the simulated one stands for it: the other tests here see mistakes by these refusals."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from flnl.engine.cuda_graph import GraphRecorder
from tests.cuda.watch import HEARD, watching

MIXED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a sum": lambda here, there: here + there,
    "a product of matrices": lambda here, there: here @ there.T,
    "a stack": lambda here, there: torch.stack([here, there]),
    "a result elsewhere": lambda here, there: torch.add(here, here, out=there),
    "rows by an index": lambda here, there: here.index_select(0, torch.tensor([0])),
    "an index of the device": lambda here, there: there[torch.zeros(1, dtype=torch.int64, device=here.device)],
    "a generator of the CPU": lambda here, there: here.normal_(generator=torch.Generator()),
}
"""Operations on a tensor of the device and one of the CPU."""

WAITING: dict[str, Callable[[Tensor], Any]] = {
    "a value": lambda here: here.sum().item(),
    "a truth value": lambda here: bool((here > 0).all()),
    "a mask": lambda here: here[here > 0],
    "a shape": lambda here: here.nonzero(),
    "a copy to the host": lambda here: here.cpu(),
    "a copy from the host": lambda here: torch.ones(3).to(here.device),
}
"""Operations for which the host waits for the device."""

QUICK: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": lambda here: (here * 2 + 1).sum(1),
    "a scalar of the CPU": lambda here: here * torch.tensor(2.0),
    "a choice": lambda here: torch.where(here > 0, here, 0.0),
    "rows by an index": lambda here: here.index_select(0, torch.zeros(1, dtype=torch.int64, device=here.device)),
}
"""Operations for which it does not."""


@pytest.mark.parametrize("name", MIXED)
def test_devices_do_not_mix(name: str, gpu: str) -> None:
    there = torch.ones(3, 3)
    with pytest.raises(RuntimeError):
        MIXED[name](there.to(gpu), there)


@pytest.mark.parametrize("name", [*WAITING, *QUICK])
def test_waits_are_heard(name: str, gpu: str) -> None:
    library, here = torch.get_device_module(gpu), torch.ones(3, 3, device=gpu)
    with watching(library, "error"):
        if name in QUICK:
            QUICK[name](here)
        else:
            with pytest.raises(RuntimeError, match=HEARD):
                WAITING[name](here)


@pytest.mark.parametrize("name", WAITING)
def test_a_recording_refuses_what_waits(name: str, gpu: str) -> None:
    here = torch.ones(3, 3, device=gpu)
    graph = GraphRecorder(here.device)()
    with pytest.raises(RuntimeError, match="captur"):
        graph.capture([(0, lambda: WAITING[name](here))])
    assert (here + 1).sum().item() == 18.0


@pytest.mark.parametrize("name", ["arithmetic", "a choice"])
def test_a_recording_computes_when_it_is_replayed(name: str, gpu: str) -> None:
    here = torch.ones(3, 3, device=gpu)
    record = GraphRecorder(here.device)
    record.warm(lambda: QUICK[name](here))
    graph = record()
    result = graph.capture([(0, lambda: QUICK[name](here))])
    for value in (5.0, -1.0):
        here.fill_(value)
        graph.replay()
        assert torch.equal(result, QUICK[name](here))
