"""``flnl run --help``: the groups, their options, and the configuration composed from the given overrides.

Hydra's help searches all groups twice, which takes a second with this number of files.
"""

from __future__ import annotations

from collections.abc import Sequence

from hydra._internal.utils import get_args_parser
from omegaconf import OmegaConf

from flnl.config.compose import load
from flnl.config.explain import searched
from flnl.config.folders import CONF, SEARCH_PATH, search_path
from flnl.config.groups import groups
from flnl.config.override_text import without
from flnl.config.short_keys import without_declarations


def text(arguments: Sequence[str]) -> str:
    """The help text; options among the ``arguments`` are ignored."""
    own = searched(arguments)
    overrides = get_args_parser().parse_known_args(list(arguments))[0].overrides
    composed = load([*search_path(own), *without(overrides, SEARCH_PATH)], with_hydra=True)
    chosen = composed.hydra.help
    options = {group: ", ".join(files) for group, files in groups([CONF, *own]).items()}
    plain = without_declarations(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]))
    parts = (
        chosen.header.strip(),
        "== Groups: group=option ==\n" + "\n".join(f"{group}: {names}" for group, names in options.items()),
        "== Configuration: key=value ==\n" + OmegaConf.to_yaml(plain).strip(),
        chosen.footer.strip(),
    )
    return "\n\n".join(parts)
