"""Compiled passes of one client compute what the plain ones do, and one piece of code serves all clients.

Most tests leave out inductor, which makes the kernels and takes long: Dynamo and AOT Autograd trace the passes and
take them apart. ``tests/cuda`` has inductor on a GPU.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.registry import lookup_backend
from torch._inductor import async_compile

from flnl.core.errors import UserError
from flnl.core.messages import Fit
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.stacked import compiling
from flnl.engine.stacked.network import stacked
from flnl.engine.stacked.training import train
from flnl.models.mlp import MLP
from flnl.models.outputs import Pair
from flnl.parts.batches import Mixup
from tests.engine.executors.test_stacked import NETWORKS, TERMS, TRAINING, job
from tests.engine.stacked.test_graph import SIZES, cohort
from tests.properties.runs import difference, run
from tests.registry import BY_NAME
from tests.toys import mlp, network

PAIR: dict[str, Callable[[], nn.Module]] = {
    "a pair": lambda: Pair(MLP([5], 0.0)((1, 2, 2), 3), MLP([5], 0.0)((1, 2, 2), 3))
}
FULL = (4, 1, 2, 2)
"""The shape of a full batch's inputs."""


def traced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Compile without inductor; the shapes of the inputs, each time a network is compiled."""
    found = list[tuple[int, ...]]()

    def backend(graph: Any, examples: Sequence[Any]) -> Any:
        found.extend(tuple(e.shape) for e in examples if isinstance(e, Tensor) and tuple(e.shape[1:]) == FULL[1:])
        return lookup_backend("aot_eager")(graph, list(examples))

    monkeypatch.setattr(
        compiling, "compiler", lambda forward: torch.compile(forward, backend=backend, fullgraph=True, dynamic=False)
    )
    return found


def trained(net: Network, work: LocalTraining, sizes: Sequence[int] = SIZES, *, compiled: bool) -> list[Fit]:
    """Each client as a stack of one, in two rounds."""
    many, fits = stacked(net).network, list[Fit]()
    for round in range(2):
        for task in cohort(net, sizes, round=round):
            fits += train(work, net, many, [task], 10_000, compiled=compiled)
    return fits


def compare(net: Network, work: LocalTraining, tolerance: float) -> None:
    """Demand the parameters, statistics and losses of plain passes, and counts of passes."""
    held, found = net.params(), []
    for compiled in (False, True):
        net.load(held)
        fits = trained(net, work, compiled=compiled)
        found.append([{"params": fit.params, "loss": fit.loss, "steps": fit.steps} for fit in fits])
        found[-1].append({"passed": net.meter.pop()})
    assert difference(found[1], found[0], tolerance=tolerance) is None


@pytest.mark.parametrize("name", [name for name in (*NETWORKS, *PAIR) if "dropout" not in name])
def test_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kinds of layer, and statistics of batch norm, among clients with short last batches; compiled once."""
    torch.manual_seed(0)
    made: nn.Module = {**NETWORKS, **PAIR}[name]()
    shapes = traced(monkeypatch)
    compare(network(made), job(), 1e-9)
    assert shapes.count(FULL) == len(shapes) == 1


