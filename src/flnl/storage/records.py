"""Read ``result.json``, the record in a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULT = "result.json"

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
