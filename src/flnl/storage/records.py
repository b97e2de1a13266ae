"""Read ``result.json``, the record in a run's folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flnl.core.errors import UserError

RESULT = "result.json"

FILES = "files"
"""The key of the sha256 of files that the run has written whole, by name; lines and products that hold their own
checksum are not among them."""

LOCK = ".lock"
"""In a run's or a sweep's folder: the process that writes there holds it."""

SWEEPS = Path("multirun")


def read_record(folder: Path) -> dict[str, Any] | None:
    """A run's ``result.json``; None if it does not exist or is invalid."""
    try:
        record: dict[str, Any] = json.loads((folder / RESULT).read_text())
    except (OSError, ValueError, RecursionError):
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
