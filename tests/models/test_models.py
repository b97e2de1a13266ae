"""The networks: their size, what they refuse, their initialisation, and that stacked copies are separate networks."""

import json
import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state
from torchvision import models

from flnl.core.errors import UserError
from flnl.core.messages import Broadcast
from flnl.core.step import Step
from flnl.data.transforms import Transform
from flnl.engine.network import Network
from flnl.engine.placement import placement_for
from flnl.models.imagenet import ResNet18ImageNet
from flnl.models.layers import Classifier, has_batch_norm
from flnl.models.mlp import MLP
from flnl.models.outputs import Pair, output, outputs
from flnl.models.resnet import ResNet
from tests.toys import step as toy_step

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests/vectors"
DIGITS, MNIST, CIFAR = (1, 8, 8), (1, 28, 28), (3, 32, 32)

# One of each architecture, small enough to train here: name, overrides, inputs.
CASES: dict[str, tuple[dict[str, Any], tuple[int, int, int]]] = {
    "mlp": ({"hidden": [16, 8]}, DIGITS),
    "cnn": ({}, DIGITS),
    "lenet5": ({}, (2, 16, 16)),
    "vgg11_cifar": ({"dropout": 0.0}, CIFAR),
    "resnet8": ({}, (3, 8, 8)),
    "resnet18": ({"width": 8}, (3, 16, 16)),
    "preact_resnet18": ({"stem": 4, "width": 4, "blocks": [1, 2], "dropout": 0.0}, (3, 8, 8)),
    "wrn28_10": ({"stem": 3, "width": 6, "blocks": [2, 1], "released": True}, (3, 8, 8)),
    "resnet18_imagenet": ({}, CIFAR),
    "inception_resnet_v2": ({"blocks": [1, 1, 2]}, (3, 75, 75)),
}
SLOW = {"inception_resnet_v2"}
EACH = pytest.mark.parametrize("name", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in CASES])


def part(name: str, /, **overrides: Any) -> Any:
    """The part that ``model=name`` configures, with the defaults of its file."""
    config = OmegaConf.merge(OmegaConf.load(ROOT / f"conf/model/{name}.yaml"), overrides)
    return instantiate(config, _convert_="all")


