"""A file names a class by its stored name; it has no other code run, imports nothing and fetches nothing."""

import json
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flnl.commands import figures as redraw
from flnl.commands import predict
from flnl.config import compose, registry
from flnl.config.folders import CONF
from flnl.config.schema import METHOD
from flnl.core.errors import UserError
from flnl.core.state import PASSES
from flnl.core.stored import class_of, stored
from flnl.data.federation.recorded import recorded_data
from flnl.engine.model_file import ModelFile
from flnl.figures import features
from flnl.record.run import RunRecord
from flnl.run import checkpoint
from tests.products.conftest import Commands
from tests.properties.runs import Ran, run
from tests.registry import ONE_STAGE, REGISTRY, TINY

OLD = Path(__file__).parent.parent / "first_format"
"""Runs as they were written when files held the paths of classes: stopped, in the middle."""
SLOTS = ("sampler", "batch", "local", "gradient", "exchange", "corrector", "aggregator", "server")
BY_NAME = {entry.name: entry for entry in REGISTRY}


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """A file that nothing may have made."""
    file = tmp_path / "executed"
    yield file
    assert not file.exists()


def call(marker: Path) -> dict[str, Any]:
    """A node that makes the file when it is instantiated."""
    return {"_target_": "torch.utils.collect_env.run", "command": f"touch {marker}"}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run of FedAvg stopped in its middle."""
    folder = tmp_path_factory.mktemp("stopped")
    return run([*TINY, "method=fedavg", *ONE_STAGE], folder / "run", "max_rounds=2", "executor=auto")


@pytest.fixture
def copied(stopped: Ran, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(stopped.folder, tmp_path / "run"))


HOSTILE: dict[str, Callable[[Any, Any], Any]] = {
    "a call in a list": lambda node, call: {**node, "hidden": [call]},
    "a call in a list of lists": lambda node, call: {**node, "hidden": [[{"deep": call}]]},
    "a call beside": lambda node, call: {**node, "other": call},
    "a call instead": lambda node, call: call,
    "a function below a module": lambda node, call: {
        "_target_": "flnl.models.imagenet.torch.hub.download_url_to_file",
        "url": "file:///etc/hostname",
        "dst": call["command"].split()[1],
    },
    "a class of another kind": lambda node, call: {"_target_": "flnl.run.train.Outcome"},
    "arguments by place": lambda node, call: {**node, "_args_": [call]},
    "a value out of range": lambda node, call: {**node, "hidden": [-1]},
    "an interpolation": lambda node, call: {**node, "hidden": "${oc.env:HOME}"},
    "no mapping": lambda node, call: [call],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_model_file_runs_no_code(case: str, stopped: Ran, tmp_path: Path, marker: Path, said: Commands) -> None:
    file = tmp_path / "model.pt"
    model = ModelFile.load(stopped.folder)
    replace(model, model=HOSTILE[case](dict(model.model), call(marker))).save(file)
    with pytest.raises(UserError, match=r"model\.pt"):
        ModelFile.load(file).network()
    image = Path(shutil.copy(Path(__file__).parents[2] / "docs" / "figures" / "default_lid.png", tmp_path / "one.png"))
    ended = said(predict, file, image)
    assert (ended.code, len(ended.err.splitlines())) == (2, 1), ended.err


@pytest.mark.parametrize("case", [*HOSTILE, "a word"])
def test_the_executor_of_a_record_runs_no_code(case: str, copied: Path, marker: Path) -> None:
    """Neither that of a checkpoint, which counts first."""
    words = [*TINY, "method=fedavg", *ONE_STAGE, "executor=auto"]
    hostile = "os.system" if case == "a word" else HOSTILE[case]({"name": "processes", "workers": 1}, call(marker))
    if isinstance(hostile, dict) and "_target_" in hostile:
        hostile = {**hostile, "name": hostile["_target_"]}
    if case in ("a value out of range", "an interpolation", "a call in a list", "a call in a list of lists"):
        hostile = {"name": "processes", "workers": hostile["hidden"]}  # type: ignore[index]
    newest = checkpoint.newest(copied / "checkpoints")
    assert newest is not None
    checkpoint.save(copied / "checkpoints", replace(newest, executor=hostile))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"result\.json"):
        run(words, copied, "resume=true")


@pytest.mark.parametrize("group", ["dataset", "partition", "noise"])
@pytest.mark.parametrize("case", HOSTILE)
def test_figures_of_a_record_run_no_code(group: str, case: str, copied: Path, marker: Path) -> None:
    record = json.loads((copied / "result.json").read_text())
    record["config"][group] = HOSTILE[case](record["config"][group], call(marker))
    (copied / "result.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"result\.json"):
        features.draw(RunRecord.open(copied))


def test_a_file_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    node: Any = {"_target_": "MLP", "hidden": [8], "dropout": 0.0}
    for _ in range(3000):
        node = {"deeper": node}
    with pytest.raises(UserError, match="nested too deeply"):
        registry.restored("model", {"_target_": "MLP", "hidden": node}, "model.pt")


def test_a_name_means_one_class(tmp_path: Path) -> None:
    """Two classes of one stored name in a group would be taken for each other, and their runs for the same."""
    for group in ("dataset", "partition", "noise", "model", "executor", *(f"method/{slot}" for slot in SLOTS)):
        assert registry.targets(group)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "other.yaml").write_text("_target_: flnl.elsewhere.MLP\n")
    with pytest.raises(UserError, match="would both be stored as one name"):
        registry.targets("model", [tmp_path])


@pytest.mark.parametrize("where", [lambda part: part, lambda part: {"stages": {"training": part}}])
def test_a_key_of_a_method_is_no_path(tmp_path: Path, where: Callable[[Any], Any], marker: Path) -> None:
    """Or who can put a file anywhere on the machine names the classes that another's record or server may use."""
    (tmp_path / "planted.yaml").write_text(f"_target_: {call(marker)['_target_']}\n")
    up = f"{'../' * 40}{str(tmp_path)[1:]}"
    with pytest.raises(UserError, match="which no configuration file of that group has"):
        registry.restored_method(where({up: call(marker)}), "result.json")
    with pytest.raises(ValueError, match="no group"):
        registry.targets(f"method/{up}")


