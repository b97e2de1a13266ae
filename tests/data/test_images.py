"""Both stores: the same pixels for the same position, and files that cannot be read."""

import hashlib
import logging
import os
import pickle
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as reference

from flnl.core.errors import UserError
from flnl.core.streams import stream
from flnl.data import image_file, images
from flnl.data.images import ImageFiles, TensorImages, file_sizes


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    """Twelve images of different sizes and kinds; crops are taken from 20x20, the network sees 16x16."""
    rng = stream(1, "files")
    paths = []
    for i in range(12):
        h, w = rng.integers(10, 40, 2)
        mode = ["RGB", "L", "RGBA", "P"][i % 4]
        pixels = rng.integers(0, 256, (h, w, 3), dtype=np.uint8)
        path = f"{i % 3}/{i:02}.{'png' if mode in {'RGBA', 'P'} else 'jpg'}"
        (tmp_path / path).parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).convert(mode).save(tmp_path / path)
        paths.append(path)
    return ImageFiles(tmp_path, paths, file_sizes(tmp_path, paths), (16, 16), (20, 20))


@pytest.mark.parametrize("augmented", [False, True])
def test_files_read_as_torchvision_resizes_them(files: ImageFiles, augmented: bool):
    side = 20 if augmented else 16
    index = torch.tensor([5, 0, 11, 5])
    for position, ours in zip(index.tolist(), files.read(index, augmented=augmented), strict=True):
        with Image.open(files.root / files.paths[position]) as image:
            theirs = reference.pil_to_tensor(reference.resize(image.convert("RGB"), [side, side]))
        assert torch.equal(ours, theirs)


def test_threads_memory_and_pickling_change_no_pixel(files: ImageFiles):
    index = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    threaded = ImageFiles(files.root, files.paths, files.file_sizes, (16, 16), (20, 20), threads=3)
    memory = files.in_memory()
    for augmented in (False, True):
        expected = files.read(index, augmented=augmented)
        for store in (threaded, memory, pickle.loads(pickle.dumps(files)), files.to("cpu"), memory.to("cpu")):
            assert torch.equal(store.read(index, augmented=augmented), expected)
    assert memory.shape == files.shape == (3, 16, 16)
    assert memory.augmented_size == files.augmented_size == (20, 20)
    assert len(memory) == len(files) == 12


def test_one_copy_is_kept_where_crops_need_no_other_size(files: ImageFiles):
    memory = ImageFiles(files.root, files.paths, files.file_sizes, (16, 16), (16, 16)).in_memory()
    assert memory.larger is None
    assert memory.augmented_size == (16, 16)


def test_grey_has_one_channel(files: ImageFiles):
    grey = ImageFiles(files.root, files.paths, files.file_sizes, (16, 16), (16, 16), channels=1)
    assert grey.read(torch.arange(3)).shape == (3, 1, 16, 16)
    assert grey.shape == (1, 16, 16)


