"""Train from Python, as the command line does."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from flnl.api.results import RunResults, load_run
from flnl.config import compose
from flnl.config.explain import explain
from flnl.console import surroundings
from flnl.core.errors import UserError, one_line
from flnl.run.overrides import check_arguments
from flnl.run.train import train


def run(overrides: Sequence[str] = ()) -> RunResults:
    """Train one run in this process, and return what it has left in its folder.

    It prints what the command prints. Ctrl-C stops it after its round: its ``status`` is then "interrupted", and
    ``run([*overrides, "resume=true"])`` continues it. Where the run has ended nevertheless, since that was its last
    round, the signal is raised again afterwards, so that a loop over runs ends as well.

    Args:
        overrides: those of the command line, as in ``["method=fedcorr", "noise.rho=0.6", "output=my_run"]``.

    Returns:
        The same as ``load_run`` of the run's folder.

    Raises:
        UserError: for what the user can correct, such as an unknown key; the message says how.
    """
    if isinstance(overrides, str):
        raise UserError(f"overrides={overrides!r}: must be a list, as in flnl.run(['noise.rho=0.6', 'seed=2'])")
    words = [str(word) for word in overrides]
    for word in words:
        if word.startswith("-"):
            raise UserError(f"{word}: flnl.run takes overrides of one run; sweeps and options are for the command flnl")
    surroundings.complete()
    try:
        check_arguments(words)
        cfg = compose.load(words)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(one_line(explain(error, words))) from None
    outcome = train(cfg, words)
    if outcome.signal is not None and outcome.status != "interrupted":
        signal.raise_signal(outcome.signal)
    return load_run(outcome.folder)