def test_weights_are_not_fetched_for_a_file() -> None:
    found = registry.restored("model", {"_target_": "ResNet50", "pretrained": "imagenet"}, "model.pt")
    assert found["pretrained"] == "none"


def test_a_record_fetches_nothing(tmp_path: Path) -> None:
    """Where data come from is the command line's word."""
    plain = compose.resolved(compose.load(["dataset=cifar10", "dataset.mirror=https://example.org/", "noise=none"]))
    found = recorded_data(RunRecord(config=plain)).dataset
    assert (found.download, found.mirror, found.root) == (False, None, plain["dataset"]["root"])
    ray = {"_target_": "ray", "_partial_": True, "workers": 1, "num_cpus": 1.0, "num_gpus": 0.0, "address": "evil:1"}
    ray["inner"] = {"_target_": "sequential", "_partial_": True}
    assert registry.restored("executor", ray, "result.json")["address"] is None


def test_a_checkpoint_brings_back_what_was_stored_alone() -> None:
    for name in ("os:system", "system", "flnl.run.train:Outcome", "Outcome", "subprocess:Popen"):
        with pytest.raises(ValueError, match="which no part of this run stores"):
            checkpoint.decode({"type of": name, "fields": {}})
    with pytest.raises(TypeError, match="@stored"):
        checkpoint.encode(Ran(Path(), {}))
    with pytest.raises(TypeError, match="cannot be stored as ClientState"):
        stored("ClientState")(Ran)
    assert class_of("flnl.wherever.it.was:ClientState") is class_of("ClientState")


def test_a_stored_class_is_a_frozen_dataclass_whether_it_says_so_or_not() -> None:
    @stored("tests.Plain")
    class Plain:
        values: tuple[int, ...] = ()

    @stored("tests.Said")
    @dataclass(frozen=True, eq=False)
    class Said:
        values: tuple[int, ...] = ()

    assert Plain((1,)) == Plain((1,))
    assert Said((1,)) != Said((1,)), "what the class has chosen stays"
    for kind in (Plain, Said):
        with pytest.raises(FrozenInstanceError):
            kind((1,)).values = ()  # type: ignore[misc]
    assert checkpoint.decode(checkpoint.encode(Plain((1, 2)))) == Plain((1, 2))


