"""Compiled passes on a GPU: inductor's code on a real one; on the simulated one AOT Autograd's, without inductor."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flnl.engine.executors.stacked import Stacked
from flnl.engine.stacked import compiling
from tests.cuda.test_cuda import close, job, lenet5, network, replays, resnet18, results, tasks
from tests.properties.runs import assembled, difference
from tests.registry import BY_NAME, Entry, others_slow
from tests.simulated_gpu import device

ON_A_CARD = ("fedavg", "fedcorr_with_batch_norm", "co_teaching_plus_with_batch_norm")
"""Methods that are run on a real GPU, where to compile a network takes long."""


@pytest.fixture
def compiled(gpu: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The functions that were compiled; to compile one of them again is an error."""
    made, original = list[Any](), compiling.compiler

    def compiler(forward: Any) -> Any:
        made.append(forward)
        if gpu != device.NAME:
            return original(forward)
        return torch.compile(forward, backend="aot_eager", fullgraph=True, dynamic=False)

    monkeypatch.setattr(compiling, "compiler", compiler)
    with torch._dynamo.config.patch(error_on_recompile=True):
        yield made


@pytest.mark.parametrize(
    "entry", [BY_NAME[name] for name in ON_A_CARD] if torch.cuda.is_available() else others_slow(), ids=str
)
def test_a_method_is_the_same_run(entry: Entry, tmp_path: Path, compiled: list[Any], gpu: str) -> None:
    """Whole runs in double precision, in which compiled passes round a little differently."""
    words = [word for word in entry.words if not word.startswith(("executor", "precision"))]
    runs, limit = [], (1e-9, 1e-9) if gpu == device.NAME else (1e-6, 1e-8)
    for compile in (False, True):
        with assembled(words, tmp_path / str(compile), "precision=64", f"device={gpu}") as parts:
            executor = Stacked(parts.evaluator.network, 5, 4.0, "branches", compile=compile)
            runs.append(parts.results(executor=executor))
    for one, other in zip(*runs, strict=True):
        assert one.cohort == other.cohort
        assert one.state.counters == other.state.counters
        for name, tensor in one.state.server.params.items():
            torch.testing.assert_close(other.state.server.params[name], tensor, rtol=limit[0], atol=limit[1])
    alone = any(word in entry.name for word in ("dropout", "phases"))
    assert bool(compiled) != alone


CASES: list[tuple[Any, int | str, str]] = [
    (network, 64, "contiguous"),
    (network, 32, "channels_last"),
    (network, "bf16", "channels_last"),
    (lenet5, 32, "contiguous"),
    *([(resnet18, "bf16", "channels_last")] * torch.cuda.is_available()),
]


@pytest.mark.parametrize(("made", "precision", "layout"), CASES)
def test_a_client_is_the_same_in_every_company_and_each_time(
    made: Any, precision: int | str, layout: Any, compiled: list[Any], gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As branches, alone, and not recorded, each time compiled anew; near to plain passes."""
    counted = replays(torch.get_device_module(gpu), monkeypatch)
    ways: list[tuple[int, Any, bool, int]] = [
        (5, "branches", False, 4),
        (5, "branches", True, 4),
        (1, True, True, 4),
        (5, "branches", True, 1000),
    ]
    found = list[Any]()
    for stack, graphs, compile, least in ways:
        monkeypatch.setattr("flnl.engine.stacked.graph.LEAST", least)
        net, before = made(gpu, precision), counted[1]
        executor = Stacked(net, stack, 4.0, graphs, memory_format=layout, compile=compile)
        own = [results(executor, job(), tasks(net, round=number)) for number in range(2)]
        assert not executor.refusals
        assert (counted[1] > before) == (least == 4)
        found.append(own)
    bits = [[[(r.params, r.loss) for r in of_round] for of_round in own] for own in found]
    for other in bits[2:]:
        assert difference(bits[1], other) is None
    assert len(compiled) == (2 if precision == "bf16" else 1) * (len(ways) - 1)  # passes, and in bf16 the update
    if precision == 64:
        for one, other in zip(found[0], found[1], strict=True):
            close(one, other, 1e-7)
    else:
        for one, other in zip(found[0][0], found[1][0], strict=True):
            assert other.loss == pytest.approx(one.loss, rel=0.02 if precision == 32 else 0.25)


def test_statistics_and_their_counter_are_those_of_plain_passes(compiled: list[Any], gpu: str) -> None:
    found = []
    for compile in (False, True):
        net = network(gpu, 64)
        found.append(results(Stacked(net, 5, 4.0, "branches", compile=compile), job(), tasks(net)))
    steps = {result.client: result.steps for result in found[0]}
    for one, other in zip(*found, strict=True):
        mine, its = one.params or {}, other.params or {}
        names = [name for name in mine if "running" in name or "tracked" in name]
        assert names
        for name in names:
            torch.testing.assert_close(its[name], mine[name], rtol=1e-7, atol=1e-7)
            if "tracked" in name:
                assert its[name].item() == steps[one.client]
    assert compiled
