"""Run the missing runs of tables, through one of Hydra's launchers."""

from __future__ import annotations

from collections.abc import Sequence

from flnl.instruments.tables.failed_jobs import remember
from flnl.instruments.tables.load import check_keys
from flnl.instruments.tables.plan import Plan
from flnl.sweep import listed
from flnl.sweep.listed import ListedRun, ListedSweep


class TableSweep(ListedSweep):
    """A sweep over the runs of tables, each labelled by the first cell that needs it."""

    in_use = "another command runs tables in {folder}; wait for its end, or take another scale"

    def prepare(self) -> None:
        """Keep the failures of earlier launches, whose ledger this sweep replaces."""
        remember(self.folder, [run.folder for run in self.runs])


def check(first: Sequence[str] | None, arguments: Sequence[str]) -> None:
    """Check the overrides of how runs are launched before launching any, on the configuration of the first run.

    Args:
        first: the overrides of the first run; None if there is no run.
        arguments: overrides of the launcher, and of keys that are not part of a run's key (``executor=ray``).

    Raises:
        UserError: for an invalid override, or one that would change the keys of the runs.
    """
    check_keys(arguments)
    listed.check(first, arguments, "write it into a table of your own, conf/table/")


def launch(plan: Plan, arguments: Sequence[str], command: Sequence[str]) -> bool:
    """Run what is missing.

    Args:
        plan: the tables.
        arguments: overrides that have passed ``check``.
        command: the words that go on if this is stopped.

    Returns:
        Whether the launcher completed, whether or not runs failed.

    Raises:
        Interrupted: after a signal.
    """
    runs = [ListedRun(run.label, run.identity.folder, run.overrides) for run in plan.missing]
    return listed.launch(runs, plan.folder, arguments, command, TableSweep)
