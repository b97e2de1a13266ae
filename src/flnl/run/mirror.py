"""Mirrors a run's metrics to W&B. It never prompts, and never blocks or fails a run."""

from __future__ import annotations

import hashlib
import logging
import netrc
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flnl.config.schema import Wandb
from flnl.core.run_logger import OpenLogger

log = logging.getLogger(__name__)

CLOSE_SECONDS = 20.0
"""W&B's own time limit for sending the remaining data at the end of a run."""

GRACE_SECONDS = 5.0
"""Additional time after which the run stops waiting, in case W&B exceeds its own limit."""

MODES = {"online": "online", "run": "online", "offline": "offline", "dryrun": "offline", "disabled": "disabled"}
"""Values of ``WANDB_MODE``, mapped to those of ``wandb.mode``."""

PLACES = {"WANDB_CACHE_DIR": "cache", "WANDB_DATA_DIR": "data"}
"""Variables for folders that W&B would create in the user's home, and their replacements in the run's folder."""


class Mirror(OpenLogger):
    """Metrics in W&B. It never prompts, and never blocks or fails a run: errors are logged in one line."""

    def __init__(self, run: Any, mode: str, *, artifacts: bool) -> None:
        self._run, self._mode, self._artifacts = run, mode, artifacts

    @classmethod
    def open(cls, settings: Wandb, folder: Path, key: str, config: Mapping[str, Any], **names: Any) -> Mirror:
        """Start the mirror of the run in ``folder``; ``names`` are W&B's group, job type, name and tags."""
        mode = effective_mode(settings.mode)
        if mode == "disabled":
            return cls(None, mode, artifacts=settings.artifacts)
        try:
            run = _start(settings, folder, key, config, mode, names)
            return cls(run, mode, artifacts=settings.artifacts)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
        if mode == "offline":
            log.warning("W&B did not start (%s); the run continues without it", reason)
            return cls(None, mode, artifacts=settings.artifacts)
        log.warning("W&B cannot be reached (%s); metrics go to its offline folder in %s", reason, folder)
        return cls.open(replace(settings, mode="offline"), folder, key, config, **names)

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Send one row."""
        if self._run is None:
            return
        try:
            self._run.log(dict(row), step=step)
        except Exception as error:
            log.warning("W&B failed to log metrics and is switched off (%s)", error)
            self._run = None

    def images(self, files: Sequence[Path], step: int) -> None:
        """Send figures, each under its file's name."""
        if self._run is None or not files:
            return
        try:
            import wandb

            self._run.log({f"figures/{file.stem}": wandb.Image(str(file)) for file in files}, step=step)
        except Exception as error:
            log.warning("W&B failed to log figures (%s)", error)

    def products(self, files: Sequence[Path]) -> None:
        """Send files if asked to, each as an artifact of its own: ``model.pt`` as ``model``, tables as ``dataset``."""
        if self._run is None or not self._artifacts:
            return
        try:
            for file in files:
                kind = "model" if file.suffix == ".pt" else "dataset"
                self._run.log_artifact(str(file), name=f"{self._run.id}-{file.stem}", type=kind)
        except Exception as error:
            log.warning("W&B failed to take the run's products (%s)", error)

    def close(self, *, failed: bool, summary: Mapping[str, Any]) -> str | None:
        """Finish the mirror; return the folder of data that has yet to be synchronised, else None."""
        if self._run is None:
            return None
        try:
            folder = str(Path(self._run.dir).parent)
            self._run.summary.update(dict(summary))
            in_time = _within(CLOSE_SECONDS, lambda: self._run.finish(exit_code=1 if failed else 0))
        except Exception as error:
            log.warning("W&B did not finish (%s)", error)
            return None
        if not in_time:
            log.warning("W&B did not finish within %.0f s; all rows are in %s", CLOSE_SECONDS, folder)
        return folder if self._mode == "offline" or not in_time else None


def _within(seconds: float, do: Callable[[], None]) -> bool:
    """Run ``do`` in a thread and return whether it ended in time; otherwise it keeps running. Reraises its errors."""
    raised: list[Exception] = []

    def attempt() -> None:
        try:
            do()
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds + GRACE_SECONDS)
    if raised and not isinstance(raised[0], TimeoutError):
        raise raised[0]
    return not (raised or thread.is_alive())


def _start(
    settings: Wandb, folder: Path, key: str, config: Mapping[str, Any], mode: str, names: Mapping[str, Any]
) -> Any:
    """Start a W&B run that flushes rows every second: with W&B's default, SIGTERM loses the rows of short runs."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its upload would delay the end of the process
    for name, below in PLACES.items():
        if os.environ.get(name, "") in ("", *_assigned):
            os.environ[name] = str((folder / "wandb" / below).resolve())
            _assigned.add(os.environ[name])
    import wandb

    limit = {"finish_timeout": CLOSE_SECONDS, "finish_timeout_raises": True}
    place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()
    return wandb.init(
        project=settings.project,
        dir=str(folder),
        mode=mode,  # type: ignore[arg-type]
        id=f"{key[:12]}-{place[:8]}" if mode == "online" else None,  # W&B cannot resume a run by id while offline
        resume="allow" if mode == "online" else None,
        config=dict(config),
        reinit="finish_previous",
        settings=wandb.Settings(
            silent=True,
            init_timeout=20,
            console="off",
            x_transaction_log_flush_interval=1,
            x_disable_stats=True,
            **{name: value for name, value in limit.items() if name in wandb.Settings.model_fields},
        ),
        **names,
    )


def _forget_import_hooks() -> None:
    """W&B watches the imports of some packages, to report them; in a forked process, its hooks make these fail."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("wandb.")]


os.register_at_fork(after_in_child=_forget_import_hooks)


_assigned: set[str] = set()
"""Folders assigned by earlier runs of this process, which a new run may replace."""


def effective_mode(mode: str) -> str:
    """What ``wandb.mode`` means here: ``auto`` is ``WANDB_MODE``, or else online if there is a key, or else offline."""
    if mode != "auto":
        return mode
    return MODES.get(os.environ.get("WANDB_MODE", ""), "online" if _has_key() else "offline")


def _has_key() -> bool:
    """Whether W&B has an API key: in the environment, or in netrc for its host."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        hosts = set(netrc.netrc(os.environ.get("NETRC")).hosts)
    except (OSError, netrc.NetrcParseError):
        return False
    import wandb

    return bool({urlsplit(wandb.Settings().base_url).hostname, "api.wandb.ai"} & hosts)
