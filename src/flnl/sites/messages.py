"""The messages between a server and a site, and what each must hold: a header and, in a part of its own, a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from flnl.core.errors import UserError
from flnl.core.payload import Params, Payload, size_in_bytes
from flnl.sites import wire
from flnl.sites.wire import WireError

Parts = Sequence[bytes]
"""A message: frames, of which the first is the header."""


class Unread(tuple[bytes, ...]):
    """In place of a message that was not read: it has no part, and whoever reads it is told ``why``."""

    why: str

    @classmethod
    def because(cls, why: str) -> Unread:
        """One for this reason."""
        made = cls()
        made.why = why
        return made


OPEN = {
    "kind": str,
    "wire": int,
    "flnl": str,
    "run": str,  # letters and digits that name the run
    "key": str,  # of what the site is to do
    "config": str,  # what that is, as JSON
    "classes": tuple[str, ...],
    "client": int,
    "clients": int,
    "holders": int,  # of the clients, how many hold samples
}
"""The server opens a run."""

TASK = {
    "kind": str,
    "run": str,
    "job": str,  # train, correct, open or ask
    "exchange": str,  # of the job open: whose
    "ask": Any,  # of the job ask: the job
    "round": int,
    "stage": int,
    "lengths": tuple[int, ...],
    "seed": int,
    "extras": Payload,
    "kept": str,  # handle of the client's state; empty if it keeps nothing
    "floor": int,  # the earliest round that the server may begin with again
}
"""The server has a job; the model that clients receive is the second part."""

FINISH = {"kind": str, "run": str, "round": int, "own": dict[str, Any], "kept": str}
"""The run is over for now; the evaluated model is the second part."""

EVALUATE = {"kind": str, "run": str, "round": int}
"""The server asks how good a model, the second part, is on held-out samples."""

RECORD = {"kind": str, "run": str, "round": int, "before": int, "window": int, "floor": int}
"""A site adds the class probabilities of a model, the second part, to its sums after the round ``before`` (0: none).

``window`` is the last recorded round of the window so far, whose sums are kept for an audit.
"""

RECORDED = {"kind": str}
"""A site has done so, and tells nothing of it."""

REFUSED = {"kind": str, "why": str}
"""A site does not do what it was asked, or could not."""
NOT_DONE = {"refused": "refused", "failed": "failed", "lost": "refused", "waiting": "waits"}
"""Kinds of ``REFUSED``, and what they say; ``lost``: it no longer has what it had kept; ``waiting``: somebody there has
to approve the run first, and the server may ask again."""

OPENED = {"kind": str, "size": int, "token": str, "own_streams": bool, "versions": dict[str, str]}
"""A site is ready. ``token`` is another one if its samples or labels are others; ``versions`` are as ``versions()``."""


def versions() -> dict[str, str]:
    """What the last bits of numbers may depend on, here."""
    return {"torch": str(torch.__version__), "numpy": np.__version__, "threads": str(torch.get_num_threads())}


DONE = {
    "kind": str,
    "reports": Payload,
    "kept": str,
    "trained": int,  # samples that passed networks
    "scored": int,
    "num_samples": int,
    "loss": float,
    "steps": int,
    "finite": bool,
    "moved": float | None,
    "relabelled": int | None,  # by a correction; None if it was none, or the site keeps that to itself
    "changed": int | None,  # labels that are not the given ones
    "outcome": float | None,  # of the job ask
}
"""A site has done a job; of training, the trained model is the second part."""

SCORED = {"kind": str, "count": int | None, "right": int | None, "loss": int | None}
"""A site's held-out samples, how many were predicted as labelled, and the sum of their losses, times ``ONE``.

All are None if there are fewer samples than the site tells of, and the loss alone if it is not finite.
"""

ONE = 2**32
"""A loss of 1 in a message: sums of whole numbers are the same in any order of sites."""

AUDIT = {"kind": str, "run": str, "question": Any}
"""The server asks something in an audit of labels: an ``audit_messages.Question``."""

AUDITED = {"kind": str, "told": Any}
"""A site's answer, of the type that belongs to the question."""

ASKED = {
    **{"open": OPEN, "task": TASK, "evaluate": EVALUATE, "record": RECORD, "finish": FINISH},
    "audit": AUDIT,
}
"""All that a site answers but a greeting, by kind."""

FINISHED = {"kind": str, "flagged": int | None, "changed": int | None}
"""A site has written what it gets out of a run."""


def written(fields: Mapping[str, Any], **values: Any) -> bytes:
    """A header of this kind, whose ``fields`` must all have a value."""
    assert values.keys() == fields.keys(), "a message has the fields of its kind"
    return wire.written(values)


def read_model(part: bytes, like: Params) -> Params:
    """A model of the form of another.

    Raises:
        WireError: if it is something else.
    """
    return wire.checked_model(wire.read(part, most=most_of(like)), like)


def most_of(like: Params) -> int:
    """The largest number of bytes of a frame with a model of this form."""
    return size_in_bytes(like) + wire.LARGEST_FRONT


class RefusedError(UserError):
    """A site does not do what it was asked. The message has no path and no value of its data."""

    kind = "refused"


class WaitingError(RefusedError):
    """Nobody at the site has approved the run yet."""

    kind = "waiting"


class LostError(RefusedError):
    """A site no longer has what it had kept."""

    kind = "lost"


LARGEST = 64 * 2**20
"""Most bytes of a header with its values."""


def most_of_answer(asked: Parts) -> list[int]:
    """Most bytes of each part of an answer: of its header, and of a model of the form of the one that was sent."""
    return [LARGEST, sum(map(len, asked[1:])) + wire.LARGEST_FRONT]


def run_of(parts: Parts) -> str:
    """The name of the run that must be open for a message; empty if there is none.

    Raises:
        WireError: if it is no message.
    """
    plain = wire.plain_in(parts[0], LARGEST) if parts else {}
    run = plain.get("run")
    return run if isinstance(run, str) and plain.get("kind") != "open" else ""


def read_header(parts: Parts, kinds: dict[str, dict[str, Any]], expected: Collection[type] = ()) -> dict[str, Any]:
    """The header of a message of one of these ``kinds``, by name; it may hold values of the ``expected`` classes.

    Raises:
        WireError: if it is something else.
    """
    if not parts:
        raise WireError(parts.why if isinstance(parts, Unread) else "a message without parts")
    header = wire.read(parts[0], expected, LARGEST)
    kind = header.get("kind") if isinstance(header, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise WireError("a message of a kind that is not expected here")
    return wire.checked_fields(header, kinds[kind])
