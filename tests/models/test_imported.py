"""Networks of the user's own, by their dotted path."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from flnl.config import compose
from flnl.core.errors import UserError
from flnl.models.imported import ImportedModule, ModulePath
from flnl.models.outputs import networks
from flnl.run.overrides import check_arguments

HERE = "tests.models.test_imported"
SHAPE = (1, 4, 4)


class Normed(nn.Module):
    """Batch norm and dropout, and parameters of the names that are given by themselves."""

    def __init__(self, num_classes: int, in_channels: int, width: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(in_channels, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten())
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4 * width, num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, num_classes]."""
        logits: Tensor = self.head(self.dropout(self.body(inputs)))
        return logits


class Fixed(nn.Module):
    """Five outputs, and no parameter for another number."""

    def __init__(self, **others: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 5)
        self.others = others

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, 5]."""
        logits: Tensor = self.layer(inputs.flatten(1))
        return logits


class Several(Fixed):
    """Gives more than logits."""

    def forward(self, inputs: Tensor) -> Any:
        """Logits, and something beside them."""
        return super().forward(inputs), inputs


class Nameless(Fixed):
    """Its named outputs have no logits."""

    def outputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """Features alone."""
        return {"features": inputs.flatten(1)}


class Flat(nn.Module):
    """Nothing to train."""

    def forward(self, inputs: Tensor) -> Tensor:
        """The first five pixels."""
        return inputs.flatten(1)[:, :5]


def lazy(num_classes: int, *, hidden: int = 4) -> nn.Module:
    """A factory of a network that finds out its sizes."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(hidden), nn.ReLU(), nn.Linear(hidden, num_classes))


def nothing() -> None:
    """A factory of nothing."""


def broken() -> nn.Module:
    """A factory that fails."""
    raise RuntimeError("no such\nthing")


INSTANCE = nn.Linear(2, 2)
NUMBER = 3


def make(name: str, num_classes: int = 5, **args: Any) -> nn.Module:
    torch.manual_seed(0)
    return ImportedModule(f"{HERE}.{name}", args)(SHAPE, num_classes)


def test_what_the_signature_has_is_given() -> None:
    network = make("Normed", 7, width=2)
    assert network.get_parameter("head.weight").shape == (7, 8)
    assert network.get_parameter("body.0.weight").shape == (2, 1, 3, 3)
    assert make("Normed", in_channels=1, width=2).training
    assert make("Fixed", extra=1).others == {"extra": 1}  # no num_classes besides


def test_the_check_leaves_the_network_as_it_was_made() -> None:
    torch.manual_seed(0)
    fresh, network = Normed(5, 1).state_dict(), make("Normed").state_dict()
    assert all(torch.equal(fresh[name], network[name]) for name in fresh)
    assert network["body.1.num_batches_tracked"] == 0


def test_a_factory_and_lazy_layers() -> None:
    network = make("lazy", 6, hidden=3)
    assert [tuple(p.shape) for p in network.parameters()] == [(3, 16), (3,), (6, 3), (6,)]


REFUSED = {
    "width": ("Fixed", {}, 4, "has 5 outputs, but the dataset has 4 classes: "),
    "no number of classes": ("Fixed", {}, 4, "Fixed needs a parameter num_classes, or model.args must give it 4"),
    "several results": ("Several", {}, 5, "returns a tuple of a batch; forward must return logits, a tensor [B, 5]"),
    "no logits by name": ("Nameless", {}, 5, "by its method outputs, does not take inputs of 1x4x4"),
    "what logits by name need": ("Nameless", {}, 5, "must return a mapping with logits"),
    "another shape": ("torch.nn.Identity", {}, 5, "returns a tensor [2, 1, 4, 4] of 2 images; forward must return"),
    "no parameters": ("Flat", {}, 5, "has no parameters to train"),
    "unknown argument": ("Normed", {"widht": 2}, 5, "model.args.widht is not a parameter of "),
    "a hint": ("Normed", {"widht": 2}, 5, "did you mean width?"),
    "missing argument": ("torch.nn.Linear", {"in_features": 4}, 5, "needs +model.args.out_features=..."),
    "not made": ("broken", {}, 5, "cannot be made of (): RuntimeError: no such"),
    "a wrong value": ("Normed", {"width": -1}, 5, "cannot be made of (num_classes=5, in_channels=1, width=-1): "),
    "no network": ("nothing", {}, 5, "makes a NoneType, which is no torch.nn.Module"),
    "inputs": ("torch.nn.Linear", {"in_features": 3, "out_features": 5}, 5, "does not take inputs of 1x4x4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_the_run_in_one_line(case: str) -> None:
    name, args, classes, words = REFUSED[case]
    path = name if name.startswith("torch.") else f"{HERE}.{name}"
    with pytest.raises(UserError) as caught:
        ImportedModule(path, args)(SHAPE, classes)
    assert words in str(caught.value)
    assert str(caught.value).startswith("model.")
    assert "\n" not in str(caught.value)


def test_two_networks_of_a_run_share_no_parameters() -> None:
    pair = networks(lambda: nn.Linear(2, 2), 2)
    assert len(list(pair.parameters())) == 4
    with pytest.raises(UserError, match=r"method\.networks=2 needs two networks, .* share parameters"):
        networks(lambda: INSTANCE, 2)


PATHS = {
    "Net": "must be the dotted path of a network, as in model.path=my_nets.Net",
    "a..b": "must be the dotted path",
    f"{HERE}.Normde": f"{HERE} has no Normde; did you mean Normed?",
    f"{HERE}.Normed.nothing": f"{HERE}.Normed has no nothing",
    f"{HERE}.Path": "is a class, but no torch.nn.Module",
    f"{HERE}.NUMBER": "is no class and no function that makes a torch.nn.Module",
    f"{HERE}.INSTANCE": "is a network itself; give its class",
    "nowhere_at_all.Net": "there is no module nowhere_at_all; it must lie in the folder",
}


@pytest.mark.parametrize("path", PATHS)
def test_paths_are_checked_with_the_configuration(path: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(ModulePath).validate_python(path)
    assert PATHS[path] in str(caught.value)


def test_a_module_that_fails_while_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fails_at_once.py").write_text("import a_module_that_is_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match=r"fails_at_once cannot be imported \(ModuleNotFoundError: No module named"):
        ImportedModule("fails_at_once.Net", {})(SHAPE, 5)
    assert "fails_at_once" not in sys.modules


def refusal(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        check_arguments(words)
    return str(caught.value)


def test_arguments_on_the_command_line() -> None:
    chosen = ("model=module", f"model.path={HERE}.Normed")
    check_arguments([*chosen, "+model.args.width=2"])
    assert compose.load([*chosen, "+model.args.width=2"]).model.args == {"width": 2}
    assert "+model.arg.width is not a key" in refusal(*chosen, "+model.arg.width=2")
    assert "+model.hidden.first is not a key" in refusal("model=mlp", "+model.hidden.first=2")
