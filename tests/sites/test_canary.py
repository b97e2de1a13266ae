"""Nothing of a site's samples, labels, file names and owners is in any byte that leaves it, or at the server after.

All writes of frames are recorded, at both ends. Flower carries the same frames.
"""

import io
import socket
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flnl.core.errors import UserError
from flnl.sites import desk, sockets
from tests.sites.hospitals import SIZES, set_values, write_federation, write_site
from tests.sites.test_site import Sites

CANARY = "flnlcanary"
KINDS = ("int64", "int32", "int16", "uint8", "float64", "float32", "float16")
"""Types in which labels are searched for."""
WRITTEN = {
    *("federation.yaml", "sites.json"),
    *(
        ".lock",
        "config.yaml",
        "corrections.jsonl",
        "crossed.csv",
        "metrics.csv",
        "metrics.jsonl",
        "model.pt",
        "result.json",
        "sites.run",
    ),
}
"""Files that a server may have after a run, beside its checkpoints: of a new one it has to be thought what it tells."""
CLASSES = ("class-a", "class-b")
OWNERS = (f"{CANARY}-owner-1", f"{CANARY}-owner-2")
WORDS = ("dataset=image_folder", "dataset.image_size=8", "dataset.color=grey", "dataset.normalize=half")
FEDAVG = ("method=fedavg", "rounds=2")
FEDCORR = ("method=fedcorr", "method.T1=1", "method.T2=1", "method.T3=1")


def pattern(site: str) -> bytes:
    """The pixels of a site's images."""
    return f"{CANARY}-{site}-".encode().ljust(64, b"z")[:64]


def write_images(folder: Path, site: str, count: int) -> None:
    """A site's images, whose pixels, names and owners have the canary."""
    for split in ("train", "test"):
        for number in range(count):
            place = folder / OWNERS[number // 2 % 2] / split / CLASSES[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.frombuffer(pattern(site), np.uint8).reshape(8, 8)).save(
                place / f"{CANARY}-{site}-{number}.png"
            )


class Marked(Sites):
    """Sites whose samples are marked."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        self.federation = write_federation(folder / "lung")
        self.said = {name: [] for name in SIZES}
        self.folders = {name: write_site(folder / f"lung-{name}", name, folder) for name in SIZES}
        for name, site in self.folders.items():
            write_images(folder / f"d{name}", name, 12)
            self.folders[name] = set_values(site.folder, data=[*WORDS, f"dataset.root={folder / f'd{name}'}"])
        self.start_again()

    def assert_none_in(self, what: bytes, where: object) -> None:
        """Nothing that tells of a sample, a label, a name of a file or an owner."""
        for name in SIZES:
            labels = self.doors[name].data.dataset.given
            assert labels is not None
            for mark in (
                *(pattern(name)[:11], CANARY.encode(), str(self.root / f"d{name}").encode()),
                *(labels.astype(kind).tobytes() for kind in KINDS),
                np.eye(len(CLASSES), dtype=np.float32)[labels].tobytes(),
                *(between.join(map(str, labels.tolist())).encode() for between in (", ", ",", " ", "\n", "")),
            ):
                assert mark not in what, where

    def assert_only_sites_have_them(self, output: Path) -> None:
        """After a run: none in the server's folders; each site has its own."""
        files = [*contents(self.federation.folder), *contents(output)]
        there = {Path(name).name for name, _ in files if "checkpoints" not in name and ".pt/" not in name}
        assert there <= WRITTEN
        for name, content in files:
            self.assert_none_in(content, name)
        for name in SIZES:
            (own,) = self.folders[name].folder.glob("runs/*/labels.csv")
            assert all(owner in own.read_text() for owner in OWNERS)  # where they may be, they are found


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """All files below a folder, also those in archives."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        content = path.read_bytes()
        yield str(path), content
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                yield from ((f"{path}/{name}", archive.read(name)) for name in archive.namelist())


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All that is written to a socket."""
    written: list[bytes] = []
    plain = sockets.send

    def send(to: socket.socket, header: Mapping[str, Any], parts: Sequence[bytes] = ()) -> None:
        written.extend([repr(header).encode(), *map(bytes, parts)])
        plain(to, header, parts)

    monkeypatch.setattr(sockets, "send", send)
    return written


@pytest.mark.parametrize("method", [FEDAVG, FEDCORR])
def test_no_sample_label_or_name_is_written_to_a_socket(
    tmp_path: Path, method: Sequence[str], frames: list[bytes]
) -> None:
    sites = Marked(tmp_path)
    sites.serve(tmp_path / "there", (*method, "fraction=1.0"))
    every = b"\0".join(frames)
    assert len(frames) > 10
    assert b'"train"' in every  # what is sent is seen
    assert str(tmp_path).encode() not in every
    sites.assert_none_in(every, "messages")
    sites.assert_only_sites_have_them(tmp_path / "there")


@pytest.mark.parametrize("kind", [ValueError, UserError, OSError])
def test_the_text_of_an_error_stays_at_the_site(
    tmp_path: Path, frames: list[bytes], monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """It may quote a cell of a table, or a path."""

    def fails(*args: object) -> None:
        raise kind(f"labels.csv, row 3: {CANARY}")

    sites = Marked(tmp_path)
    monkeypatch.setattr(desk, "entered", fails)
    with pytest.raises(UserError, match=f"failed: {kind.__name__}\n"):
        sites.serve(tmp_path / "there", (*FEDAVG, "fraction=1.0"))
    assert len(frames) > 5
    sites.assert_none_in(b"\0".join(frames), "messages")
    for name, content in [*contents(sites.federation.folder), *contents(tmp_path / "there")]:
        if Path(name).name != "error.log":  # sites and server are one process here, and so is the traceback
            sites.assert_none_in(content, name)
