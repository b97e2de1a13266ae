"""What stands in a composed configuration before its interpolations are resolved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, ListConfig, Node

from flnl.config.protocol import places


def node_at(cfg: DictConfig, key: str) -> Node | None:
    """The node at a dotted ``key``, unresolved; None where there is none."""
    node: Any = cfg
    for part in key.split("."):
        usable = isinstance(node, DictConfig) and isinstance(node._content, dict)
        node = node._get_node(part, validate_access=False) if usable else None
    return node if isinstance(node, Node) else None


def text_at(cfg: DictConfig, key: str) -> str | None:
    """The text at a dotted ``key``, such as an interpolation; None where there is no text."""
    node = node_at(cfg, key)
    content = None if node is None else node._value()
    return content if isinstance(content, str) else None


def texts(node: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every key in and below a node whose value is a text, and that text, unresolved; items of lists by number."""
    content: Any = node._content if isinstance(node, DictConfig | ListConfig) else node._value()
    if isinstance(content, str):
        yield key, content
    elif isinstance(content, dict | list):
        for name, inner in content.items() if isinstance(content, dict) else enumerate(content):
            yield from texts(inner, f"{key}.{name}" if key else str(name))


def source(cfg: DictConfig, key: str) -> str:
    """The key that a value was written at: where a node only repeats another, the other's."""
    written = text_at(cfg, key)
    if written is None:
        return key
    if repeated := re.fullmatch(r"\$\{([\w.]+)\}", written):
        return key if node_at(cfg, repeated[1]) is None else source(cfg, repeated[1])
    named = re.search(r"\$\{protocol:(\w+)", written)
    return next((place.key for place in places(cfg, named[1])), key) if named else key
