"""The samples whose soft label has become another class: for the record only, nothing is sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState
from flnl.core.parts import Exchange
from flnl.core.payload import Payload
from flnl.methods.joint_opt.labels import SoftLabels


@dataclass(frozen=True)
class SoftLabelRecord(Exchange):
    """Records each client's samples whose largest soft label is not of the label that they are held to have."""

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """These samples, scored by one minus the soft label of the held class."""
        kept = {client: own.terms.values() for client, own in clients.items()}
        labels = {c: soft for c, terms in kept.items() for soft in terms if isinstance(soft, SoftLabels)}
        return tuple(_suspected(client, soft) for client, soft in labels.items())


def _suspected(client: int, soft: SoftLabels) -> SuspectedSamples:
    held, proposed = soft.held.cpu(), soft.classes.cpu()
    doubt = 1 - soft.values.cpu().gather(1, held[:, None])[:, 0]
    return SuspectedSamples(client, proposed != held, doubt, held, proposed)
