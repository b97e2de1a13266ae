"""Checks of what a method's parts return, which may be parts of a user's own.

A part that breaks its protocol would otherwise fail where nothing names it, or train a wrong model in silence. All
checks raise ``PartError``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

from flnl.core.errors import PartError
from flnl.core.findings import (
    OF_RUNS,
    EstimatedNoise,
    EstimatedQuality,
    Finding,
    LabelShares,
    NoisyClients,
    Scalar,
    SuspectedSamples,
)
from flnl.core.messages import ClientTask, Combined, Correction, Opened
from flnl.core.parts import BatchRule, GradientTransform, Wants
from flnl.core.payload import Params, Payload
from flnl.core.step import Mixing, Phase

T = TypeVar("T")

WANTS: tuple[Wants, ...] = get_args(Wants)

# ------------------------------------------------------------------------------------------------------------ training


def loss(name: str, returned: Any, rows: int) -> tuple[Tensor, Any]:
    """What the loss term ``name`` returned for a batch of ``rows`` samples: the loss, [B] or a scalar, and a state."""
    values, state = loss_and_state(name, returned)
    if not values.shape or values.shape == (rows,):
        return values, state
    raise PartError(
        f"loss term {name} returned a loss {[*values.shape]}; should be [{rows}], one a sample, or a scalar"
    )


def loss_and_state(name: str, returned: Any) -> tuple[Tensor, Any]:
    """A tensor and a state, which the loss term ``name`` returned."""
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[0], Tensor):
        return returned
    raise _wrong(f"loss term {name}", returned, "the loss, a tensor, and the next state, as in `return loss, state`")


def mixing(rule: BatchRule, returned: Any, rows: int) -> Mixing | None:
    """How a batch rule mixes a batch of ``rows`` samples; None if it does not."""
    if returned is None:
        return None
    part, wanted = f"{_class(rule)}.mixing", f"Mixing(share, partner), with a partner for each row, int64 [{rows}]"
    if not isinstance(returned, Mixing):
        raise _wrong(part, returned, wanted)
    partner = returned.partner
    if not isinstance(partner, Tensor) or partner.dtype != torch.int64 or partner.shape != (rows,):
        raise _wrong(f"{part}, for partner,", partner, f"a tensor [{rows}] of torch.int64")
    values = partner.numpy()  # drawn on the CPU, so that nothing waits for a GPU
    if rows and not 0 <= values.min() <= values.max() < rows:
        raise PartError(f"{part} returned partners that are not from 0 to {rows - 1}")
    return returned


def phases(rule: BatchRule, returned: Any, task: ClientTask, classes: int) -> Iterable[Phase]:
    """The phases of an epoch, as a batch rule plans them; each is asked for, and checked, when it is its turn."""
    part, wanted = f"{_class(rule)}.phases", "phases, as in `yield Phase(...)`"
    for phase in _several(part, returned, wanted):
        if not isinstance(phase, Phase):
            raise _wrong(part, phase, wanted)
        _positions(f"{part}, for positions,", phase.positions, len(task.samples))
        _positions(f"{part}, for beside,", phase.beside, len(task.samples))
        if phase.labels is not None:
            _labels(part, phase.labels, task, classes)
        yield phase


def relabelled(rule: BatchRule, returned: Any, task: ClientTask, classes: int) -> Tensor | None:
    """The labels with which a batch rule has replaced a client's; None if it keeps them."""
    return None if returned is None else _labels(f"{_class(rule)}.relabels", returned, task, classes)


def changed(transform: GradientTransform, method: str, returned: Any, like: Mapping[str, Tensor]) -> Params:
    """What a gradient transform's ``method`` made of gradients or parameters; ``like`` are the network's parameters."""
    part = f"{_class(transform)}.{method}"
    if not isinstance(returned, Mapping):
        raise _wrong(part, returned, "tensors by parameter name")
    for name, tensor in returned.items():
        if name not in like:
            raise PartError(f"{part} returned {name}; the network has no such parameter")
        _check_shape(part, name, tensor, like[name])
    return dict(returned)


# ---------------------------------------------------------------------------------------------------------- the server


def cohort(part: str, returned: Any, clients: Collection[int], most: int | None = None) -> list[int]:
    """Clients that a part chose, of those with data; ``most`` at most."""
    wanted = "numbers of clients that hold data, each at most once"
    chosen = []
    for client in _several(part, returned, wanted):
        try:
            chosen.append(operator.index(client))
        except TypeError:
            raise _wrong(part, client, wanted) from None
    known = frozenset(clients)
    if (unknown := next((client for client in chosen if client not in known), None)) is not None:
        raise PartError(f"{part} returned client {unknown}, who holds no data; should be {wanted}")
    if len(set(chosen)) < len(chosen):
        raise PartError(f"{part} returned a client twice; should be {wanted}")
    if most is not None and len(chosen) > most:
        raise PartError(f"{part} returned {len(chosen)} clients; its size says {most} at most")
    return chosen


