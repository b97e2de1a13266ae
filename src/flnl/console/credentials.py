"""Removes user names and passwords from URLs in all output and records; only the URL's host receives them.

A command removes them from its arguments before anything else reads these: ``https://user:secret@host/`` becomes
``https://***@host/`` in result.json, config.yaml, W&B, sweep records and the command to resume. The credentials are
kept in an environment variable, which child processes inherit.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "***"
"""Replacement for a user name and password."""
VARIABLE = "FLNL_URL_CREDENTIALS"
"""Environment variable: a JSON object that maps a host (with port) to ``user:password`` as in the URL."""

_CREDENTIALS = re.compile(
    r"""
    (?<=://)
    (?P<credentials>
        [^/?\#\s"'<>:,\[]{0,1024} : (?!// | \d{1,5}[/?\#])      # a name; no host with a port and a path
        (?: (?![,;|][\w+.-]+://) (?: [^\s"'<>] | ["'<>](?![,:;)}\]\s]|$) ) ){0,4096}  # a password, up to the last @
      | [^/?\#\s"'<>]{0,4096}                        # a name or a token alone
    )
    (?= @ (?P<host> \[[^]]*\](?::\d+)? | [^/?\#\s"'<>,\]}@]* ) )
    """,
    re.VERBOSE,
)
"""A password may have any sign as it is; so an @ in the path after a name and a password is written %40."""


def redacted(text: str) -> str:
    """``text`` with the name and password of every URL hidden.

    >>> redacted("fetching https://me:secret@host:8080/a and https://host/b@c")
    'fetching https://***@host:8080/a and https://host/b@c'
    >>> redacted("https://me:se/c?r#e@t@host/a")
    'https://***@host/a'
    """
    return _CREDENTIALS.sub(HIDDEN, text) if "://" in text else text


def redacted_in(node: Any) -> Any:
    """``node`` with every string in its mappings, lists and tuples redacted.

    >>> redacted_in({"mirror": ["ftp://me@host/", 1]})
    {'mirror': ['ftp://***@host/', 1]}
    """
    if isinstance(node, str):
        return redacted(node)
    if isinstance(node, Mapping):
        return {redacted_in(key): redacted_in(value) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(map(redacted_in, node)) if type(node) in (list, tuple) else [redacted_in(x) for x in node]
    return node


def put_aside(arguments: Sequence[str]) -> list[str]:
    """Remove the credentials from a command's arguments; ``of_host`` returns them, also in child processes."""
    known = _known()
    for url in (url for argument in arguments for url in _CREDENTIALS.finditer(argument)):
        if url["credentials"] != HIDDEN:
            known[url["host"].lower()] = url["credentials"]
    if known:
        os.environ[VARIABLE] = json.dumps(known)
    return [redacted(argument) for argument in arguments]


def separated(url: str) -> tuple[str, str | None]:
    """A URL without its name and password, and these; None if it has none.

    >>> separated("https://me:a/b@host/c")
    ('https://host/c', 'me:a/b')
    """
    if (found := _CREDENTIALS.search(url)) is None:
        return url, None
    return url[: found.start()] + url[found.end() + 1 :], found["credentials"]


def of_host(host: str) -> str | None:
    """The credentials of ``host`` (with port, if the URL has one), as ``user:password``; None if there are none."""
    return _known().get(host.lower())


def _known() -> dict[str, str]:
    try:
        known = json.loads(os.environ.get(VARIABLE, "{}"))
    except ValueError:
        return {}
    return {str(host): str(one) for host, one in known.items()} if isinstance(known, dict) else {}