def small(name: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> Classifier:
    """The case ``name`` for 10 classes, in training mode."""
    overrides, shape = CASES[name]
    torch.manual_seed(seed)
    network: Classifier = part(name, **overrides)(shape, 10)
    return network.to(dtype)


def batch(name: str, seed: int = 0, size: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(size, *CASES[name][1], generator=torch.Generator().manual_seed(seed), dtype=dtype)


def on_meta(name: str, shape: tuple[int, int, int], num_classes: int) -> Classifier:
    """The network without the memory and the time of its initialisation."""
    with torch.device("meta"):
        network: Classifier = part(name)(shape, num_classes)
    return network


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


# Size


@pytest.mark.parametrize(
    ("name", "shape", "num_classes", "expected"),
    [
        ("mlp", DIGITS, 10, 4_810),
        ("cnn", DIGITS, 10, 6_090),
        ("resnet8", CIFAR, 10, 78_042),
        ("resnet18_imagenet", (3, 224, 224), 14, 11_183_694),
        ("resnet18", CIFAR, 10, "resnet18_cifar_C10"),
        ("resnet18", CIFAR, 14, "resnet18_cifar_C14"),
        ("resnet18", CIFAR, 100, "resnet18_cifar_C100"),
        ("resnet34", CIFAR, 10, "resnet34_cifar_C10"),
        ("resnet34", CIFAR, 100, "resnet34_cifar_C100"),
        ("lenet5", CIFAR, 10, "lenet5_cifar_C10"),
        ("vgg11", CIFAR, 10, "vgg11_torchvision_C10"),
        ("vgg11", CIFAR, 1000, "vgg11_torchvision_C1000"),
        ("vgg11_cifar", CIFAR, 10, "vgg11_cifar_512_fednoisy_C10"),
        ("vgg16_cifar", CIFAR, 10, 15_245_130),
        ("lenet5", MNIST, 10, 44_426),  # FedNoisy's SimpleCNN
        ("preact_resnet18", CIFAR, 10, "preact_resnet18_dividemix_C10"),
        ("preact_resnet18", CIFAR, 14, 11_173_326),
        ("preact_resnet18", CIFAR, 100, 11_217_444),
        ("wrn28_10", CIFAR, 10, 36_479_194),
        ("wrn28_10", CIFAR, 100, 36_536_884),
        ("wrn40_2", CIFAR, 10, 2_243_546),
        ("wrn40_2", CIFAR, 100, 2_255_156),
        ("resnet50", (3, 224, 224), 14, "resnet50_C14"),
        ("inception_resnet_v2", (3, 299, 299), 50, 54_383_314),
    ],
)
def test_parameter_count(name: str, shape: tuple[int, int, int], num_classes: int, expected: int | str) -> None:
    if isinstance(expected, str):
        expected = json.loads((VECTORS / "vectors_data.json").read_text())["params"][expected]
    assert count(on_meta(name, shape, num_classes)) == expected


@pytest.mark.parametrize(("name", "num_classes"), [("resnet18", 10), ("resnet34", 100), ("resnet50", 14)])
def test_batch_norm_statistics_count(name: str, num_classes: int) -> None:
    expected = json.loads((VECTORS / "vectors_data.json").read_text())["params"][f"{name}_bn_buffers"]
    buffers = on_meta(name, CIFAR, num_classes).buffers()
    assert sum(buffer.numel() for buffer in buffers if buffer.is_floating_point()) == expected


@pytest.mark.parametrize(
    ("name", "changes", "num_classes", "parameters", "statistics"),
    [
        ("preact_resnet18", {}, 10, 11_171_274, 6_912),
        ("preact_resnet18", {"norm": "none"}, 10, 11_171_146, 6_784),
        ("preact_resnet18", {"norm": "none"}, 100, 11_217_316, 6_784),
        ("preact_resnet18", {"norm": "final"}, 10, 11_172_170, 7_808),
        ("preact_resnet18", {"norm": "final"}, 100, 11_218_340, 7_808),
        ("preact_resnet18", {"blocks": [3, 4, 6, 3]}, 100, 21_325_604, 14_336),
        ("wrn28_10", {}, 10, 36_479_194, 17_952),
        ("wrn28_10", {"width": 32}, 10, 1_467_610, 3_616),
        ("wrn28_10", {"width": 32}, 100, 1_479_220, 3_616),
        ("wrn40_2", {}, 10, 2_243_546, 5_408),
        ("wrn28_10", {"released": True}, 10, 36_489_290, 17_952),
        ("wrn40_2", {"released": True}, 10, 2_246_474, 5_408),
        ("wrn40_2", {"released": True}, 100, 2_258_084, 5_408),
    ],
)
def test_forms_of_pre_activation_networks_by_their_size(
    name: str, changes: dict[str, Any], num_classes: int, parameters: int, statistics: int
) -> None:
    with torch.device("meta"):
        network = part(name, **changes)(CIFAR, num_classes)
    assert count(network) == parameters
    assert sum(buffer.numel() for buffer in network.buffers() if buffer.is_floating_point()) == statistics


def test_weights_of_convolutions_and_linear_layers() -> None:
    vectors = json.loads((VECTORS / "vectors_seed_methods.json").read_text())["vectors"]
    vector = next(vector for vector in vectors if vector["id"] == "model.param_counts")
    for model, expected in zip(vector["inputs"]["models"], vector["expected"]["dim_2_or_4"], strict=True):
        name, num_classes = model.split("/")
        network = on_meta(name, CIFAR, int(num_classes))
        assert sum(p.numel() for p in network.parameters() if p.dim() in (2, 4)) == expected


def test_a_resnet_for_small_images_keeps_their_size_until_the_second_stage() -> None:
    # The parameter count cannot tell where the strides are.
    network = on_meta("resnet18", CIFAR, 10)
    sizes = {}
    for name in ("layer1", "layer2", "layer3", "layer4"):
        layer = network.body.get_submodule(name)
        layer.register_forward_hook(lambda _, __, out, name=name: sizes.update({name: tuple(out.shape[1:])}))
    network(torch.empty(2, *CIFAR, device="meta"))
    assert sizes == {"layer1": (64, 32, 32), "layer2": (128, 16, 16), "layer3": (256, 8, 8), "layer4": (512, 4, 4)}


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (7, 7)])
def test_the_pool_of_vgg_averages_and_copies_a_single_pixel_as_a_view(size: tuple[int, int]) -> None:
    """The gradient of torch's pool is summed in any order on a GPU; that of a view is not."""
    pool = on_meta("vgg11", CIFAR, 10).body.get_submodule("avgpool")
    inputs = torch.rand(2, 3, *size, dtype=torch.float64, requires_grad=True)
    given, outputs = torch.rand(2, 3, 7, 7, dtype=torch.float64), []
    for layer in (pool, torch.nn.AdaptiveAvgPool2d((7, 7))):
        outputs.append(layer(inputs))
        outputs.append(*torch.autograd.grad(outputs[-1], inputs, given))
    torch.testing.assert_close(outputs[:2], outputs[2:])
    assert ("Expand" in outputs[0].grad_fn.name()) == (size == (1, 1))


