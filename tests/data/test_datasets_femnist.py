"""FEMNIST is read by writer from the files that LEAF's scripts leave."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flnl.config import compose
from flnl.core.errors import UserError
from flnl.data.datasets.femnist import Femnist
from flnl.data.federation.build import from_config


def file_of(path: Path, users: dict[str, list[int]], value: float = 1.0) -> None:
    """Samples of these labels of each user; all pixels have ``value``, the first is the label's 255th."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(y) for y in users.values()],
        "user_data": {u: {"x": [[c / 255] + [value] * 783 for c in y], "y": y} for u, y in users.items()},
    }
    path.write_text(json.dumps(content))


@pytest.fixture
def leaf(tmp_path: Path) -> Path:
    file_of(tmp_path / "train/all_data_0_niid_0_keep_0_train_9.json", {"f0001_41": [3, 10, 61], "f0000_14": [0, 36]})
    file_of(tmp_path / "train/all_data_1_niid_0_keep_0_train_9.json", {"f0002_02": [7]})
    file_of(tmp_path / "test/all_data_0_niid_0_keep_0_test_9.json", {"f0000_14": [36], "f0009_99": [5, 6]})
    return tmp_path


def femnist(root: Path, **changes: Any) -> Any:
    return Femnist(**{"name": "femnist", "root": str(root), "train_sample": None, "test_size": None, **changes})()


def test_writers_are_the_natural_clients(leaf: Path):
    data = femnist(leaf)
    assert data.client_names == ("f0000_14", "f0001_41", "f0002_02")
    assert data.clients.tolist() == [1, 1, 1, 0, 0, 2]
    assert data.truth.tolist() == [3, 10, 61, 0, 36, 7]
    assert data.test_clients.tolist() == [0, -1, -1]
    assert [data.classes[c] for c in (3, 10, 36, 61)] == ["3", "A", "a", "z"]
    pixels = data.train.read(torch.arange(6))
    assert pixels.shape == (6, 1, 28, 28)
    assert pixels[:, 0, 0, 0].tolist() == data.truth.tolist()  # the first pixel is the label's 255th
    assert (pixels.flatten(1)[:, 1:] == 255).all()
    inputs = data.transform.normalize(pixels)
    assert abs(inputs.mean().item()) < 1e-5
    assert abs(inputs.std(correction=0).item() - 1) < 1e-5


def test_a_federation_of_some_writers(leaf: Path):
    words = ["dataset=femnist", f"dataset.root={leaf}", "partition=writers", "partition.choose=2", "noise=none"]
    federation = from_config(compose.load(words))
    assert federation.num_clients == 2
    assert len(federation.dropped) == 6 - sum(federation.sizes.values()) > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"users": ["a", "b"]}, r"zip\(\) argument 2 is shorter"),
        ({"num_samples": [3]}, r"a has x of \[2, 784\] and y of \[2\] for 3 samples"),
        ({"user_data": {}}, "it has no 'a'"),
        ({"user_data": {"a": {"x": [[0.5] * 784] * 2, "y": [0, 62]}}}, r"a has labels that are not in 0\.\.61"),
        ({"user_data": {"a": {"x": [[0.5] * 783 + [1.5]] * 2, "y": [0, 1]}}}, r"a has values that are not in \[0, 1\]"),
        ({"user_data": {"a": {"x": [[0.5] * 700] * 2, "y": [0, 1]}}}, r"a has x of \[2, 700\]"),
    ],
)
def test_files_of_another_form_are_refused(leaf: Path, change: dict[str, Any], reason: str):
    file = leaf / "test" / "all_data_0_niid_0_keep_0_test_9.json"
    file_of(file, {"a": [0, 1]})
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match=rf"^dataset\.root: {file} is no file of LEAF's FEMNIST \({reason}"):
        femnist(leaf)


def test_files_that_are_missing_or_broken_are_refused(leaf: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"^dataset\.root: .*/nowhere/train has no \.json files; make them with LEAF's"):
        femnist(tmp_path / "nowhere")
    file = leaf / "train" / "b.json"
    file.write_text('{"users": [')
    with pytest.raises(UserError, match=r"b\.json is no file of LEAF's FEMNIST \(Expecting value"):
        femnist(leaf)
    file.write_text("[1]")
    with pytest.raises(UserError, match=r"b\.json is no file of LEAF's FEMNIST"):
        femnist(leaf)


def test_a_part_is_drawn_from_all_writers(leaf: Path):
    some = femnist(leaf, train_sample=4)
    assert len(some.truth) == 4
    assert [femnist(leaf).clients[int(i)] for i in some.ids] == some.clients.tolist()


def test_numbers_are_stored_as_whole_255ths(leaf: Path):
    file_of(leaf / "train" / "c.json", {"x": [1]}, value=float(np.float32(200 / 255)))
    assert femnist(leaf).train.read(torch.tensor([6])).flatten()[1:].unique().tolist() == [200]
