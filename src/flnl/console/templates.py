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
    characters as escapes, so that none can reverse or break a line. In one of LaTeX (``*.tex.j2``), whose braces are
    its own, values stand between ``<<`` and ``>>``. All but HTML end as the file does, with a line end.
    """
    html = file.name.endswith(".html.j2")
    opening, closing = ("<<", ">>") if file.name.endswith(".tex.j2") else ("{{", "}}")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(file.parent),
        variable_start_string=opening,
        variable_end_string=closing,
        autoescape=html,
        finalize=_shown if html else None,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not html,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(filters or {})
    return environment.get_template(file.name)


def _shown(value: object) -> object:
    return value if isinstance(value, Markup) else visible(value)
