"""Pickles of arrays are read as numpy wrote them, and nothing else that a pickle can ask for is done."""

import io
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.data.array_pickle import read_array_pickle
from flnl.data.noise.human import Human
from tests.data.noise_sets import balanced
from tests.data.test_datasets_torchvision import as_published, cifar, write_cifar

ARRAYS: dict[str, NDArray[Any]] = {
    "pixels": np.random.default_rng(0).integers(0, 256, (4, 6), dtype=np.uint8),
    "by columns": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
    "big endian": np.arange(5).astype(">i4"),
    "floats": np.linspace(0, 1, 3),
    "booleans": np.array([True, False]),
    "nothing": np.zeros((0, 3), np.uint8),
}


def read(content: bytes, folder: Path) -> Any:
    (folder / "a.pkl").write_bytes(content)
    return read_array_pickle(folder / "a.pkl")


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_every_protocol_are_read(name: str, protocol: int, tmp_path: Path) -> None:
    found = read(
        pickle.dumps({"data": ARRAYS[name], "labels": [1, 2], "name": "é", "raw": b"\xff"}, protocol), tmp_path
    )
    array = np.asarray(found["data"])
    assert (array == ARRAYS[name]).all()
    assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
    assert (found["labels"], found["name"], found["raw"]) == ([1, 2], "é", b"\xff")


def test_python_2_and_old_numpy_are_read(tmp_path: Path) -> None:
    """Byte strings without an encoding, and numpy's module of the time."""
    content = as_published({"data": ARRAYS["pixels"]})
    assert b"numpy.core.multiarray" in content
    assert (np.asarray(read(content, tmp_path)["data"]) == ARRAYS["pixels"]).all()
    by_python_2 = (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02\x85"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x02\xfe\xfft"
        b"bs."
    )
    assert np.asarray(read(by_python_2, tmp_path)["data"]).tolist() == [254, 255]


class Runs:
    """Pickled, a call of ``function``."""

    def __init__(self, function: Any, *words: Any) -> None:
        self.called = function, words

    def __reduce__(self) -> Any:
        return self.called


ATTACKS = {
    "a command": Runs(os.system, "touch ran"),
    "code": Runs(eval, "open('ran', 'w')"),
    "a look at the disk": Runs(os.getcwd),
    "numpy's own loader": Runs(np.load, "a.pkl"),
    "an array of objects": np.array([Runs(os.system, "touch ran")], dtype=object),
    "an array of structures": np.zeros(2, [("a", "i4"), ("b", "O")]),
    "an array of texts": np.array(["a", "b"]),
    "a matrix, which is a class of its own": np.ndarray.__new__(np.matrix, (1, 1)),
    "a number of numpy's": np.float64(1),
}


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of numpy.matrix
def test_what_is_no_array_is_refused_and_nothing_runs(
    name: str, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pickle.UnpicklingError):
        read(pickle.dumps({"data": ATTACKS[name]}, protocol), tmp_path)
    assert not (tmp_path / "ran").exists()


class Lies(pickle.Pickler):
    """Writes an array of objects whose flags say plain numbers: numpy takes its bytes for addresses, and crashes."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.dtype):
            return np.dtype, ("O", False, True), (3, "|", None, None, None, 8, 8, 0)
        if isinstance(obj, np.ndarray):
            from numpy._core.multiarray import _reconstruct

            address = struct.pack("<Q", 0x4141414141414141)
            return _reconstruct, (np.ndarray, (0,), "b"), (1, (1,), obj.dtype, False, address)
        return NotImplemented


def lying() -> bytes:
    file = io.BytesIO()
    Lies(file, 2).dump({"clean_label": np.zeros(1), "worse_label": np.zeros(1), "data": np.zeros(1)})
    return file.getvalue()


def test_addresses_for_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(pickle.UnpicklingError, match="'O', not of plain numbers"):
        read(lying(), tmp_path)


def test_addresses_for_objects_are_refused_in_label_files(tmp_path: Path) -> None:
    """CIFAR-N's files are PyTorch's archives, with arrays of numpy's inside."""
    torch.save({"clean_label": np.zeros(1), "worse_label": np.zeros(1)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as whole, zipfile.ZipFile(tmp_path / "b.pt", "w") as changed:
        for name in whole.namelist():
            changed.writestr(name, lying() if name.endswith("data.pkl") else whole.read(name))
    with pytest.raises(UserError, match=r"b\.pt is not a CIFAR-N label file"):
        Human("worst", None, str(tmp_path / "b.pt"))(balanced(20, 10, "cifar10"), 1)


@pytest.mark.parametrize(
    "state",
    [
        b"(K\x01K\x03\x85DTYPE\x89U\x02\xfe\xfftb.",  # three elements, two bytes
        b"(K\x01J\xff\xff\xff\xff\x85DTYPE\x89U\x02\xfe\xfftb.",  # a negative length
        b"(K\x01U\x01a\x85DTYPE\x89U\x02\xfe\xfftb.",  # a length that is no number
        b"(K\x01K\x02\x85DTYPE\x89]tb.",  # a list of elements
        b"(K\x01K\x02\x85N\x89U\x02\xfe\xfftb.",  # no type
        b"K\x01b.",  # no state
    ],
)
def test_an_array_that_contradicts_itself_is_refused(state: bytes, tmp_path: Path) -> None:
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
    head = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    with pytest.raises(pickle.UnpicklingError, match="it holds"):
        read(head + state.replace(b"DTYPE", kind), tmp_path)


def test_an_array_without_content_is_no_array(tmp_path: Path) -> None:
    found = read(b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R.", tmp_path)
    with pytest.raises(ValueError, match="without content"):
        np.asarray(found)


@pytest.mark.parametrize("file", ["data_batch_2", "test_batch", "batches.meta"])
def test_unverified_cifar_archives_run_nothing(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``dataset.verify=false`` takes other files than the published ones; code in them is no file of arrays."""
    monkeypatch.chdir(tmp_path)
    folder = write_cifar(tmp_path)
    (folder / file).write_bytes(pickle.dumps({"data": Runs(os.system, "touch ran"), "labels": [0]}))
    with pytest.raises(UserError, match=r"dataset\.root: .*it asks for \w+\.system, which a file of arrays") as caught:
        cifar(tmp_path)()
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()
