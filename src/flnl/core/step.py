"""One step of local training, as loss terms and gradient transforms see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from flnl.core.messages import Broadcast
from flnl.core.onto import onto
from flnl.core.payload import Params, Payload

LOGITS, FEATURES, FIRST, SECOND = "logits", "features", "first", "second"
"""Names of a network's outputs: all have logits and features; a pair also has each network's logits."""


@dataclass(frozen=True)
class Mixing:
    """How the rows of a batch are mixed: ``share · row + (1 - share) · row[partner]``."""

    share: float
    partner: Tensor  # int64 [B]

    def rows(self, values: Tensor) -> Tensor:
        """Mixed rows [B, ...]."""
        return torch.lerp(values[onto(self.partner, values.device)], values, self.share)

    def targets(self, labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
        """Mixed targets [B, K], from labels, int64 [B]."""
        # not one_hot, which reads the labels' values
        return self.rows((labels[:, None] == torch.arange(num_classes, device=labels.device)).to(dtype))


@dataclass(frozen=True)
class Phase:
    """A pass over some of a client's samples, within an epoch; a batch rule plans an epoch as one phase or several."""

    name: str | None = None  # for loss terms
    positions: Tensor | None = None  # int64 [m], the phase's samples, each at most once; None for all
    labels: Tensor | None = None  # int64 [n], for all the client's samples; None for the client's current labels
    beside: Tensor | None = None  # int64 [m'], a second pool of samples: each step also gets a batch of them
    facts: Any = None  # what loss terms need to know, such as a probability of each sample


WHOLE = Phase()
"""All samples with the client's current labels."""


@dataclass(frozen=True)
class Progress:
    """Where in the client's visit a phase is."""

    epoch: int  # local epoch, from 0
    epochs: int  # local epochs of the visit
    batches: int  # batches of the phase


@dataclass(frozen=True)
class Beside:
    """A batch of the phase's second pool."""

    positions: Tensor  # int64 [B'], positions of the samples on the client
    views: tuple[Tensor, ...]  # [B', C, H, W] each, as ``Step.views``


class ForwardPasses(Protocol):
    """The forward passes available in a step. ``inputs`` are [B, C, H, W]."""

    def outputs(self, inputs: Tensor) -> Mapping[str, Tensor]:
        """All outputs of the network being trained, by name."""
        ...

    def output(self, name: str, inputs: Tensor) -> Tensor:
        """One output; for a pair, ``first`` and ``second`` run only that network."""
        ...

    def several(self, name: str, batches: Sequence[Tensor], *, training: bool, updating: bool) -> list[Tensor]:
        """One output on each of ``batches``, as ``Step.opinions``.

        Where batch norm does not tell the batches apart, they pass the network as one, and a batch that is there twice
        passes once.

        Raises:
            LookupError: if the network has no such output.
        """
        ...

    def scored(self, inputs: Tensor) -> Tensor:
        """Logits [B, K] of the network being trained, in eval mode and without gradients."""
        ...

    def received(self, inputs: Tensor) -> Tensor:
        """Logits [B, K] of the received network, in eval mode and without gradients."""
        ...

    def training_loss(self, inputs: Tensor, labels: Tensor, number: int) -> Tensor:
        """The loss that the network itself computes for a batch, a scalar; only where clients are trained one by one.

        Args:
            inputs: [B, C, H, W].
            labels: int64 [B].
            number: number of the batch in its phase of an epoch, from 0.

        Raises:
            LookupError: where clients are trained together.
        """
        raise LookupError("the loss of the network itself is for one client at a time")


