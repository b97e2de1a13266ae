"""The name of a run among others: its method, its data set, and what the command line has set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from flnl.config.identity import outside
from flnl.config.override_text import dotted

LONGEST = 110
"""Characters of a name without its seed; W&B takes 128."""
NAMED = ("method", "dataset", "seed")
"""Keys that the name has anyway."""


def group_of(method: str, dataset: str, overrides: Sequence[str]) -> str:
    """What runs have in common that differ by their seed alone.

    Args:
        method: the method's title.
        dataset: the data set's name.
        overrides: those of the command line; those that do not change the result are left out.

    >>> group_of("fedcorr", "digits", ["method=fedcorr", "seed=2", "noise.rho=0.6", "output=here", "figures=false"])
    'fedcorr digits noise.rho=0.6'
    """
    words = sorted(override.lstrip("+") for override in overrides if _counts(override))
    name = " ".join([method, dataset, *words])
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode(errors="backslashreplace")).hexdigest()[:8]
    return f"{name[: LONGEST - 12]} ... {digest}"


def name_of(group: str, seed: int) -> str:
    """The name of one run.

    >>> name_of("fedcorr digits noise.rho=0.6", 2)
    'fedcorr digits noise.rho=0.6 seed=2'
    """
    return f"{group} seed={seed}"


def _counts(override: str) -> bool:
    key = dotted(override)
    if key in NAMED or key.startswith("hydra."):
        return False
    if key.partition(".")[0] == "protocol":  # counts where its values are used
        return True
    return not outside(key)
