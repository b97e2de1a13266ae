"""Choose among runs by the values of their keys, as in ``noise.rho=0.2,0.6``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from flnl.console.suggestions import did_you_mean
from flnl.core.errors import UserError
from flnl.instruments.compare.names import Settings
from flnl.instruments.compare.runs import Row
from flnl.record.run import RunRecord


def where(runs: Sequence[RunRecord], clauses: Sequence[str]) -> list[RunRecord]:
    """The runs with one of the values that each clause names.

    Raises:
        UserError: if a clause names no key of the runs, or leaves none of them.
    """
    wanted = [_read("--where", clause) for clause in clauses]
    values = [_values(run) for run in runs] if wanted else []
    for (key, texts), clause in zip(wanted, clauses, strict=True):
        check_key("--where", key, {key for one in values for key in one})
        there = sorted({one[key] for one in values if key in one}, key=ordered)
        kept = [any(same(one.get(key), text) for text in texts) for one in values]
        if not any(kept):
            raise UserError(f"--where {clause}: no run has it; there is {key}={','.join(there)}")
        runs = [run for run, keep in zip(runs, kept, strict=True) if keep]
        values = [one for one, keep in zip(values, kept, strict=True) if keep]
    return list(runs)


def _read(option: str, clause: str) -> tuple[str, list[str]]:
    key, sign, texts = clause.partition("=")
    if not (key and sign and texts):
        raise UserError(f"{option} {clause}: write KEY=VALUE, or KEY=VALUE,VALUE, as in noise.rho=0.2,0.6")
    return key, re.split(r",(?![^\[]*\])", texts)  # not at the commas of a list


def _values(run: RunRecord) -> Mapping[str, str]:
    return Settings(Row((run,))).values | {"seed": str(run.seed), "data_seed": str(run.data_seed)}


def check_key(option: str, key: str, known: Collection[str]) -> None:
    """Check that runs have a key.

    Raises:
        UserError: if none has; it names the closest.
    """
    if key not in known:
        groups = sorted({name.split(".")[0].split("/")[0] for name in known})
        meant = did_you_mean(key, known, f"keys begin with {', '.join(groups)}")
        raise UserError(f"{option} {key} is no key of these runs; {meant}")


def same(value: str | None, text: str) -> bool:
    """Whether a value is the one that was written: equal numbers are, however they are written.

    >>> same("0.6", "0.60"), same("1e-05", "0.00001"), same("fedavg", "fedprox")
    (True, True, False)
    """
    if value is None or value == text:
        return value == text
    try:
        return float(value) == float(text)
    except ValueError:
        return False


def ordered(value: str | None) -> tuple[int, float, str]:
    """A sort key for values: none, then numbers by size, then words."""
    if value is None:
        return 0, 0.0, ""
    try:
        return 1, float(value), value
    except ValueError:
        return 2, 0.0, value
