"""How many of its samples a client has trained on, for methods that leave some out or have none for a while."""

from dataclasses import dataclass

from flnl.core.stored import stored


@stored("UsedSamples")
@dataclass(frozen=True)
class UsedSamples:
    """Sent to the server: the number of samples that the client has trained on."""

    count: int
