"""The entry point: one run, or a sweep of them.

    python -m src.main method=fedcorr noise.rho=0.6

What takes seconds to import is imported when something is to be run.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from src import cli, config, usage
from src.interrupt import Interrupted
from src.sweep import job
from src.sweep.account import accounted
from src.terminal import log_to_stderr


@hydra.main(config_path=str(config.CONF), config_name="config", version_base="1.3")
def _main(cfg: DictConfig) -> float | None:
    log_to_stderr()
    if isinstance(cfg.threads, int):
        os.environ.setdefault("OMP_NUM_THREADS", str(cfg.threads))  # before torch is first imported
    chosen: Any = HydraConfig.get()
    if chosen.mode == RunMode.MULTIRUN:
        return job.task(cfg)
    try:
        from src.run import train

        signalled = train(cfg, job.typed(chosen)).signal
    except Exception as error:  # Hydra would announce it in a line of its own
        _failed.append(error)
        return None
    if signalled is not None:
        raise Interrupted(signalled)
    return None


_failed: list[Exception] = []


def main() -> None:
    """What ``python -m src.main`` runs."""

    def entry() -> None:
        if {"--help", "-h"} & set(sys.argv[1:]):
            print(usage.text(sys.argv[1:]))
            return
        with accounted():
            _main()
        if _failed:
            raise _failed.pop()

    cli.guarded(entry)


if __name__ == "__main__":
    from src.main import main as of_the_module

    of_the_module()  # so that what a sweep sends to its workers is known to them by name
