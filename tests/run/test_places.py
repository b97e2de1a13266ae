"""A run is the same wherever its data lie, and never another one on other data."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flnl.commands import tune as tune
from flnl.config import compose, identity
from flnl.core.errors import UserError
from flnl.instruments.compare.names import names
from flnl.instruments.compare.runs import Row, find, grouped
from flnl.record.run import RESULT
from flnl.run import checkpoint
from flnl.run.train import train
from tests.data.test_datasets_torchvision import write_cifar, write_mnist
from tests.properties.runs import Ran, run

TRAINED = (
    *("model=mlp", "model.hidden=[4]", "method=fedavg", "rounds=2", "fraction=1.0", "partition=iid_uniform"),
    *("partition.num_clients=2", "noise=none", "train.batch_size=4", "train.epochs=1", "executor=sequential"),
    *("logger=csv", "figures=false", "products=false"),
)


def arrays(root: Path, seed: int = 0) -> None:
    """Twelve training and six test samples of two classes, and a file of labels."""
    draw = np.random.default_rng(seed)
    root.mkdir(parents=True)
    x, y = draw.random((12, 1, 4, 4), np.float32), np.arange(12) % 2
    np.savez(root / "arrays.npz", x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    wrong = [1 - y[0], *y[1:]] if seed else y
    (root / "labels.csv").write_text("id,label\n" + "".join(f"{i},{label}\n" for i, label in enumerate(wrong)))


def images(root: Path, seed: int = 0) -> None:
    """Twelve training and six test images of two classes, and a file of labels."""
    draw = np.random.default_rng(seed)
    for split, count in (("train", 6), ("test", 3)):
        for name in ("cat", "dog"):
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8)).save(root / split / name / f"{i}.png")
    lines = [f"{name}/{i}.png,{name}" for name in ("cat", "dog") for i in range(6)]
    (root / "labels.csv").write_text("\n".join(["path,label", *lines]) + "\n")


Make = Callable[..., None]
IMAGES = ("dataset=image_folder", "dataset.image_size=8", *TRAINED)
ARRAYS = ("dataset=arrays", *TRAINED)
UNVERIFIED = ("dataset.verify=false", "dataset.download=false", *TRAINED)
OWN = pytest.mark.parametrize(
    ("make", "words"),
    [
        (images, IMAGES),
        (arrays, ARRAYS),
        (lambda root: write_mnist(root), ("dataset=mnist", *UNVERIFIED)),
        (lambda root: write_cifar(root), ("dataset=cifar10", *UNVERIFIED)),
    ],
    ids=["images", "arrays", "mnist", "cifar10"],
)


def recorded(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / RESULT).read_text())
    return record


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def begun(words: Sequence[str], *more: str) -> Path:
    """The folder of a run that was started with these words, and chose it."""
    words = [*words, "output_root=runs", f"cache={Path.cwd() / 'cache'}", *more]
    return train(compose.load(words), words).folder


@OWN
def test_a_run_goes_on_where_its_data_lie_elsewhere(make: Make, words: tuple[str, ...], tmp_path: Path) -> None:
    """A colleague has its folder and the same data: by an absolute or a relative path, and to the same bits."""
    make(tmp_path / "mine")
    whole = run([*words, "dataset.root=mine"], tmp_path / "whole")
    part = run([*words, f"dataset.root={tmp_path / 'mine'}", "max_rounds=1"], tmp_path / "part")
    (tmp_path / "mine").rename(tmp_path / "theirs")
    gone_on = run([*words, "dataset.root=theirs"], part.folder, "resume=true")
    assert gone_on.record["status"] == "finished"
    assert gone_on.record["key"] == whole.record["key"]
    assert gone_on.record["federation"] == whole.record["federation"]
    assert gone_on.record["metrics"] == whole.record["metrics"]
    assert run([*words, f"dataset.root={tmp_path / 'theirs'}"], whole.folder, "resume=true").record == whole.record


@pytest.mark.parametrize(("make", "words"), [(images, IMAGES), (arrays, ARRAYS)], ids=["images", "arrays"])
def test_other_data_are_refused_by_their_name(make: Make, words: tuple[str, ...], tmp_path: Path) -> None:
    make(tmp_path / "mine")
    make(tmp_path / "theirs", 1)
    for name, more in (("part", ["max_rounds=1"]), ("whole", [])):
        run([*words, "dataset.root=mine", *more], tmp_path / name)
        with pytest.raises(UserError) as refused:
            run([*words, "dataset.root=theirs"], tmp_path / name, "resume=true")
        assert "of another federation" in str(refused.value) or "to another federation" in str(refused.value)
        assert f"the data files of dataset.root={tmp_path / 'theirs'}" in str(refused.value)
        assert f"are others than those of dataset.root={tmp_path / 'mine'}" in str(refused.value)
        assert "\n" not in str(refused.value)
        assert recorded(tmp_path / name)["config"]["dataset"]["root"] == "mine"


def test_a_run_without_a_checkpoint_becomes_no_run_on_other_data(tmp_path: Path) -> None:
    for name, seed in (("mine", 0), ("theirs", 1)):
        arrays(tmp_path / name, seed)
    folder = run([*ARRAYS, "dataset.root=mine", "max_rounds=1"], tmp_path / "run").folder
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(UserError, match="its run belongs to another federation"):
        run([*ARRAYS, "dataset.root=theirs"], folder, "resume=true")
    (tmp_path / "mine").rename(tmp_path / "moved")
    assert run([*ARRAYS, "dataset.root=moved"], folder, "resume=true").record["status"] == "finished"


def test_what_goes_on_is_the_run_on_these_data(tmp_path: Path) -> None:
    """Of several runs of one key; and where there is none on these data, a new one begins."""
    for name, seed in (("a", 0), ("b", 1), ("c", 2)):
        arrays(tmp_path / name, seed)
    of_a = begun([*ARRAYS, "dataset.root=a"], "max_rounds=1")
    of_b = begun([*ARRAYS, "dataset.root=b"], "max_rounds=1", "resume=true")
    assert of_a != of_b
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert begun([*ARRAYS, "dataset.root=copy"], "resume=true") == of_a
    assert recorded(of_a)["status"] == "finished"
    assert begun([*ARRAYS, "dataset.root=c"], "resume=true") not in (of_a, of_b)
    assert begun([*ARRAYS, "dataset.root=b"], "resume=true") == of_b


def test_files_of_labels_clients_and_noise_may_lie_elsewhere(tmp_path: Path) -> None:
    arrays(tmp_path / "mine")
    words = [word for word in ARRAYS if not word.startswith(("partition", "noise"))]
    clients = [*words, "partition=file", "noise=matrix"]
    labelled = [*ARRAYS, "dataset.truth=none"]

    def placed(folder: str) -> tuple[list[str], list[str]]:
        return (
            [f"dataset.root={folder}", f"partition.path={folder}/c.csv", f"noise.path={folder}/T.npy"],
            ["dataset.root=mine", f"dataset.labels={tmp_path / folder / 'labels.csv'}"],
        )

    (tmp_path / "mine" / "c.csv").write_text("client\n" + "\n".join("01" * 6) + "\n")
    np.save(tmp_path / "mine" / "T.npy", np.array([[0.8, 0.2], [0.3, 0.7]]))
    shutil.copytree(tmp_path / "mine", tmp_path / "theirs")
    for name, common, mine, theirs in zip(
        ("parts", "labels"), (clients, labelled), placed("mine"), placed("theirs"), strict=True
    ):
        part = run([*common, *mine, "max_rounds=1"], tmp_path / name)
        assert run([*common, *theirs], part.folder, "resume=true").record["status"] == "finished"
    (tmp_path / "theirs" / "c.csv").write_text("client\n" + "\n".join("10" * 6) + "\n")
    (tmp_path / "theirs" / "labels.csv").write_text("id,label\n" + "".join(f"{i},0\n" for i in range(11)) + "11,1\n")
    here = tmp_path / "theirs"
    for name, common, words, which in (
        ("parts", clients, placed("theirs")[0], f"partition.path={here / 'c.csv'}"),
        ("labels", labelled, placed("theirs")[1], f"dataset.labels={here / 'labels.csv'}"),
    ):
        with pytest.raises(UserError, match="of another federation") as refused:
            run([*common, *words], tmp_path / name, "resume=true")
        assert f"{which} " in str(refused.value)


@pytest.mark.parametrize("name", ["part", "whole"])
def test_a_folder_of_the_fourth_format_goes_on(name: str, tmp_path: Path) -> None:
    """Its key had where the data lay, and so have the files beside the record."""
    images(tmp_path / "mine")
    words = [*IMAGES, f"dataset.root={tmp_path / 'mine'}"]
    made = run([*words, *(["max_rounds=1"] if name == "part" else [])], tmp_path / name)
    aged(made)
    (tmp_path / "mine").rename(tmp_path / "theirs")
    here = [*IMAGES, f"dataset.root={tmp_path / 'theirs'}"]
    gone_on = run(here, made.folder, "resume=true")
    assert gone_on.record["status"] == "finished"
    images(tmp_path / "others", 1)
    with pytest.raises(UserError, match="of another federation"):
        run([*IMAGES, f"dataset.root={tmp_path / 'others'}"], made.folder, "resume=true")


def aged(made: Ran) -> None:
    """Make a run's files those of the fourth format: with the place in key and identity."""
    record = recorded(made.folder)
    plain = record["config"]
    key = identity.placed_key(plain)
    record |= {"key": key, "key_format": 4, "identity": {**record["identity"], **identity.places(plain)}}
    (made.folder / RESULT).write_text(json.dumps(record))
    folder = made.folder / "checkpoints"
    newest = checkpoint.newest(folder)
    assert newest is not None
    shutil.rmtree(folder)
    checkpoint.save(folder, replace(newest, key=key))


