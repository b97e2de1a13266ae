"""Published files: found, fetched, checked against their checksum and unpacked.

Nothing waits in silence: a host that sends nothing is given up after ``timeout`` seconds, one that is slow is
reported, and every failure is one line that says what can be done by hand.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import logging
import shlex
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from flnl.core.credentials import HIDDEN, of_host, redacted
from flnl.core.errors import UserError

if TYPE_CHECKING:
    from urllib.request import Request

log = logging.getLogger(__name__)

SLOWEST = 1024
"""Bytes a second below which a transfer counts as stuck; the slowest public host serves fifty times as fast."""


@dataclass(frozen=True)
class Access:
    """How files may be come by: the keys ``dataset.download``, ``mirror``, ``verify`` and ``timeout``."""

    download: bool
    mirror: str | None  # a URL or a folder that holds the published files
    verify: bool
    timeout: float  # seconds


@dataclass(frozen=True)
class Published:
    """Files as they are published: a name and MD5 each, under one of several base URLs, to be put into ``folder``."""

    title: str
    folder: Path
    bases: Sequence[str]
    md5: Mapping[str, str]  # by file name


def expand(path: str) -> Path:
    """The absolute path of a configured one, with ``~`` for the home directory."""
    return Path(path).expanduser().absolute()


def provide(wanted: Mapping[Path, str | None], published: Published, access: Access) -> None:
    """See to it that the ``wanted`` files are there (path and MD5, None where none is known), fetching what is missing.

    An archive that already lies in its folder is unpacked even where downloading is off.

    Raises:
        UserError: if they are not there and cannot be fetched, or their checksum is another.
    """
    if not all(path.is_file() for path in wanted):
        _complete(wanted, published, access)
    if access.verify:
        for path, md5 in wanted.items():
            check(path, md5)


def check(path: Path, md5: str | None) -> None:
    """Compare a file with its published MD5.

    Raises:
        UserError: if they differ.
    """
    if md5 is None:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        raise UserError(
            f"dataset.root: {path} is not the published file (its MD5 is {found}, not {md5}): delete it and fetch it"
            " again, or set dataset.verify=false to use it as it is"
        )


def _complete(wanted: Mapping[Path, str | None], published: Published, access: Access) -> None:
    """Fetch and unpack what is missing, one process at a time."""
    folder = published.folder
    archives = [folder / name for name in published.md5]
    if access.download or any(archive.is_file() for archive in archives):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _alone(folder / f".{published.title.lower()}.lock", published.title):
                for archive in archives:
                    if all(path.is_file() for path in wanted):
                        return
                    if archive.suffix == ".gz" and archive.with_suffix("").is_file():
                        continue
                    if access.download and not archive.is_file():
                        fetch(archive, _sources(archive.name, published, access), access.timeout)
                    if archive.is_file():
                        if access.verify:
                            check(archive, published.md5[archive.name])
                        unpack(archive)
        except OSError as error:
            raise UserError(f"dataset.root: {published.title} cannot be put into {folder}: {error}") from error
    absent = [path for path in wanted if not path.is_file()]
    if absent:
        remedy = "delete what was fetched and run" if access.download else "set dataset.download=true, or run"
        raise UserError(
            f"dataset.root: {published.title} is not there ({absent[0]} is missing): {remedy}: {_command(published)}"
        )


@contextmanager
def _alone(path: Path, title: str) -> Iterator[None]:
    """Hold a lock file: another run of a sweep may be fetching the same files."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=1)
    except Timeout:
        log.info("waiting for another run that is fetching %s (it holds %s)", title, path)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _sources(name: str, published: Published, access: Access) -> list[str]:
    """The URLs of one file, in the order they are tried."""
    if access.mirror is None:
        bases = list(published.bases)
    elif "://" in access.mirror:
        bases = [access.mirror]
    else:
        bases = [expand(access.mirror).as_uri()]
    return [f"{base.rstrip('/')}/{name}" for base in bases]


def _command(published: Published) -> str:
    """A shell command that fetches the published files to where ``provide`` finds and unpacks them."""
    names = list(published.md5)
    several = names[0] if len(names) == 1 else "{" + ",".join(names) + "}"
    url = shlex.quote(f"{published.bases[0].rstrip('/')}/{several}")
    return f"curl -fL --create-dirs --output-dir {shlex.quote(str(published.folder))} -O {url}"


