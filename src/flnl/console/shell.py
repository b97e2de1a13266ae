"""Commands that users can paste into a shell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence


def joined(words: Iterable[str]) -> str:
    """A command line of these words, quoted where a shell would change them.

    >>> joined(["flnl", "method/local=[mixup]", "output='a b'"])
    'flnl \\'method/local=[mixup]\\' "output=\\'a b\\'"'
    """
    return " ".join(map(word, words))


def word(text: str) -> str:
    """A word for a POSIX shell: in double quotes if it has single ones, as overrides may."""
    return f'"{text}"' if "'" in text and not set('"$`\\!\n') & set(text) else shlex.quote(text)


def divided(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a command before ``--``, and those after it.

    >>> divided(["method=fedavg", "--", "executor=ray"])
    (['method=fedavg'], ['executor=ray'])
    """
    before = list(words[: words.index("--")] if "--" in words else words)
    return before, list(words[len(before) + 1 :])