# Inputs


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("mlp", (3, 5, 7)),
        ("cnn", (1, 4, 4)),
        ("cnn", (3, 7, 30)),
        ("lenet5", MNIST),
        ("lenet5", (1, 16, 17)),
        ("vgg11", (3, 32, 40)),
        ("vgg11_cifar", (1, 32, 32)),
        ("vgg11_cifar", (3, 70, 64)),
        ("resnet8", DIGITS),
        ("resnet18", MNIST),
        ("resnet34", (3, 9, 8)),
        ("resnet18_imagenet", (3, 64, 48)),
        ("resnet50", (3, 224, 224)),
        ("inception_resnet_v2", (3, 75, 80)),
    ],
)
def test_takes_inputs(name: str, shape: tuple[int, int, int]) -> None:
    network = on_meta(name, shape, 7)
    assert network(torch.empty(2, *shape, device="meta")).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("cnn", (1, 3, 8), "at least 4x4; the dataset has 1x3x8"),
        ("lenet5", (1, 15, 28), "at least 16x16; the dataset has 1x15x28"),
        ("vgg11", MNIST, "3 channels and inputs of at least 32x32; the dataset has 1x28x28"),
        ("vgg11", (3, 32, 31), "at least 32x32"),
        ("vgg11_cifar", (3, 31, 32), "at least 32x32"),
        ("vgg16_cifar", (3, 31, 32), "at least 32x32"),
        ("resnet18_imagenet", (1, 224, 224), "3 channels; the dataset has 1x224x224"),
        ("resnet50", (4, 64, 64), "3 channels"),
        ("inception_resnet_v2", (1, 74, 75), "3 channels and inputs of at least 75x75"),
    ],
)
def test_refuses_inputs_in_one_line(name: str, shape: tuple[int, int, int], words: str) -> None:
    with pytest.raises(UserError) as caught:
        on_meta(name, shape, 10)
    message = str(caught.value)
    assert message.startswith(f"model={name} needs ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "conf/model").glob("*.yaml")))
def test_defaults_lie_in_the_ranges(name: str) -> None:
    chosen = {"module": {"path": "torchvision.models.MobileNetV2"}, "torchvision": {"name": "resnet18"}}
    model = part(name, **chosen.get(name, {}))
    TypeAdapter(type(model)).validate_python(asdict(model))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("cnn", {"dropout": 1.0}),
        ("cnn", {"widths": [16, 0]}),
        ("mlp", {"hidden": [-1]}),
        ("resnet18", {"blocks": []}),
        ("resnet18", {"width": 0}),
        ("preact_resnet18", {"norm": "both"}),
        ("resnet50", {"pretrained": None}),
        ("inception_resnet_v2", {"blocks": [10, 20]}),
    ],
)
def test_ranges_exclude(name: str, wrong: dict[str, Any]) -> None:
    model = part(name)
    with pytest.raises(ValidationError):
        TypeAdapter(type(model)).validate_python(asdict(model) | wrong)


# Initialisation


