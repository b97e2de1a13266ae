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

from flnl.sites import sockets
from tests.sites.hospitals import SIZES, set_values, write_federation, write_site
from tests.sites.test_site import Sites

CANARY = "flnlcanary"
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
                *(labels.astype(kind).tobytes() for kind in (np.int64, np.int32, np.uint8)),
                *(str(labels.tolist()).encode(), ",".join(map(str, labels.tolist())).encode()),
            ):
                assert mark not in what, where

    def assert_only_sites_have_them(self, output: Path) -> None:
        """After a run: none in the server's folders; each site has its own."""
        files = [*contents(self.federation.folder), *contents(output)]
        assert {"sites.run", "metrics.jsonl"} <= {Path(name).name for name, _ in files}
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


@pytest.mark.parametrize("method", [FEDAVG, FEDCORR])
def test_no_sample_label_or_name_is_written_to_a_socket(
    tmp_path: Path, method: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    plain = sockets.send

    def send(to: socket.socket, header: Mapping[str, Any], parts: Sequence[bytes] = ()) -> None:
        written.extend([repr(header).encode(), *map(bytes, parts)])
        plain(to, header, parts)

    monkeypatch.setattr(sockets, "send", send)
    sites = Marked(tmp_path)
    sites.serve(tmp_path / "there", (*method, "fraction=1.0"))
    every = b"\0".join(written)
    assert len(written) > 10
    assert b'"train"' in every  # what is sent is seen
    assert str(tmp_path).encode() not in every
    sites.assert_none_in(every, "messages")
    sites.assert_only_sites_have_them(tmp_path / "there")
