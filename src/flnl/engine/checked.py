"""Checks of what a method's parts return, which may be parts of a user's own.

A part that breaks its protocol would otherwise fail where nothing names it, or train a wrong model in silence.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.messages import Combined, Correction
from flnl.core.parts import BatchRule, GradientTransform
from flnl.core.payload import Params, Payload
from flnl.core.step import Phase


def loss(name: str, returned: Any, rows: int) -> tuple[Tensor, Any]:
    """What the loss term ``name`` returned for a batch of ``rows`` samples: the loss, [B] or a scalar, and a state.

    Raises:
        UserError: if it is anything else.
    """
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Tensor):
        shape = returned[0].shape
        if not shape or shape == (rows,):
            return returned
        raise UserError(f"loss term {name} returned a loss {[*shape]}; should be [{rows}], one a sample, or a scalar")
    raise _wrong(f"loss term {name}", returned, "the loss, a tensor, and the next state, as in `return loss, state`")


def mixed(rule: BatchRule, returned: Any, rows: int) -> tuple[Tensor, Tensor]:
    """The inputs and targets that a batch rule's ``mix`` made of a batch of ``rows`` samples.

    Raises:
        UserError: if these are not two tensors with a row for each sample.
    """
    if (
        isinstance(returned, tuple)
        and len(returned) == 2
        and all(isinstance(one, Tensor) and one.shape[:1] == (rows,) for one in returned)
    ):
        return returned
    raise _wrong(f"{_class(rule)}.mix", returned, f"inputs and targets, tensors of {rows} rows each")


def phases(rule: BatchRule, returned: Any) -> Iterable[Phase]:
    """The phases of an epoch, as a batch rule planned them.

    Raises:
        UserError: if these are none; later, if one of them is none.
    """
    wanted = "phases, as in `yield Phase(...)`"
    if not isinstance(returned, Iterable):
        raise _wrong(f"{_class(rule)}.phases", returned, wanted)
    for phase in returned:
        if not isinstance(phase, Phase):
            raise _wrong(f"{_class(rule)}.phases", phase, wanted)
        yield phase


def relabelled(rule: BatchRule, returned: Any, given: Tensor, classes: int) -> Tensor | None:
    """The labels with which a batch rule has replaced a client's ``given`` ones; None if it keeps them.

    Raises:
        UserError: if these are no labels.
    """
    return None if returned is None else _labels(f"{_class(rule)}.relabels", returned, given, classes)


def changed(transform: GradientTransform, method: str, returned: Any, like: Params) -> Mapping[str, Tensor]:
    """What a gradient transform's ``method`` made of gradients or parameters, some of those named in ``like``.

    Raises:
        UserError: if these are no tensors of those names and shapes.
    """
    if not isinstance(returned, Mapping):
        raise _wrong(f"{_class(transform)}.{method}", returned, "tensors by parameter name")
    for name, tensor in returned.items():
        if name not in like:
            raise UserError(f"{_class(transform)}.{method} returned {name}; the network has no such parameter")
        _same_shape(f"{_class(transform)}.{method}", name, tensor, like[name])
    return returned


def cohort(sampler: str, returned: Any, clients: Collection[int]) -> list[int]:
    """The clients that a sampler chose, of those with data.

    Raises:
        UserError: if these are not numbers of such clients, each at most once.
    """
    wanted = "a list of numbers of clients that hold data, each at most once"
    try:
        chosen = [operator.index(client) for client in returned]
    except TypeError:
        raise _wrong(sampler, returned, wanted) from None
    known = frozenset(clients)
    if (unknown := next((client for client in chosen if client not in known), None)) is not None:
        raise UserError(f"{sampler} returned client {unknown}, who holds no data; should be {wanted}")
    if len(set(chosen)) < len(chosen):
        raise UserError(f"{sampler} returned a client twice; should be {wanted}")
    return chosen


def combined(aggregator: str, returned: Any, received: Params) -> Combined:
    """What an aggregator made of the clients' models.

    Raises:
        UserError: if it is no model like the one ``received`` by the clients.
    """
    if not isinstance(returned, Combined):
        raise _wrong(f"{aggregator}.combine", returned, "Combined(params)")
    model(f"{aggregator}.combine", returned.params, received)
    return returned


def updated(server: str, returned: Any, before: Params) -> tuple[Params, Any]:
    """The next global model and the state that a server update returned.

    Raises:
        UserError: if it is anything else.
    """
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise _wrong(server, returned, "the next model and the next state")
    params, state = returned
    return model(server, params, before), state


def model(part: str, returned: Any, like: Params) -> Params:
    """A model with the names and shapes of ``like``.

    Raises:
        UserError: if ``returned`` is anything else.
    """
    if not isinstance(returned, Mapping):
        raise _wrong(part, returned, "a model, tensors by name")
    if (missing := next((name for name in like if name not in returned), None)) is not None:
        raise UserError(f"{part} returned a model without {missing}; should have all entries of the one it received")
    if (added := next((name for name in returned if name not in like), None)) is not None:
        raise UserError(f"{part} returned a model with {added}, which the one it received does not have")
    for name, tensor in like.items():
        _same_shape(part, name, returned[name], tensor)
    return dict(returned)


def report(part: str, returned: Any) -> tuple[Payload, Payload]:
    """What a client sends to the server and keeps, as an exchange's ``report`` returned it.

    Raises:
        UserError: if it is anything else.
    """
    if isinstance(returned, tuple) and len(returned) == 2 and all(isinstance(one, Payload) for one in returned):
        return returned
    raise _wrong(part, returned, "two payloads: what is sent, and what the client keeps")


def messages(part: str, returned: Any) -> Iterable[Any]:
    """The messages that an exchange's ``send`` or ``relay`` returned.

    Raises:
        UserError: if it is not a tuple or a list.
    """
    if isinstance(returned, tuple | list):
        return returned
    raise _wrong(part, returned, "a tuple of messages, as in `return (message,)`")


def correction(part: str, returned: Any, given: Tensor, classes: int) -> Correction:
    """A client's correction; ``given`` are its given labels, int64 [n].

    Raises:
        UserError: if it is no correction, or does not have one label of ``classes`` classes for each sample.
    """
    if not isinstance(returned, Correction):
        raise _wrong(part, returned, "a Correction")
    _labels(part, returned.labels, given, classes)
    return returned


def _labels(part: str, labels: Any, given: Tensor, classes: int) -> Tensor:
    if not isinstance(labels, Tensor) or labels.dtype != given.dtype or labels.shape != given.shape:
        shown = f"{labels.dtype} {[*labels.shape]}" if isinstance(labels, Tensor) else f"a {type(labels).__name__}"
        raise UserError(f"{part} returned labels, {shown}; should be int64 {[*given.shape]}")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise UserError(f"{part} returned labels that are not from 0 to {classes - 1}")
    return labels


def _same_shape(part: str, name: str, tensor: Any, like: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise _wrong(f"{part}, for {name},", tensor, "a tensor")
    if tensor.shape != like.shape:
        raise UserError(f"{part} returned {name} {[*tensor.shape]}; should be {[*like.shape]}")


def _class(part: object) -> str:
    return type(part).__name__


def _wrong(part: str, returned: Any, wanted: str) -> UserError:
    if returned is None:
        return UserError(f"{part} returned nothing; should return {wanted}")
    described = "a tuple" if type(returned) is tuple else f"a value of type {type(returned).__name__}"
    return UserError(f"{part} returned {described}; should be {wanted}")
