"""``flnl ... --cfg job``: the configuration as a run would read it.

Hydra prints what it has composed, where a part does not have the value of its short key yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig, OmegaConf

from flnl.config.compose import resolved
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
