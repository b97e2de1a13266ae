"""The server's step from the received model and the combined one to the next global model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from src.core import Params, ServerUpdate


@dataclass(frozen=True)
class Replace(ServerUpdate):
    """The combined model becomes the global one (FedAvg)."""

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Any
    ) -> tuple[Params, Any]:
        """The combined model."""
        return combined, state
