"""MNIST, SVHN and CIFAR from small files in the published formats, against torchvision's own readers."""

import gzip
import hashlib
import io
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
import torchvision

from flnl.core.errors import UserError
from flnl.core.streams import stream
from flnl.data.datasets import torchvision as published
from flnl.data.datasets.download import Package
from flnl.data.datasets.torchvision import Cifar, Mnist, Svhn
from tests.toys import of_images


def cifar(root: Path, name: Any = "cifar10", **changes: Any) -> Cifar:
    part = Cifar(
        name=name,
        root=str(root),
        download=False,
        mirror=None,
        verify=False,
        timeout=5.0,
        normalize="default",
        augment=True,
        train_size=None,
        test_size=None,
    )
    return replace(part, **changes)


def mnist(root: Path, name: Any = "mnist", **changes: Any) -> Mnist:
    part = Mnist(
        name=name,
        root=str(root),
        download=False,
        mirror=None,
        verify=False,
        timeout=5.0,
        train_size=None,
        test_size=None,
    )
    return replace(part, **changes)


def svhn(root: Path, **changes: Any) -> Svhn:
    part = Svhn(
        name="svhn",
        root=str(root),
        download=False,
        mirror=None,
        verify=False,
        timeout=5.0,
        augment=True,
        train_size=None,
        test_size=None,
    )
    return replace(part, **changes)


# ------------------------------------------------------------------------------------------------------ the formats


