"""Clothing1M from a small tree in the official layout."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flnl.core.errors import UserError
from flnl.core.streams import stream
from flnl.data.datasets import clothing1m as module
from flnl.data.datasets.assemble import chosen
from flnl.data.datasets.clothing1m import Clothing1M
from tests.toys import of_images

TRAIN = [f"{i % 3}/{i:03}.jpg" for i in range(28)]
TEST = TRAIN[:2] + [f"9/{i}.jpg" for i in range(12)]  # some images are in both, with a label in each file


def part(root: Path, **changes: Any) -> Clothing1M:
    plain = Clothing1M(
        name="clothing1m",
        root=str(root),
        verify=False,
        normalize="imagenet",
        augment=True,
        threads=1,
        train_size=None,
        test_size=None,
    )
    return replace(plain, **changes)


def write(root: Path, prefix: str = "images/", folder: str = "images") -> Path:
    """Noisy labels i mod 14, clean ones 13 - i mod 14; the other lists are there and must not be read."""
    rng = stream(1, "clothing")
    for path in {*TRAIN, *TEST}:
        (root / folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (30, 20, 3), dtype=np.uint8)).save(root / folder / path)

    def lines(name: str, values: list[str]) -> None:
        (root / name).write_text("\n".join(values) + "\n")

    lines("noisy_train_key_list.txt", [prefix + path for path in TRAIN])
    lines("clean_test_key_list.txt", [prefix + path for path in TEST])
    lines("clean_train_key_list.txt", [f"{prefix}0/not read.jpg"])
    lines("clean_val_key_list.txt", [f"{prefix}0/not read.jpg"])
    lines("noisy_label_kv.txt", [f"{prefix}{path} {i % 14}" for i, path in enumerate([*TRAIN, "0/unlisted.jpg"])])
    lines("clean_label_kv.txt", [f"{prefix}{path} {13 - i % 14}" for i, path in reversed(list(enumerate(TEST)))])
    return root


@pytest.mark.parametrize("prefix", ["images/", ""])
@pytest.mark.parametrize("folder", ["images", ""])
def test_labels_come_from_the_file_of_their_own_kind(tmp_path: Path, prefix: str, folder: str):
    """The first two test images have a noisy label as well: one table for both would give the wrong one."""
    data = part(write(tmp_path, prefix, folder))()
    assert data.given is not None
    assert data.given.tolist() == [i % 14 for i in range(28)]
    assert data.test_labels.tolist() == [13 - i for i in range(14)]
    assert data.truth is None
    assert data.ids == tuple(TRAIN)
    assert len(data.classes) == 14
    assert data.train.read(torch.tensor([27])).any()


def test_training_crops_are_taken_from_256_and_evaluation_sees_224(tmp_path: Path):
    data = part(write(tmp_path))()
    index = torch.arange(2)
    assert data.train.shape == (3, 224, 224)
    assert data.train.augmented_size == (256, 256)
    assert data.train.read(index, augmented=True).shape == (2, 3, 256, 256)
    assert data.train.read(index).shape == data.test.read(index).shape == (2, 3, 224, 224)
    draws = data.transform.draw(stream(1, "draws"), 2, data.train.augmented_size)
    augmented = data.transform.augment(data.train.read(index, augmented=True), draws)
    assert data.transform.normalize(augmented).shape == (2, 3, 224, 224)
    plain = part(tmp_path, augment=False)()
    assert plain.transform.draw(stream(1, "draws"), 2, plain.train.augmented_size) is None


def test_normalisation(tmp_path: Path):
    write(tmp_path)
    assert of_images(part(tmp_path)()).mean == (0.485, 0.456, 0.406)
    assert of_images(part(tmp_path, normalize="own")()).mean == (0.6959, 0.6537, 0.6371)


def test_as_many_images_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """A copy with the validation and test lists swapped loads as well and reports another accuracy."""
    write(tmp_path)
    assert module.SIZES == {"noisy_train": 1_000_000, "clean_test": 10_526}
    with pytest.raises(UserError, match=r"noisy_train_key_list.txt has 28 lines, not 1000000.*dataset\.verify=false"):
        part(tmp_path, verify=True)()
    monkeypatch.setitem(module.SIZES, "noisy_train", 28)
    with pytest.raises(UserError, match=r"clean_test_key_list.txt has 14 lines, not 10526"):
        part(tmp_path, verify=True)()
    part(tmp_path)()
    assert "not 10526" in caplog.text
    monkeypatch.setitem(module.SIZES, "clean_test", 14)
    part(tmp_path, verify=True)()


def test_missing_images_are_refused_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    write(tmp_path)
    (tmp_path / "images" / TRAIN[3]).unlink()
    (tmp_path / "images" / TRAIN[5]).write_bytes(b"")
    data = part(tmp_path)()
    there = [i for i in range(28) if i not in {3, 5}]
    assert data.ids == tuple(TRAIN[i] for i in there)
    assert data.labels.tolist() == [i % 14 for i in there]
    assert f"2 of 28 images are missing or empty, the first is {tmp_path / 'images' / TRAIN[3]}" in caplog.text
    assert len(data.train.read(torch.arange(26))) == 26
    monkeypatch.setitem(module.SIZES, "noisy_train", 28)
    with pytest.raises(UserError, match="2 of 28 images are missing"):
        part(tmp_path, verify=True)()


def test_sizes_are_balanced(tmp_path: Path):
    data = part(write(tmp_path), train_size=14, test_size=3)()
    assert sorted(data.labels.tolist()) == list(range(14))
    assert data.ids == tuple(TRAIN[:14])
    assert len(data.test) == len(data.test_labels) == 3
    assert data.fingerprint != part(tmp_path)().fingerprint


def test_a_balanced_sample_is_of_the_whole_list(tmp_path: Path):
    """FedNoisy's 64,000: images of a shuffled list while their class has fewer than 64,000/14."""
    write(tmp_path)
    data = part(tmp_path, train_sample=20)()
    count = np.bincount(data.labels, minlength=14)
    assert count.sum() == 20
    assert set(count.tolist()) == {1, 2}, "14 classes of two images: at most 20/14, rounded up"
    assert [TRAIN.index(path) % 14 for path in data.ids or ()] == data.labels.tolist()
    assert data.ids != part(tmp_path, train_size=20)().ids, "which are the first"
    assert data.fingerprint == part(tmp_path, train_sample=20)().fingerprint
    assert len(data.test) == len(TEST)
    with pytest.raises(UserError, match=r"^dataset\.train_size=14 and dataset\.train_sample=20: set one"):
        part(tmp_path, train_size=14, train_sample=20)()
    with pytest.raises(UserError, match=r"^dataset\.train_sample=29: the data set has only 28 samples$"):
        part(tmp_path, train_sample=29)()


