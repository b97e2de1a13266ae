"""torchvision's classifiers by name."""

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn
from torchvision import models
from torchvision.models._api import WeightsEnum

from flnl.core.errors import UserError
from flnl.models.layers import Classifier
from flnl.models.outputs import outputs
from flnl.models.torchvision_classifier import TorchvisionClassifier, _Conversion, _renamed

SMALL = "shufflenet_v2_x0_5"
SHAPE = (3, 32, 32)


def make(name: str = SMALL, weights: object = None, num_classes: int = 7, shape: Any = SHAPE) -> nn.Module:
    torch.manual_seed(0)
    return TorchvisionClassifier(name, None if weights is None else str(weights))(shape, num_classes)


@pytest.fixture(scope="module")
def learned() -> OrderedDict[str, Tensor]:
    """A state dict of the small network with 1000 classes, as torchvision's files have them."""
    torch.manual_seed(7)
    state: OrderedDict[str, Tensor] = models.get_model(SMALL).state_dict()
    return state


def test_it_is_torchvisions_network_with_another_head() -> None:
    network = make().eval()
    assert isinstance(network, Classifier)
    torch.manual_seed(0)
    theirs = models.get_model(SMALL, num_classes=7).eval()
    inputs = torch.randn(2, *SHAPE)
    assert torch.equal(network(inputs), theirs(inputs))
    assert outputs(network, inputs)["features"].shape == (2, 1024)
    assert network.head.weight.shape == (7, 1024)
    assert network.train().training


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "vit_b_32", "densenet121", "regnet_x_400mf"])
@pytest.mark.slow
def test_the_head_of_each_kind_is_found(name: str) -> None:
    network = make(name, shape=(3, 224, 224))
    assert isinstance(network, Classifier)
    assert outputs(network.eval(), torch.zeros(1, 3, 224, 224))["logits"].shape == (1, 7)


