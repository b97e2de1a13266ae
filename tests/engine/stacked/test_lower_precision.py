"""In bfloat16, a step that converts all weights at once has the bits of autocast, which converts them one by one."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from flnl.core.messages import Fit
from flnl.core.optimizer import Adam
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.placement import Placement
from flnl.engine.stacked import step
from flnl.engine.stacked.lower_precision import at_once, rounded
from flnl.engine.stacked.network import stacked
from flnl.engine.stacked.training import train
from tests.engine.executors.test_stacked import NETWORKS, TERMS, TRAINING, job
from tests.engine.stacked.test_compiling import PAIR
from tests.engine.stacked.test_graph import SIZES, cohort
from tests.properties.runs import difference
from tests.toys import network


def fits(net: Network, work: LocalTraining, layout: torch.memory_format = torch.contiguous_format) -> list[Fit]:
    """Of clients side by side."""
    many = stacked(net).network
    many.lay_out(layout, weights=True)
    return train(work, net, many, cohort(net, SIZES), 10_000)


WORK: dict[str, tuple[str, LocalTraining]] = {
    **{name: (name, job()) for name in (*NETWORKS, *PAIR)},
    **{f"mlp, {name}": ("mlp", job(terms=terms)) for name, terms in TERMS.items()},
    "cnn, adam and clipping": ("cnn", job(replace(TRAINING, optimizer=Adam(0.9, 0.999, 1e-8), clip=0.5))),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", WORK)
def test_bits_are_those_of_autocast(name: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, statistics, momenta, states and losses, also of terms that read the parameters themselves."""
    of, work = WORK[name]
    torch.manual_seed(0)
    module = {**NETWORKS, **PAIR}[of]()
    net = network(module, precision="bf16")
    held, found = net.params(), []
    for whole in (True, False):
        monkeypatch.setattr(step, "at_once", lambda _, whole=whole: whole)
        net.load(held)
        found.append([vars(fit) for fit in fits(net, work, layout)])
    assert difference(found[1], found[0]) is None


class Conversions(TorchDispatchMode):
    """Collects the shapes of tensors that change between float32 and bfloat16, one by one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes = set[tuple[int, ...]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and {args[0].dtype, result.dtype} == {torch.float32, torch.bfloat16}:
            self.shapes.add(tuple(result.shape))
        return result


@contextmanager
def conversions() -> Iterator[set[tuple[int, ...]]]:
    with Conversions() as mode:
        yield mode.shapes


def test_no_weight_is_converted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on its way into a step nor its gradient on the way back."""
    net = network(NETWORKS["resnet"](), precision="bf16")
    weights = {tuple(p.shape) for p in net.trainable().values() if p.dim() == 4}
    found = []
    for whole in (True, False):
        monkeypatch.setattr(step, "at_once", lambda _, whole=whole: whole)
        with conversions() as shapes:
            train(job(), net, stacked(net).network, cohort(net, (8,)), 10_000)
        found.append(shapes)
    together, alone = found
    assert not weights & together
    assert weights <= alone


@pytest.mark.parametrize(
    ("device", "precision", "expected"),
    [
        ("cuda", "bf16-mixed", True),
        ("cpu", "bf16-mixed", False),
        ("cuda", "32-true", False),
        ("cuda", "64-true", False),
    ],
)
def test_only_mixed_precision_on_a_gpu_converts(device: str, precision: str, expected: bool) -> None:
    assert at_once(Placement(torch.device(device), precision)) == expected


def test_what_the_loss_does_not_reach_has_no_gradient() -> None:
    one, other = (nn.Parameter(torch.tensor([1.0, 2.0, 3.01])) for _ in range(2))
    first, _ = rounded([one, other])
    assert first.dtype == torch.bfloat16
    assert torch.equal(first, one.bfloat16())
    first.sum().backward()
    assert other.grad is None
    assert one.grad is not None
    assert one.grad.dtype == torch.float32


def test_layouts_are_kept() -> None:
    weight: Tensor = nn.Parameter(torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last))
    (copy,) = rounded([weight])
    assert copy.stride() == weight.stride()
    copy.square().sum().backward()
    assert weight.grad is not None
    assert weight.grad.stride() == weight.stride()
