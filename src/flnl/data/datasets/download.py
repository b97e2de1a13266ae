"""Published files: find them on disk or download them, check their checksums, and unpack them.

A host that sends nothing for ``timeout`` seconds is abandoned, progress of slow downloads is logged, and every failure
is one line that says what to do by hand.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from flnl.console.credentials import HIDDEN, of_host, redacted, separated
from flnl.core.errors import UserError

if TYPE_CHECKING:
    from urllib.request import Request

log = logging.getLogger(__name__)

SLOWEST = 1024
"""Bytes per second below which a transfer counts as stuck; the slowest public host is fifty times as fast."""


@dataclass(frozen=True)
class Access:
    """How files are obtained: the keys ``dataset.download``, ``mirror``, ``verify`` and ``timeout``."""

    download: bool
    mirror: str | None  # a URL or a folder with the published files
    verify: bool
    timeout: float  # seconds


@dataclass(frozen=True)
class Package:
    """A package of Debian that has the files: its name, and the ``folder`` that it installs them into."""

    name: str
    folder: Path


@dataclass(frozen=True)
class Published:
    """Published files: their names and MD5 checksums, alternative base URLs, and the ``folder`` to put them into."""

    title: str
    folder: Path
    bases: Sequence[str]
    md5: Mapping[str, str]  # by file name
    package: Package | None = None


def expand(path: str) -> Path:
    """A configured path made absolute, with ``~`` for the home directory."""
    return Path(path).expanduser().absolute()


def provide(
    wanted: Mapping[Path, str | None],
    published: Published,
    access: Access,
    same: Callable[[Path], bool] = lambda _: False,
) -> None:
    """Make sure that files exist, downloading and unpacking what is missing.

    An archive that is already in its folder, or that a package of the system has installed, is unpacked even if
    downloading is off. Where the checksum of what is in an archive is known, its own does not matter: other programs
    pack the same files otherwise.

    Args:
        wanted: the files, with their MD5 checksums (None if unknown).
        published: where to download them from.
        access: whether and how to download.
        same: whether a file with another checksum has the published contents nevertheless, in another form.

    Raises:
        UserError: if a file is missing and cannot be downloaded, or its checksum is wrong.
    """
    if not all(path.is_file() for path in wanted):
        _complete(wanted, published, access)
    if access.verify:
        for path, md5 in wanted.items():
            check(path, md5, same=same)


def check(
    path: Path, md5: str | None, named: Path | None = None, same: Callable[[Path], bool] = lambda _: False
) -> None:
    """Compare a file with its published MD5; messages call it ``named``.

    With another one it is accepted where it has the ``same`` contents.

    Raises:
        UserError: if they differ.
    """
    if md5 is None:
        return
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if actual != md5 and not same(path):
        which = "MD5" if named is None else "MD5 unpacked"
        raise UserError(
            f"dataset.root: {named or path} is not the published file (its {which} is {actual}, not {md5}): delete it"
            " and fetch it again, or set dataset.verify=false to use it as it is"
        )


def _complete(wanted: Mapping[Path, str | None], published: Published, access: Access) -> None:
    """Unpack what is there, and download and unpack what is missing, one process at a time."""
    folder = published.folder
    archives = [folder / name for name in published.md5]
    installed = (
        {} if published.package is None or access.mirror is not None else _installed(published, published.package)
    )
    if access.download or installed or any(archive.is_file() for archive in archives):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _alone(folder / f".{published.title.lower()}.lock", published.title):
                for archive in archives:
                    if all(path.is_file() for path in wanted):
                        return
                    if archive.suffix == ".gz" and archive.with_suffix("").is_file():
                        continue
                    there = archive.is_file()
                    if not there and archive.name in installed:
                        log.info("taking %s", installed[archive.name])
                        _unpack(installed[archive.name], wanted, published, access)
                        continue
                    if access.download and not there:
                        fetch(archive, _sources(archive.name, published, access), access.timeout)
                    if archive.is_file():
                        try:
                            _unpack(archive, wanted, published, access)
                        except UserError:
                            if not there:
                                archive.unlink()
                            raise
        except OSError as error:
            raise UserError(f"dataset.root: {published.title} cannot be put into {folder}: {error}") from error
    absent = [path for path in wanted if not path.is_file()]
    if absent:
        remedy = "delete the downloaded files and run" if access.download else "set dataset.download=true, or run"
        if published.package is not None:
            remedy = f"{remedy}: apt-get install {published.package.name}, or"
        raise UserError(
            f"dataset.root: {published.title} is missing ({absent[0]} does not exist): {remedy}: {_command(published)}"
        )


def _installed(published: Published, package: Package) -> dict[str, Path]:
    """The published files that a package of the system has installed, by name."""
    return {name: package.folder / name for name in published.md5 if (package.folder / name).is_file()}


def _unpack(archive: Path, wanted: Mapping[Path, str | None], published: Published, access: Access) -> None:
    """Check an archive, or what is in it, and unpack it into the folder.

    Raises:
        UserError: if it is broken, or not the published one.
    """
    content = wanted.get(published.folder / archive.name.removesuffix(".gz")) if access.verify else None
    if access.verify and content is None:
        check(archive, published.md5[archive.name])
    unpack(archive, published.folder, content)


@contextmanager
def _alone(path: Path, title: str) -> Iterator[None]:
    """Hold a lock file: another run of a sweep may be downloading the same files."""
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
    """The URLs of a file, in the order in which they are tried."""
    if access.mirror is None:
        bases = list(published.bases)
    elif "://" in access.mirror:
        bases = [access.mirror]
    else:
        bases = [expand(access.mirror).as_uri()]
    return [f"{base.rstrip('/')}/{name}" for base in bases]


def _command(published: Published) -> str:
    """A shell command that downloads the published files into their folder, for the user to run."""
    names = list(published.md5)
    several = names[0] if len(names) == 1 else "{" + ",".join(names) + "}"
    url = shlex.quote(f"{published.bases[0].rstrip('/')}/{several}")
    return f"curl -fL --create-dirs --output-dir {shlex.quote(str(published.folder))} -O {url}"


def fetch(target: Path, urls: Sequence[str], timeout: float) -> None:
    """Download from the first of ``urls`` that works; ``target`` appears only when it is complete.

    Raises:
        UserError: if no URL could be downloaded completely.
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
    """Copy a URL's content to ``target``, logging progress every ten seconds.

    Raises:
        OSError: if the host does not answer, is too slow, or closes the connection early.
        UserError: if the URL's credentials were redacted and are not known any more.
    """
    from urllib.request import urlopen

    log.info("fetching %s", redacted(url))
    with urlopen(_request(url), timeout=timeout) as response, target.open("wb") as file:
        total = int(response.headers.get("Content-Length") or 0)
        received = window = 0
        reported = opened = time.monotonic()
        read = getattr(response, "read1", response.read)  # read1 returns available bytes without waiting for more
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
    """The request for ``url``, with its credentials in a header that is not forwarded to other hosts.

    Raises:
        UserError: if the credentials were redacted and are not known any more.
    """
    from urllib.request import Request

    plain, credentials = separated(url)
    parts = urlsplit(plain)
    if credentials == HIDDEN:
        credentials = of_host(parts.netloc)
        if credentials is None:
            raise UserError(
                f"dataset.mirror: {redacted(url)} has to be fetched, but runs do not record name and password: write"
                f" them again in place of {HIDDEN}"
            )
    if credentials is None:
        request = Request(plain)
    elif parts.scheme in ("http", "https"):
        request = Request(plain)
        user = base64.b64encode(unquote(credentials).encode()).decode("ascii")
        request.add_unredirected_header("Authorization", f"Basic {user}")
    else:  # ftp
        user = quote(unquote(credentials), safe=":")
        request = Request(urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc}")))
    request.add_header("User-Agent", "flnl")
    return request


