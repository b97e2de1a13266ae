"""The compiled optimiser: the update of the fused kernels, and copies in bfloat16 that are never out of date.

Most tests leave out inductor, as in ``test_compiling``.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.optimizer import SGD, Adam, AdamW, Optimizer
from flnl.core.training import Training
from flnl.engine.local.optimizer import fused
from flnl.engine.stacked import compiling, step
from flnl.engine.stacked.compiled_update import CompiledUpdate
from flnl.engine.stacked.network import stacked
from flnl.engine.stacked.training import train
from tests.engine.executors.test_stacked import NETWORKS, TERMS, TRAINING, job
from tests.engine.stacked.test_compiling import traced
from tests.engine.stacked.test_graph import cohort
from tests.properties.runs import difference
from tests.toys import network

SHAPES = {"weight": (6, 4, 3, 3), "bias": (6,), "scale": (5,), "unused": (2, 3)}
CONVERTED = ("weight", "bias", "unused")
ADAM = (0.9, 0.99, 1e-3)
TRAININGS = {
    "sgd": replace(TRAINING, momentum=0.0, weight_decay=0.0),
    "momentum and decay": replace(TRAINING, momentum=0.5, weight_decay=0.1),
    "adam": replace(TRAINING, optimizer=Adam(*ADAM), weight_decay=0.1),
    "adamw": replace(TRAINING, optimizer=AdamW(*ADAM), weight_decay=0.1),
}


def parameters() -> dict[str, Tensor]:
    """A convolution's weights lie channels last."""
    draw = torch.Generator().manual_seed(0)
    found = {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}
    found["weight"] = found["weight"].contiguous(memory_format=torch.channels_last)
    return {name: t.requires_grad_() for name, t in found.items()}


