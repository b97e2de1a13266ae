"""``model.pt``: the model of a run, used away from its data set."""

import logging
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flnl.commands import predict
from flnl.commands.predict import classify
from flnl.config import compose
from flnl.config.compose import load
from flnl.core.errors import UserError
from flnl.data.federation.build import from_config
from flnl.engine.model_file import ModelFile
from flnl.engine.network import Network
from flnl.engine.placement import placement_for
from flnl.storage.digest import digest
from tests.products.conftest import Commands, Own, read_csv
from tests.properties.reference import References
from tests.properties.runs import Ran, difference, run
from tests.registry import ONE_STAGE, TINY, Entry, others_slow


def expected(ran: Ran, words: list[str]) -> torch.Tensor:
    """Probabilities [M, K] of the test set, by a network that was never saved."""
    cfg = load(words)
    data = from_config(cfg).dataset
    params = ran.state.server.params
    double = any(p.dtype == torch.float64 for p in params.values())
    module = compose.build(cfg.model)(data.train.shape, data.num_classes)
    network = Network(module, data.transform, data.num_classes, placement_for("cpu", 64 if double else 32))
    network.load(params)
    return torch.softmax(network.outputs(data.test, torch.arange(len(data.test))).double(), 1)


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_digits_as_png_are_told_as_in_the_data_set(mode: str, fedcorr: Ran, tmp_path: Path) -> None:
    """The data set stores 0..16, a PNG 0..255; and what is grey may come in colours."""
    wanted = expected(fedcorr, [*TINY, "method=fedcorr"])
    pixels = from_config(load([*TINY])).dataset.test.read(torch.arange(50)).numpy()[:, 0]
    paths = [tmp_path / f"{i:02d}.png" for i in range(50)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8)).convert(mode).save(path)
    found = list(classify(ModelFile.load(fedcorr.folder), paths))
    assert [one.top[0][0] for one in found] == [str(i) for i in wanted.argmax(1).tolist()]
    assert np.abs(np.array([one.top[0][1] for one in found]) - wanted.max(1).values.numpy()).max() < 0.01
    assert wanted.max(1).values.std() > 0.02, "probabilities that say nothing would agree with any"


def test_images_are_told_as_in_training(own: Own) -> None:
    """Resizing, colours, normalisation and the statistics of batch norm are those of the run."""
    cfg = ["dataset=image_folder", f"dataset.root={own.root}", "dataset.labels=labels.csv", "dataset.truth=none"]
    cfg += ["dataset.image_size=8", "dataset.crop_from=9", "noise=none", "partition.num_clients=3"]
    wanted = expected(own.ran, [*cfg, "model=resnet8", "model.width=4", "model.blocks=[1]"])
    model = ModelFile.load(own.ran.folder)
    found = list(classify(model, sorted((own.root / "test").rglob("*.png"))))
    for one, row in zip(found, wanted, strict=True):
        assert dict(one.top) == pytest.approx(dict(zip(model.classes, row.tolist(), strict=True)), abs=1e-6)
        assert [p for _, p in one.top] == sorted((p for _, p in one.top), reverse=True)


def test_it_loads_without_trusting_pickles_and_says_what_it_is(fedcorr: Ran) -> None:
    held = torch.load(fedcorr.folder / "model.pt", weights_only=True)
    assert held["classes"] == list("0123456789")
    assert held["shape"] == [1, 8, 8]
    assert held["normalisation"]["scale"] == 16.0
    assert held["model"] == fedcorr.record["config"]["model"] | {"_target_": "MLP"}
    assert (held["dataset"], held["key"]) == ("digits", fedcorr.record["key"])
    assert held["round"] == fedcorr.record["rounds"]
    assert held["weights"].keys() == fedcorr.state.server.params.keys()


def test_double_precision_stays(fedavg: Ran) -> None:
    assert ModelFile.load(fedavg.folder).network().dtype == torch.float64


@pytest.mark.parametrize("entry", others_slow(), ids=str)
def test_every_method_leaves_its_products(entry: Entry, references: References) -> None:
    ran = references.run(entry.words)
    found, sent = ModelFile.load(ran.folder).network().params(), ran.state.server.params
    learned = ran.state.server.updates.get("FedDyn", {})
    if ran.record["config"]["method"]["server"].get("evaluate") == "cohort":  # what was evaluated, not what is sent
        sent = {name: p - learned[name].to(p) if name in learned else p for name, p in sent.items()}
        assert learned or entry.name != "feddyn"  # FedCorr's first stage has another server's part
    assert difference(found, sent) is None
    held_out = int(170 * compose.load(entry.words).eval.validation)
    assert 170 - held_out <= len(read_csv(ran.folder / "labels.csv")) <= 170 - held_out + 8  # rounded down, by client


