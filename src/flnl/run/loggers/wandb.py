"""Weights & Biases as a logger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
        return Mirror.open(chosen, run.folder, run.key, run.config, **names)
