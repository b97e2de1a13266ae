"""How to install the optional packages, in the words of how this package was installed."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

NAME = "flnl"


def install(extra: str) -> str:
    """What to do to get the packages of an extra of ``pyproject.toml``, as part of a sentence.

    From a checkout that is installed in place, it names its folder; from a wheel, the package.
    """
    return f"install the extra {extra}, as in pip install {_source(extra)}"


def _source(extra: str) -> str:
    try:
        origin = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return f"'{NAME}[{extra}]'"
    if not (isinstance(origin, dict) and origin.get("dir_info", {}).get("editable")):
        return f"'{NAME}[{extra}]'"
    folder = Path(unquote(urlsplit(str(origin.get("url"))).path))
    here = "." if folder == Path.cwd() else folder
    return f"-e '{here}[{extra}]'"
