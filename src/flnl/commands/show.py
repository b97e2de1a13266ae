"""What a run's command tells of its configuration in place of a run: ``--cfg job`` and ``--help``.

Of ``--cfg job``, Hydra would print what it has composed, where a part does not have the value of its short key yet. For
``--help`` it searches all groups twice, which takes a second with this number of files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig, OmegaConf

from flnl.config.compose import load, resolved
from flnl.config.explain import searched
from flnl.config.folders import CONF, SEARCH_PATH, search_path
from flnl.config.groups import groups
from flnl.config.override_text import without
from flnl.config.short_keys import connect, without_declarations
from flnl.core.errors import UserError


@dataclass(frozen=True)
class Request:
    """What is to be shown.

    Args:
        package: the section; None for all of it.
        resolve: whether interpolations are replaced by their values.
        words: the command without the options that ask for this.
    """

    package: str | None
    resolve: bool
    words: Sequence[str]


def requested(words: Sequence[str]) -> Request | None:
    """What a command asks to be shown of a run's configuration; None where it asks for no such thing.

    The other commands about configurations, as ``--cfg hydra`` and ``--info``, are Hydra's.
    """
    asked = get_args_parser().parse_args(list(words))
    if asked.cfg != "job" or asked.run or asked.multirun or asked.shell_completion or asked.info is not None:
        return None
    places = {"--config-path": asked.config_path, "--config-name": asked.config_name, "--config-dir": asked.config_dir}
    options = [word for name, value in places.items() if value is not None for word in (name, value)]
    package = None if asked.package == "_global_" else asked.package
    return Request(package, asked.resolve, [*options, *asked.overrides, "hydra.mode=RUN"])


def text(cfg: DictConfig, words: Sequence[str], request: Request) -> str:
    """The composed configuration, or a section of it, as YAML.

    Raises:
        UserError: if there is no such section, or an interpolation cannot be resolved.
    """
    connect(cfg, words)
    cfg = OmegaConf.create(resolved(cfg)) if request.resolve else without_declarations(cfg)
    if request.package is None:
        return OmegaConf.to_yaml(cfg)
    section = OmegaConf.select(cfg, request.package)
    if section is None:
        raise UserError(f"--package {request.package}: there is no such section")
    if not OmegaConf.is_config(section):
        return f"{section}\n"
    return f"# @package {request.package}\n{OmegaConf.to_yaml(section)}"


def help_text(arguments: Sequence[str]) -> str:
    """The groups, their options, and the composed configuration; options among the ``arguments`` are ignored."""
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