def test_a_model_from_elsewhere_is_not_built(fedcorr: Ran, tmp_path: Path) -> None:
    """``_target_`` could name any function."""
    for node in (
        {"_target_": "pathlib.Path.mkdir", "self": str(tmp_path / "made")},
        {"_target_": "flnl.models.mlp.MLP", "hidden": {"_target_": "os.mkdir", "path": str(tmp_path / "made")}},
        {},
    ):
        with pytest.raises(UserError, match=r"no configuration file of that group has|names no class"):
            replace(ModelFile.load(fedcorr.folder), model=node).network()
    assert not (tmp_path / "made").exists()


def test_weights_that_do_not_fit_are_refused(fedcorr: Ran) -> None:
    held = ModelFile.load(fedcorr.folder)
    with pytest.raises(UserError, match="do not fit"):
        replace(held, classes=held.classes[:-1]).network()


def test_what_training_started_from_is_not_fetched() -> None:
    node = {"_target_": "flnl.models.imagenet.ResNet18ImageNet", "pretrained": "/nowhere/weights.pt"}
    module = compose.build({**node, "pretrained": "none"})((3, 32, 32), 2)
    transform = {"size": [32, 32], "mean": [0.5] * 3, "std": [0.5] * 3}
    held = ModelFile(module.state_dict(), ["a", "b"], node, [3, 32, 32], transform, "uint8", "own", "", 1)
    assert held.network().num_classes == 2


@pytest.mark.parametrize("damage", ["nothing there", "empty", "half", "text", "a checkpoint"])
def test_a_damaged_file_is_one_line(damage: str, fedcorr: Ran, own: Own, tmp_path: Path, said: Commands) -> None:
    whole = (fedcorr.folder / "model.pt").read_bytes()
    contents = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "text": b"weights\n",
        "a checkpoint": next((fedcorr.folder / "checkpoints").glob("*.pt")).read_bytes(),
    }
    if damage in contents:
        (tmp_path / "model.pt").write_bytes(contents[damage])
    answer = said(predict, tmp_path, own.root)
    assert answer.code == 2
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert str(tmp_path / "model.pt") in answer.err


def test_no_flipped_byte_changes_a_model_without_a_word(fedavg: Ran, tmp_path: Path) -> None:
    """At 300 places over the whole file; the container's own fields, such as times, change nothing that is read."""
    whole, file = (fedavg.folder / "model.pt").read_bytes(), tmp_path / "model.pt"
    good, refused, equal = replace(ModelFile.load(fedavg.folder), source=str(file)), [], 0
    with warnings.catch_warnings(action="error"):
        for place in np.linspace(0, len(whole) - 1, 300).astype(int):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << int(place) % 8
            file.write_bytes(damaged)
            try:
                found = ModelFile.load(file)
            except UserError as error:
                refused.append(str(error))
            else:
                assert difference(found, good) is None, f"byte {place}"
                equal += 1
    assert len(refused) > 150
    assert len(refused) + equal == 300
    assert all(str(file) in line and "\n" not in line for line in refused)