def fetch(target: Path, urls: Sequence[str], timeout: float) -> None:
    """Download the first of ``urls`` that answers; ``target`` appears only once it is whole.

    Raises:
        UserError: if none could be read to its end.
    """
    failures = []
    for url in urls:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as part:
            temporary = Path(part.name)
        try:
            _transfer(url, temporary, timeout)
            temporary.chmod(0o644)
            temporary.replace(target)
            return
        except (
            OSError,
            ValueError,
            HTTPException,
        ) as error:  # urllib's errors are OSErrors; a malformed URL is another
            failures.append(redacted(f"{url}: {error}"))
        finally:
            temporary.unlink(missing_ok=True)
    raise UserError(
        f"dataset.download: {target.name} could not be fetched ({'; '.join(failures)}): set dataset.mirror to a URL or"
        f" folder that has it, or put it into {target.parent} yourself"
    )


def _transfer(url: str, target: Path, timeout: float) -> None:
    """Copy a URL's content to ``target``, reporting progress every ten seconds.

    Raises:
        OSError: if the host does not answer, is stuck or breaks off.
        UserError: if the URL's name and password were hidden, and nobody knows them.
    """
    from urllib.request import urlopen

    log.info("fetching %s", redacted(url))
    with (
        urlopen(_request(url), timeout=timeout) as response,
        target.open("wb") as file,
    ):
        total = int(response.headers.get("Content-Length") or 0)
        received = window = 0
        reported = opened = time.monotonic()
        read = getattr(response, "read1", response.read)  # read1 hands over what is there instead of waiting for more
        while chunk := read(1 << 18):
            file.write(chunk)
            received += len(chunk)
            window += len(chunk)
            now = time.monotonic()
            if now - opened > timeout:
                if window < SLOWEST * (now - opened):
                    raise TimeoutError(f"only {window} bytes in {now - opened:.0f} s")
                opened, window = now, 0
            if now - reported > 10:
                log.info("%s: %.1f of %.1f MB", target.name, received / 1e6, total / 1e6)
                reported = now
    if received < total:
        raise ConnectionError(f"broke off after {received} of {total} bytes")


def _request(url: str) -> Request:
    """What asks for ``url``, with its name and password in a header that goes to its host and to no other.

    Raises:
        UserError: if they were hidden, and nobody knows them.
    """
    from urllib.request import Request

    parts = urlsplit(url)
    credentials, at, host = parts.netloc.rpartition("@")
    if credentials == HIDDEN:
        known = of_host(host)
        if known is None:
            raise UserError(
                f"dataset.mirror: {redacted(url)} has to be fetched, and the host's name and password are not kept with"
                f" a run: write them in the place of {HIDDEN} again"
            )
        credentials = known
    if not at:
        request = Request(url)
    elif parts.scheme in ("http", "https"):
        request = Request(urlunsplit(parts._replace(netloc=host)))
        user = base64.b64encode(unquote(credentials).encode()).decode("ascii")
        request.add_unredirected_header("Authorization", f"Basic {user}")
    else:  # ftp
        request = Request(urlunsplit(parts._replace(netloc=f"{credentials}@{host}")))
    request.add_header("User-Agent", "flnl")
    return request


def unpack(archive: Path) -> None:
    """Unpack a ``.tar.gz`` into its folder, replacing nothing, a ``.gz`` beside it; leave any other file as it is.

    Raises:
        UserError: if it is broken.
    """
    try:
        if archive.name.endswith(".tar.gz"):
            with tempfile.TemporaryDirectory(dir=archive.parent, prefix=f".{archive.name}.") as temporary:
                with tarfile.open(archive) as tar:
                    tar.extractall(temporary, filter="data")
                for path in sorted(path for path in Path(temporary).rglob("*") if path.is_file()):
                    target = archive.parent / path.relative_to(temporary)
                    if not target.exists():  # what lies there may be somebody's own
                        target.parent.mkdir(parents=True, exist_ok=True)
                        path.replace(target)
        elif archive.suffix == ".gz":
            target = archive.with_suffix("")
            temporary_file = archive.with_name(f".{target.name}.part")
            with gzip.open(archive) as packed, temporary_file.open("wb") as file:
                shutil.copyfileobj(packed, file)
            temporary_file.replace(target)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise UserError(f"dataset.root: {archive} is broken ({reason}): delete it and fetch it again") from error