def buffers_of(training: Training, live: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """New ones; numbers are [1], those of one client."""
    return {
        buffer.name: [torch.zeros(1) if buffer.scalar else torch.zeros_like(p) for p in live.values()]
        for buffer in training.buffers
    }


def updates(training: Training, steps: int = 3) -> tuple[dict[str, Tensor], CompiledUpdate, dict[str, Tensor]]:
    """Parameters after compiled steps, the optimiser, and parameters after the fused kernel's on the same gradients.

    The bias is reached twice, by its copy and by itself, as where a term of the loss reads the parameters; ``unused``
    by nothing.
    """
    live, plain, made = parameters(), parameters(), dict[Any, Any]()
    optimizer = CompiledUpdate(training, live, CONVERTED, buffers_of(training, live), None, made)
    by_name = buffers_of(training, plain)
    kernel = fused(training, plain.values(), {k: dict(zip(plain.values(), v, strict=True)) for k, v in by_name.items()})
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for name in ("weight", "bias", "scale"):
            half, whole = (torch.randn(SHAPES[name], generator=draw) for _ in range(2))
            half = half.bfloat16()
            if name == "weight":
                half = half.contiguous(memory_format=torch.channels_last)
            total = whole if name == "scale" else half.float() + (whole if name == "bias" else 0)
            plain[name].grad = total.contiguous(
                memory_format=torch.channels_last if name == "weight" else torch.contiguous_format
            )
            if name != "scale":
                optimizer.copies[name].grad = half
            if name != "weight":
                live[name].grad = whole
        optimizer.step()
        kernel.step()
    assert len(made) == 1
    return live, optimizer, plain


@pytest.mark.parametrize("name", TRAININGS)
def test_the_update_is_that_of_the_fused_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same gradients, up to last bits; copies are the parameters, rounded."""
    traced(monkeypatch)
    live, optimizer, plain = updates(TRAININGS[name])
    for key, parameter in plain.items():
        torch.testing.assert_close(live[key], parameter, rtol=1e-6, atol=1e-6)
    assert torch.equal(live["unused"], parameters()["unused"])
    assert {*optimizer.copies} == {*CONVERTED}
    for key, copy in optimizer.copies.items():
        assert torch.equal(copy, live[key].bfloat16())
        assert copy.stride() == live[key].stride()


def test_inductor_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    live, optimizer, plain = updates(TRAININGS["momentum and decay"])
    for key, parameter in plain.items():
        torch.testing.assert_close(live[key], parameter, rtol=1e-6, atol=1e-6)
    for key, copy in optimizer.copies.items():
        assert torch.equal(copy, live[key].bfloat16())


def test_one_piece_of_code_serves_gradients_of_all_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 1x1 convolution's differ where a dimension is one; others may lie in another layout than it."""
    traced(monkeypatch)
    live = {"pointwise": torch.zeros(4, 2, 1, 1), "weight": torch.zeros(3, 2, 2, 2)}
    live = {name: t.contiguous(memory_format=torch.channels_last).requires_grad_() for name, t in live.items()}
    training = replace(TRAININGS["sgd"], lr=1.0)
    optimizer = CompiledUpdate(training, live, ("pointwise", "weight"), {}, None, {})
    values, expected = torch.arange(24.0), torch.zeros(24)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for strides in ((2, 1, 2, 2), (2, 1, 1, 1)):
            for layout in (torch.channels_last, torch.contiguous_format):
                pointwise = values[:8].bfloat16().as_strided((4, 2, 1, 1), strides)
                weight = values.bfloat16().view(3, 2, 2, 2).contiguous(memory_format=layout)
                optimizer.copies["pointwise"].grad, optimizer.copies["weight"].grad = pointwise, weight
                optimizer.step()
                expected -= values
                assert torch.equal(live["pointwise"].flatten(), expected[:8])
                assert torch.equal(live["weight"].flatten(), expected)


def test_an_unknown_optimiser_is_refused() -> None:
    class Other(Optimizer):
        def buffers(self, momentum: float) -> tuple[Any, ...]:
            return ()

    live = parameters()
    optimizer = CompiledUpdate(replace(TRAINING, optimizer=Other()), live, CONVERTED, {}, None, {})
    live["scale"].grad = torch.ones(5)
    with pytest.raises(TypeError, match="Other"):
        optimizer.step()


def test_what_cannot_be_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiler(_: Any) -> Any:
        def fails(*_: Any) -> None:
            raise RuntimeError("no working triton")

        return fails

    monkeypatch.setattr(compiling, "compiler", compiler)
    live, made = parameters(), dict[Any, Any]()
    optimizer = CompiledUpdate(replace(TRAININGS["sgd"], optimizer=SGD()), live, CONVERTED, {}, None, made)
    live["scale"].grad = torch.ones(5)
    for _ in range(2):  # what failed is not taken for compiled
        with pytest.raises(UserError, match=r"the optimiser's step cannot be compiled here \(RuntimeError: no working"):
            optimizer.step()


WORK = {
    "mlp": job(),
    "cnn": job(replace(TRAINING, optimizer=Adam(0.9, 0.999, 1e-8))),
    "resnet": job(),
    **{f"mlp, {name}": job(terms=terms) for name, terms in TERMS.items()},
}


@pytest.mark.parametrize("name", WORK)
def test_visits_are_those_of_plain_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients whose last batches are short and run as they are, over epochs and rounds: copies are made anew.

    The steps are large, so that a step with weights of the step before would be seen.
    """
    torch.manual_seed(0)
    net, work = network(NETWORKS[name.split(",")[0]](), precision="bf16"), WORK[name]
    traced(monkeypatch)
    monkeypatch.setattr(step, "at_once", lambda _: True)
    held, found, made = net.params(), [], list[Any]()
    original = CompiledUpdate.step

    def fresh(of: CompiledUpdate) -> bool:
        pairs = zip(of._copies, of._live, strict=True)
        return all(torch.equal(copy, parameter.bfloat16()) for copy, parameter in pairs if copy is not None)

    def counted(self: CompiledUpdate) -> None:
        before = fresh(self)  # what the step has computed with
        original(self)
        made.append(before and fresh(self))

    monkeypatch.setattr(CompiledUpdate, "step", counted)
    for compiled in (False, True):
        net.load(held)
        many, fits = stacked(net).network, list[Any]()
        for round in range(2):
            for task in cohort(net, (9, 8), round=round):
                fits += [fit.params for fit in train(work, net, many, [task], 10_000, compiled=compiled)]
        found.append(fits)
        assert bool(made) == compiled
    assert all(made)
    assert difference(found[1], found[0], tolerance=0.02) is None


@pytest.mark.parametrize("parts", [{"training": replace(TRAINING, clip=0.5)}], ids=["clipped"])
def test_gradients_that_something_reads_are_converted_for_it(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    traced(monkeypatch)
    monkeypatch.setattr(step, "at_once", lambda _: True)
    monkeypatch.setattr(CompiledUpdate, "step", lambda _: pytest.fail("a compiled optimiser"))
    net = network(NETWORKS["mlp"](), precision="bf16")
    (task,) = cohort(net, (8,))
    train(job(**parts), net, stacked(net).network, [task], 10_000, compiled=True)
