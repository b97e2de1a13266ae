"""The mirror of a run's metrics in W&B. It never asks, hangs or fails a run."""

from __future__ import annotations

import hashlib
import logging
import netrc
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flnl.config.schema import Wandb

log = logging.getLogger(__name__)

CLOSE_SECONDS = 20.0
"""How long W&B may take to send what is left once a run is over."""

GRACE_SECONDS = 5.0
"""W&B keeps that time itself; after so much more it is left alone if it does not."""

WORDS = {"online": "online", "run": "online", "offline": "offline", "dryrun": "offline", "disabled": "disabled"}
"""What ``WANDB_MODE`` may say, as ``wandb.mode`` calls it."""

PLACES = {"WANDB_CACHE_DIR": "cache", "WANDB_DATA_DIR": "data"}
"""Where W&B would write below the user's home, and the folder beside its files that takes this instead."""


class Mirror:
    """Metrics in W&B. It never asks, hangs or fails a run: what goes wrong is said in one line and left."""

    def __init__(self, run: Any, mode: str) -> None:
        self._run, self._mode = run, mode

    @classmethod
    def open(cls, settings: Wandb, folder: Path, key: str, config: Mapping[str, Any], **names: Any) -> Mirror:
        """Start the mirror of the run in ``folder``; ``names`` are W&B's group, job type, name and tags."""
        mode: str = settings.mode
        if mode == "auto":
            mode = WORDS.get(os.environ.get("WANDB_MODE", ""), "online" if _has_key() else "offline")
        if mode == "disabled":
            return cls(None, mode)
        try:
            return cls(_start(settings, folder, key, config, mode, names), mode)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
        if mode == "offline":
            log.warning("W&B did not start (%s); the run's own record goes on", reason)
            return cls(None, mode)
        log.warning("W&B cannot be reached (%s); its offline folder in %s takes the metrics", reason, folder)
        return cls.open(replace(settings, mode="offline"), folder, key, config, **names)

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Send one row."""
        if self._run is None:
            return
        try:
            self._run.log(dict(row), step=step)
        except Exception as error:
            log.warning("W&B stopped taking metrics (%s)", error)
            self._run = None

    def images(self, files: Sequence[Path], step: int) -> None:
        """Send figures, each under its name."""
        if self._run is None or not files:
            return
        try:
            import wandb

            self._run.log({f"figures/{file.stem}": wandb.Image(str(file)) for file in files}, step=step)
        except Exception as error:
            log.warning("W&B took no figures (%s)", error)

    def close(self, *, failed: bool, summary: Mapping[str, Any]) -> str | None:
        """Finish; gives the folder of a run that is still to be synchronised."""
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
    """Whether ``do`` came to its end in ``seconds``; else it is left to itself. What it raises is raised here."""
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
    """A W&B run. Rows are flushed every second: its own default loses a short run to SIGTERM."""
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # it waits for its own network at the end of the process
    for name, below in PLACES.items():
        if os.environ.get(name, "") in ("", *_given):
            os.environ[name] = str((folder / "wandb" / below).resolve())
            _given.add(os.environ[name])
    import wandb

    limit = {"finish_timeout": CLOSE_SECONDS, "finish_timeout_raises": True}
    place = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()
    return wandb.init(
        project=settings.project,
        dir=str(folder),
        mode=mode,  # type: ignore[arg-type]
        id=f"{key[:12]}-{place[:8]}" if mode == "online" else None,  # offline, joining an earlier part is refused
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


_given: set[str] = set()
"""Folders that an earlier run of this process chose: the next one chooses its own."""


def _has_key() -> bool:
    """Whether W&B would find a key: in the environment, or in netrc for the host it talks to."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        hosts = set(netrc.netrc(os.environ.get("NETRC")).hosts)
    except (OSError, netrc.NetrcParseError):
        return False
    import wandb

    return bool({urlsplit(wandb.Settings().base_url).hostname, "api.wandb.ai"} & hosts)
