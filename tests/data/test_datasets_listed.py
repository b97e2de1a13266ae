"""WebVision and Animal-10N from small trees in their published layouts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flnl.core.errors import UserError
from flnl.core.streams import stream
from flnl.data.datasets import animal10n, webvision
from flnl.data.datasets.animal10n import Animal10N
from flnl.data.datasets.webvision import WebVision
from tests.toys import of_images

FILES: dict[str, Any] = {"threads": 1, "train_size": None, "test_size": None, "fingerprint": "contents", "cache": None}


def draw(path: Path, number: int, size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = stream(number, "listed").integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


# ------------------------------------------------------------------------------------------------------- WebVision

SYNSETS = ("n01440764 tench, Tinca tinca", "n01443537 goldfish", "n01484850 great white shark", "n01491361 tiger shark")


def web(root: Path, **changes: Any) -> WebVision:
    plain = WebVision(
        name="webvision",
        root=str(root),
        imagenet=None,
        classes=3,
        verify=False,
        image_size=24,
        crop_from=28,
        augment=True,
        noise_rate=None,
        **FILES,
    )
    return replace(plain, **changes)


def write_web(root: Path, prefix: str = "google/") -> Path:
    """Nine images for four words, of which the last is beyond the classes that are used; two test images of each."""
    (root / "info").mkdir(parents=True)
    (root / "info" / "synsets.txt").write_text("\n".join(SYNSETS) + "\n")
    lines = []
    for i, label in enumerate([2, 0, 3, 1, 1, 0, 3, 2, 0]):
        path = f"q{i % 2:04}/{i}.jpg"
        draw(root / "google" / path, i)
        lines.append(f"{prefix}{path} {label}")
    (root / "info" / "train_filelist_google.txt").write_text("\n".join(lines) + "\n")
    for i in range(8):
        draw(root / "val_images_256" / f"val{i}.jpg", 100 + i)
    (root / "info" / "val_filelist.txt").write_text("".join(f"val{i}.jpg {3 - i // 2}\n" for i in range(8)))
    return root


@pytest.mark.parametrize("prefix", ["google/", ""])
def test_the_first_words_of_webvision(tmp_path: Path, prefix: str):
    """Lists of some copies begin at google, others above it."""
    data = web(write_web(tmp_path, prefix))()
    assert data.given is not None
    assert data.given.tolist() == [2, 0, 1, 1, 0, 2, 0]
    assert data.truth is None
    assert data.test_labels.tolist() == [2, 2, 1, 1, 0, 0]
    assert data.classes == ("tench (n01440764)", "goldfish (n01443537)", "great white shark (n01484850)")
    assert data.ids == tuple(f"{prefix}q{i % 2:04}/{i}.jpg" for i in (0, 1, 3, 4, 5, 7, 8))
    expected = np.asarray(Image.open(tmp_path / "google/q0001/3.jpg").resize((24, 24), Image.Resampling.BILINEAR))
    assert np.array_equal(data.train.read(torch.tensor([2]))[0].permute(1, 2, 0).numpy(), expected)
    assert data.train.read(torch.tensor([0]), augmented=True).shape == (1, 3, 28, 28)
    assert of_images(data).mean == (0.485, 0.456, 0.406)


def test_webvision_is_tested_on_imagenet_by_the_names_of_its_words(tmp_path: Path):
    """The folders' own order is another one, and there are folders of other classes."""
    root, imagenet = write_web(tmp_path / "webvision"), tmp_path / "val"
    for number, (wnid, count) in enumerate({"n01484850": 1, "n01440764": 2, "n00000001": 3, "n01443537": 1}.items()):
        for i in range(count):
            draw(imagenet / wnid / f"ILSVRC2012_val_{i}.JPEG", 10 * number + i)
    data = web(root, imagenet=str(imagenet))()
    assert data.test_labels.tolist() == [0, 0, 1, 2]
    with pytest.raises(UserError, match=r"^dataset\.imagenet: there is no folder .*n01440764"):
        web(root, imagenet=str(tmp_path / "elsewhere"))()


