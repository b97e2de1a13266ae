"""Tables in GitHub-flavoured Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def grid(rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown; its second row tells how the columns are aligned."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def literal(text: str) -> str:
    r"""A text of one line as a cell: a bar would end it, and a backslash would be taken for an escape.

    >>> literal("a|b"), literal(r"a\|b")
    ('a\\|b', 'a\\\\\\|b')
    """
    return text.replace("\\", r"\\").replace("|", r"\|")
