"""Messages of several methods: which clients the server considers noisy, a last model, how many samples were used."""

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from flnl.core.payload import Params
from flnl.core.reported import OfSamples
from flnl.core.stored import stored


@stored("ClientTag")
class ClientTag:
    """Sent to the client, once clients have been compared: whether the server considers it noisy."""

    noisy: bool


@dataclass(frozen=True)
class ClientTags:
    """Known on the server: the noisy clients; nobody until clients have been compared."""

    noisy: Tensor  # bool [N]


@stored("LastModel")
class LastModel:
    """Kept on the client: its model after its last training. The server has it, too, since the client sent it."""

    params: Params


@stored("UsedSamples")
class UsedSamples:
    """Sent to the server: the number of samples that the client has trained on."""

    count: Annotated[int, OfSamples()]