LAB = """
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, num_classes, width):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, width))
        self.head = nn.Linear(width, num_classes)

    def forward(self, inputs):
        return self.head(self.body(inputs).relu())
"""


def test_a_class_of_ones_own_is_named_by_the_command(
    tmp_path: Path, said: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model file that means a class from elsewhere is used once the user's command has a file that names it."""
    (tmp_path / "lab_nets.py").write_text(LAB)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = [word for word in TINY if not word.startswith("model.hidden")]
    words += ["method=fedavg", "rounds=1", "~model.hidden", "~model.dropout"]
    ran = run([*words, "model._target_=lab_nets.Net", "+model.width=4", "+model._partial_=true"], tmp_path / "run")
    sys.modules.pop("lab_nets")
    image = Path(__file__).parents[2] / "docs" / "figures" / "default_lid.png"
    refused = said(predict, ran.folder, image)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "names 'lab_nets.Net', which no configuration file of that group has" in refused.err
    assert "lab_nets" not in sys.modules
    (tmp_path / "presets" / "model").mkdir(parents=True)
    (tmp_path / "presets" / "model" / "lab.yaml").write_text("_target_: lab_nets.Net\n_partial_: true\nwidth: 8\n")
    assert said(predict, ran.folder, image, "--config-dir", tmp_path / "presets").code == 0
    monkeypatch.setattr("sys.argv", ["figures", str(ran.folder), "--tsne", "--config-dir", str(tmp_path / "presets")])
    redraw.main()
    assert (ran.folder / "figures" / "features.png").exists()
    assert said(predict, ran.folder, image, "--config-dir", tmp_path / "nowhere").code == 2


@pytest.mark.parametrize("method", sorted(file.stem for file in (CONF / "method").glob("*.yaml")))
def test_every_method_is_found_again_from_its_record(method: str) -> None:
    """Also its parts that only a stage's file names, and those that one part takes from another."""
    whole = compose.resolved(compose.composed([f"method={method}", "wandb.mode=disabled"]))["method"]
    without_short = {key: value for key, value in whole.items() if key in METHOD}
    recorded = json.loads(json.dumps(registry.named(without_short)))

    def classes(node: Any) -> list[str]:
        return sorted(registry._values(node, "_target_"))

    assert recorded != without_short
    assert classes(registry.restored_method(recorded, "result.json")) == classes(without_short)


# ------------------------------------------------------------------------------------------- files written before


@pytest.fixture(params=sorted(path.name.partition(".")[0] for path in OLD.glob("*.tar.gz")))
def before(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """A run of the first format: its registry entry and its folder."""
    with tarfile.open(OLD / f"{request.param}.tar.gz") as archive:
        archive.extractall(tmp_path / "run", filter="data")
    return request.param, tmp_path / "run"


def test_a_run_of_the_first_format_goes_on(before: tuple[str, Path]) -> None:
    name, folder = before
    earlier = json.loads((folder / "result.json").read_text())
    assert "src." in earlier["config"]["model"]["_target_"]
    assert "key_format" not in earlier
    rows = [row for row in Ran(folder, earlier).lines if row["round"] <= earlier["rounds"]]
    ran = run(BY_NAME[name].words, folder, "client_memory=0.0001", "resume=true")
    assert ran.record["status"] == "finished"
    assert ran.record["rounds"] > earlier["rounds"]
    assert ran.lines[: len(rows)] == rows
    assert ran.record["key"] != earlier["key"]
    assert {ran.record[name] for name in (*PASSES, "cpu_time_s", "peak_memory")} == {None}  # of the whole run


def test_a_model_of_the_first_format_predicts(before: tuple[str, Path]) -> None:
    _, folder = before
    network = ModelFile.load(folder).network()
    assert torch.isfinite(network.module(torch.zeros(1, 1, 8, 8))).all()


def test_every_stored_class_of_the_first_format_is_known(before: tuple[str, Path]) -> None:
    name, folder = before
    compose.build(compose.load(BY_NAME[name].words).method)  # as a run does: its parts store classes
    found = checkpoint.newest(folder / "checkpoints")
    assert found is not None
    again = checkpoint.decode(checkpoint.encode(found))
    assert asdict(again.state.counters) == asdict(found.state.counters)
