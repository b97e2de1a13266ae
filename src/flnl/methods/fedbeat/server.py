"""FedBeat's server update while the global model is the transition network's body: the classifier waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flnl.core.parts import ServerUpdate
from flnl.core.payload import Params
from flnl.core.ranges import Count
from flnl.core.stored import stored


@stored("WaitingClassifier")
class WaitingClassifier:
    """The server's state."""

    params: Params  # the global model with which the first of these rounds began
    rounds: int  # of these, so far


@dataclass(frozen=True)
class HoldClassifier(ServerUpdate):
    """The combined model becomes the global one, in the last of ``rounds`` rounds the one with which they began.

    Evaluations see that one. A round without any result does not count; then the last would not be known.
    """

    rounds: Count

    def init(self, params: Params) -> WaitingClassifier:
        return WaitingClassifier(params, 0)

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: WaitingClassifier
    ) -> tuple[Params, WaitingClassifier]:
        state = replace(state, rounds=state.rounds + 1)
        return (state.params if state.rounds == self.rounds else combined), state

    def shown(self, params: Params, state: WaitingClassifier) -> Params:
        return state.params