def _changed(held: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(held, dict):
        name = next(iter(held))
        return {**held, name: _changed(held[name])}
    if isinstance(held, torch.Tensor):
        return held.reshape(-1).flip(0).reshape(held.shape) + 1
    if isinstance(held, list):
        return [*held, held[0]]
    return held + (1 if isinstance(held, int) else "'")


@pytest.mark.parametrize("name", ModelFile.keys())
def test_the_digest_is_of_every_field(name: str, fedavg: Ran, tmp_path: Path) -> None:
    held = torch.load(fedavg.folder / "model.pt", weights_only=True)
    torch.save({**held, name: _changed(held[name])}, tmp_path / "model.pt")
    with pytest.raises(UserError, match="digest"):
        ModelFile.load(tmp_path)


def contents(folder: Path) -> ModelFile:
    """What the file in ``folder`` holds, wherever it is."""
    return replace(ModelFile.load(folder), source="")


WRONG_TYPES: dict[str, list[Any]] = {
    "classes": ["3", [3], None],
    "shape": [[1.0, 8, 8], "188"],
    "weights": [{"a": 1.0}, []],
    "model": [[], None],
    "normalisation": ["none"],
    "round": [1.5, "2", True],
    "networks": [0, 3],
    "stored": [8],
    "dataset": [None],
    "key": [5],
    "version": [1.0],
}


@pytest.mark.parametrize("name", ModelFile.keys())
def test_every_value_must_be_of_its_type(name: str, fedavg: Ran, tmp_path: Path) -> None:
    """Also in a file that says so itself, with a digest or without one."""
    model = ModelFile.load(fedavg.folder)
    for value in WRONG_TYPES[name]:
        changed: dict[str, Any] = {name: value}
        held = torch.load(fedavg.folder / "model.pt", weights_only=True) | changed
        del held["digest"]
        both: tuple[dict[str, Any], ...] = ({}, {"digest": digest(held)})
        for digests in both:
            torch.save(held | digests, tmp_path / "model.pt")
            with pytest.raises(UserError, match=rf"{tmp_path}/model.pt is no model.pt of a run: {name}.*: must be"):
                ModelFile.load(tmp_path)
    assert model.source == str(fedavg.folder / "model.pt")


def test_a_model_that_cannot_be_built_is_named_by_its_file(fedavg: Ran) -> None:
    model, file = ModelFile.load(fedavg.folder), str(fedavg.folder / "model.pt")
    for changed, reason in (
        (replace(model, model={**model.model, "_target_": "Nothing"}), ": model names 'Nothing', which no"),
        (replace(model, weights={}), ": the weights, of version"),
    ):
        with pytest.raises(UserError, match=f"^{re.escape(file + reason)}"):
            changed.network()


def test_names_types_and_shapes_of_weights_are_in_the_digest(fedavg: Ran, tmp_path: Path) -> None:
    held = torch.load(fedavg.folder / "model.pt", weights_only=True)
    first, *_ = weights = held["weights"]
    bias = next(name for name, p in weights.items() if p.ndim == 1)
    for other in (
        {("other" if name == first else name): p for name, p in weights.items()},
        {name: p.view(torch.int64) for name, p in weights.items()},
        {name: p[None] if name == bias else p for name, p in weights.items()},
    ):
        torch.save({**held, "weights": other}, tmp_path / "model.pt")
        with pytest.raises(UserError, match="digest"):
            ModelFile.load(tmp_path)
    torch.save({**held, "weights": dict(reversed(weights.items()))}, tmp_path / "model.pt")
    assert difference(contents(tmp_path), contents(fedavg.folder)) is None, "their order means nothing"


def test_a_file_without_a_digest_is_loaded_with_a_warning(
    fedavg: Ran, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As they were written before."""
    held = torch.load(fedavg.folder / "model.pt", weights_only=True)
    del held["digest"]
    torch.save(held, tmp_path / "model.pt")
    assert difference(contents(tmp_path), contents(fedavg.folder)) is None
    assert [(r.levelname, str(tmp_path / "model.pt") in r.getMessage()) for r in caplog.records] == [("WARNING", True)]


def test_a_product_that_cannot_be_written_hides_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    words = [*TINY, "method=fedavg", *ONE_STAGE]
    run([*words, "max_rounds=1"], tmp_path / "run")
    (tmp_path / "run" / "model.pt").unlink()
    (tmp_path / "run" / "model.pt" / "in the way").mkdir(parents=True)
    with caplog.at_level(logging.WARNING):
        ran = run([*words, "resume=true"], tmp_path / "run")
    assert ran.record["status"] == "finished"
    assert [str(tmp_path / "run" / "model.pt") in message for message in caplog.messages] == [True]
    assert (tmp_path / "run" / "labels.csv").is_file()


def test_a_stopped_run_has_products_unless_they_are_switched_off(tmp_path: Path) -> None:
    words = [*TINY, "method=fedavg", *ONE_STAGE, "max_rounds=2"]
    stopped = run(words, tmp_path / "run")
    assert ModelFile.load(stopped.folder).round == 2
    assert (stopped.folder / "labels.csv").is_file()
    without = run([*words, "products=false"], tmp_path / "without")
    assert not {"model.pt", "labels.csv"} & {path.name for path in without.folder.iterdir()}
    assert without.record["key"] == stopped.record["key"]
