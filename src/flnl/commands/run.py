"""The entry point of training: one run, or a sweep.

    flnl method=fedcorr noise.rho=0.6

Modules that take seconds to import are imported only when a run starts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from flnl.commands import guard, show
from flnl.config.folders import CONF
from flnl.config.pinning import pin
from flnl.console.terminal import log_to_stderr
from flnl.core.errors import Interrupted, UserError, in_one_line
from flnl.run.overrides import replaced
from flnl.sweep import dry_run, job
from flnl.sweep.supervisor import accounted


@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def _main(cfg: DictConfig) -> float | None:
    log_to_stderr()
    if isinstance(cfg.threads, int):
        os.environ.setdefault("OMP_NUM_THREADS", str(cfg.threads))  # before torch is first imported
    if cfg.reproducible is True:
        with suppress(UserError):  # of the run, when it begins
            pin()
    chosen: Any = HydraConfig.get()
    if _request is not None or _dry:
        try:
            if _request is None:
                dry_run.single(cfg, job.typed(chosen))
            else:
                print(show.text(cfg, job.typed(chosen), _request), end="")
        except Exception as error:  # as below
            _failed.append(error)
        return None
    if chosen.mode == RunMode.MULTIRUN:
        return job.task(cfg)
    try:
        from flnl.run.train import train

        signalled = train(cfg, job.typed(chosen), typed=sys.argv[1:]).signal
    except Exception as error:  # re-raised by main(); Hydra would print its own message
        _failed.append(error)
        return None
    if signalled is not None:
        raise Interrupted(signalled)
    return None


_failed: list[Exception] = []
_request: show.Request | None = None
_dry = False


def _by_hydra(arguments: Sequence[str]) -> None:
    """Start Hydra. ``_main`` stores a run's errors in ``_failed``, so an exception here comes from Hydra's own keys.

    Raises:
        UserError: if Hydra cannot do what its keys ask for.
        SystemExit: with 2, if Hydra has printed the error itself.
    """
    try:
        with accounted():
            try:
                _main()
            except SystemExit as left:
                sys.exit(2 if left.code == 1 else left.code)
            except dry_run.Told:
                pass
    except (UserError, HydraException, OmegaConfBaseException):
        raise
    except Exception as error:
        if keys := [argument for argument in arguments if argument.lstrip("+~").startswith(("hydra", "--config"))]:
            raise UserError(f"{', '.join(keys)}: Hydra cannot do that ({in_one_line(error)})") from error
        raise


def main() -> None:
    """Entry point of ``flnl`` without a command's name, and of ``flnl run``."""

    def entry() -> None:
        if {"--help", "-h"} & set(sys.argv[1:]):
            print(show.help_text(sys.argv[1:]))
            return
        global _request
        _request = show.requested(sys.argv[1:])
        if _request is not None:
            sys.argv[1:] = _request.words
        if _dry and {"-m", "--multirun"} & {*sys.argv[1:]}:
            sys.argv[1:] = replaced(sys.argv[1:], (), dry_run.CALLBACK)
        _by_hydra(sys.argv[1:])
        if _failed:
            raise _failed.pop()

    global _dry
    _dry = dry_run.OPTION in sys.argv[1:]
    sys.argv[1:] = [word for word in sys.argv[1:] if word != dry_run.OPTION]
    guard.guarded(entry)