class AsPublished(pickle.Pickler):
    """Writes arrays as the published pickles hold them: by Python 2, with numpy's old module and integer flags."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray):
            from numpy._core.multiarray import _reconstruct

            return _reconstruct, (np.ndarray, (0,), "b"), (1, obj.shape, obj.dtype, False, obj.tobytes())
        if isinstance(obj, np.dtype):
            return np.dtype, ("u1", 0, 1), (3, "|", None, None, None, -1, -1, 0)
        return NotImplemented


def as_published(content: Any) -> bytes:
    file = io.BytesIO()
    AsPublished(file, protocol=2).dump(content)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


CIFAR_FILES = {
    "cifar10": ("cifar-10-batches-py", [f"data_batch_{i}" for i in range(1, 6)], "test_batch", "batches.meta"),
    "cifar100": ("cifar-100-python", ["train"], "test", "meta"),
}


def write_cifar(root: Path, name: str = "cifar10", count: int = 40) -> Path:
    folder_name, train, test, meta = CIFAR_FILES[name]
    folder = root / folder_name
    folder.mkdir(parents=True)
    classes = 10 if name == "cifar10" else 100
    rng = stream(1, "cifar")
    for batch in [*train, test]:
        labels = rng.integers(0, classes, count).tolist()
        content = {"data": rng.integers(0, 256, (count, 3072), dtype=np.uint8), "batch_label": batch}
        content |= {"labels": labels} if name == "cifar10" else {"fine_labels": labels, "coarse_labels": [0] * count}
        (folder / batch).write_bytes(as_published(content))
    key = "label_names" if name == "cifar10" else "fine_label_names"
    (folder / meta).write_bytes(as_published({key: [f"class {i}" for i in range(classes)]}))
    return folder


def write_idx(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(header + array.tobytes())


def write_mnist(root: Path, folder: str = "MNIST") -> Path:
    rng = stream(1, "mnist")
    raw = root / folder / "raw"
    for split, count in (("train", 50), ("t10k", 20)):
        write_idx(raw / f"{split}-images-idx3-ubyte", rng.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        write_idx(raw / f"{split}-labels-idx1-ubyte", rng.integers(0, 10, count, dtype=np.uint8))
    return raw


def write_svhn(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    rng = stream(1, "svhn")
    for split, count in (("train", 50), ("test", 30)):
        pixels = rng.integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        labels = rng.integers(1, 11, (count, 1), dtype=np.uint8)
        scipy.io.savemat(root / f"{split}_32x32.mat", {"X": pixels, "y": labels}, do_compression=True)


def pixels_of(images: Any) -> torch.Tensor:
    pixels: torch.Tensor = images.read(torch.arange(len(images)))
    assert pixels.dtype == torch.uint8
    return pixels


# ---------------------------------------------------------------------------------------------- against torchvision


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_torchvisions(tmp_path: Path, name: str):
    """Batches in another order, channels last, coarse labels: all would train without complaint."""
    write_cifar(tmp_path, name)

    class Reference(torchvision.datasets.CIFAR10 if name == "cifar10" else torchvision.datasets.CIFAR100):  # type: ignore[misc]
        """Without checksums, which small files cannot have."""

        train_list = [(batch, None) for batch in CIFAR_FILES[name][1]]  # noqa: RUF012
        test_list = [(CIFAR_FILES[name][2], None)]  # noqa: RUF012
        meta = {  # noqa: RUF012
            "filename": CIFAR_FILES[name][3],
            "key": "label_names" if name == "cifar10" else "fine_label_names",
            "md5": None,
        }

    train, test = Reference(tmp_path, train=True), Reference(tmp_path, train=False)
    ours = cifar(tmp_path, name)()
    assert np.array_equal(pixels_of(ours.train).permute(0, 2, 3, 1).numpy(), train.data)
    assert np.array_equal(pixels_of(ours.test).permute(0, 2, 3, 1).numpy(), test.data)
    assert ours.truth is not None
    assert ours.truth.tolist() == train.targets
    assert ours.test_labels.tolist() == test.targets
    assert list(ours.classes) == train.classes
    assert ours.given is None


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_mnist_is_torchvisions(tmp_path: Path, name: str, folder: str):
    write_mnist(tmp_path, folder)
    reference = torchvision.datasets.MNIST if name == "mnist" else torchvision.datasets.FashionMNIST
    ours = mnist(tmp_path, name)()
    for train, images, labels in ((True, ours.train, ours.truth), (False, ours.test, ours.test_labels)):
        theirs = reference(tmp_path, train=train)
        assert torch.equal(pixels_of(images)[:, 0], theirs.data)
        assert labels is not None
        assert labels.tolist() == theirs.targets.tolist()
    assert len(ours.classes) == 10
    if name == "fashion_mnist":
        assert list(ours.classes) == reference.classes


def test_svhn_is_torchvisions_with_ten_as_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_svhn(tmp_path)
    monkeypatch.setattr(torchvision.datasets.SVHN, "_check_integrity", lambda self: True)
    ours = svhn(tmp_path)()
    for split, images, labels in (("train", ours.train, ours.truth), ("test", ours.test, ours.test_labels)):
        theirs = torchvision.datasets.SVHN(tmp_path, split=split)
        assert np.array_equal(pixels_of(images).numpy(), theirs.data)
        assert labels is not None
        assert labels.tolist() == theirs.labels.tolist()
        assert set(labels) == set(range(10))


def test_digits_of_svhn_are_flipped_if_it_is_asked_for(tmp_path: Path):
    write_svhn(tmp_path)
    cases: list[dict[str, bool]] = [{}, {"flip": True}, {"flip": True, "augment": False}]
    flips = [of_images(svhn(tmp_path, **changes)()).flip for changes in cases]
    assert flips == [False, True, False]


# ------------------------------------------------------------------------------------------------ what is configured


def test_constants_belong_to_the_set_unless_imagenets_are_asked_for(tmp_path: Path):
    for name, mean in (("cifar10", 0.4914), ("cifar100", 0.507)):
        write_cifar(tmp_path, name)
        assert of_images(cifar(tmp_path, name)()).mean[0] == mean
        assert of_images(cifar(tmp_path, name, normalize="imagenet")()).mean == (0.485, 0.456, 0.406)
        assert of_images(cifar(tmp_path, name, normalize="imagenet")()).std == (0.229, 0.224, 0.225)


def test_augmentation(tmp_path: Path):
    """Digits have no mirror images; a switch that is off leaves nothing random."""
    write_cifar(tmp_path)
    write_svhn(tmp_path)
    write_mnist(tmp_path)
    seen = [
        (of_images(part()).padding, of_images(part()).flip)
        for part in (
            cifar(tmp_path),
            cifar(tmp_path, augment=False),
            svhn(tmp_path),
            svhn(tmp_path, augment=False),
            mnist(tmp_path),
        )
    ]
    assert seen == [(4, True), (0, False), (4, False), (0, False), (0, False)]


def test_sizes_cut_both_splits_and_keep_the_positions(tmp_path: Path):
    write_cifar(tmp_path)
    whole, part = cifar(tmp_path)(), cifar(tmp_path, train_size=30, test_size=10)()
    assert part.truth is not None
    assert whole.truth is not None
    assert part.ids is not None
    assert np.bincount(part.truth, minlength=10).tolist() == [3] * 10
    positions = np.array([int(i) for i in part.ids])
    assert np.array_equal(part.truth, whole.truth[positions])
    assert torch.equal(pixels_of(part.train), pixels_of(whole.train)[positions])
    assert len(part.test) == len(part.test_labels) == 10
    assert part.fingerprint != whole.fingerprint
    with pytest.raises(UserError, match=r"dataset.train_size=201: the data set has only 200 samples"):
        cifar(tmp_path, train_size=201)()


def test_the_fingerprint_follows_pixels_and_labels(tmp_path: Path):
    raw = write_mnist(tmp_path)
    seen = {mnist(tmp_path)().fingerprint}
    assert mnist(tmp_path)().fingerprint in seen
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        content = bytearray((raw / name).read_bytes())
        content[-1] = (content[-1] + 1) % 10
        (raw / name).write_bytes(content)
        seen.add(mnist(tmp_path)().fingerprint)
    assert len(seen) == 4


# ------------------------------------------------------------------------------------------------------ fetching


def test_cifar_is_fetched_from_a_mirror_and_unpacked(tmp_path: Path):
    write_cifar(tmp_path / "source")
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    with tarfile.open(mirror / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "source" / "cifar-10-batches-py", "cifar-10-batches-py")
    fetched = cifar(tmp_path / "data", download=True, mirror=mirror.as_uri())()
    assert fetched.fingerprint == cifar(tmp_path / "source")().fingerprint
    (mirror / "cifar-10-python.tar.gz").unlink()
    assert cifar(tmp_path / "data", download=True, mirror=mirror.as_uri())().fingerprint == fetched.fingerprint
    # One file lost: the archive is still there.
    (tmp_path / "data" / "cifar-10-batches-py" / "data_batch_2").unlink()
    assert cifar(tmp_path / "data")().fingerprint == fetched.fingerprint


def test_mnist_is_fetched_from_a_folder_and_unpacked(tmp_path: Path):
    raw = write_mnist(tmp_path / "source")
    for path in list(raw.iterdir()):
        (raw / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    fetched = mnist(tmp_path / "data", download=True, mirror=str(raw))()
    write_mnist(tmp_path / "again")
    assert fetched.fingerprint == mnist(tmp_path / "again")().fingerprint


def test_an_archive_with_another_checksum_is_refused(tmp_path: Path):
    write_cifar(tmp_path / "source")
    (tmp_path / "mirror").mkdir()
    with tarfile.open(tmp_path / "mirror" / "cifar-10-python.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "source" / "cifar-10-batches-py", "cifar-10-batches-py")
    with pytest.raises(UserError, match=r"cifar-10-python\.tar\.gz is not the published file.*dataset\.verify=false"):
        cifar(tmp_path / "data", download=True, mirror=str(tmp_path / "mirror"), verify=True)()


def test_cifar_in_other_pickles_is_published_if_every_pixel_label_and_name_is(tmp_path: Path, monkeypatch: Any):
    write_cifar(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    contents = {}
    for file in folder.iterdir():
        held = pickle.loads(file.read_bytes())
        if "data" in held:
            parts = [held["data"].tobytes(), bytes(held["labels"])]
        else:
            parts = [name.encode() for name in held["label_names"]]
        contents[file.name] = hashlib.sha256(b"\n".join(parts)).hexdigest()
    monkeypatch.setattr(published, "CIFAR10_CONTENTS", contents)
    assert cifar(tmp_path, verify=True)().fingerprint == cifar(tmp_path)().fingerprint
    held = pickle.loads((folder / "data_batch_3").read_bytes())
    held["labels"][1] = (held["labels"][1] + 1) % 10
    (folder / "data_batch_3").write_bytes(pickle.dumps(held))
    with pytest.raises(UserError, match=r"data_batch_3 is not the published file"):
        cifar(tmp_path, verify=True)()


@pytest.fixture
def repacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a package with the archives of Fashion-MNIST, packed otherwise than the published ones."""
    raw = write_mnist(tmp_path / "source", "FashionMNIST")
    contents = {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in raw.iterdir()}
    package = tmp_path / "package"
    package.mkdir()
    for path in raw.iterdir():
        (package / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    monkeypatch.setattr(published, "FASHION_CONTENTS", contents)
    monkeypatch.setattr(published, "FASHION_PACKAGE", Package("dataset-fashion-mnist", package))
    return package


def test_fashion_mnist_is_taken_from_a_package_of_the_system(
    tmp_path: Path, repacked: Path, caplog: pytest.LogCaptureFixture
):
    """Also if nothing may be downloaded; what counts is the content, since a distribution packs it anew."""
    caplog.set_level("INFO")
    before = {path: path.read_bytes() for path in repacked.iterdir()}
    data = mnist(tmp_path / "data", "fashion_mnist", verify=True)()
    assert data.fingerprint == mnist(tmp_path / "source", "fashion_mnist")().fingerprint
    assert f"taking {repacked / 'train-images-idx3-ubyte.gz'}" in caplog.text
    assert {path: path.read_bytes() for path in repacked.iterdir()} == before
    held = {path.name for path in (tmp_path / "data/FashionMNIST/raw").iterdir() if not path.name.startswith(".")}
    assert held == {*published.FASHION_CONTENTS}
    # As archives put into the folder by hand, and from a mirror.
    by_hand = tmp_path / "by hand/FashionMNIST/raw"
    by_hand.parent.mkdir(parents=True)
    repacked.rename(by_hand)
    assert mnist(tmp_path / "by hand", "fashion_mnist", verify=True)().fingerprint == data.fingerprint
    mirrored = mnist(tmp_path / "m", "fashion_mnist", verify=True, download=True, mirror=str(by_hand))
    assert mirrored().fingerprint == data.fingerprint


def test_an_archive_with_another_content_is_refused_and_not_kept(tmp_path: Path, repacked: Path):
    archive = repacked / "t10k-labels-idx1-ubyte.gz"
    content = gzip.decompress(archive.read_bytes())
    archive.write_bytes(gzip.compress(content[:-1] + bytes([content[-1] ^ 1])))
    with pytest.raises(UserError, match=rf"^dataset\.root: {archive} is not the published file \(its MD5 unpacked is"):
        mnist(tmp_path / "data", "fashion_mnist", verify=True)()
    mirrored = mnist(tmp_path / "m", "fashion_mnist", verify=True, download=True, mirror=str(repacked))
    with pytest.raises(UserError, match=r"m/FashionMNIST/raw/t10k-labels-idx1-ubyte\.gz is not the published file"):
        mirrored()
    left = {path.name for path in (tmp_path / "m/FashionMNIST/raw").iterdir()}
    assert not left & {"t10k-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte", ".t10k-labels-idx1-ubyte.part"}
    assert len(mnist(tmp_path / "any", "fashion_mnist", verify=False)().test_labels) == 20


def test_a_missing_set_names_the_package_that_has_it(tmp_path: Path):
    with pytest.raises(UserError, match=r"apt-get install dataset-fashion-mnist, or: curl"):
        mnist(tmp_path, "fashion_mnist")()


@pytest.mark.skipif(not published.FASHION_PACKAGE.folder.is_dir(), reason="Debian's package is not installed")
def test_debians_package_has_the_published_images(tmp_path: Path):
    data = mnist(tmp_path, "fashion_mnist", verify=True)()
    assert (len(data.train), len(data.test)) == (60_000, 10_000)


@pytest.mark.parametrize("part", [cifar, mnist, svhn])
def test_a_missing_set_names_folder_and_command(tmp_path: Path, part: Any):
    with pytest.raises(UserError) as caught:
        part(tmp_path)()
    message = str(caught.value)
    assert "\n" not in message
    assert all(text in message for text in ("dataset.root", str(tmp_path), "dataset.download=true", "curl -fL"))


def test_half_a_set_is_a_missing_set(tmp_path: Path):
    write_svhn(tmp_path)
    (tmp_path / "test_32x32.mat").unlink()
    with pytest.raises(UserError, match=r"test_32x32\.mat does not exist.*dataset\.download=true, or run: curl"):
        svhn(tmp_path)()


@pytest.mark.parametrize(("part", "write"), [(cifar, write_cifar), (mnist, write_mnist), (svhn, write_svhn)])
def test_files_that_are_not_the_published_ones_need_verify_off(tmp_path: Path, part: Any, write: Any):
    write(tmp_path)
    part(tmp_path)()
    with pytest.raises(UserError, match=r"is not the published file.*dataset\.verify=false"):
        part(tmp_path, verify=True)()


def test_the_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_mnist(tmp_path / "sets")
    assert len(mnist(Path("~/sets"))().train) == 50


# --------------------------------------------------------------------------------------------------- broken files


def broken(part: Any, folder: Path) -> str:
    """The error of reading a broken file: one line that says where it is and how to mend it."""
    with pytest.raises(UserError) as caught:
        part()
    message = str(caught.value)
    assert "\n" not in message
    assert f"dataset.root: the files in {folder} cannot be read (" in message
    assert "cannot be read ()" not in message
    return message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "Ran out of input"),
        (as_published({"data": np.zeros((4, 3072), np.uint8), "labels": [0] * 4})[:100], ""),
        (as_published({"data": np.zeros((4, 3072), np.uint8)}), "labels"),
        (as_published({"data": np.zeros((4, 3000), np.uint8), "labels": [0] * 4}), ""),
        (as_published({"data": np.zeros((4, 3072), np.uint8), "labels": [0] * 5}), "(165,) "),
        (as_published({"data": np.zeros((4, 3072), np.uint8), "labels": [0, 1, 2, 10]}), "not in 0..9"),
        (as_published({"data": [1, 2], "labels": [0, 1]}), ""),
        (pickle.dumps(["a list"]), ""),
    ],
)
def test_broken_cifar(tmp_path: Path, content: bytes, reason: str):
    path = write_cifar(tmp_path) / "data_batch_3"
    path.write_bytes(content)
    assert reason.strip() in broken(cifar(tmp_path), path.parent)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("train-images-idx3-ubyte", lambda content: content[:-1], ""),
        ("train-images-idx3-ubyte", lambda content: content[:7], ""),
        ("train-images-idx3-ubyte", lambda content: gzip.compress(content), ""),
        ("t10k-labels-idx1-ubyte", lambda content: content[:-1] + b"\x0a", "not in 0..9"),
        ("t10k-labels-idx1-ubyte", lambda content: bytes([0, 0, 8, 1, 0, 0, 0, 1, 5]), "labels (1,)"),
    ],
)
def test_broken_mnist(tmp_path: Path, name: str, change: Any, reason: str):
    path = write_mnist(tmp_path) / name
    path.write_bytes(change(path.read_bytes()))
    assert reason in broken(mnist(tmp_path), path.parent)


