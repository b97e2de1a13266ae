"""Executors whose clients keep their samples to themselves, so that a run's server has none."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from omegaconf import DictConfig

from flnl.core.errors import UserError
from flnl.core.execution import Executor
from flnl.evaluation.evaluator import Evaluator


class AwayError(UserError):
    """Clients that keep their samples to themselves do not answer; the run can go on when they do."""


class ClientsApart(Executor):
    """An executor of clients that hold what they keep themselves; the server names it by ``Kept`` handles."""

    @abstractmethod
    def apart(self, cfg: DictConfig, evaluator: Evaluator, folder: Path) -> tuple[Evaluator, list[str]]:
        """Begin or go on with a run; what evaluates it on the server, whose federation has no samples, and what to say.

        Args:
            cfg: the run's configuration.
            evaluator: one that has all; nothing may hold it, or its federation, afterwards.
            folder: the run's folder.

        Raises:
            UserError: if a client cannot take part, or does not want to.
        """
