"""The comments beside the keys of configuration files, in which each key is explained."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from flnl.config.file_order import files


def comments(overrides: Sequence[str]) -> dict[str, tuple[str, Path]]:
    """What is written beside each key, and the last file that sets it, in the files that ``overrides`` choose.

    A file that sets a key without a comment leaves that of an earlier file.
    """
    said: dict[str, tuple[str, Path]] = {}
    for file, package in files(overrides):
        for key, comment in beside(file):
            key = f"{package}.{key}" if package else key
            said[key] = (comment or said.get(key, ("", file))[0], file)
    return said


def beside(file: Path) -> Iterator[tuple[str, str]]:
    """Every dotted key of a YAML file with its comment: the one that ends its line, and lines of nothing but comment
    that follow it.
    """
    text = file.read_text(encoding="utf-8")
    lines = text.splitlines()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    yield from _inside(root, "", lines) if isinstance(root, yaml.MappingNode) else ()


def _inside(node: yaml.MappingNode, prefix: str, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        beside = value.style not in ("|", ">") if isinstance(value, yaml.ScalarNode) else value.flow_style
        own = value.start_mark.line >= key.start_mark.line  # not what an alias stands for, which is elsewhere
        yield name, _ending((value if beside and own else key).end_mark, lines)
        if isinstance(value, yaml.MappingNode):
            yield from _inside(value, f"{name}.", lines)


def _ending(mark: yaml.Mark, lines: Sequence[str]) -> str:
    found = re.search(r"(?:^|\s)#\s*(.*)$", lines[mark.line][mark.column :]) if mark.line < len(lines) else None
    if found is None:
        return ""
    words = [found[1].strip()]
    for line in lines[mark.line + 1 :]:
        if not (more := re.fullmatch(r"\s+#\s*(.*)", line)):
            break
        words.append(more[1].strip())
    return " ".join(words)
