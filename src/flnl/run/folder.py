"""The run's folder: which one it is, who may write there, and which earlier run it goes on from.

A folder holds one run. Whoever writes there holds its lock, which the system releases however the process ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from flnl.config.identity import differences, recorded_key
from flnl.core.errors import UserError
from flnl.storage import order
from flnl.storage.records import RESULT, SWEEPS, read_record


@dataclass(frozen=True)
class RunFolder:
    """A locked folder and what an earlier process left in it."""

    path: Path
    lock: FileLock
    earlier: Mapping[str, Any] | None  # the record of the run that goes on here

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.earlier is not None and self.earlier.get("status") == "finished"


def open_folder(
    *, output: str | None, output_root: str, resume: bool | str, key: str, plain: Mapping[str, Any], job: Path | None
) -> tuple[RunFolder, str]:
    """The folder of this run, locked, and one line that says what was decided.

    ``job`` is the folder that a sweep has given to this job. ``resume`` is true for the newest unfinished run of this
    ``key`` under ``output_root`` (or of earlier sweeps), or the folder of a run.

    Raises:
        UserError: if the folder holds another run, is in use or cannot be written.
    """
    if isinstance(resume, str):
        if output is not None and _path(output).resolve() != _path(resume).resolve():
            raise UserError(f"resume={resume} goes on in its own folder; leave output={output} out")
        if read_record(_path(resume)) is None:
            raise UserError(f"resume={resume}: no run is recorded there ({RESULT} is missing or unreadable)")
        return _continue(_lock(_path(resume)), key, plain)
    if output is not None:
        return _named(_path(output), resume, key, plain)
    if resume:
        found = _earlier(key, [_path(output_root), SWEEPS])
        if found is not None:
            return _continue(_lock(found), key, plain)
    if job is not None and read_record(job) is not None:
        return _continue(_lock(job), key, plain)  # the sweep was started again, or its scheduler has
    fresh = job if job is not None else _unused(_path(output_root), key)
    line = f"no unfinished run of this configuration under {output_root}; starting afresh in {fresh}" if resume else ""
    return _lock(fresh), line


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _named(path: Path, resume: bool, key: str, plain: Mapping[str, Any]) -> tuple[RunFolder, str]:
    folder = _lock(path)
    if folder.earlier is None:
        left = [name for name in (RESULT, "checkpoints") if (path / name).exists()]
        if left:
            folder.lock.release()
            raise UserError(f"output={path} has {left[-1]} but no readable {RESULT}; choose another folder")
        return folder, f"output={path} holds no run yet; starting afresh" if resume else ""
    if not resume:
        folder.lock.release()
        raise UserError(
            f"output={path} already holds a run ({folder.earlier.get('status')}): add resume=true to go on with it, "
            "or choose another folder"
        )
    return _continue(folder, key, plain)


def _continue(folder: RunFolder, key: str, plain: Mapping[str, Any]) -> tuple[RunFolder, str]:
    assert folder.earlier is not None
    if recorded_key(folder.earlier) != key:
        changed = [
            f"{k} ({_short(theirs)} there, {_short(ours)} here)"
            for k, (ours, theirs) in differences(plain, folder.earlier["config"]).items()
        ]
        folder.lock.release()
        raise UserError(f"{folder.path} holds a run of another configuration; these keys differ: {', '.join(changed)}")
    verb = "is finished; nothing to do" if folder.finished else "goes on"
    return folder, f"the run in {folder.path} {verb}"


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _earlier(key: str, roots: list[Path]) -> Path | None:
    """The newest unfinished run of this key, or else the newest finished one."""
    found = [(path, record) for root in roots for path, record in _records(root) if recorded_key(record) == key]
    found.sort(key=lambda item: (item[1].get("status") != "finished", *order.age(item[1]), str(item[0])))
    return found[-1][0] if found else None


def next_in_order(output_root: str) -> int:
    """The number of a run that begins now, above those of all runs among which ``resume=true`` would look for it."""

    def highest(root: Path) -> int:
        return max((order.number(record) for _, record in _records(root)), default=0)

    return order.take([_path(output_root), SWEEPS], highest)


def _records(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for pattern in ("*", "*/*", "*/*/*"):
        for path in root.glob(f"{pattern}/{RESULT}"):
            record = read_record(path.parent)
            if record is not None:
                yield path.parent, record


def _unused(root: Path, key: str) -> Path:
    stem = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{key[:8]}"
    for number in range(1, 1000):
        path = root / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(
                f"output_root={root}: {error.strerror or error}; choose a folder you can write to"
            ) from None
        return path
    raise UserError(f"output_root={root} has no free name left for {stem}")


def _lock(path: Path) -> RunFolder:
    """Hold the folder, made where it is missing; what it records is read once it is held."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "no permission to write there")
        lock = FileLock(path / ".lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise UserError(f"output={path} is in use by another process; wait for it or choose another folder") from None
    except OSError as error:
        raise UserError(f"output={path}: {error.strerror or error}; choose a folder you can write to") from None
    return RunFolder(path, lock, read_record(path))
