"""Pages from jinja2 templates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from flnl.console.terminal import visible


def template(file: Path, filters: Mapping[str, Callable[..., Any]] | None = None) -> jinja2.Template:
    """A template, which may include others of its folder; printing a name that nothing defines is an error.

    In one of HTML (``*.html.j2``), every value but ``Markup`` is shown as text, whatever it holds, with control
    characters as escapes, so that none can reverse or break a line.
    """
    html = file.name.endswith(".html.j2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(file.parent),
        autoescape=html,
        finalize=_shown if html else None,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(filters or {})
    return environment.get_template(file.name)


def _shown(value: object) -> object:
    return value if isinstance(value, Markup) else visible(value)