@dataclass
class Step:
    """One batch, the network, and what the client received and keeps. Shared results are computed once."""

    inputs: Tensor  # [B, C, H, W], after augmentation, normalisation and mixing
    labels: Tensor  # int64 [B], before mixing
    targets: Tensor  # int64 [B], or float [B, K] after mixing
    positions: Tensor  # int64 [B], positions of the samples on the client
    weight: Tensor | None  # [B], weight of each row in the loss, after mixing; None for all ones
    draws: Mapping[str, Any]  # each loss term's random draw for this batch, by the term's name
    number: int  # number of the batch in its phase of an epoch, from 0
    unmixed: Tensor  # [B, C, H, W], the inputs before mixing
    mixing: Mixing | None  # how inputs and targets were mixed; None if they were not
    passes: ForwardPasses
    params: Params  # the parameters being trained (not copies; no buffers)
    broadcast: Broadcast
    kept: Payload  # what the client keeps from earlier visits
    views: tuple[
        Tensor, ...
    ] = ()  # [B, C, H, W] each: the views that the batch rule asks for; the first is ``unmixed``
    phase: Phase = WHOLE
    progress: Progress | None = None  # None if clients are trained together
    beside: Beside | None = None  # a batch of the phase's second pool; None if it has none
    computed: Mapping[str, Tensor] | None = None  # outputs on ``inputs``, if already computed
    visit: Payload = field(default_factory=Payload)  # what exchanges have begun this visit with
    term: str | None = None  # name of the loss term that is being called with this step; None if none is

    def given_to(self, name: str, term: Callable[[Step, Any], Any], state: Any) -> Any:
        """What the loss term of this name returns; while it is called, ``draw`` is what it drew."""
        self.term = name
        try:
            return term(self, state)
        finally:
            self.term = None

    @property
    def draw(self) -> Any:
        """What the loss term that is being called drew for this batch.

        Raises:
            LookupError: outside of a loss term.
        """
        if self.term is None:
            raise LookupError("only a loss term has a draw; others may read draws[NAME]")
        return self.draws[self.term]

    @cached_property
    def outputs(self) -> Mapping[str, Tensor]:
        """The network's outputs on ``inputs``, by name: ``logits`` [B, K] and others, such as ``features`` [B, d]."""
        return self.passes.outputs(self.inputs) if self.computed is None else self.computed

    def output(self, name: str, inputs: Tensor | None = None) -> Tensor:
        """One output of the network.

        Args:
            name: ``logits`` or ``features``; ``first`` or ``second`` of a pair of networks.
            inputs: [B', C, H, W]; None for the batch, whose outputs need no further pass.

        Raises:
            LookupError: if the network has no such output.
        """
        if inputs is not None:
            return self.passes.output(name, inputs)
        try:
            return self.outputs[name]
        except KeyError:
            there = ", ".join(self.outputs)
            raise LookupError(f"the network has no output {name!r}; there are {there}") from None

    def opinions(
        self, name: str, batches: Sequence[Tensor], *, training: bool = True, updating: bool = False
    ) -> list[Tensor]:
        """One output on each of ``batches`` [B', C, H, W], without gradients.

        Args:
            name: as of ``output``.
            batches: inputs; batch norm uses each batch by itself, and the running statistics for a batch of one row.
            training: in training mode; False: in eval mode.
            updating: in training mode, each batch of more than one row updates batch norm's running statistics, one
                after the other, as passes with gradients do. Under batch norm such clients are trained one by one.

        Raises:
            LookupError: if the network has no such output.
        """
        return self.passes.several(name, batches, training=training, updating=updating)

    @property
    def samples(self) -> int:
        """Number of samples in the step, those of the second pool included."""
        return len(self.labels) + (0 if self.beside is None else len(self.beside.positions))

    @property
    def logits(self) -> Tensor:
        """The network's logits [B, K] on ``inputs``."""
        return self.outputs[LOGITS]

    @cached_property
    def unmixed_logits(self) -> Tensor:
        """Logits [B, K] on ``unmixed`` without gradients; equal to ``logits`` if nothing was mixed."""
        return self.logits.detach() if self.mixing is None else self.passes.scored(self.unmixed)

    def received(self, inputs: Tensor) -> Tensor:
        """Logits [B', K] of the received network on ``inputs``, in eval mode and without gradients."""
        with torch.no_grad():
            return self.passes.received(inputs)

    @cached_property
    def received_logits(self) -> Tensor:
        """Logits [B, K] of the received network on ``unmixed``, without gradients."""
        return self.received(self.unmixed)
