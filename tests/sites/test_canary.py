"""Nothing of a site's samples, labels, file names and owners is in any byte that leaves it, or at the server after.

All writes of frames are recorded, at both ends, of a run and of its audit; so is what the server says and logs. Flower
carries the same frames. What a site says and logs stays there, and may name its files.
"""

import io
import logging
import re
import socket
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from flnl.audit.options import Options
from flnl.core.errors import UserError
from flnl.sites import link, runtime, sockets
from flnl.sites.audit_messages import CountedMarks
from flnl.sites.auditing import SiteAudit
from flnl.sites.link import Link
from flnl.sites.traffic import Traffic
from tests.sites.hospitals import SIZES, set_values, write_federation, write_site
from tests.sites.test_served_audit import Served

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
        "probabilities.npz",
        "result.json",
        "sites.run",
    ),
    *("audit.json", "index.html"),
}
"""Files that a server may have after a run and its audit, beside checkpoints: of a new one it has to be thought what it
tells."""
CLASSES = ("class-a", "class-b")
OWNERS = (f"{CANARY}-owner-1", f"{CANARY}-owner-2")
WORDS = ("dataset=image_folder", "dataset.image_size=8", "dataset.color=grey", "dataset.normalize=half")
FEDAVG = ("method=fedavg", "rounds=2", "audit.record=true")
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


class Marked(Served):
    """Sites whose samples are marked."""

    def __init__(self, folder: Path) -> None:
        self.root, self.output = folder, folder / "there"
        self.federation = write_federation(folder / "lung")
        self.said = {name: [] for name in SIZES}
        self.folders = {name: write_site(folder / f"lung-{name}", name, folder) for name in SIZES}
        for name, site in self.folders.items():
            write_images(folder / f"d{name}", name, 12)
            words = [*WORDS, f"dataset.root={folder / f'd{name}'}"]
            self.folders[name] = set_values(site.folder, data=words, allow=["CountedLabels"])
        self.start_again()

    def serve_and_audit(self, method: Sequence[str]) -> None:
        """All that a server asks sites for."""
        self.serve(self.output, (*method, "fraction=1.0"))
        self.audit(Options())

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

    def assert_only_sites_have_them(self) -> None:
        """After a run and its audit: none in the server's folders; each site has its own."""
        files = [*contents(self.federation.folder), *contents(self.output)]
        there = {Path(name).name for name, _ in files if not re.search(r"checkpoints|\.(pt|npz)/", name)}
        assert there <= WRITTEN
        for name, content in files:
            self.assert_none_in(content, name)
        for name in SIZES:
            for file in ("labels.csv", "audit/audit.csv"):
                assert all(owner in (self.run_of(name) / file).read_text() for owner in OWNERS)  # here they are found


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


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> Callable[[], bytes]:
    """What the server has said and logged; a relay's thread handles what comes to sites, whose lines are theirs."""
    caplog.set_level(logging.DEBUG, "flnl")

    def found() -> bytes:
        server = threading.get_ident()
        lines = [caplog.handler.format(record) for record in caplog.records if record.thread == server]
        said = capsys.readouterr()
        return "\n".join([*lines, said.out, said.err]).encode()

    return found


@pytest.mark.parametrize("method", [FEDAVG, FEDCORR])
def test_no_sample_label_or_name_leaves_its_site(
    tmp_path: Path, method: Sequence[str], frames: list[bytes], logged: Callable[[], bytes]
) -> None:
    sites = Marked(tmp_path)
    sites.serve_and_audit(method)
    every, said = b"\0".join(frames), logged()
    assert len(frames) > 10
    assert all(kind in every for kind in (b'"train"', b'"AuditQuestion"', b'"CountedIssues"'))  # what is sent is seen
    assert b"north is there: 12 samples" in said
    assert str(tmp_path).encode() not in every
    sites.assert_none_in(every, "messages")
    sites.assert_none_in(said, "log")
    sites.assert_only_sites_have_them()


def labels_of(sites: Marked) -> torch.Tensor:
    labels = sites.doors["north"].data.dataset.given
    assert labels is not None
    return torch.from_numpy(labels)


def in_an_answer(sites: Marked, patched: pytest.MonkeyPatch) -> None:
    """Labels in a part of an audit's answer that is as long as it should be."""
    plain = SiteAudit.answer

    def answer(self: SiteAudit, question: Any) -> Any:
        told = plain(self, question)
        if isinstance(told, CountedMarks):
            told = replace(told, below=torch.cat([labels_of(sites), told.below])[: len(told.below)])
        return told

    patched.setattr(SiteAudit, "answer", answer)


def in_a_file(sites: Marked, patched: pytest.MonkeyPatch) -> None:
    """Labels in the server's folder."""
    plain = Traffic.save

    def save(self: Traffic, path: Path) -> None:
        plain(self, path)
        np.save(path.with_name("clients.npy"), labels_of(sites).numpy())

    patched.setattr(Traffic, "save", save)


def in_a_line(sites: Marked, patched: pytest.MonkeyPatch) -> None:
    """A cell in a line that the server logs for developers alone."""
    plain = Link.finish

    def finish(self: Link, state: Any) -> None:
        link.log.debug("%s has judged %s", self.sites[1], f"{CANARY}-north-3.png")
        plain(self, state)

    patched.setattr(Link, "finish", finish)


def test_what_leaves_a_site_is_found(
    tmp_path: Path, frames: list[bytes], logged: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it was planted, and nowhere else."""
    sites, found = Marked(tmp_path), set[str]()
    for plant in (in_an_answer, in_a_file, in_a_line):
        plant(sites, monkeypatch)
    sites.serve_and_audit(FEDAVG)
    files = [*contents(sites.federation.folder), *contents(sites.output)]
    for name, content in [("messages", b"\0".join(frames)), ("log", logged()), *files]:
        try:
            sites.assert_none_in(content, name)
        except AssertionError:
            found.add(Path(name).name)
    assert found == {"messages", "log", "clients.npy"}


@pytest.mark.parametrize("kind", [ValueError, UserError, OSError])
def test_the_text_of_an_error_stays_at_the_site(
    tmp_path: Path,
    frames: list[bytes],
    logged: Callable[[], bytes],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Exception],
) -> None:
    """It may quote a cell of a table, or a path."""

    def fails(*args: object) -> None:
        raise kind(f"labels.csv, row 3: {CANARY}")

    sites = Marked(tmp_path)
    monkeypatch.setattr(runtime, "entered", fails)
    with pytest.raises(UserError, match=f"failed: {kind.__name__}\n"):
        sites.serve(sites.output, (*FEDAVG, "fraction=1.0"))
    assert len(frames) > 5
    assert CANARY in caplog.text  # the site's own log has it
    sites.assert_none_in(b"\0".join(frames), "messages")
    sites.assert_none_in(logged(), "log")
    for name, content in [*contents(sites.federation.folder), *contents(sites.output)]:
        sites.assert_none_in(content, name)
