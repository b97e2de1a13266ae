"""Read JSON files: a device or pipe, which may never end, and a text that is nested too deeply are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flnl.core.special import refuse_special

DEPTH = 100
"""Levels of mappings and lists in a JSON text; what this package writes has a tenth of them."""


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: if it is damaged, or nested deeper than ``DEPTH``: what works on values recursively would fail.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEPTH} levels deep") from None
    level = [value]
    for _ in range(DEPTH + 1):  # one more, for the values in the innermost
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return value
    raise ValueError(f"it is nested more than {DEPTH} levels deep")


def read_json_file(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        OSError: if there is none, or it cannot be read.
        ValueError: if it is damaged, or nested deeper than ``DEPTH``.
    """
    refuse_special(path)
    return parse_json(path.read_bytes())
