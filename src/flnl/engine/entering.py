"""What a client's state becomes when the run enters a stage."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from flnl.core.messages import ClientState
from flnl.core.method import Method
from flnl.core.stage import Stage
from flnl.core.training import Training


def entering(
    method: Method, stage: Stage, lengths: Sequence[int], training: Training
) -> Callable[[ClientState], ClientState] | None:
    """What to make of clients' states before the first round of ``stage``; None if they stay as they are.

    A stage that restarts from the initial model drops what loss terms keep of the path that the model has left. A stage
    that does not go on with the optimisers of the one before drops their buffers.

    Args:
        method: the run's method.
        stage: the stage that begins.
        lengths: number of rounds of each stage; one without rounds is never entered.
        training: how clients train, as far as a stage does not say otherwise.
    """
    earlier = method.stages[: stage.number - 1]
    before = next((one for one in reversed(earlier) if lengths[one.number - 1]), None)
    goes_on = not stage.restart and before is not None and stage.training(training).continues(before.training(training))
    forgets = not goes_on and any(one.training(training).keep_momentum for one in earlier)
    terms = {name for one in earlier for name, term in one.local.items() if term.restarts} if stage.restart else set()
    if not forgets and not terms:
        return None

    def change(kept: ClientState) -> ClientState:
        kept = kept.without_terms(terms)
        return replace(kept, momentum=None) if forgets and kept.momentum is not None else kept

    return change


def entered(
    method: Method, state: ClientState, after: int, stage: int, lengths: Sequence[int], training: Training
) -> ClientState:
    """A client's ``state`` of the stage with number ``after`` (0: before the first) as it is in the later ``stage``."""
    for one in method.stages[after:stage]:
        change = entering(method, one, lengths, training) if lengths[one.number - 1] else None
        state = state if change is None else change(state)
    return state
