"""``result.json``, the record that a run leaves in its folder, as others read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULT = "result.json"

SWEEPS = Path("multirun")


def read_record(folder: Path) -> dict[str, Any] | None:
    """A run's ``result.json``; None where there is none that can be read."""
    try:
        record: dict[str, Any] = json.loads((folder / RESULT).read_text())
    except (OSError, ValueError):
        return None
    whole = isinstance(record, dict) and isinstance(record.get("key"), str) and isinstance(record.get("config"), dict)
    return record if whole else None
