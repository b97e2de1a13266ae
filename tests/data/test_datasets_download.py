"""Fetching: from a folder, over a loopback server, and from hosts that are silent, slow, broken or busy."""

import gzip
import hashlib
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flnl.core.errors import UserError
from flnl.data.datasets.download import Access, Published, check, fetch, provide, unpack

CONTENT = b"pixels" * 1000


@contextmanager
def http_server(respond) -> Iterator[tuple[str, list[str]]]:
    """A loopback HTTP server: its URL and the paths that were asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            respond(self)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def whole(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(CONTENT)))
    handler.end_headers()
    handler.wfile.write(CONTENT)


def one_file(folder: Path, base: str, content: bytes = CONTENT) -> tuple[dict[Path, str | None], Published]:
    md5 = hashlib.md5(content).hexdigest()
    return {folder / "a.bin": md5}, Published("Set", folder, [base], {"a.bin": md5})


def access(download: bool = True, mirror: str | None = None, verify: bool = True, timeout: float = 5.0) -> Access:
    return Access(download, mirror, verify, timeout)


def test_a_file_is_fetched_once_and_left_whole(tmp_path: Path):
    with http_server(whole) as (url, asked):
        wanted, published = one_file(tmp_path / "new" / "folder", url)
        for _ in range(2):
            provide(wanted, published, access())
    assert asked == ["/a.bin"]
    assert (tmp_path / "new/folder/a.bin").read_bytes() == CONTENT


def test_two_runs_at_once_fetch_one_file(tmp_path: Path):
    """Jobs of a sweep start together: none may read what another is still writing, or fetch it again."""

    def slow(handler: BaseHTTPRequestHandler) -> None:
        time.sleep(0.2)
        whole(handler)

    with http_server(slow) as (url, asked):
        wanted, published = one_file(tmp_path, url)
        failures: list[Exception] = []

        def job() -> None:
            try:
                provide(wanted, published, access())
            except Exception as error:
                failures.append(error)

        jobs = [threading.Thread(target=job) for _ in range(4)]
        for thread in jobs:
            thread.start()
        for thread in jobs:
            thread.join()
    assert not failures
    assert asked == ["/a.bin"]


@pytest.mark.parametrize("as_url", [True, False])
def test_a_mirror_is_a_url_or_a_folder_and_the_only_source(tmp_path: Path, as_url: bool):
    mirror = tmp_path / "my mirror"
    mirror.mkdir()
    (mirror / "a.bin").write_bytes(CONTENT)
    wanted, published = one_file(tmp_path / "data", "http://127.0.0.1:1/never")
    provide(wanted, published, access(mirror=mirror.as_uri() + "/" if as_url else str(mirror)))
    assert (tmp_path / "data/a.bin").read_bytes() == CONTENT


def test_the_second_host_is_tried_when_the_first_fails(tmp_path: Path):
    with http_server(whole) as (url, _), http_server(lambda handler: handler.send_error(503)) as (broken, asked):
        fetch(tmp_path / "a.bin", [f"{broken}/a.bin", f"{url}/a.bin"], 5.0)
        assert asked == ["/a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def failing(tmp_path: Path, url: str, timeout: float = 5.0) -> str:
    """The error of a fetch that has to fail, after checking that nothing was left behind."""
    with pytest.raises(UserError) as caught:
        fetch(tmp_path / "a.bin", [f"{url}/a.bin"], timeout)
    assert list(tmp_path.iterdir()) == []
    message = str(caught.value)
    assert "\n" not in message
    assert all(part in message for part in ("dataset.download", "dataset.mirror", "a.bin", str(tmp_path)))
    return message


def test_a_host_that_never_answers_is_given_up(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        begin = time.monotonic()
        assert "timed out" in failing(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3)
    assert time.monotonic() - begin < 5


def test_a_host_that_trickles_is_given_up(tmp_path: Path):
    """A byte now and then keeps every time-out on waiting from expiring."""
    stop = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not stop.wait(0.05):
            try:
                handler.wfile.write(b".")
            except OSError:
                return

    with http_server(trickle) as (url, _):
        try:
            assert "bytes in" in failing(tmp_path, url, timeout=0.3)
        finally:
            stop.set()


def test_a_transfer_that_breaks_off_leaves_no_file(tmp_path: Path):
    """A half file that looks whole would be found by the next run."""

    def half(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        handler.wfile.write(CONTENT[:100])

    with http_server(half) as (url, _):
        assert f"broke off after 100 of {len(CONTENT)} bytes" in failing(tmp_path, url)


def test_no_such_file_and_no_such_host(tmp_path: Path):
    with http_server(lambda handler: handler.send_error(404)) as (url, _):
        assert "404" in failing(tmp_path, url)
    failing(tmp_path, "http://127.0.0.1:1")
    failing(tmp_path, tmp_path.as_uri())
    failing(tmp_path, "nonsense://x")


def test_without_downloading_nothing_is_asked_for(tmp_path: Path):
    with http_server(whole) as (url, asked):
        wanted, published = one_file(tmp_path / "data", url)
        with pytest.raises(UserError) as caught:
            provide(wanted, published, access(download=False))
    assert asked == []
    assert not (tmp_path / "data").exists()
    message = str(caught.value)
    assert "\n" not in message
    assert f"{tmp_path / 'data' / 'a.bin'} does not exist" in message
    assert "dataset.download=true" in message
    assert f"curl -fL --create-dirs --output-dir {tmp_path / 'data'} -O {url}/a.bin" in message


def test_another_checksum_is_refused_unless_verify_is_off(tmp_path: Path):
    wanted, published = one_file(tmp_path, "http://127.0.0.1:1")
    (tmp_path / "a.bin").write_bytes(CONTENT + b"!")
    with pytest.raises(UserError, match=r"dataset.root: .*a\.bin is not the published file.*dataset\.verify=false"):
        provide(wanted, published, access())
    provide(wanted, published, access(verify=False))


def test_the_checksum_is_the_files_md5(tmp_path: Path):
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)
    check(path, hashlib.md5(CONTENT).hexdigest())
    check(path, None)
    with pytest.raises(UserError, match="MD5"):
        check(path, "0" * 32)


def test_a_packed_file_put_there_by_hand_is_unpacked_without_downloading(tmp_path: Path):
    packed = gzip.compress(CONTENT)
    (tmp_path / "a.gz").write_bytes(packed)
    published = Published("Set", tmp_path, ["http://127.0.0.1:1"], {"a.gz": hashlib.md5(packed).hexdigest()})
    provide({tmp_path / "a": None}, published, access(download=False))
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_only_what_is_missing_is_fetched(tmp_path: Path):
    packed = gzip.compress(CONTENT)

    def serve(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(packed)

    (tmp_path / "a").write_bytes(b"there already")
    with http_server(serve) as (url, asked):
        published = Published("Set", tmp_path, [url], dict.fromkeys(("a.gz", "b.gz", "c.gz"), "0"))
        provide({tmp_path / name: None for name in "ab"}, published, access(verify=False))
    assert asked == ["/b.gz"]
    assert (tmp_path / "a").read_bytes() == b"there already"


def test_unpacking_replaces_nothing(tmp_path: Path):
    """A folder that lacks one file may hold others that somebody has made."""
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for name in ("x", "y"):
            (tmp_path / name).write_text("published")
            tar.add(tmp_path / name, f"set/{name}")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/x").write_text("my own")
    unpack(tmp_path / "a.tar.gz")
    assert [(tmp_path / "set" / name).read_text() for name in "xy"] == ["my own", "published"]


@pytest.mark.parametrize("name", ["a.gz", "a.tar.gz"])
@pytest.mark.parametrize("content", [b"no archive", gzip.compress(CONTENT, mtime=0)[:40]], ids=["other", "cut"])
def test_a_broken_archive_is_named(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"dataset.root: .*{name} is broken"):
        unpack(tmp_path / name)
    assert not (tmp_path / "a").exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    wanted, published = one_file(tmp_path / "file" / "data", "http://127.0.0.1:1")
    with pytest.raises(UserError, match=r"dataset\.root: Set cannot be put into"):
        provide(wanted, published, access())