def size(sampler: str, returned: Any) -> int:
    """The largest number of clients in a round, as a sampler says."""
    try:
        return operator.index(returned)
    except TypeError:
        raise _wrong(f"{sampler}, for size,", returned, "the largest number of clients in a round") from None


def combined(aggregator: str, returned: Any, received: Params) -> Combined:
    """What an aggregator made of clients' models, each like the one that they ``received``."""
    if not isinstance(returned, Combined):
        raise _wrong(f"{aggregator}.combine", returned, "Combined(params)")
    _check_model(f"{aggregator}.combine", returned.params, received)
    for name, fact in returned.facts.items():
        _number(f"{aggregator}.combine, for the fact {name},", fact)
    return returned


def updated(server: str, returned: Any, before: Params) -> tuple[Params, Any]:
    """The next global model, like the one ``before``, and the next state, which a server update returned."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise _wrong(server, returned, "the next model and the next state")
    _check_model(server, returned[0], before)
    return returned


def state(exchange: str, method: str, returned: T, before: Any) -> T:
    """The state that an exchange's ``method`` returned; None only if it had none ``before``."""
    if returned is None and before is not None:
        raise _wrong(f"exchange {exchange}.{method}", returned, "the next state")
    return returned


def wants(exchange: str, returned: Any) -> Wants:
    """Whether an exchange wants the clients' models of a round."""
    for choice in WANTS:
        if returned == choice:
            return choice
    raise _wrong(f"exchange {exchange}.wants_models", returned, f"one of {', '.join(WANTS)}")


def messages(exchange: str, method: str, returned: Any) -> Sequence[Any]:
    """The messages that an exchange's ``method`` returned."""
    if isinstance(returned, tuple | list) and not hasattr(returned, "_fields"):  # a named tuple is one message
        return returned
    raise _wrong(f"exchange {exchange}.{method}", returned, "a tuple of messages, as in `return (message,)`")


def known(exchange: str, returned: Any) -> Sequence[Any]:
    """What an exchange makes known to the server's parts."""
    return messages(exchange, "known", returned)


def findings(part: str, returned: Any, sizes: Mapping[int, int]) -> Sequence[Finding]:
    """What a part has found out about clients and their samples; ``sizes`` are all clients' numbers of samples."""
    part = f"{part}.findings"
    if not isinstance(returned, tuple | list):
        raise _wrong(part, returned, "a tuple of findings, as in `return (Scalar(name, value),)`")
    for finding in returned:
        if isinstance(finding, Scalar):
            _scalar(part, finding)
        elif isinstance(finding, SuspectedSamples):
            _suspected(part, finding, sizes)
        elif isinstance(finding, NoisyClients):
            _vector(f"{part}, for noisy,", finding.noisy, len(sizes), torch.bool)
        elif isinstance(finding, EstimatedNoise | EstimatedQuality):
            _vector(f"{part}, for {_class(finding)},", finding.values, len(sizes))
        elif not isinstance(finding, LabelShares):
            raise _wrong(part, finding, "findings, such as Scalar(name, value)")
        if isinstance(finding, NoisyClients | EstimatedQuality):
            for name, values in finding.scores.items():
                _vector(f"{part}, for the score {name},", values, len(sizes))
    return returned


def _suspected(part: str, finding: SuspectedSamples, sizes: Mapping[int, int]) -> None:
    if finding.client not in sizes:
        raise PartError(f"{part} returned suspected samples of client {finding.client}; there is none of this number")
    of, samples = f"{part}, for client {finding.client},", sizes[finding.client]
    _vector(of, finding.mask, samples, torch.bool)
    for values in (finding.score, finding.judged, finding.proposed):
        if values is not None:
            _vector(of, values, samples)


def _scalar(part: str, finding: Scalar) -> None:
    if not isinstance(finding.name, str) or re.fullmatch(r"\w+", finding.name) is None:
        raise PartError(f"{part} returned a Scalar called {finding.name!r}; should be a word")
    if OF_RUNS.fullmatch(finding.name):
        raise PartError(f"{part} returned a Scalar called {finding.name}, a name for metrics of runs; rename yours")
    _number(f"{part}, for the Scalar {finding.name},", finding.value)


def _vector(part: str, values: Any, length: int, dtype: torch.dtype | None = None) -> None:
    """Check a tensor [length]; without a ``dtype``, of any numbers."""
    fits = isinstance(values, Tensor) and values.shape == (length,)
    if not fits or (dtype is not None and values.dtype != dtype):
        raise _wrong(part, values, f"a tensor [{length}] of {'numbers' if dtype is None else dtype}")


# ------------------------------------------------------------------------------------------------------------- clients


def begun(exchange: str, returned: Any) -> tuple[Payload, Payload]:
    """What parts read during a visit, and what the client keeps, as an exchange's ``begin`` returned it."""
    return _payloads(f"exchange {exchange}.begin", returned, "what the visit reads")