def test_a_network_that_ends_in_a_convolution_has_no_features() -> None:
    network = make("squeezenet1_1").eval()
    assert {name: tuple(t.shape) for name, t in outputs(network, torch.zeros(2, *SHAPE)).items()} == {"logits": (2, 7)}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (None, "must be the name of one of torchvision's classifiers, as in model.name=efficientnet_b0"),
        ("efficientnet_b", "torchvision has no such classifier; did you mean efficientnet_b"),
        ("zzz", "torchvision has no such classifier; name one of its"),
        ("fasterrcnn_resnet50_fpn", "is one of torchvision.models.detection; name a classifier of images"),
        ("fcn_resnet50", "is one of torchvision.models.segmentation"),
        ("r3d_18", "is one of torchvision.models.video"),
        ("quantized_resnet18", "is one of torchvision.models.quantization"),
    ],
)
def test_names(name: str | None, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(TorchvisionClassifier).validate_python({"name": name, "weights": None})
    assert words in str(caught.value)


def refusal(**values: Any) -> str:
    with pytest.raises(UserError) as caught:
        make(**values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_inputs_that_it_cannot_take() -> None:
    grey = refusal(shape=(1, 32, 32))
    assert grey.startswith(f"model=torchvision model.name={SMALL} needs 3 channels; the dataset has 1x32x32")
    assert "model.name=squeezenet1_1 does not take inputs of 3x8x8" in refusal(name="squeezenet1_1", shape=(3, 8, 8))


def test_weights_of_torchvision_are_loaded(learned: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def state_of(weights: WeightsEnum, **options: Any) -> Any:
        asked.append((weights.name, options))
        return learned

    monkeypatch.setattr(WeightsEnum, "get_state_dict", state_of)
    state, fresh = make(weights="DEFAULT").state_dict(), make().state_dict()
    assert asked == [("IMAGENET1K_V1", {"check_hash": True, "map_location": "cpu", "weights_only": True})]
    assert torch.equal(state["body.conv1.0.weight"], learned["conv1.0.weight"])
    assert torch.equal(state["head.weight"], fresh["head.weight"])  # what the seed gives
    assert torch.equal(make(weights="IMAGENET1K_V1", num_classes=1000).get_parameter("head.bias"), learned["fc.bias"])


def test_weights_that_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(weights: WeightsEnum, **options: Any) -> Any:
        raise OSError("no network\nhere")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    monkeypatch.setattr(WeightsEnum, "get_state_dict", offline)
    message = refusal(weights="DEFAULT")
    assert message.startswith("model.weights=DEFAULT needs shufflenetv2_x0.5-f707e7126e.pth, which could not be downl")
    assert str(tmp_path / "hub/checkpoints") in message


def test_weights_of_a_file(learned: OrderedDict[str, Tensor], tmp_path: Path) -> None:
    torch.save(learned, tmp_path / "weights.pth")
    network = make(weights=tmp_path / "weights.pth")
    assert torch.equal(network.get_parameter("body.conv5.0.weight"), learned["conv5.0.weight"])
    torch.save({**learned, "more": torch.zeros(1)}, tmp_path / "other.pth")
    assert refusal(weights=tmp_path / "other.pth").endswith(
        f"does not fit model.name={SMALL}: the file is with unknown more"
    )
    undefined = {**learned, "conv5.0.weight": torch.full_like(learned["conv5.0.weight"], torch.nan)}
    torch.save(undefined, tmp_path / "nan.pth")
    assert refusal(weights=tmp_path / "nan.pth").endswith("with infinite or undefined values in conv5.0.weight")
    nowhere = refusal(weights=tmp_path / "nowhere.pth")
    assert nowhere.endswith("is not a file; give null, IMAGENET1K_V1, DEFAULT, or the path of a state dict")


def test_weights_of_no_name() -> None:
    message = refusal(weights="IMAGENET1K_V9")
    assert message.endswith(
        f"{SMALL} has no such weights; give null, IMAGENET1K_V1, DEFAULT, or the path of a state dict"
    )


def test_versions_of_layers_are_read(tmp_path: Path) -> None:
    """MnasNet refuses a state dict that does not say of which version it is."""
    state = models.get_model("mnasnet0_5").state_dict()
    torch.save(state, tmp_path / "weights.pth")
    network = make("mnasnet0_5", tmp_path / "weights.pth")
    assert torch.equal(network.get_parameter("body.layers.0.weight"), state["layers.0.weight"])
    torch.save(dict(state), tmp_path / "bare.pth")
    assert "does not fit model.name=mnasnet0_5 (ValueError" in refusal(name="mnasnet0_5", weights=tmp_path / "bare.pth")


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_inputs_are_converted_for_pretrained_weights_as_torchvision_does(name: str) -> None:
    inputs = torch.randn(2, 3, 4, 4)
    theirs = getattr(models, {"googlenet": "GoogLeNet", "inception_v3": "Inception3"}[name])._transform_input
    expected = theirs(SimpleNamespace(transform_input=True), inputs)
    torch.testing.assert_close(_Conversion(pretrained=True)(inputs), expected)
    assert torch.equal(_Conversion(pretrained=False)(inputs), inputs)


def test_a_model_of_pretrained_weights_computes_the_same_without_them(tmp_path: Path) -> None:
    """As a model's file is read: the weights are withheld, the state is loaded."""
    weights = models.get_model("googlenet", init_weights=False).state_dict()
    torch.save(weights, tmp_path / "weights.pth")
    trained, read = make("googlenet", tmp_path / "weights.pth").eval(), make("googlenet").eval()
    read.load_state_dict(trained.state_dict())
    inputs = torch.rand(2, *SHAPE)
    assert torch.equal(read(inputs), trained(inputs))


def test_old_names_and_auxiliary_classifiers() -> None:
    tensor = torch.zeros(1)
    old = {"features.denseblock1.denselayer2.norm.1.weight": tensor, "features.norm0.weight": tensor}
    assert list(_renamed("densenet121", old)) == [
        "features.denseblock1.denselayer2.norm1.weight",
        "features.norm0.weight",
    ]
    assert list(_renamed("inception_v3", {"AuxLogits.fc.weight": tensor, "fc.weight": tensor})) == ["fc.weight"]
    assert _renamed("googlenet", [1]) == [1]
