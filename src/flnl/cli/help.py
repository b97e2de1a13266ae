"""``flnl run --help``: the groups, their options, and the configuration that the other words make.

Hydra's own help walks its groups twice, at a second for as many files as there are here.
"""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import OmegaConf

from flnl.config.compose import load
from flnl.config.groups import groups
from flnl.config.resolvers import CONF
from flnl.config.short_keys import without_declarations


def text(words: Sequence[str]) -> str:
    """What is shown, the configuration composed with ``words`` that are overrides.

    Raises:
        HydraException: if they cannot be composed.
    """
    composed = load([w for w in words if not w.startswith("-")], with_hydra=True)
    chosen = composed.hydra.help
    options = {
        group: ", ".join(file.relative_to(CONF / group).with_suffix("").as_posix() for file in files)
        for group, files in groups().items()
    }
    plain = without_declarations(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]))
    parts = (
        chosen.header.strip(),
        "== Groups: group=option ==\n" + "\n".join(f"{group}: {names}" for group, names in options.items()),
        "== Configuration: key=value ==\n" + OmegaConf.to_yaml(plain).strip(),
        chosen.footer.strip(),
    )
    return "\n\n".join(parts)
