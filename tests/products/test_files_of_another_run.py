"""A file of another run in a run's folder is refused by whoever reads it there, with the keys of both runs."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import flnl
from flnl.commands import audit as audit
from flnl.commands import figures as figures
from flnl.commands import predict
from flnl.core.errors import UserError
from tests.products.conftest import Commands, Said
from tests.properties.runs import Ran, run
from tests.registry import ONE_STAGE, TINY


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Ran]:
    """Two stopped or finished runs of one federation, which differ in the learning rate alone."""
    words = [*TINY, "method=fedavg", *ONE_STAGE]
    top = tmp_path_factory.mktemp("two")
    one, other = run(words, top / "one"), run(words, top / "other", "train.lr=0.02")
    assert one.record["federation"] == other.record["federation"]
    return one, other


def mixed(two: tuple[Ran, Ran], folder: Path, name: str, *, without: tuple[str, ...] = ()) -> Path:
    """A copy of the first run's folder with the file ``name`` of the second."""
    shutil.copytree(two[0].folder, folder, ignore=shutil.ignore_patterns(*without))
    shutil.copy(two[1].folder / name, folder)
    return folder


def names_both(text: str, two: tuple[Ran, Ran], file: str) -> bool:
    return all(part in text for part in (file, "is of another run", two[0].record["key"], two[1].record["key"]))


def refused(answer: Said, two: tuple[Ran, Ran], file: str) -> None:
    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err
    assert names_both(answer.err, two, file), answer.err


def test_probabilities(two: tuple[Ran, Ran], said: Commands, tmp_path: Path) -> None:
    folder = mixed(two, tmp_path / "run", "probabilities.npz")
    for words in ((), ("--probabilities", "all"), ("--probabilities", "final")):
        refused(said(audit, folder, *words), two, "probabilities.npz")
    assert not (folder / "audit").exists()


def test_a_model(two: tuple[Ran, Ran], said: Commands, tmp_path: Path) -> None:
    folder = mixed(two, tmp_path / "run", "model.pt", without=("probabilities.npz",))
    image = tmp_path / "digit.png"
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(image)
    readers: list[tuple[Any, ...]] = [(audit, folder), (figures, folder, "--tsne"), (predict, folder, image)]
    for module, *words in readers:
        refused(said(module, *words), two, "model.pt")
    with pytest.raises(UserError) as refusal:
        flnl.load_model(folder)
    assert names_both(str(refusal.value), two, "model.pt")


def test_a_model_that_stands_alone_is_used(two: tuple[Ran, Ran], said: Commands, tmp_path: Path) -> None:
    folder = mixed(two, tmp_path / "run", "model.pt")
    assert flnl.load_model(folder / "model.pt").classes == flnl.load_model(two[1].folder).classes
    (folder / "result.json").unlink()
    flnl.load_model(folder)


def test_a_key_of_an_earlier_format_is_the_runs_own(two: tuple[Ran, Ran], tmp_path: Path) -> None:
    """A run that a later version has resumed names its earlier keys; what it wrote under them is its own."""
    folder = mixed(two, tmp_path / "run", "model.pt")
    record = (folder / "result.json").read_text()
    earlier = f'{{"earlier": [{{"key": "{two[1].record["key"]}"}}],'
    (folder / "result.json").write_text(record.replace("{", earlier, 1))
    flnl.load_model(folder)


def test_a_checkpoint(tmp_path: Path) -> None:
    words = [*TINY, "method=fedavg", *ONE_STAGE, "max_rounds=2"]
    one, other = run(words, tmp_path / "one"), run(words, tmp_path / "other", "train.lr=0.02")
    shutil.rmtree(one.folder / "checkpoints")
    shutil.copytree(other.folder / "checkpoints", one.folder / "checkpoints")
    with pytest.raises(UserError) as refusal:
        run([*TINY, "method=fedavg", *ONE_STAGE], one.folder, "resume=true")
    assert names_both(str(refusal.value), (one, other), "checkpoints")