@EACH
def test_parameters_follow_the_seed(name: str) -> None:
    first, again, other = (small(name, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert not torch.equal(next(iter(first.values())), next(iter(other.values())))


def test_images_differ_after_vggs_convolutions_at_the_start() -> None:
    # Under torch's own initialisation they hardly do (1e-4), and the network stays at chance for long.
    network, inputs = small("vgg11_cifar"), batch("vgg11_cifar", size=16)
    pixels = []
    flatten = next(layer for layer in network.modules() if isinstance(layer, nn.Flatten))
    flatten.register_forward_hook(lambda _, __, out: pixels.append(out))
    network(inputs)
    assert pixels[0].std(dim=0).mean() > 1e-2


# The form every network has


@EACH
def test_the_head_reads_the_features(name: str) -> None:
    network, inputs = small(name).eval(), batch(name)
    features = network.features(inputs)
    assert features.shape == (2, network.head.in_features)
    assert torch.equal(network(inputs), network.head(features))
    assert torch.equal(network(inputs), features @ network.head.weight.T + network.head.bias)
    assert {key.split(".")[0] for key in network.state_dict()} == {"body", "head"}


def test_vgg11_features_are_its_last_hidden_layer() -> None:
    network = on_meta("vgg11", CIFAR, 10)
    assert network.features(torch.empty(2, *CIFAR, device="meta")).shape == (2, 4096)
    assert network.head.weight.shape == (10, 4096)


def test_resnet18_is_torchvisions_behind_another_stem() -> None:
    # Two implementations of the blocks, one set of values: only the stem may differ.
    torch.manual_seed(0)
    ours, theirs = ResNet(64, [2, 2, 2, 2])(CIFAR, 10).double(), models.resnet18(num_classes=10).double()
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False).double(), nn.Identity()
    state = ours.state_dict()
    for name, torchvisions in (
        ("body.", ""),
        ("head", "fc"),
        ("shortcut.conv", "downsample.0"),
        ("shortcut.bn", "downsample.1"),
    ):
        state = {key.replace(name, torchvisions): value for key, value in state.items()}
    theirs.load_state_dict(state)
    inputs = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(ours(inputs), theirs(inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("norm", "released"), [("stem", False), ("none", False), ("final", False), ("final", True)])
def test_pre_activation_networks_by_hand(norm: str, released: bool) -> None:
    """One block at full size and one at half of it, written out with torch's functions."""
    torch.manual_seed(0)
    changes = {"stem": 3, "width": 4, "blocks": [1, 1], "norm": norm, "released": released}
    network = part("preact_resnet18", **changes)((2, 6, 6), 5).double()
    values = {name: tensor.detach().clone() for name, tensor in network.named_parameters()}
    for name in values:
        if ".bn" in name:
            values[name].uniform_(0.5, 1.5)
    network.load_state_dict(values, strict=False)

    def active(x: Tensor, name: str) -> Tensor:
        mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
        scale, shift = (values[f"body.{name}.{one}"].view(1, -1, 1, 1) for one in ("weight", "bias"))
        out: Tensor = ((x - mean) / (var + 1e-5).sqrt() * scale + shift).clamp(min=0)
        return out

    def convolved(x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = values[f"body.{name}.weight"]
        return nn.functional.conv2d(x, weight, values.get(f"body.{name}.bias"), stride, weight.shape[-1] // 2)

    inputs = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    x = convolved(inputs, "conv1")
    if norm == "stem":
        x = active(x, "bn1")
    for stage, stride in (("layer1.0", 1), ("layer2.0", 2)):
        a = active(x, f"{stage}.bn1")
        hidden = active(convolved(a, f"{stage}.conv1", 1 if released else stride), f"{stage}.bn2")
        added = convolved(x if released else a, f"{stage}.shortcut", stride)
        x = convolved(hidden, f"{stage}.conv2", stride if released else 1) + added
    if norm == "final":
        x = active(x, "bn")
    features = x.mean((2, 3))
    torch.testing.assert_close(network.features(inputs), features, rtol=1e-10, atol=1e-12)
    statistics = network.state_dict()["body.layer1.0.bn2.running_mean"]
    share = 0.9 if released else 0.1
    stem = convolved(inputs, "conv1")
    before = convolved(active(active(stem, "bn1") if norm == "stem" else stem, "layer1.0.bn1"), "layer1.0.conv1")
    torch.testing.assert_close(statistics, share * before.mean((0, 2, 3)), rtol=1e-9, atol=1e-12)


def test_a_wide_network_begins_with_kaimings_variance() -> None:
    torch.manual_seed(0)
    network = part("wrn40_2", blocks=[1, 1])(CIFAR, 10)
    weight = network.body.get_submodule("layer2.0.conv1").weight
    assert weight.std().item() == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.03)
    torch.manual_seed(0)
    plain = part("wrn40_2", blocks=[1, 1], init="torch")(CIFAR, 10).body.get_submodule("layer2.0.conv1").weight
    assert plain.abs().max().item() <= (1 / (9 * 32)) ** 0.5


def test_inception_resnet_v2_gives_what_timms_gives() -> None:
    """The logits of timm 1.0.31's network of this name, shortened to these blocks, with the same values in order."""
    network = part("inception_resnet_v2", blocks=[1, 1, 2])((3, 107, 139), 4).double().eval()
    state = network.state_dict()
    for number, name in enumerate(name for name in state if state[name].is_floating_point()):
        tensor = state[name]
        wave = torch.sin(0.7 * torch.arange(tensor.numel(), dtype=torch.float64) + number).view(tensor.shape)
        if tensor.dim() > 1:
            tensor.copy_(wave * (3 / tensor[0].numel()) ** 0.5)
        else:
            tensor.copy_(1 + wave / 2 if name.endswith(("weight", "running_var")) else wave / 3)
    inputs = torch.sin(torch.arange(3 * 107 * 139, dtype=torch.float64) ** 1.5 / 50).view(1, 3, 107, 139)
    with torch.no_grad():
        logits = network(inputs)[0].tolist()
    theirs = [-4756564.872460703, 897494.4867024204, 6038550.221501714, 7727999.134847143]
    assert logits == pytest.approx(theirs, rel=1e-8)


def test_inception_resnet_v2_halves_its_maps_where_the_paper_does() -> None:
    network, sizes = on_meta("inception_resnet_v2", (3, 299, 299), 50), list[tuple[int, ...]]()
    for layer in network.body.children():
        layer.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
    network(torch.empty(1, 3, 299, 299, device="meta"))
    maps = [shape for shape in sizes if len(shape) == 3]
    assert [maps.count(shape) for shape in ((320, 35, 35), (1088, 17, 17), (2080, 8, 8))] == [11, 21, 11]
    assert sizes[-1] == (1536,)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlp", False),
        ("cnn", False),
        ("lenet5", False),
        ("vgg11", False),
        ("resnet8", True),
        ("wrn40_2", True),
        ("resnet50", True),
    ],
)
def test_has_batch_norm(name: str, expected: bool) -> None:
    assert has_batch_norm(on_meta(name, CIFAR, 10)) is expected


def test_lenet_with_batch_norm_has_it_before_each_relu_of_a_convolution() -> None:
    body = [type(layer).__name__ for layer in part("lenet5", batch_norm=True)(CIFAR, 10).body.children()]
    block = ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    assert body == [*block, *block, "Flatten", "Linear", "ReLU", "Linear", "ReLU"]


@EACH
def test_pickles(name: str) -> None:
    network = small(name).eval()
    copy = pickle.loads(pickle.dumps(network))
    assert torch.equal(copy(batch(name)), network(batch(name)))
    model = part(name)
    assert pickle.loads(pickle.dumps(model)) == model


@EACH
def test_runs_in_mixed_precision(name: str) -> None:
    network, inputs = small(name, dtype=torch.float32), batch(name, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(inputs)
    logits.float().square().sum().backward()
    assert logits.dtype == torch.bfloat16
    for parameter in network.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert parameter.grad.isfinite().all()


# Stacked copies


@EACH
def test_stacked_networks_are_separate_networks(name: str) -> None:
    """Outputs, gradients and batch-norm buffers of three vmapped copies, against one call after another."""
    networks = [small(name, seed) for seed in range(3)]
    inputs = torch.stack([batch(name, seed) for seed in range(3)])
    parameters, buffers = stack_module_state(
        list[nn.Module](networks)
    )  # copies: the networks' own tensors stay as they are
    shell = small(name).to("meta")

    def call(parameters: dict[str, Tensor], buffers: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Any]:
        buffers = {key: value.clone() for key, value in buffers.items()}
        return functional_call(shell, parameters | buffers, (inputs,)), buffers

    before = {key: value.clone() for key, value in buffers.items()}
    outputs, after = torch.vmap(call)(parameters, buffers, inputs)
    torch.autograd.backward(outputs.square().sum())

    for k, network in enumerate(networks):
        logits = network(inputs[k])
        logits.square().sum().backward()
        torch.testing.assert_close(outputs[k], logits, rtol=1e-9, atol=1e-12)
        for key, parameter in network.named_parameters():
            stacked, alone = parameters[key].grad, parameter.grad
            assert stacked is not None
            assert alone is not None
            torch.testing.assert_close(stacked[k], alone, rtol=1e-9, atol=1e-11 * max(alone.abs().max().item(), 1))
        for key, buffer in network.named_buffers():
            torch.testing.assert_close(after[key][k], buffer, rtol=1e-9, atol=1e-12)
            assert torch.equal(buffers[key], before[key])
            assert not torch.equal(buffer, before[key][k])


# Dropout


@pytest.mark.parametrize("name", ["mlp", "cnn", "vgg11_cifar", "vgg16_cifar"])
def test_dropout_follows_torchs_seed(name: str) -> None:
    torch.manual_seed(0)
    network, inputs = part(name, dropout=0.5)(CIFAR, 10), torch.randn(4, *CIFAR)

    def forward(seed: int) -> Tensor:
        torch.manual_seed(seed)
        logits: Tensor = network(inputs)
        return logits

    assert torch.equal(forward(1), forward(1))
    assert not torch.equal(forward(1), forward(2))
    network.eval()
    assert torch.equal(forward(1), forward(2))


@pytest.mark.parametrize("name", ["mlp", "cnn", "vgg11", "vgg11_cifar", "vgg16_cifar"])
def test_dropout_reaches_every_dropout_layer(name: str) -> None:
    with torch.device("meta"):
        network = part(name, dropout=0.25)(CIFAR, 10)
    rates = [layer.p for layer in network.modules() if isinstance(layer, nn.Dropout)]
    assert rates == [0.25] * (2 if name.startswith("vgg") else 1)


def test_dropout_zero_draws_nothing() -> None:
    network, inputs = small("cnn"), batch("cnn")
    before = torch.get_rng_state()
    network(inputs)
    assert torch.equal(torch.get_rng_state(), before)


# Pretrained weights


@pytest.fixture(scope="module")
def learned() -> dict[str, Tensor]:
    """A state dict in torchvision's names with 1000 classes, as ImageNet's files have them."""
    torch.manual_seed(7)
    state: dict[str, Tensor] = models.resnet18().state_dict()
    return state


def load(pretrained: object, seed: int = 0, num_classes: int = 14) -> Classifier:
    torch.manual_seed(seed)
    return ResNet18ImageNet(str(pretrained))(CIFAR, num_classes)


def refusal(pretrained: object, num_classes: int = 14) -> str:
    with pytest.raises(UserError) as caught:
        load(pretrained, num_classes=num_classes)
    message = str(caught.value)
    assert message.startswith(f"model.pretrained={pretrained} ")
    assert "\n" not in message
    return message


def test_a_local_file_fills_all_but_a_head_of_another_size(learned: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(learned, tmp_path / "weights.pth")
    state, fresh = load(tmp_path / "weights.pth").state_dict(), load("none").state_dict()
    body = {key for key in state if key.startswith("body.")}
    assert len(body) == len(learned) - 2
    assert all(torch.equal(state[key], learned[key.removeprefix("body.")]) for key in body)
    assert not torch.equal(state["body.conv1.weight"], fresh["body.conv1.weight"])
    assert state["head.weight"].shape == (14, 512)
    assert torch.equal(state["head.weight"], fresh["head.weight"])  # what the seed gives, whatever was loaded
    assert torch.equal(state["head.bias"], fresh["head.bias"])


def test_a_head_of_the_same_size_is_kept(learned: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(learned, tmp_path / "weights.pth")
    network = load(tmp_path / "weights.pth", num_classes=1000)
    assert torch.equal(network.head.weight, learned["fc.weight"])
    assert torch.equal(network.head.bias, learned["fc.bias"])


def test_a_file_of_the_time_before_batches_were_counted(learned: dict[str, Tensor], tmp_path: Path) -> None:
    old = {key: value for key, value in learned.items() if not key.endswith("num_batches_tracked")}
    torch.save(old, tmp_path / "old.pth")
    network = load(tmp_path / "old.pth")
    assert torch.equal(network.body.get_parameter("conv1.weight"), learned["conv1.weight"])
    assert network.body.get_buffer("bn1.num_batches_tracked") == 0


def test_weights_that_do_not_fit(learned: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "other.pth"
    other = learned | {"conv1.weight": torch.zeros(64, 3, 3, 3), "extra": torch.zeros(1)}
    torch.save({key: value for key, value in other.items() if "layer4" not in key}, file)
    message = refusal(file)
    assert "does not fit model=resnet18_imagenet" in message
    assert "without layer4.0.conv1.weight, layer4.0.bn1.weight, layer4.0.bn1.bias and 22 more" in message
    assert "with unknown extra" in message
    assert "with other shapes of conv1.weight" in message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"fc.weight": None, "fc.bias": None}, "without fc.weight, fc.bias"),
        ({"extra": torch.zeros(1)}, "with unknown extra"),
        ({"bn1.weight": torch.zeros(1)}, "with other shapes of bn1.weight"),  # would broadcast
    ],
)
def test_one_difference_is_enough(
    learned: dict[str, Tensor], tmp_path: Path, change: dict[str, Tensor | None], words: str
) -> None:
    changed = {key: value for key, value in (learned | change).items() if value is not None}
    torch.save(changed, tmp_path / "changed.pth")
    assert refusal(tmp_path / "changed.pth").endswith(f"the file is {words}")


def test_a_damaged_file(learned: dict[str, Tensor], tmp_path: Path) -> None:
    whole, damaged = tmp_path / "whole.pth", tmp_path / "damaged.pth"
    torch.save({"conv1.weight": learned["conv1.weight"]}, whole)
    for content in (whole.read_bytes()[:1000], b"", b"not weights at all\n"):
        damaged.write_bytes(content)
        assert "cannot be read as weights" in refusal(damaged)


class Trap:
    """An object whose unpickling runs code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("sprung"),)


def test_a_file_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"conv1.weight": Trap()}, tmp_path / "trap.pth")
    assert "cannot be read as weights" in refusal(tmp_path / "trap.pth")
    assert not (tmp_path / "sprung").exists()


def test_a_file_of_something_else(learned: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({"epoch": 3, "state_dict": learned}, tmp_path / "checkpoint.pth")
    assert "holds epoch, state_dict that are not all tensors" in refusal(tmp_path / "checkpoint.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    assert "holds a list" in refusal(tmp_path / "list.pth")


def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    assert "is not a file" in refusal(tmp_path / "absent.pth")
    assert "cannot be read" in refusal(tmp_path)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for torch.hub, and no network; the place where the file of ResNet-18's weights belongs."""

    def download(*_: Any, **__: Any) -> None:
        raise URLError("no network\nhere")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    return tmp_path / "hub/checkpoints/resnet18-f37072fd.pth"


def test_imagenet_weights_come_from_the_cache(learned: dict[str, Tensor], offline: Path) -> None:
    offline.parent.mkdir(parents=True)
    torch.save(learned, offline)
    assert torch.equal(load("imagenet").body.get_parameter("conv1.weight"), learned["conv1.weight"])


def test_imagenet_weights_that_cannot_be_had(offline: Path) -> None:
    message = refusal("imagenet")
    assert "URLError" in message
    assert str(offline) in message
    offline.write_bytes(b"cut short")
    assert str(offline) in refusal("imagenet")


def test_nothing_is_downloaded_unless_asked_for(offline: Path) -> None:
    load("none")
    assert not offline.parent.exists()


class OwnLayers(nn.Module):
    """A network of a user's own, with a layer called ``outputs`` and no method of that name."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.outputs = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, 2]."""
        logits: Tensor = self.outputs(self.hidden(inputs.flatten(1)))
        return logits


def test_a_layer_called_outputs_is_no_set_of_named_outputs() -> None:
    network, inputs = OwnLayers(), torch.randn(5, 1, 2, 2)
    assert set(outputs(network, inputs)) == {"logits"}
    assert torch.equal(output(network, "logits", inputs), network(inputs))
    with pytest.raises(LookupError, match="no output 'features'"):
        output(network, "features", inputs)


class OwnHead(nn.Module):
    """A network of a user's own, whose last layer is called ``head``; counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head, self.passes = nn.Linear(4, 3), nn.Linear(3, 2), 0

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, 2]."""
        self.passes += 1
        logits: Tensor = self.head(self.hidden(inputs.flatten(1)).relu())
        return logits


class OwnOutputs(OwnHead):
    """The same with an output of its own."""

    def outputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """Logits, and twice the logits."""
        logits = self(inputs)
        return {"logits": logits, "twice": 2 * logits}


def step_of(module: nn.Module, inputs: Tensor) -> Step:
    """A step in which ``module`` is trained on ``inputs``."""
    network = Network(module, Transform((2, 2), (0.0,), (1.0,), 1.0), 2, placement_for("cpu", 32))
    return replace(toy_step(logits=inputs), passes=network.passes(Broadcast(0, 1, network.params())))


@pytest.mark.parametrize("kind", [OwnHead, OwnOutputs])
def test_features_of_the_batch_need_no_further_pass(kind: type[OwnHead]) -> None:
    network, inputs = kind(), torch.randn(5, 1, 2, 2)
    expected = network.hidden(inputs.flatten(1)).relu()
    step = step_of(network, inputs)
    assert torch.equal(step.output("features"), expected)
    assert torch.equal(step.logits, network.head(expected))
    assert network.passes == 1
    assert torch.equal(step.output("features", inputs), step.output("features"))
    assert torch.equal(step.opinions("features", [inputs])[0], expected)
    assert not network.head._forward_pre_hooks
    step.output("features").sum().backward()
    assert network.hidden.weight.grad is not None


@pytest.mark.parametrize("training", [True, False])
def test_opinions_of_several_batches(training: bool) -> None:
    """One pass for all; under batch norm one for each in training mode, whose statistics are the batch's own."""
    plain, batches = OwnHead(), [torch.randn(n, 1, 2, 2) for n in (5, 3)]
    found = step_of(plain, batches[0]).opinions("logits", batches, training=training)
    assert plain.passes == 1
    for logits, batch in zip(found, batches, strict=True):
        torch.testing.assert_close(logits, plain(batch))
        assert not logits.requires_grad

    normed = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=0.5), nn.Linear(3, 2))
    normed(torch.randn(9, 4))  # running statistics that are no batch's
    before = {name: buffer.clone() for name, buffer in normed.named_buffers()}
    found = step_of(normed, batches[0]).opinions("logits", batches, training=training)
    assert all(torch.equal(buffer, before[name]) for name, buffer in normed.named_buffers())
    assert normed.training
    normed.train(training)
    for logits, batch in zip(found, batches, strict=True):
        torch.testing.assert_close(logits, normed(batch))


