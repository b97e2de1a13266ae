"""Values of overrides as Hydra reads them."""

from __future__ import annotations

import re


def quoted(text: str) -> str:
    """A string as the value of an override: in quotes if Hydra would read it, or a part of it, as something else.

    >>> quoted("outputs/a"), quoted("a,b"), quoted("2024")
    ('outputs/a', "'a,b'", "'2024'")
    """
    if re.fullmatch(r"[A-Za-z0-9_./-]+", text) and text.lower() not in ("true", "false", "null") and not _number(text):
        return text
    # Hydra reads a backslash as itself, except before a quote.
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text) + "'"


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
