"""Searches a space with Optuna."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flnl.console.extras import install
from flnl.core.errors import UserError
from flnl.instruments.tune.space import Space
from flnl.record.tuned import Trial, Values

Evaluate = Callable[[Sequence[Values]], list[Trial]]
"""Runs some combinations of values under every seed."""


def optuna_search(space: Space, evaluate: Evaluate, trials: int) -> list[Trial]:
    """``trials`` combinations that a tree-structured Parzen estimator suggests, one after another.

    Its seed is fixed, so that a search that was stopped asks for the same combinations again, whose runs are there.

    Raises:
        UserError: if Optuna is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError:
        raise UserError(f"--trials searches with Optuna: {install('hpo')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    tried: dict[tuple[tuple[str, str], ...], Trial] = {}
    for _ in range(trials):
        asked = study.ask()
        values = space.suggested(asked)
        name = tuple(values.items())
        if name not in tried:
            (tried[name],) = evaluate([values])
        mean = tried[name].mean
        if mean is None:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(asked, mean)
    return list(tried.values())
