"""Chooses and locks a run's folder, and finds the earlier run to resume.

A folder holds one run. The process that writes to it holds its lock, which the system releases when the process ends.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from flnl.config.identity import differences
from flnl.config.override_text import without
from flnl.console.shell import joined
from flnl.core.errors import UserError, shortened
from flnl.record import order
from flnl.record.run import LOCK, RESULT, SWEEPS, RunRecord
from flnl.storage.locks import free_after_error

log = logging.getLogger(__name__)

WRITTEN = (
    "config.yaml",
    RESULT,
    "metrics.jsonl",
    "metrics.csv",
    "corrections.jsonl",
    "checkpoints",
    "clients",
    "model.pt",
    "labels.csv",
    "probabilities.npz",
    "figures",
    "error.log",
    "tensorboard",
    "wandb",
    "crossed.csv",
    "sites.run",
)
"""What a run writes into its folder, and would replace there. What simulated sites keep (``sites``) goes by runs."""


TOLD = 8
"""How many keys a message names in which two runs differ."""


@dataclass(frozen=True)
class RunFolder:
    """A locked folder, and the record of an earlier process in it; as a context manager, it is released at the end."""

    path: Path
    lock: FileLock
    earlier: RunRecord | None  # the record of the run to resume; None for a new run

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def abandon(self) -> None:
        """Release a folder whose run could not begin; a new one is removed, unless a person has files in it."""
        try:
            if self.earlier is None and not (self.path / RESULT).exists():
                (self.path / "config.yaml").unlink(missing_ok=True)
                if {one.name for one in self.path.iterdir()} <= {LOCK}:
                    (self.path / LOCK).unlink(missing_ok=True)
                    self.path.rmdir()
        except OSError:
            log.debug("%s could not be removed", self.path)
        finally:
            self.lock.release()

    @property
    def finished(self) -> bool:
        """Whether the run in the folder has finished."""
        return self.earlier is not None and self.earlier.finished


def open_folder(
    *,
    output: str | None,
    output_root: str,
    resume: bool | str,
    key: str,
    plain: Mapping[str, Any],
    job: Path | None,
    same: Callable[[RunRecord], bool],
) -> tuple[RunFolder, str]:
    """Choose and lock the folder of this run; return it with a line that explains the choice ("" if none is needed).

    Args:
        output: folder given by the user; None to choose one.
        output_root: folder in which to create new run folders.
        resume: True to resume the newest unfinished run with this ``key`` and the same data under ``output_root`` or of
            earlier sweeps; or the folder of the run to resume.
        key: the run's key.
        plain: the resolved configuration.
        job: folder that a sweep has assigned to this job; None outside sweeps.
        same: whether the recorded run, which has the key, is of the data that are here.

    Raises:
        UserError: if the folder holds another run, is in use or cannot be written.
    """
    path, goes_on = chosen(output=output, output_root=output_root, resume=resume, key=key, job=job, same=same)
    folder = _lock(_unused(_path(output_root), key) if path is None else path)
    earlier = folder.earlier
    with free_after_error(folder.lock):
        if reason := refusal(folder.path, earlier, key=key, plain=plain, named=output is not None, goes_on=goes_on):
            raise UserError(reason)
    if earlier is not None:
        return folder, f"the run in {folder.path} {'is finished; nothing to do' if folder.finished else 'goes on'}"
    if output is not None:
        return folder, f"output={folder.path} holds no run yet; starting afresh" if resume else ""
    none = f"no unfinished run of this configuration under {output_root}; starting afresh in {folder.path}"
    return folder, none if resume else ""


def chosen(
    *,
    output: str | None,
    output_root: str,
    resume: bool | str,
    key: str,
    job: Path | None,
    same: Callable[[RunRecord], bool],
) -> tuple[Path | None, bool]:
    """The folder of a run, None for a new one, and whether a run that is there goes on. Nothing is written.

    The arguments are those of ``open_folder``.

    Raises:
        UserError: if there is no run to resume in the folder that ``resume`` names.
    """
    if isinstance(resume, str):
        if RunRecord.read(_path(resume)) is None:
            raise UserError(f"resume={resume}: no run is recorded there ({RESULT} is missing or unreadable)")
        if output is not None and _path(output).resolve() != _path(resume).resolve():
            raise UserError(f"resume={resume} continues in that folder; remove output={output}")
        return _path(resume), True
    if output is not None:
        return _path(output), resume
    if resume and (earlier := _earlier(key, [_path(output_root), SWEEPS], same)) is not None:
        return earlier, True
    return job, True  # of a sweep that the user or the scheduler has restarted


def refusal(
    path: Path, earlier: RunRecord | None, *, key: str, plain: Mapping[str, Any], named: bool, goes_on: bool
) -> str:
    """Why a run may not have a folder; "" if it may.

    Args:
        path: the folder.
        earlier: the record of the run in it.
        key: the key of the run that would have it.
        plain: the resolved configuration of that run.
        named: whether the user has named the folder.
        goes_on: whether the run in it would be continued.
    """
    if earlier is None:
        held = [name for name in WRITTEN if os.path.lexists(path / name)] if named else []
        if not held:
            return ""
        names = ", ".join([*held[:3], *(["…"] if len(held) > 3 else [])])
        return (
            f"output={path} has {names}, which the run would replace, but no readable {RESULT} of a run: choose "
            "another folder"
        )
    if not goes_on:
        return (
            f"output={path} already holds a run ({earlier.status}): add resume=true to continue it, or choose "
            "another folder"
        )
    if earlier.run_key == key:
        return ""
    return f"{path} holds a run of another configuration; {_changed(plain, earlier)}"


def _changed(plain: Mapping[str, Any], earlier: RunRecord) -> str:
    """Which keys differ, the method first and in place of its own keys; and what the earlier run was begun with."""
    here, there = plain["method"]["name"], earlier.name_of("method")
    found = differences(plain, earlier.config)
    if here != there:
        found = {"method": (here, there)} | {k: v for k, v in found.items() if not k.startswith("method.")}
    told = [f"{k} ({_short(theirs)} there, {_short(ours)} here)" for k, (ours, theirs) in [*found.items()][:TOLD]]
    more = [f"{len(found) - TOLD} more"] if len(found) > TOLD else []
    own = joined(without(map(str, earlier.overrides), "output", "resume"))
    begun = f". It was begun with {shortened(own)}" if own else ""
    return f"these keys differ: {', '.join([*told, *more])}{begun}"


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _short(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _earlier(key: str, roots: list[Path], same: Callable[[RunRecord], bool]) -> Path | None:
    """The newest unfinished run with this key and data, or else the newest finished one; None if there is none."""
    runs = [record for root in roots for record in _records(root) if record.run_key == key]
    runs.sort(key=lambda record: (not record.finished, *record.age, str(record.folder)))
    return next((record.folder for record in reversed(runs) if same(record)), None)


def next_in_order(output_root: str) -> int:
    """The order number for a new run, above those of all runs that ``resume=true`` searches."""

    def highest(root: Path) -> int:
        return max((record.age[0] for record in _records(root)), default=0)

    return order.take([_path(output_root), SWEEPS], highest)


def _records(root: Path) -> Iterator[RunRecord]:
    for pattern in ("*", "*/*", "*/*/*"):
        for path in root.glob(f"{pattern}/{RESULT}"):
            if (record := RunRecord.read(path.parent)) is not None:
                yield record


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
    raise UserError(f"output_root={root} has no free folder name left for {stem}")


def _lock(path: Path) -> RunFolder:
    """Create the folder if it is missing and lock it, then read its record.

    Raises:
        UserError: if another process holds the lock, or the folder cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "no permission to write there")
        lock = FileLock(path / LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        raise UserError(f"output={path} is in use by another process; wait for it or choose another folder") from None
    except OSError as error:
        raise UserError(f"output={path}: {error.strerror or error}; choose a folder you can write to") from None
    with free_after_error(lock):
        return RunFolder(path, lock, RunRecord.read(path))