def test_opinions_may_update_running_statistics() -> None:
    """Each batch by itself, in order, also one that comes again; one row, or eval mode, leaves them alone."""
    normed = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=0.5), nn.Linear(3, 2))
    by_hand, batches = deepcopy(normed), [torch.randn(n, 1, 2, 2) for n in (5, 1, 3)]
    again = [*batches, batches[0]]
    found = step_of(normed, batches[0]).opinions("logits", again, updating=True)
    for logits, batch in zip(found, again, strict=True):
        by_hand.train(len(batch) > 1)
        torch.testing.assert_close(logits, by_hand(batch))
        assert not logits.requires_grad
    kept = dict(normed.named_buffers())
    assert int(kept["2.num_batches_tracked"]) == 3
    torch.testing.assert_close(kept, dict(by_hand.named_buffers()))
    step_of(normed, batches[0]).opinions("logits", batches, training=False, updating=True)
    torch.testing.assert_close(dict(normed.named_buffers()), dict(by_hand.named_buffers()), rtol=0, atol=0)


def test_a_batch_that_is_there_twice_passes_once() -> None:
    plain, (one, other) = OwnHead(), [torch.randn(n, 1, 2, 2) for n in (5, 3)]
    found = step_of(plain, one).opinions("logits", [one, other, one])
    assert plain.passes == 1
    assert found[0] is found[2]
    torch.testing.assert_close(found, [plain(one), plain(other), plain(one)])


@pytest.mark.parametrize("kind", [OwnHead, OwnOutputs, lambda: MLP([3], 0.0)((1, 2, 2), 2)])
def test_a_pair_has_the_features_of_both(kind: Callable[[], nn.Module]) -> None:
    pair, inputs = Pair(kind(), kind()), torch.randn(5, 1, 2, 2)
    step = step_of(pair, inputs)
    both = torch.cat([output(pair.first, "features", inputs), output(pair.second, "features", inputs)], 1)
    assert both.shape == (5, 6)
    for features in (step.output("features"), step.output("features", inputs), output(pair, "features", inputs)):
        assert torch.equal(features, both)
    assert torch.equal(step.output("second"), pair.second(inputs))
    assert torch.equal(pair(inputs), step.logits)
    with pytest.raises(LookupError, match="no output 'third'; there are logits, first, second, features"):
        step.output("third")


def test_a_pair_without_features_has_none() -> None:
    pair, inputs = Pair(OwnLayers(), OwnLayers()), torch.randn(5, 1, 2, 2)
    assert set(outputs(pair, inputs)) == {"logits", "first", "second"}
