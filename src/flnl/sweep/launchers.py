"""Which of Hydra's launchers are changed, so that a job that dies costs only itself."""

from __future__ import annotations


def install(target: str) -> None:
    """Make Hydra create our launcher in the place of the one that a sweep has chosen, if there is one.

    Args:
        target: the chosen launcher's class, as in ``hydra.launcher._target_``.
    """
    if target.endswith(".JoblibLauncher"):
        from flnl.sweep import workers

        workers.install()
    elif ".hydra_submitit_launcher." in target:
        from flnl.sweep import scheduled

        scheduled.install()