def unpack(archive: Path, folder: Path | None = None, md5: str | None = None) -> None:
    """Unpack a ``.tar.gz`` without replacing files, or a ``.gz``; ignore other files.

    Args:
        archive: the archive.
        folder: where to unpack it; None: beside it.
        md5: the checksum of what is in a ``.gz``.

    Raises:
        UserError: if the archive is broken, or has another content.
    """
    folder = archive.parent if folder is None else folder
    try:
        if archive.name.endswith(".tar.gz"):
            with tempfile.TemporaryDirectory(dir=folder, prefix=f".{archive.name}.") as temporary:
                with tarfile.open(archive) as tar:
                    tar.extractall(temporary, filter="data")
                for path in sorted(path for path in Path(temporary).rglob("*") if path.is_file()):
                    target = folder / path.relative_to(temporary)
                    if not target.exists():  # keep existing files: the user may have changed them
                        target.parent.mkdir(parents=True, exist_ok=True)
                        path.replace(target)
        elif archive.suffix == ".gz":
            part = folder / f".{archive.stem}.part"
            try:
                with gzip.open(archive) as packed, part.open("wb") as file:
                    shutil.copyfileobj(packed, file)
                check(part, md5, archive)
                part.replace(folder / archive.stem)
            finally:
                part.unlink(missing_ok=True)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise UserError(f"dataset.root: {archive} is broken ({reason}): delete it and fetch it again") from error
