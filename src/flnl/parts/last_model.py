"""A client's last model, for exchanges that give others something of it."""

from dataclasses import dataclass

from flnl.core.payload import Params
from flnl.core.stored import stored


@stored("LastModel")
@dataclass(frozen=True)
class LastModel:
    """Kept on the client: its model after its last training. The server has it, too, since the client sent it."""

    params: Params
