"""Which overrides a file may give: settings of training and of methods, as plain values.

What a user types may name any class, file or host. What ``flnl tune`` chose is read back from a file, which may be
anyone's, and becomes overrides of runs. So it may set numbers, words and lists of these, and nothing that a class, a
path, an address, an interpolation or a sweep could be written with.
"""

from __future__ import annotations

import re

CHOOSABLE = "train. or method., or are rounds or fraction"
"""How keys begin that a file may set, for messages."""

_NAME = r"[A-Za-z]\w*"  # of a key; one that begins with an underscore would name a class
_KEY = re.compile(
    rf"rounds|fraction|(?:train|method(?!\.(?:name|like|short)\b))(?:\.{_NAME})+"
    rf"|\+method\.stages\.{_NAME}\.train\.{_NAME}",  # which is not there before it is set
    re.ASCII,
)
_GROUP = re.compile(rf"(?:train|method)/{_NAME}", re.ASCII)
_SCALAR = r"[\w.+-]+"
_OPTION = r"[\w-]+"  # no dots: it becomes the name of a file


def _one_or_list(of: str) -> re.Pattern[str]:
    return re.compile(rf"{of}|\[(?:{of}(?:,{of})*)?\]", re.ASCII)


_VALUE, _CHOICE = _one_or_list(_SCALAR), _one_or_list(_OPTION)


def is_choosable(key: str) -> bool:
    """Whether a file may set a key, or choose of a group.

    >>> is_choosable("train.lr"), is_choosable("method/batch"), is_choosable("model.path"), is_choosable("++train.lr")
    (True, True, False, False)
    """
    return bool(_KEY.fullmatch(key) or _GROUP.fullmatch(key))


def refusal(override: str) -> str | None:
    """Why a file may not give an override; None if it may.

    >>> refusal("train.milestones=[10,20]"), refusal("train.lr=0.1,0.2")
    (None, 'its value is no number or word, and no list of these')
    """
    key, _, value = override.partition("=")
    if not is_choosable(key):
        return f"the keys that a file may set begin with {CHOOSABLE}, and its groups with train/ or method/"
    pattern = _CHOICE if "/" in key else _VALUE
    return None if pattern.fullmatch(value) else "its value is no number or word, and no list of these"
