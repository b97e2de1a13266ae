"""Data files that are damaged, too short or somebody else's: exit code 2 and one line that names key and file."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.cli.conftest import Command, Said

RUN = ("model=mlp", "model.hidden=[4]", "method=fedavg", "rounds=1", "wandb.mode=disabled", "figures=false")
ARRAYS = ("dataset=arrays", "dataset.root=.", "noise=none", "partition.num_clients=2")
LABELLED = (*ARRAYS, "dataset.labels=labels.csv")
NPY = (*ARRAYS[:-1], "partition=file", "partition.path=clients.npy")
CSV = (*ARRAYS[:-1], "partition=file", "partition.path=clients.csv")
MATRIX = ("dataset=arrays", "dataset.root=.", "partition.num_clients=2", "noise=matrix")
CIFAR = ("dataset=cifar10", "dataset.root=.", "dataset.verify=false", "dataset.download=false")
HUMAN = (*CIFAR, "noise=human", "noise.source=worst", "noise.path=human.pt", "partition.num_clients=2")
TRUE = np.tile(np.arange(10), 10)

Write = Callable[[Path], object]


def arrays(folder: Path, **other: Any) -> None:
    """A data set of 20 and 6 samples in three classes."""
    rng = np.random.default_rng(0)
    held: dict[str, Any] = {
        "x_train": rng.random((20, 1, 4, 4), dtype=np.float32),
        "y_train": np.arange(20) % 3,
        "x_test": rng.random((6, 1, 4, 4), dtype=np.float32),
        "y_test": np.arange(6) % 3,
    }
    np.savez(folder / "arrays.npz", **(held | other))


def zipped(folder: Path) -> None:
    import zipfile

    with zipfile.ZipFile(folder / "arrays.npz", "w") as file:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            file.writestr(name, "hello")


def cifar(folder: Path) -> None:
    """CIFAR-10 with twenty images a batch."""
    (folder / "cifar-10-batches-py").mkdir()
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        batch = {"data": np.zeros((20, 3072), np.uint8), "labels": TRUE[:20].tolist()}
        (folder / "cifar-10-batches-py" / name).write_bytes(pickle.dumps(batch))
    meta = {"label_names": [str(i) for i in range(10)]}
    (folder / "cifar-10-batches-py" / "batches.meta").write_bytes(pickle.dumps(meta))


def human(**labels: Any) -> Write:
    def write(folder: Path) -> None:
        cifar(folder)
        torch.save({"clean_label": TRUE, **labels}, folder / "human.pt")

    return write


def garbage(folder: Path) -> None:
    (folder / "human.pt").write_bytes(b"hello world")


def images(folder: Path) -> None:
    for split in ("train", "test"):
        for name in "ab":
            (folder / split / name).mkdir(parents=True)
            (folder / split / name / "0.png").write_bytes(b"no image")


def small_mnist(folder: Path) -> None:
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split in ("train", "t10k"):
        head = [np.array(numbers, ">i4").tobytes() for numbers in ([2051, 10, 4, 4], [2049, 10])]
        (raw / f"{split}-images-idx3-ubyte").write_bytes(head[0] + bytes(160))
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(head[1] + bytes(range(10)))


def clothing(folder: Path) -> None:
    for name, text in (("noisy_train_key_list", ""), ("noisy_label_kv", "a.jpg 1\n")):
        (folder / f"{name}.txt").write_text(text)


def beside(name: str, content: bytes | Any) -> Write:
    """The arrays and one more file."""

    def write(folder: Path) -> None:
        arrays(folder)
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            np.save(folder / name, content)

    return write


def archive(folder: Path) -> None:
    arrays(folder)
    np.savez(folder / "clients.npz", a=np.zeros(20))
    (folder / "clients.npz").rename(folder / "clients.npy")


FAULTS: dict[str, tuple[Write, tuple[str, ...], str]] = {
    "a label beyond all classes": (
        lambda folder: arrays(folder, y_train=np.arange(20) * 10**15),
        ARRAYS,
        "arrays.npz has a label 19000000000000000",
    ),
    "members that are no arrays": (zipped, ARRAYS, "x_train is not an array"),
    "an empty label file": (beside("labels.csv", b""), LABELLED, "labels.csv has no column 'id'"),
    "a column twice": (
        beside("labels.csv", b"id,label,label\n" + b"".join(b"%d,0,1\n" % i for i in range(20))),
        LABELLED,
        "labels.csv cannot be read (it has the column 'label' twice)",
    ),
    "no image at all": (
        images,
        ("dataset=image_folder", "dataset.root=.", "dataset.image_size=8", "dataset.crop_from=8", "noise=none"),
        "dataset.root: none of the 2 images below",
    ),
    "images of another size": (
        small_mnist,
        ("dataset=mnist", "dataset.root=.", "dataset.verify=false", "dataset.download=false"),
        "dataset.root: the files in",
    ),
    "an archive that is none": (
        lambda folder: (folder / "cifar-10-python.tar.gz").write_bytes(b"hello"),
        CIFAR,
        "cifar-10-python.tar.gz is broken",
    ),
    "lists of nothing": (
        clothing,
        ("dataset=clothing1m", "dataset.root=.", "dataset.verify=false", "noise=none"),
        "dataset.root: ",
    ),
    "human labels too few": (human(worse_label=TRUE[:50]), HUMAN, "human.pt has true labels of shape [100]"),
    "human labels in a table": (human(worse_label=TRUE.reshape(10, 10)), HUMAN, "worse_label of [10, 10]"),
    "human labels too high": (human(worse_label=TRUE + 40), HUMAN, "worse_label has a label that is not in 0..9"),
    "human labels of NaN": (
        human(worse_label=torch.full((100,), torch.nan)),
        HUMAN,
        "worse_label are not whole numbers",
    ),
    "human labels in words": (human(worse_label=["a"] * 100), HUMAN, "worse_label are not whole numbers"),
    "human labels of other kinds": (
        lambda folder: [make(folder) for make in (cifar, garbage)],
        HUMAN,
        "human.pt is not a CIFAR-N label file",
    ),
    "human labels that run code": (human(worse_label=Path("x")), HUMAN, "it holds more than arrays"),
    "clients in an empty file": (beside("clients.npy", b""), NPY, "partition.path=clients.npy cannot be read"),
    "clients in half a file": (beside("clients.npy", b"\x93NUMPY"), NPY, "partition.path=clients.npy cannot be read"),
    "clients in an archive": (archive, NPY, "partition.path=clients.npy is an archive"),
    "clients below 0": (beside("clients.npy", np.full(20, -2)), NPY, "partition.path=clients.npy: the client is '-2'"),
    "clients in no text": (beside("clients.csv", b"\xff\xfe\n"), CSV, "partition.path=clients.csv cannot be read"),
    "clients beyond count": (
        beside("clients.csv", b"9" * 20 + b"\n"),
        CSV,
        "partition.path=clients.csv names 1 clients",
    ),
    "an imaginary transition": (
        beside("T.npy", np.eye(3) * 1j),
        (*MATRIX, "noise.path=T.npy"),
        "noise.path=T.npy cannot be read (it is not an array of real numbers)",
    ),
    "an empty transition": (beside("T.csv", b""), (*MATRIX, "noise.path=T.csv"), "noise.path=T.csv is 0 x 1"),
}


def last_line(said: Said) -> str:
    assert said.code == 2, said.err
    assert "Traceback" not in said.err
    *before, last = said.err.splitlines()
    assert all(line.startswith("WARNING: ") for line in before), said.err
    assert last.startswith("error: ")
    return last


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_data_is_one_line(fault: str, command: Command, tmp_path: Path) -> None:
    write, words, expected = FAULTS[fault]
    write(tmp_path)
    assert expected in last_line(command(*RUN, *words))
    assert not list(tmp_path.glob("outputs/*"))


def test_a_decodable_image_is_enough_to_go_on_and_the_others_are_named(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images(tmp_path)
    for split in ("train", "test"):
        Image.new("RGB", (8, 8)).save(tmp_path / split / "a" / "0.png")
    words = ("dataset=image_folder", "dataset.root=.", "dataset.image_size=8", "dataset.crop_from=8", "noise=none")
    said = command(*RUN, *words, "partition.num_clients=1")
    assert said.code == 0, said.err
    named = [r.getMessage().split(" and is")[0] for r in caplog.records if "decoded" in r.getMessage()]
    assert named == [
        f"{tmp_path / split / 'b/0.png'} cannot be decoded (cannot identify image file)" for split in ("train", "test")
    ]
