"""User names and passwords in URLs: kept out of what is printed and recorded, and given to the host alone.

A command takes them out of its words before anything reads these: ``https://user:secret@host/`` becomes
``https://***@host/`` everywhere else, in result.json, config.yaml, W&B, the account of a sweep and the command that
goes on. They stay in the environment of the process, which the processes that it starts inherit.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "***"
"""What stands for a name and password."""
VARIABLE = "FLNL_URL_CREDENTIALS"
"""The variable of the environment: a JSON object of host (with its port) to ``user:password`` as in the URL."""

_CREDENTIALS = re.compile(r"""(?<=://)(?P<credentials>[^/?#\s"'<>]*)(?=@(?P<host>[^/?#\s"'<>,\]}]*))""")


def redacted(text: str) -> str:
    """``text`` with the name and password of every URL hidden.

    >>> redacted("fetching https://me:secret@host:8080/a and https://host/b@c")
    'fetching https://***@host:8080/a and https://host/b@c'
    """
    return _CREDENTIALS.sub(HIDDEN, text) if "://" in text else text


def redacted_in(node: Any) -> Any:
    """``node`` with every text in its mappings, lists and tuples redacted.

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


def put_aside(words: Sequence[str]) -> list[str]:
    """The ``words`` of a command without credentials; ``of_host`` knows these from now on, in new processes, too."""
    known = _known()
    for url in (url for word in words for url in _CREDENTIALS.finditer(word)):
        if url["credentials"] != HIDDEN:
            known[url["host"].lower()] = url["credentials"]
    if known:
        os.environ[VARIABLE] = json.dumps(known)
    return [redacted(word) for word in words]


def of_host(host: str) -> str | None:
    """What was put aside for ``host`` (with its port, where the URL has one), as ``user:password``; None if nothing."""
    return _known().get(host.lower())


def _known() -> dict[str, str]:
    try:
        known = json.loads(os.environ.get(VARIABLE, "{}"))
    except ValueError:
        return {}
    return {str(host): str(one) for host, one in known.items()} if isinstance(known, dict) else {}
