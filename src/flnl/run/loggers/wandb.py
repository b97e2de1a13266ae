"""Weights & Biases as a logger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flnl.config import schema
from flnl.core.run_logger import LoggedRun, Logger, OpenLogger
from flnl.run.mirror import Mirror


@dataclass(frozen=True)
class WeightsAndBiases(Logger):
    """Sends metrics and figures to W&B, or to its offline folder; ``model.pt`` and ``labels.csv`` if asked to."""

    settings: Mapping[str, Any]  # those of ``wandb``

    def open(self, run: LoggedRun) -> OpenLogger:
        """Start W&B, without ever prompting."""
        chosen = schema.Wandb(**self.settings)
        names = {"group": chosen.group or run.group, "job_type": run.method, "name": run.name, "tags": chosen.tags}
        mirror = Mirror.open(chosen, run.folder, run.key, run.config, **names)
        return _Open(mirror, chosen.artifacts)


@dataclass(frozen=True)
class _Open(OpenLogger):
    mirror: Mirror
    artifacts: bool

    def log(self, row: Mapping[str, float | str], step: int) -> None:
        self.mirror.log(row, step)

    def images(self, files: Sequence[Path], step: int) -> None:
        self.mirror.images(files, step)

    def products(self, files: Sequence[Path]) -> None:
        if self.artifacts:
            self.mirror.artifacts(files)

    def close(self, *, failed: bool, summary: Mapping[str, Any]) -> str | None:
        return self.mirror.close(failed=failed, summary=summary)