def test_unreadable_files_are_black_counted_and_named_once(files: ImageFiles, caplog: pytest.LogCaptureFixture):
    (files.root / files.paths[3]).write_bytes(b"no image")
    whole = (files.root / files.paths[4]).read_bytes()
    (files.root / files.paths[4]).write_bytes(whole[: len(whole) // 2])  # cut off in the middle
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            read = files.read(torch.arange(12))
    assert files.unreadable == {files.paths[3], files.paths[4]}
    assert [files.paths[i] in caplog.text for i in range(12)] == [i in {3, 4} for i in range(12)]
    assert len(caplog.records) == 2
    assert [bool(image.any()) for image in read] == [i not in {3, 4} for i in range(12)]


def test_what_a_forked_process_could_not_read_is_known_here(files: ImageFiles):
    """Clients may be trained in workers, and the run's record is written by the process that forked them."""
    (files.root / files.paths[3]).write_bytes(b"no image")
    some = files.take(np.array([5, 3, 1]))
    child = os.fork()
    if child == 0:
        some.read(torch.arange(3))
        os._exit(0)
    os.waitpid(child, 0)
    assert some.unreadable == {files.paths[3]}
    assert some.in_memory().unreadable == {files.paths[3]}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_that_has_gone_is_an_error_not_a_black_image(files: ImageFiles, threads: int):
    """A disk that is no longer mounted must not train a model on blackness."""
    (files.root / files.paths[7]).unlink()
    store = ImageFiles(files.root, files.paths, files.file_sizes, (16, 16), (20, 20), threads=threads)
    with pytest.raises(UserError, match=f"dataset.root: .*{files.paths[7]}"):
        store.read(torch.arange(12))


def test_taking_some_keeps_their_pixels(files: ImageFiles):
    index = np.array([9, 2, 4])
    for store in (files, files.in_memory()):
        some = store.take(index)
        assert len(some) == 3
        for augmented in (False, True):
            assert torch.equal(
                some.read(torch.arange(3), augmented=augmented),
                store.read(torch.from_numpy(index), augmented=augmented),
            )
    assert files.take(index).digest() != files.digest()


def test_reading_gives_a_copy():
    store = TensorImages(torch.zeros(3, 1, 2, 2, dtype=torch.uint8))
    store.read(torch.arange(3)).fill_(9)
    assert not store.pixels.any()


def test_the_digest_follows_every_pixel_type_and_shape():
    pixels = torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2)
    same = TensorImages(pixels.clone()).digest()
    assert TensorImages(pixels).digest() == same
    changed = pixels.clone()
    changed[1, 2, 1, 1] += 1
    others = [changed, pixels.reshape(2, 3, 4, 1), pixels.view(torch.int8), pixels.flip(0)]
    assert len({same, *(TensorImages(other).digest() for other in others)}) == 5
    assert TensorImages(pixels, pixels).digest() != same


def test_the_digest_of_files_follows_paths_and_sizes(files: ImageFiles):
    before = files.digest()
    lines = (f"{path}\0{(files.root / path).stat().st_size}\n" for path in files.paths)
    by_hand = hashlib.sha256("".join(["3(16, 16)(20, 20)", *lines]).encode()).digest()
    assert by_hand == before == files.digest_of_names(), "or older checkpoints could not be gone on from"
    assert ImageFiles(files.root, list(files.paths), files.file_sizes, (16, 16), (20, 20)).digest() == before
    longer = files.file_sizes.copy()
    longer[3] += 1
    renamed = [*files.paths[:-1], "other.jpg"]
    others = [
        ImageFiles(files.root, files.paths, longer, (16, 16), (20, 20)),
        ImageFiles(files.root, renamed, files.file_sizes, (16, 16), (20, 20)),
        ImageFiles(files.root, files.paths, files.file_sizes, (16, 18), (20, 20)),
    ]
    assert len({before, *(other.digest() for other in others)}) == 4


def test_sizes_of_files_in_order_and_zero_where_missing(tmp_path: Path):
    names = [f"{i}.bin" for i in range(2500)]  # more than one thread's share
    for i in range(0, 2500, 100):
        (tmp_path / names[i]).write_bytes(bytes(i))
    expected = [i if i % 100 == 0 else 0 for i in range(2500)]
    assert file_sizes(tmp_path, names).tolist() == expected
    assert file_sizes(tmp_path, []).tolist() == []


def test_what_is_no_regular_file_has_no_size(tmp_path: Path):
    """A folder has bytes of its own; Clothing1M counts what has none as missing, and reads none of it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(bytes(5))
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "endless").symlink_to("/dev/zero")
    assert file_sizes(tmp_path, ["pipe", "file", ".", "link", "endless", "gone"]).tolist() == [0, 5, 0, 5, 0, 0]


# ------------------------------------------------------------------------------------------------------ reading ahead


@pytest.mark.parametrize("threads", [1, 3])
def test_parts_come_in_order_with_the_pixels_of_reading_them_alone(files: ImageFiles, threads: int):
    store = replace(files, threads=threads)
    parts = list(torch.randperm(12, generator=torch.Generator().manual_seed(1)).split([5, 1, 4, 2]))
    for augmented in (False, True):
        found = list(store.read_each(parts, augmented=augmented))
        assert [len(part) for part in found] == [5, 1, 4, 2]
        for part, pixels in zip(parts, found, strict=True):
            assert torch.equal(pixels, files.read(part, augmented=augmented))
            assert torch.equal(pixels, files.in_memory().read(part, augmented=augmented))
    assert list(store.read_each([])) == []


class Counting:
    """Counts the files that are decoded, in place of ``images.decode``; the one after ``free`` waits for ``go``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int | None = None) -> None:
        self.count, self.free, self.go, self._decode = 0, free, threading.Event(), image_file.decode
        monkeypatch.setattr(images, "decode", self)

    def __call__(self, encoded: bytes, size: tuple[int, int], channels: int) -> Any:
        self.count += 1
        if self.free is not None and self.count > self.free:
            self.go.wait(20)
        return self._decode(encoded, size, channels)

    def settled(self, expected: int) -> int:
        """The count once it is ``expected``, or after two seconds; and then for a moment longer."""
        until = time.monotonic() + 2
        while self.count < expected and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.1)
        return self.count


def test_the_next_part_is_decoded_while_one_is_used_and_no_other(files: ImageFiles, monkeypatch: pytest.MonkeyPatch):
    decoded = Counting(monkeypatch)
    reading = replace(files, threads=2).read_each(list(torch.arange(12).split(3)))
    assert decoded.settled(0) == 0
    next(reading)
    assert decoded.settled(6) == 6, "of the part in use and of one more"
    next(reading)
    assert decoded.settled(9) == 9


def test_who_stops_reading_stops_the_decoding(files: ImageFiles, monkeypatch: pytest.MonkeyPatch):
    decoded = Counting(monkeypatch, free=50)
    reading = replace(files, threads=1).read_each(list(torch.arange(100).remainder(12).split(50)))
    next(reading)
    assert decoded.settled(51) == 51, "the first of the next part is being decoded"
    del reading
    decoded.go.set()
    assert decoded.settled(100) == 51


@pytest.mark.parametrize("threads", [1, 3])
def test_a_file_that_goes_while_parts_are_read_is_named_when_its_part_is_due(files: ImageFiles, threads: int):
    reading = replace(files, threads=threads).read_each(list(torch.arange(12).split(4)))
    (files.root / files.paths[9]).unlink()
    next(reading)
    next(reading)
    with pytest.raises(UserError, match=f"dataset.root: .*{files.paths[9]}"):
        next(reading)
    assert files.read(torch.arange(3)).any(), "the threads go on with what comes next"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_reads_with_threads_of_its_own(files: ImageFiles):
    """Those of its parent are not there; waiting for them would not end."""
    store = replace(files, threads=2)
    expected = store.read(torch.arange(12))
    reading = store.read_each(list(torch.arange(12).split(3)))
    next(reading)  # the parent is in the middle of it
    if not (child := os.fork()):
        signal.alarm(20)
        os._exit(0 if torch.equal(store.read(torch.arange(12)), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sum(map(len, reading)) == 9