def rows(*folders: str) -> list[Row]:
    return grouped(find(list(folders)))


def test_seeds_on_the_same_data_elsewhere_are_one_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    run([*ARRAYS, "dataset.root=a", "seed=1"], tmp_path / "runs/1")
    run([*ARRAYS, f"dataset.root={tmp_path / 'copy'}", "seed=2"], tmp_path / "runs/2")
    run([*ARRAYS, "dataset.root=copy", "method=fedprox"], tmp_path / "runs/3")
    capsys.readouterr()
    found = rows("runs")
    assert sorted(len(row.runs) for row in found) == [1, 2]
    assert sorted(names(found)) == ["method=fedavg", "method=fedprox"], "where data lie is no setting"
    assert found[0].setting == found[1].setting
    assert capsys.readouterr().err == ""


def test_other_data_are_another_row_and_setting(tmp_path: Path) -> None:
    """Their mean would be of two data sets."""
    arrays(tmp_path / "a")
    arrays(tmp_path / "b", 1)
    run([*ARRAYS, "dataset.root=a", "seed=1"], tmp_path / "runs/1")
    run([*ARRAYS, "dataset.root=b", "seed=2"], tmp_path / "runs/2")
    found = rows("runs")
    assert [len(row.runs) for row in found] == [1, 1]
    assert {name.split("dataset.root=")[1].rpartition("/")[2] for name in names(found)} == {"a", "b"}
    assert found[0].setting != found[1].setting


