"""What is in files decides, each file is read once, and what cannot be remembered costs time alone."""

import hashlib
import os
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rich.console

from flnl.config import compose, identity
from flnl.config.check import check_config
from flnl.core.errors import UserError
from flnl.data import contents
from flnl.data.contents import digests
from flnl.data.datasets.image_folder import ImageFolder
from flnl.data.federation.build import from_config
from tests.data import test_datasets_clothing1m as clothing1m
from tests.data import test_datasets_own as own

PAST = time.time_ns() - 10**12
"""Long enough ago for a file to be settled."""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, list[str]]:
    """1,234 files of ten bytes, last changed long ago."""
    root, names = tmp_path / "files", [f"{i % 7}/{i}.bin" for i in range(1234)]
    for i, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(f"{i:010}".encode())
        os.utime(root / name, ns=(PAST, PAST))
    return root, names


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were read, one entry a time."""
    read: list[str] = []
    really = contents._sha256

    def counted(file: str) -> bytes:
        read.append(file)
        return really(file)

    monkeypatch.setattr(contents, "_sha256", counted)
    return read


def expected(root: Path, names: Sequence[str]) -> list[bytes]:
    return [hashlib.sha256((root / name).read_bytes()).digest() for name in names]


def rows(found: contents.Digests) -> list[bytes]:
    return [row.tobytes() for row in found]


def test_each_file_is_read_once(files: tuple[Path, list[str]], opened: list[str], tmp_path: Path) -> None:
    root, names = files
    cache = tmp_path / "a" / "cache"
    assert rows(digests(root, names, cache)) == expected(root, names)
    assert sorted(opened) == sorted(str(root / name) for name in names)
    opened.clear()
    some = names[::-3]
    assert rows(digests(root, some, cache)) == expected(root, some)
    assert opened == []
    assert digests(root, [], cache).shape == (0, 32)


def test_a_file_is_read_again_where_its_size_or_its_time_is_another(
    files: tuple[Path, list[str]], opened: list[str], tmp_path: Path
) -> None:
    root, names = files
    digests(root, names, tmp_path)
    (root / names[3]).write_bytes(b"0123456789")
    os.utime(root / names[3], ns=(PAST + 1, PAST + 1))
    (root / names[5]).write_bytes(b"longer than it was")
    os.utime(root / names[5], ns=(PAST, PAST))
    opened.clear()
    assert rows(digests(root, names, tmp_path)) == expected(root, names)
    assert sorted(opened) == sorted(str(root / names[i]) for i in (3, 5))


def test_what_was_changed_just_now_is_not_remembered(
    files: tuple[Path, list[str]], opened: list[str], tmp_path: Path
) -> None:
    """Its next change might have the same time."""
    root, names = files
    now = time.time_ns()
    os.utime(root / names[0], ns=(now, now))
    digests(root, names, tmp_path)
    (root / names[0]).write_bytes(b"9876543210")
    os.utime(root / names[0], ns=(now, now))
    opened.clear()
    assert rows(digests(root, names, tmp_path)) == expected(root, names)
    assert opened == [str(root / names[0])]


@pytest.mark.parametrize("fault", ["no database", "a folder", "no table", "no cache"])
def test_without_a_memory_files_are_read_and_it_is_said_once(
    fault: str, files: tuple[Path, list[str]], opened: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, names = files
    cache: Path | None = tmp_path / "cache"
    assert cache is not None
    cache.mkdir()
    if fault == "no database":
        (cache / contents.FILE).write_bytes(b"not a database at all" * 100)
    elif fault == "a folder":
        (cache / contents.FILE).mkdir()
    elif fault == "no table":
        with closing(sqlite3.connect(cache / contents.FILE)) as database:
            database.execute("CREATE TABLE files (something)")
    else:
        cache = None
    for _ in range(2):
        caplog.clear()
        opened.clear()
        assert rows(digests(root, names, cache)) == expected(root, names)
        assert len(opened) == len(names)
        assert [r.levelname for r in caplog.records] == ([] if cache is None else ["WARNING"])


def test_several_processes_may_remember_at_once(files: tuple[Path, list[str]], tmp_path: Path) -> None:
    root, names = files
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: rows(digests(root, names, tmp_path / "cache")), range(4)))
    assert all(one == expected(root, names) for one in found)


def test_a_file_that_cannot_be_read_is_named(files: tuple[Path, list[str]], tmp_path: Path) -> None:
    root, names = files
    (root / names[7]).unlink()
    with pytest.raises(UserError, match=r"^dataset\.root: .*/7\.bin cannot be read .*dataset\.fingerprint=names$"):
        digests(root, names, tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert not digests(tmp_path, ["pipe"], None).any()


def test_progress_is_shown_where_there_is_much_to_read(
    files: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, names = files
    digests(root, names, None)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(contents, "MANY", 1000)
    monkeypatch.setattr("flnl.console.counting.QUIET_SECONDS", 0.0)
    digests(root, names, tmp_path)
    first, *later = capsys.readouterr().err.splitlines()
    assert first.startswith(f"reading 1,234 files below {root} (12.3 kB) once")
    assert "dataset.fingerprint=names" in first
    assert later[-1].startswith("read 1,234 of 1,234 files")
    digests(root, names, tmp_path)
    assert capsys.readouterr().err == "", "nothing is left to read"
    monkeypatch.setattr(rich.console.Console, "is_terminal", True)
    digests(root, names, None)
    assert "reading files once" in capsys.readouterr().err


def test_progress_shows_a_folder_s_name_and_obeys_none_of_it(
    files: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, names = files
    nasty = root.rename(root.with_name("\x1b[2Jfiles"))
    monkeypatch.setattr(contents, "MANY", 10)
    monkeypatch.setattr("flnl.console.counting.QUIET_SECONDS", 0.0)
    digests(nasty, names[:20], None)
    err = capsys.readouterr().err
    assert err.count(r"\x1b[2Jfiles") == 21
    assert "\x1b" not in err


# ----------------------------------------------------------------------------------------------------- the data sets


def other_pixels(path: Path) -> None:
    """Another image in a file of the same size."""
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


def test_other_pixels_of_the_same_size_are_another_data_set(tmp_path: Path) -> None:
    for name in own.CLASSES:
        for split in ("train", "test"):
            for i in range(2):
                own.save(tmp_path / split / name / f"{i}.png", i)
    parts = [
        own.folder_part(tmp_path, fingerprint=kind, in_memory=memory) for kind in KINDS for memory in (True, False)
    ]
    before = [part() for part in parts]
    assert [len({one.fingerprint for one in two}) for two in (before[:2], before[2:])] == [1, 1]
    assert len({one.names_fingerprint for one in before}) == 1
    assert before[0].fingerprint != before[0].names_fingerprint
    assert before[2].fingerprint == before[2].names_fingerprint
    for path in ("train/bee/1.png", "test/bee/1.png"):
        other_pixels(tmp_path / path)
        after = [part() for part in parts]
        assert [one.fingerprint == two.fingerprint for one, two in zip(before, after, strict=True)] == [False] * 2 + [
            True
        ] * 2
        before = after


KINDS = ("contents", "names")


def test_clothing1m_is_known_by_what_is_in_its_files(tmp_path: Path) -> None:
    root = clothing1m.write(tmp_path)
    parts = [clothing1m.part(root, fingerprint=kind) for kind in KINDS]
    before = [part() for part in parts]
    other_pixels(root / "images" / clothing1m.TRAIN[5])
    after = [part() for part in parts]
    assert before[0].fingerprint != after[0].fingerprint
    assert before[1].fingerprint == after[1].fingerprint == after[0].names_fingerprint


def test_a_cut_set_reads_no_more_than_it_has(tmp_path: Path, opened: list[str]) -> None:
    for name in own.CLASSES:
        for i in range(4):
            own.save(tmp_path / "train" / name / f"{i}.png", i)
        own.save(tmp_path / "test" / name / "0.png", 9)
    part: ImageFolder = own.folder_part(tmp_path, train_size=3)
    part()
    assert len(opened) == 3 + 3
    opened.clear()
    replace(part, fingerprint="names")()
    assert opened == []


@pytest.mark.parametrize("dataset", ["image_folder", "clothing1m"])
def test_how_files_are_known_is_not_in_the_key(dataset: str) -> None:
    def plain(*words: str) -> dict[str, Any]:
        return compose.resolved(compose.load([f"dataset={dataset}", *words]))

    before = plain()
    assert before["dataset"].pop("fingerprint") == "contents"
    assert before["dataset"].pop("cache") == before["cache"]
    for words in ((), ("dataset.fingerprint=names",), ("cache=/elsewhere",)):
        assert identity.run_key(plain(*words)) == identity.run_key(before)


def test_the_configuration_says_how_and_where(tmp_path: Path, opened: list[str]) -> None:
    for name in own.CLASSES:
        for split in ("train", "test"):
            own.save(tmp_path / split / name / "0.png", 1)
    words = ["dataset=image_folder", f"dataset.root={tmp_path}", "partition.num_clients=2", "noise=none"]
    cfg = compose.load([*words, f"cache={tmp_path / 'cache'}"])
    check_config(cfg)
    found = from_config(cfg)
    assert (len(opened), (tmp_path / "cache" / contents.FILE).exists()) == (6, True)
    assert (found.by_names, found.names_fingerprint is None) == (False, False)
    named = from_config(compose.load([*words, "dataset.fingerprint=names"]))
    assert named.by_names
    assert named.fingerprint == found.names_fingerprint
    with pytest.raises(UserError, match=r"dataset\.fingerprint=pixels"):
        check_config(compose.load([*words, "dataset.fingerprint=pixels"]))
    assert not from_config(compose.load(["dataset=digits", "dataset.train_size=100"])).by_names
