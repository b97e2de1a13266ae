"""Which of Hydra's launchers are changed, so that a job that dies costs only itself."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, open_dict, read_write

UNNAMED = "run"
"""What Hydra calls every job, after the module that it starts."""


def install(target: str) -> None:
    """Make Hydra create our launcher instead of the one that a sweep has chosen, if there is one.

    Args:
        target: the chosen launcher's class, as in ``hydra.launcher._target_``.
    """
    if target.endswith(".JoblibLauncher"):
        from flnl.sweep import workers

        workers.install()
    elif ".hydra_submitit_launcher." in target:
        from flnl.sweep import scheduled

        scheduled.install()


def name(chosen: DictConfig) -> None:
    """Give the jobs of a scheduler the name of their sweep, which is that of its folder, where nobody has named them.

    Args:
        chosen: Hydra's configuration, which is changed.
    """
    if chosen.launcher.get("name") == UNNAMED:
        folder = Path(str(chosen.sweep.dir))
        times = folder.parts[-2:] if folder.parent.parent.name == "multirun" else folder.parts[-1:]
        with read_write(chosen), open_dict(chosen):
            chosen.launcher.name = "-".join(("flnl", *times))