def test_fednoisys_sample_has_at_most_4572_of_each_class():
    labels = stream(1, "labels").choice(14, 300_000, p=np.arange(4, 18) / 147)
    keep = chosen(labels, "train", None, 64_000)
    assert keep is not None
    assert sorted(np.bincount(labels[keep]).tolist()) == [4571] * 8 + [4572] * 6


def test_only_the_images_of_a_sample_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path)
    monkeypatch.setattr(module, "SIZES", {"noisy_train": 28, "clean_test": 14})
    wanted = part(tmp_path, train_sample=20)().ids or ()
    for path in {*TRAIN} - {*wanted, *TEST}:
        (tmp_path / "images" / path).unlink()
    assert part(tmp_path, verify=True, train_sample=20)().ids == wanted


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("noisy_label_kv.txt", "images/0/000.jpg\n", "line 1 of .*not a path and a label"),
        ("noisy_label_kv.txt", "images/0/000.jpg 14\n", r"not a path and a label in 0\.\.13"),
        ("clean_label_kv.txt", "images/0/000.jpg 3\n", "clean_label_kv.txt has no label for"),
        ("noisy_train_key_list.txt", None, "noisy_train_key_list.txt cannot be read.*request Clothing1M"),
    ],
)
def test_lists_that_do_not_fit(tmp_path: Path, name: str, content: str | None, reason: str):
    write(tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=r"^dataset\.root: [^\n]*" + reason):
        part(tmp_path)()
