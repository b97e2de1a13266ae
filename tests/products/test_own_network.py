"""Networks that users have already: plain modules and LightningModules, from a run to its model file."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import flnl
from flnl.commands import predict
from flnl.core.errors import UserError
from flnl.engine.model_file import ModelFile
from flnl.models.torchvision_classifier import TorchvisionClassifier
from tests.products.conftest import Commands
from tests.properties.runs import difference, run
from tests.registry import TINY

PLAIN, LIGHTNING = "my_parts.plain_network.Pooled", "my_parts.lightning_network.Bootstrapped"
WORDS = [*(word for word in TINY if not word.startswith("model")), "model=module", "rounds=2", "train.epochs=1"]
OWN_LOSS = ("method=fedavg", "method/local=[training_step]", f"model.path={LIGHTNING}")


pytestmark = pytest.mark.usefixtures("plugin")


@pytest.mark.parametrize("words", [("method=fedavg", f"model.path={PLAIN}", "+model.args.width=4"), OWN_LOSS])
def test_executors_and_resuming_give_the_same_bits(words: tuple[str, ...], tmp_path: Path) -> None:
    whole = run([*WORDS, *words], tmp_path / "whole").state.server.params
    run([*WORDS, *words], tmp_path / "parts", "max_rounds=1")
    resumed = run([*WORDS, *words], tmp_path / "parts", "executor=processes", "executor.workers=2", "resume=true")
    assert difference(whole, resumed.state.server.params) is None


def test_a_plain_module_is_stacked_if_its_layers_can_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "method=fedavg", "model.path=tests.models.test_imported.lazy", "precision=64"]
    alone = run(words, tmp_path / "alone").state.server.params
    stacked = run(words, tmp_path / "stacked", "executor=stacked").state.server.params
    assert "one by one" not in capsys.readouterr().err
    for name in alone:
        torch.testing.assert_close(stacked[name], alone[name], rtol=1e-9, atol=1e-9)
    run([*WORDS, "method=fedavg", f"model.path={PLAIN}"], tmp_path / "plain", "executor=stacked", "rounds=1")
    assert "clients run one by one: the network's forward pass mixes channels or samples" in capsys.readouterr().err


def test_a_training_step_gives_the_loss_and_the_run_says_what_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = run([*WORDS, *OWN_LOSS], tmp_path / "own", "executor=stacked")
    printed = capsys.readouterr().err
    assert "clients run one by one: TrainingStep asks the network for its loss, of one client's batch" in printed
    assert "is not used" not in printed
    proximal = ("method=fedprox", "method/local=[training_step,fedprox]", "method.mu=0.0")
    with_term = run([*WORDS, *OWN_LOSS[2:], *proximal], tmp_path / "fedprox")
    for name, tensor in own.state.server.params.items():
        torch.testing.assert_close(with_term.state.server.params[name], tensor, rtol=1e-5, atol=1e-6)
    assert "; Plain; training_step; " in own.record["stages"][0]
    capsys.readouterr()
    other = run([*WORDS, "method=fedavg", *OWN_LOSS[2:]], tmp_path / "other")
    assert "note: Bootstrapped.training_step is not used: the loss of method=fedavg is cross_entropy" in (
        capsys.readouterr().err
    )
    assert difference(own.state.server.params, other.state.server.params) is not None


def test_a_corrector_goes_with_a_training_step(tmp_path: Path) -> None:
    words = ["method=fedcorr", *OWN_LOSS[1:], "method/batch=plain", "method.T1=1", "method.T2=1", "method.T3=1"]
    ran = run([word for word in WORDS if word != "rounds=2"] + words, tmp_path / "run")
    assert ran.record["status"] == "finished"


REFUSED = {
    "no network of that kind": (
        ("method=fedavg", "method/local=[training_step]", f"model.path={PLAIN}"),
        "method.local.training_step: the network, a Pooled, is no LightningModule",
    ),
    "mixed batches": (
        (*OWN_LOSS, "method/batch=mixup"),
        "method.local.training_step: training_step gets the labels of single samples, but Mixup mixes them",
    ),
    "pairs": ((*OWN_LOSS, "method.networks=2"), "method/local/training_step (TrainingStep) needs method.networks=1"),
    "the width": (
        ("method=fedavg", f"model.path={PLAIN}", "+model.args.num_classes=4"),
        f"model.path={PLAIN} has 4 outputs, but the dataset has 10 classes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_before_the_first_round(case: str, tmp_path: Path) -> None:
    words, message = REFUSED[case]
    with pytest.raises(UserError) as caught:
        run([*WORDS, *words], tmp_path / "run")
    assert str(caught.value).startswith(message)
    assert not (tmp_path / "run").exists()


def test_a_model_file_is_used_once_its_code_is_trusted(tmp_path: Path, said: Commands) -> None:
    words = ["method=fedavg", f"model.path={PLAIN}", "rounds=1", "+model.args.width=4"]
    ran = run([*WORDS, *words], tmp_path / "run")
    assert ModelFile.load(ran.folder).model["path"] == PLAIN
    image = Path(__file__).parents[2] / "docs" / "figures" / "default_lid.png"
    for name in [name for name in sys.modules if name.split(".")[0] == "my_parts"]:
        del sys.modules[name]
    refused = said(predict, ran.folder, image)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert f"model.path={PLAIN} is code that a file cannot choose; if you trust it, name it: --trust" in refused.err
    with pytest.raises(UserError, match="is code that a file cannot choose"):
        flnl.load_model(ran.folder, trust=["my_parts.plain_network.Other"])
    assert not any(name.startswith("my_parts") for name in sys.modules)
    hostile = {"_target_": "ImportedModule", "path": "os.mkdir", "args": {"path": str(tmp_path / "made")}}
    with pytest.raises(UserError, match=r"model\.path=os\.mkdir is code that a file cannot choose"):
        replace(ModelFile.load(ran.folder), model=hostile).network(trusted=[PLAIN])
    assert not (tmp_path / "made").exists()
    assert said(predict, ran.folder, image, "--trust", PLAIN).code == 0
    model = flnl.load_model(ran.folder, trust=[PLAIN])
    assert torch.equal(model.network.get_parameter("head.weight"), ran.state.server.params["head.weight"])
    assert not model.network.training
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    (tmp_path / "presets" / "model").mkdir(parents=True)
    (tmp_path / "presets" / "model" / "mine.yaml").write_text(f"defaults: [module, _self_]\npath: {PLAIN}\n")
    assert flnl.load_model(ran.folder, [tmp_path / "presets"]).classes == model.classes


def test_a_model_file_of_a_network_of_torchvision_needs_no_weights() -> None:
    node = {"_target_": "TorchvisionClassifier", "name": "squeezenet1_1", "weights": "DEFAULT"}
    transform = {"size": [32, 32], "mean": [0.5] * 3, "std": [0.5] * 3}
    module = TorchvisionClassifier("squeezenet1_1", None)((3, 32, 32), 2)
    held = ModelFile(module.state_dict(), ["a", "b"], node, [3, 32, 32], transform, "uint8", "own", "", 1)
    assert held.network().num_classes == 2
