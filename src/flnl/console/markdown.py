"""Tables in GitHub-flavoured Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def grid(heading: Sequence[str], rows: Iterable[Sequence[str]], kinds: str = "") -> str:
    """A table of cells that are Markdown.

    ``kinds`` has ``l`` or ``r`` for each column; by default the first is aligned left, and all others right.

    >>> print(grid(["method", "%"], [["fedavg", "81.0"]]))
    | method | % |
    | --- | ---: |
    | fedavg | 81.0 |
    """
    kinds = kinds or f"l{'r' * (len(heading) - 1)}"
    rules = ["---:" if kind == "r" else "---" for kind in kinds]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rules, *rows))


def literal(text: str) -> str:
    r"""A text of one line as a cell: a bar would end it, and a backslash would be taken for an escape.

    >>> literal("a|b"), literal(r"a\|b")
    ('a\\|b', 'a\\\\\\|b')
    """
    return text.replace("\\", r"\\").replace("|", r"\|")