@pytest.mark.parametrize(
    "parts",
    [
        {"batch": Mixup(1.0, True, None)},
        {"terms": TERMS["adaptive"]},
        {"training": replace(TRAINING, clip=0.5)},
        {"training": replace(TRAINING, batch_size=1)},
    ],
    ids=["mixup", "a term that sees steps", "clipped", "batches of one"],
)
@pytest.mark.parametrize("norm", [False, True])
def test_ways_to_train(parts: dict[str, Any], norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = traced(monkeypatch)
    given = {"training": TRAINING, **parts}
    compare(network(mlp(4, 3, norm=norm)), job(**given), 1e-9)
    assert len(shapes) == 1


def test_each_size_of_full_batches_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage may have a size of its own; last batches run as they are."""
    shapes, net = traced(monkeypatch), network(mlp(4, 3, norm=True))
    for size in (4, 6, 4, 5, 6):
        trained(net, job(replace(TRAINING, batch_size=size)), compiled=True)
    assert [shape[0] for shape in shapes] == [4, 6, 5]


def test_many_networks_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than torch keeps of one function."""
    shapes = traced(monkeypatch)
    for _ in range(torch._dynamo.config.recompile_limit + 2):
        trained(network(mlp(4, 3)), job(), (8,), compiled=True)
    assert len(shapes) == torch._dynamo.config.recompile_limit + 2


def test_compiling_changes_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial that compiles runs on copies: statistics and their counter are those of the steps alone."""
    traced(monkeypatch)
    net = network(mlp(4, 3, norm=True))
    (fit,) = trained(net, job(replace(TRAINING, epochs=1)), (8,), compiled=True)[:1]
    assert fit.params["2.num_batches_tracked"] == 2


@pytest.mark.parametrize("precision", [32, "bf16"])
def test_inductors_code_repeats_its_bits(precision: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made twice; near to plain passes. The processes that compile have ended."""
    found = []
    for number, compiled in enumerate((False, True, True)):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / str(number)))
        fits = trained(network(mlp(4, 3, norm=True), precision=precision), job(), (12, 9), compiled=compiled)
        found.append([fit.params for fit in fits])
    assert difference(found[1], found[2]) is None
    assert difference(found[1], found[0], tolerance=1e-4 if precision == 32 else 0.2) is None
    assert 1 <= (torch._inductor.config.compile_threads or 0) <= compiling.WORKERS
    assert not async_compile._pool_set


# ------------------------------------------------------------------------------------------------------------ refusals


class Asks(nn.Module):
    """Reads what no compiler can keep."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        os.getpid()
        torch._dynamo.graph_break()
        logits: Tensor = self.layer(inputs.flatten(1))
        return logits


def test_a_network_that_cannot_be_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    traced(monkeypatch)
    refused = r"^executor\.compile=true, but the network cannot be compiled here \(.*\): use executor\.compile=false$"
    with pytest.raises(UserError, match=refused):
        trained(network(Asks()), job(), (8,), compiled=True)


@pytest.mark.parametrize("missing", [RuntimeError("Cannot find a working triton\ninstallation"), OSError("no g++")])
def test_a_machine_that_cannot_compile_is_refused(missing: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, also if only the backward pass fails."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, outputs: Tensor) -> Tensor:
            return outputs.clone()

        @staticmethod
        def backward(_: Any, *gradients: Tensor) -> Any:
            raise missing

    def compiler(forward: Any) -> Any:
        return lambda inputs: tuple(Fails.apply(output) for output in forward(inputs))  # type: ignore[no-untyped-call]

    monkeypatch.setattr(compiling, "compiler", compiler)
    with pytest.raises(UserError, match=rf"{type(missing).__name__}: [^\n]*\): use executor\.compile=false$"):
        trained(network(mlp(4, 3)), job(), (8,), compiled=True)


def test_memory_that_runs_out_is_said_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(_: Tensor) -> tuple[Tensor, ...]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(compiling, "compiler", lambda _: forward)
    with pytest.raises(torch.OutOfMemoryError):
        trained(network(mlp(4, 3)), job(), (8,), compiled=True)


@pytest.mark.parametrize("graphs", ["stacks", False, True])
def test_stacks_of_many_clients_are_not_compiled(graphs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flnl.engine.executors.stacked.can_record", lambda _: True)
    net, said = (
        network(mlp(4, 3)),
        r"executor\.compile=true, but with executor\.graphs=\w+ .*: use executor\.graphs=branches",
    )
    with pytest.raises(UserError, match=said):
        Stacked(net, 5, 1.0, graphs, compile=True)
    with pytest.raises(UserError, match=said):
        Stacked(net, 1, 1.0, False, compile=True)
    assert Stacked(net, 5, 1.0, "branches", compile=True).settings()["compile"] is True
    assert Stacked(net, 1, 1.0, True, compile=True).settings()["compile"] is True
    assert Stacked(net, 5, 1.0, graphs).settings()["compile"] is False


def test_a_cpu_compiles_nothing_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in BY_NAME["fedavg"].words if not word.startswith("executor")]
    ran = run([*words, "executor=stacked", "executor.compile=true"], tmp_path / "run", "max_rounds=1")
    assert ran.record["executor"]["compile"] is False
    assert "executor.compile=true is for a GPU: nothing is compiled here" in capsys.readouterr().err
