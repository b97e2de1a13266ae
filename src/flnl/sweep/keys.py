"""Keys that no run of a list sets: those of a table, or of ``flnl tune``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flnl.config.override_text import key_of
from flnl.core.errors import UserError

NOT_OF_A_LIST = {
    "output": "a run's folder is named after its key",
    "resume": "what was stopped goes on in any case",
    "max_rounds": "a run that is stopped early does not count; set rounds",
}
"""The keys, with the reason: each run is given them, or would never finish."""


def refuse_keys(overrides: Iterable[str], where: str = "", refused: Mapping[str, str] = NOT_OF_A_LIST) -> None:
    """Refuse overrides of keys that no run of a list sets.

    Args:
        overrides: of the runs, or of the command that launches them.
        where: the beginning of the message.
        refused: the keys, with the reason.

    Raises:
        UserError: naming the first such override.
    """
    for override in overrides:
        if (reason := refused.get(key_of(override))) is not None:
            raise UserError(f"{where}{override}: {reason}")
