"""How weights and inputs lie in memory: it moves no number but in its last bits, and nobody but the network sees it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flnl.config import compose
from flnl.core.errors import UserError
from flnl.core.parts import GradientTransform
from flnl.core.payload import Params
from flnl.core.step import Step
from flnl.core.training import Training
from flnl.data.transforms import Transform
from flnl.engine.executors.serialization import Shared, decode, encode
from flnl.engine.executors.stacked import Stacked
from flnl.engine.executors.worker_context import Recipe
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Layout, Network
from flnl.engine.placement import placement_for
from flnl.models.cnn import CNN
from flnl.parts.batches import Mixup, Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from tests.toys import mlp, random_federation, task

TRAINING = Training(lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=3, epochs=2, lr_decay=1.0)
COLOUR = Transform(size=(4, 4), mean=(0.5, 0.4, 0.3), std=(1.0, 0.9, 0.8), scale=1.0, padding=1, flip=True)


def cnn() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return CNN([4, 6], 0.0)((3, 4, 4), 3)


def net(layout: Layout, precision: int = 64) -> Network:
    return Network(cnn(), COLOUR, 3, placement_for("cpu", precision), layout)


@dataclass(frozen=True)
class Scaled(GradientTransform):
    """Gives gradients back contiguous, as a mask made elsewhere does."""

    def __call__(self, gradients: Mapping[str, Tensor], step: Step) -> Params:
        found = {name: torch.empty(g.shape, dtype=g.dtype).copy_(g) for name, g in gradients.items()}
        return {name: g * torch.linspace(0.5, 1, g.numel(), dtype=g.dtype).view(g.shape) for name, g in found.items()}


@pytest.mark.parametrize("batch", [Plain(), Mixup(1.0, True, None)])
@pytest.mark.parametrize("gradient", [None, Scaled()])
def test_training_is_the_same_in_both_layouts(batch: Plain | Mixup, gradient: GradientTransform | None):
    job = LocalTraining(TRAINING, batch, {"cross_entropy": CrossEntropy()}, gradient, {})
    samples = random_federation([8], shape=(3, 4, 4)).samples(0)
    found = []
    for layout in ("contiguous", "channels_last"):
        network = net(layout)
        result = job(network, task(network.module, samples))
        assert result.params is not None
        assert all(t.is_contiguous() for t in result.params.values())
        found.append(result.params)
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-10, atol=1e-12)
    assert not torch.equal(found[0]["head.weight"], cnn().double().state_dict()["head.weight"])


@pytest.mark.parametrize(
    ("module", "precision", "expected"),
    [(cnn, 32, "channels_last"), (cnn, "bf16", "channels_last"), (cnn, 64, "contiguous"), (mlp, 32, "contiguous")],
)
def test_auto_is_channels_last_for_convolutions_in_32_bits(module, precision, expected):
    made = module() if module is cnn else mlp(4, 3)
    assert Network(made, COLOUR, 3, placement_for("cpu", precision)).layout == expected


@pytest.mark.parametrize(("width", "layout"), [(4, "contiguous"), (8, "channels_last")])
def test_a_narrow_strided_1x1_convolution_is_never_in_channels_last(width: int, layout: str) -> None:
    """Gradients of its weight are written past their end on CPUs with AVX2, and the process aborts some time later."""
    placement = placement_for("cpu", 32)
    module = compose.build(compose.load(["model=resnet8", f"model.width={width}"]).model)((3, 8, 8), 10)
    network = Network(module, COLOUR, 10, placement)
    assert network.layout == layout
    assert Stacked(network, 2, None, memory_format="auto").settings()["memory_format"] == layout
    if layout == "contiguous":
        with pytest.raises(UserError, match="fewer than 8 channels"):
            Network(module, COLOUR, 10, placement, "channels_last")
        with pytest.raises(UserError, match="fewer than 8 channels"):
            Stacked(network, 2, None, memory_format="channels_last").settings()


def test_inputs_and_weights_lie_alike():
    network = net("channels_last", 32)
    inputs = network.prepare(torch.zeros(6, 3, 4, 4, dtype=torch.uint8))
    weights = [p for p in network.trainable().values() if p.dim() == 4]
    assert all(t.is_contiguous(memory_format=torch.channels_last) and not t.is_contiguous() for t in (inputs, *weights))
    assert inputs[torch.tensor([3, 1])].is_contiguous(memory_format=torch.channels_last)


def test_a_worker_that_inherits_nothing_has_the_same_layout(tmp_path: Path):
    for layout in ("contiguous", "channels_last"):
        recipe = decode(encode(Recipe.of(net(layout, 32)), Shared()), Shared())
        assert recipe.network().layout == layout
