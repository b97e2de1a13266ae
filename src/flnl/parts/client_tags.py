"""Which clients the server considers noisy, for all parts that treat them differently."""

from dataclasses import dataclass

from torch import Tensor

from flnl.core.stored import stored


@stored("ClientTag")
@dataclass(frozen=True)
class ClientTag:
    """Sent to the client, once clients have been compared: whether the server considers it noisy."""

    noisy: bool


@dataclass(frozen=True)
class ClientTags:
    """Known on the server: the noisy clients; nobody until clients have been compared."""

    noisy: Tensor  # bool [N]
