"""Nothing of a site's samples, labels and file names is in any byte that is written to a socket.

All writes of frames are recorded, at both ends. Flower carries the same frames.
"""

import socket
from collections.abc import Mapping, Sequence
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
WORDS = ("dataset=image_folder", "dataset.image_size=8", "dataset.color=grey", "dataset.normalize=half")


def write_images(folder: Path, site: str, count: int) -> bytes:
    """A site's images, whose pixels and names have the canary; the pixels of one."""
    pattern = f"{CANARY}-{site}-".encode().ljust(64, b"z")[:64]
    for split in ("train", "test"):
        for number in range(count):
            place = folder / split / CLASSES[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.frombuffer(pattern, np.uint8).reshape(8, 8)).save(
                place / f"{CANARY}-{site}-{number}.png"
            )
    return pattern


@pytest.mark.parametrize(
    "method", [("method=fedavg",), ("method=fedcorr", "method.T1=1", "method.T2=1", "method.T3=1")]
)
def test_no_sample_label_or_name_is_written_to_a_socket(
    tmp_path: Path, method: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    plain = sockets.send

    def send(to: socket.socket, header: Mapping[str, Any], parts: Sequence[bytes] = ()) -> None:
        written.extend([repr(header).encode(), *map(bytes, parts)])
        plain(to, header, parts)

    monkeypatch.setattr(sockets, "send", send)
    images = {name: write_images(tmp_path / f"d{name}", name, 12) for name in SIZES}
    sites = Sites.__new__(Sites)

    sites.federation = write_federation(tmp_path / "lung")
    sites.said = {name: [] for name in SIZES}
    sites.folders = {name: write_site(tmp_path / f"lung-{name}", name, tmp_path) for name in SIZES}
    for name, folder in sites.folders.items():
        sites.folders[name] = set_values(folder.folder, data=[*WORDS, f"dataset.root={tmp_path / f'd{name}'}"])
    sites.start_again()
    given = {name: door.data.dataset.given for name, door in sites.doors.items()}
    rounds = ("rounds=2",) if len(method) == 1 else ()
    sites.serve(tmp_path / "there", (*method, *rounds, "fraction=1.0"))
    every = b"\0".join(written)
    assert len(written) > 10
    assert b'"train"' in every  # what is sent is seen
    for name, pattern in images.items():
        labels = given[name]
        assert labels is not None
        for what in (
            *(pattern[:11], CANARY.encode(), f"{CANARY}-{name}".encode(), str(tmp_path).encode()),
            *(labels.astype(kind).tobytes() for kind in (np.int64, np.int32, np.uint8)),
            *(str(labels.tolist()).encode(), ",".join(map(str, labels.tolist())).encode()),
        ):
            assert what not in every
        own = (tmp_path / f"lung-{name}").glob("runs/*/labels.csv")
        assert CANARY in next(own).read_text()  # where they may be, they are found