@pytest.mark.parametrize("content", [b"", b"no mat file", b"MATLAB 5.0 MAT-file" + bytes(200)])
def test_broken_svhn(tmp_path: Path, content: bytes):
    write_svhn(tmp_path)
    (tmp_path / "test_32x32.mat").write_bytes(content)
    broken(svhn(tmp_path), tmp_path)


def test_svhn_of_another_form(tmp_path: Path):
    write_svhn(tmp_path)
    scipy.io.savemat(tmp_path / "test_32x32.mat", {"X": np.zeros((32, 32, 3, 5)), "y": np.ones((5, 1))})
    assert "float64 images" in broken(svhn(tmp_path), tmp_path)


def test_what_an_earlier_torchvision_left_is_not_read_in_place_of_the_published_files(tmp_path: Path):
    """Its ``processed`` files have no published checksum, so ``verify`` says nothing of them."""
    expected = (write_mnist(tmp_path), mnist(tmp_path)().fingerprint)[1]
    processed = tmp_path / "MNIST" / "processed"
    processed.mkdir()
    for name in ("training.pt", "test.pt"):
        torch.save((torch.zeros(5, 28, 28, dtype=torch.uint8), torch.zeros(5, dtype=torch.int64)), processed / name)
    assert mnist(tmp_path)().fingerprint == expected