def report(exchange: str, returned: Any) -> tuple[Payload, Payload]:
    """What a client sends to the server and keeps, as an exchange's ``report`` returned it."""
    return _payloads(f"exchange {exchange}.report", returned, "what is sent")


def opened(job: object, returned: Any, task: ClientTask) -> Opened:
    """A client's answer to the ``job`` of an exchange's ``before_round``."""
    if not isinstance(returned, Opened):
        raise _wrong(_class(job), returned, "Opened(task.client, ...)")
    _check_client(_class(job), returned, task)
    return returned


def correction(corrector: object, returned: Any, task: ClientTask, classes: int) -> Correction:
    """A client's correction, with one label of ``classes`` classes for each sample."""
    part = f"{_class(corrector)}.correct"
    if not isinstance(returned, Correction):
        raise _wrong(part, returned, "a Correction")
    _check_client(part, returned, task)
    _labels(part, returned.labels, task, classes)
    weight, samples = returned.weight, len(task.samples)
    if weight is not None and not (isinstance(weight, Tensor) and weight.shape == (samples,)):
        raise _wrong(f"{part}, for weight,", weight, f"a weight for each sample, [{samples}]")
    return returned


def _check_client(part: str, answer: Opened | Correction, task: ClientTask) -> None:
    if answer.client != task.client:
        raise PartError(f"{part} returned an answer of client {answer.client} for client {task.client}")
    _payload(f"{part}, for keeps,", answer.keeps)
    _payload(f"{part}, for reports,", answer.reports)


# ------------------------------------------------------------------------------------------------------------- values


def _check_model(part: str, returned: Any, like: Params) -> None:
    if not isinstance(returned, Mapping):
        raise _wrong(part, returned, "a model, tensors by name")
    if (missing := next((name for name in like if name not in returned), None)) is not None:
        raise PartError(f"{part} returned a model without {missing}; should have all entries of the one it received")
    if (added := next((name for name in returned if name not in like), None)) is not None:
        raise PartError(f"{part} returned a model with {added}, which the one it received does not have")
    for name, tensor in like.items():
        _check_shape(part, name, returned[name], tensor)


def _check_shape(part: str, name: str, tensor: Any, like: Tensor) -> None:
    if not isinstance(tensor, Tensor) or tensor.shape != like.shape:
        raise _wrong(f"{part}, for {name},", tensor, f"a tensor {[*like.shape]}")


def _labels(part: str, returned: Any, task: ClientTask, classes: int) -> Tensor:
    given = task.samples.given
    if not isinstance(returned, Tensor) or returned.dtype != given.dtype or returned.shape != given.shape:
        raise _wrong(f"{part}, for labels,", returned, f"a tensor {[*given.shape]} of {given.dtype}")
    _within(part, "labels", returned, classes)
    return returned


def _positions(part: str, returned: Any, samples: int) -> None:
    """Check positions of a client's samples; None stands for all."""
    if returned is None:
        return
    if not isinstance(returned, Tensor) or returned.dtype != torch.int64 or returned.dim() != 1:
        raise _wrong(part, returned, "positions, a tensor [m] of torch.int64 (of a mask, `mask.nonzero().flatten()`)")
    _within(part, "positions", returned, samples)


def _within(part: str, what: str, returned: Tensor, count: int) -> None:
    if len(returned) and not 0 <= int(returned.min()) <= int(returned.max()) < count:
        raise PartError(f"{part} returned {what} that are not from 0 to {count - 1}")


def _number(part: str, returned: Any) -> None:
    if not isinstance(returned, int | float):
        raise _wrong(part, returned, "a number, as `float(value)`")


def _payload(part: str, returned: Any) -> Payload:
    if isinstance(returned, Payload):
        return returned
    raise _wrong(part, returned, "a Payload")


def _payloads(part: str, returned: Any, first: str) -> tuple[Payload, Payload]:
    if isinstance(returned, tuple) and len(returned) == 2 and all(isinstance(one, Payload) for one in returned):
        return returned
    raise _wrong(part, returned, f"two payloads: {first}, and what the client keeps")


def _several(part: str, returned: Any, wanted: str) -> Iterable[Any]:
    if isinstance(returned, Iterable):
        return returned
    raise _wrong(part, returned, wanted)


def _class(part: object) -> str:
    return type(part).__name__


def _wrong(part: str, returned: Any, wanted: str) -> PartError:
    if returned is None:
        return PartError(f"{part} returned nothing; should return {wanted}")
    return PartError(f"{part} returned {_described(returned)}; should be {wanted}")


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor {[*value.shape]} of {value.dtype}"
    if type(value) in (tuple, list):
        kinds = ", ".join("nothing" if one is None else _class(one) for one in value[:3])
        return f"a {_class(value)} ({kinds}{', ...' if len(value) > 3 else ''})"
    return f"a value of type {_class(value)}"
