"""HTML from values that may contain anything: every text and every attribute is escaped, tags come from the code."""

from __future__ import annotations

import html
import json
from typing import Any

from flnl.console.terminal import visible


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Markup:
    r"""``value`` as HTML; control characters are shown as escapes, so that none can reverse or break a line.

    >>> text("<b> & 'c'\n")
    '&lt;b&gt; &amp; &#x27;c&#x27;\\n'
    """
    return value if isinstance(value, Markup) else Markup(html.escape(visible(value), quote=True))


def joined(*parts: object, by: str = "") -> Markup:
    """The parts as HTML, one after the other."""
    return Markup(by.join(map(text, parts)))


VOID = ("br", "img", "input")
"""Elements without content and without an end."""


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """An element. Of attributes, ``_`` stands for ``-`` and is left out at the end; None and False mean absent.

    >>> element("td", "<", class_="n", data_given=3, hidden=False)
    '<td class="n" data-given="3">&lt;</td>'
    """
    written = [
        name if value is True else f'{name}="{text(value)}"'
        for name, value in ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
        if value is not None and value is not False
    ]
    start = " ".join([tag, *written])
    return Markup(f"<{start}>" if tag in VOID else f"<{start}>{joined(*children)}</{tag}>")


def percent(share: float, digits: int = 0) -> str:
    r"""A share in per cent, with a narrow space that does not break.

    >>> percent(0.256).split("\u202f")
    ['26', '%']
    """
    return f"{100 * share:.{digits}f}\u202f%"


_IN_SCRIPTS = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def script_json(value: Any) -> Markup:
    r"""``value`` as JSON that can stand in a script element or a script's source, in ASCII.

    >>> script_json(["</script>", "\u2028"])
    '["\\u003c/script\\u003e","\\u2028"]'
    """
    return Markup(json.dumps(value, separators=(",", ":"), allow_nan=False).translate(_IN_SCRIPTS))
