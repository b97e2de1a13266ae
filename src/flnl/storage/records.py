"""Read ``result.json``, the record in a run's folder, and tell its files from those of other runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flnl.core.errors import UserError
from flnl.storage.input_file import read_json_file

RESULT = "result.json"

FILES = "files"
"""The key of the sha256 of files that the run has written whole, by name; lines and products that hold their own
checksum are not among them."""

LOCK = ".lock"
"""In a run's or a sweep's folder: the process that writes there holds it."""

SWEEPS = Path("multirun")
TUNING = SWEEPS / "tune"


def read_record(folder: Path) -> dict[str, Any] | None:
    """A run's ``result.json``; None if it does not exist or is invalid."""
    try:
        record: dict[str, Any] = read_json_file(folder / RESULT)
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and _whole(record) else None


def check_file(file: Path, record: Mapping[str, Any]) -> None:
    """Check that a file in a run's folder is the one that the run wrote. Runs of before have no checksum of it.

    Raises:
        OSError: if it cannot be read.
        UserError: if it is another one.
    """
    held = record.get(FILES)
    if not isinstance(held, Mapping) or file.name not in held:
        return
    with file.open("rb") as opened:
        if hashlib.file_digest(opened, "sha256").hexdigest() != held[file.name]:
            raise UserError(f"{file} is not what the run wrote; put back a copy of it, or repeat the run")


def keys_of(record: Mapping[str, Any]) -> set[str]:
    """The keys of the run that a record tells of: of this process and of earlier ones, as keys may change format."""
    return {str(one["key"]) for one in (record, *record.get("earlier", ())) if one.get("key")}


def refuse_another_run(file: Path, key: str, record: Mapping[str, Any]) -> None:
    """Refuse a file in a run's folder that another run has written.

    Args:
        file: the file, for the message.
        key: the key of the run that has written it.
        record: the record of the run in whose folder it is.

    Raises:
        UserError: naming both keys, if they differ.
    """
    if key not in keys_of(record):
        raise UserError(
            f"{file} is of another run, with key {key:.64}, than the {RESULT} beside it, with key "
            f"{record['key']:.64}: put back the file that this run wrote"
        )


def _whole(record: Mapping[str, Any]) -> bool:
    """Whether the parts that readers need exist and have the right types."""
    earlier, executor = record.get("earlier", []), record.get("executor", "")
    return (
        isinstance(record.get("key"), str)
        and isinstance(record.get("config"), dict)
        and isinstance(earlier, list)
        and all(isinstance(one, dict) for one in earlier)
        and isinstance(executor, str | dict)
    )