def test_webvision_is_as_published_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    write_web(tmp_path)
    with pytest.raises(UserError, match=r"should have 150 test images, and 6 are named.*dataset\.verify=false"):
        web(tmp_path, verify=True)()
    monkeypatch.setattr(webvision, "TESTED", 2)
    assert len(web(tmp_path, verify=True)().test) == 6
    (tmp_path / "google/q0001/5.jpg").unlink()
    with pytest.raises(UserError, match="1 of 7 images are missing or empty"):
        web(tmp_path, verify=True)()
    data = web(tmp_path)()
    assert data.labels.tolist() == [2, 0, 1, 1, 2, 0]
    assert "1 of 7 images are missing" in caplog.text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"classes": 5}, r"dataset\.classes=5: .* names 4 classes"),
        ({"crop_from": 20}, r"dataset\.crop_from=20 is smaller than dataset\.image_size=24"),
        ({"root": "/nowhere"}, r"dataset\.root: /nowhere/info/synsets.txt cannot be read: get WebVision"),
    ],
)
def test_webvision_that_cannot_be_read(tmp_path: Path, changes: dict[str, Any], said: str):
    part = web(write_web(tmp_path))
    with pytest.raises(UserError, match=said):
        replace(part, **changes)()


# ------------------------------------------------------------------------------------------------------ Animal-10N


def animals(root: Path, **changes: Any) -> Animal10N:
    plain = Animal10N("animal10n", str(root), verify=False, augment=True, in_memory=True, noise_rate=None, **FILES)
    return replace(plain, **changes)


def write_animals(root: Path) -> Path:
    for number, name in enumerate(["9_img_2.jpg", "0_img_10.jpg", "3_img_1.jpg", "0_img_9.jpg"]):
        draw(root / "training" / name, number, (64, 64))
    for number, name in enumerate(["8_img_1.jpg", "1_img_3.jpg"]):
        draw(root / "testing" / name, 50 + number, (64, 64))
    return root


@pytest.mark.parametrize("in_memory", [True, False])
def test_animals_are_of_the_class_that_their_name_begins_with(tmp_path: Path, in_memory: bool):
    """In the order of names, whatever the folder's own order is."""
    data = animals(write_animals(tmp_path), in_memory=in_memory)()
    assert data.ids == ("0_img_10.jpg", "0_img_9.jpg", "3_img_1.jpg", "9_img_2.jpg")
    assert data.given is not None
    assert data.given.tolist() == [0, 0, 3, 9]
    assert data.truth is None
    assert data.test_labels.tolist() == [1, 8]
    assert [data.classes[i] for i in (0, 3, 9)] == ["cat", "coyote", "guinea pig"]
    expected = np.asarray(Image.open(tmp_path / "training/3_img_1.jpg"))
    assert np.array_equal(data.train.read(torch.tensor([2]))[0].permute(1, 2, 0).numpy(), expected)
    assert (of_images(data).flip, of_images(data).padding) == (True, 0)
    assert data.fingerprint == animals(tmp_path, in_memory=not in_memory)().fingerprint
    assert animals(tmp_path, train_size=3)().labels.tolist() == [0, 3, 9]


def test_animals_are_as_published_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_animals(tmp_path)
    assert animal10n.SIZES == {"training": 50_000, "testing": 5_000}
    with pytest.raises(UserError, match=r"training has 4 images, not 50000; .*dataset\.verify=false"):
        animals(tmp_path, verify=True)()
    monkeypatch.setattr(animal10n, "SIZES", {"training": 4, "testing": 2})
    animals(tmp_path, verify=True)()


@pytest.mark.parametrize("name", ["img_3.jpg", "10_img_3.jpg", "deep/3_img_3.jpg"])
def test_animals_without_a_class_are_refused(tmp_path: Path, name: str):
    draw(write_animals(tmp_path) / "training" / name, 1)
    with pytest.raises(UserError, match=rf"{name} does not begin with a class"):
        animals(tmp_path)()


def test_animals_that_are_not_there(tmp_path: Path):
    with pytest.raises(UserError, match=r"^dataset\.root: there is no folder .*training: request Animal-10N"):
        animals(tmp_path)()