def test_files_that_changed_in_their_place_are_another_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays(tmp_path / "a")
    run([*ARRAYS, "dataset.root=a", "seed=1"], tmp_path / "runs/1")
    shutil.rmtree(tmp_path / "a")
    arrays(tmp_path / "a", 1)
    run([*ARRAYS, "dataset.root=a", "seed=2"], tmp_path / "runs/2")
    capsys.readouterr()
    found = rows("runs")
    assert [len(row.runs) for row in found] == [1, 1]
    assert len(set(names(found))) == 2
    assert "files have changed between them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("make", "given", "values"), [(arrays, ARRAYS, "train.lr=0.1,0.2"), (images, IMAGES, "shift.level=0,0.5")]
)
def test_tuning_goes_on_where_data_lie_elsewhere(
    make: Make, given: tuple[str, ...], values: str, tmp_path: Path
) -> None:
    """Finished runs are not run again; those of other data stay beside them."""
    for name, seed in (("a", 0), ("b", 1)):
        make(tmp_path / name, seed)
    quick = [word for word in given if word not in ("figures=false", "products=false", "logger=csv")]

    def tuned(place: str) -> dict[str, int]:
        words = [*quick, "rounds=1", f"dataset.root={place}", values, f"cache={tmp_path / 'cache'}"]
        tune.tune([*words, "--measure", "last", "--seeds", "7", "--", "hydra/launcher=basic"])
        return {str(file): file.stat().st_mtime_ns for file in (tmp_path / "multirun").rglob(RESULT)}

    first = tuned("a")
    assert len(first) == 2
    (tmp_path / "a").rename(tmp_path / "moved")
    assert tuned("moved") == first
    both = tuned("b")
    assert len(both) == 4
    assert first.items() <= both.items()
