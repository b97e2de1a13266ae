"""The optimiser's step as compiled code: it reads gradients in bfloat16 and writes the next step's weights in it.

Without it, a step in mixed precision converts all weights in one pass and their gradients in another
(``lower_precision``), and the optimiser reads and writes them once more. Of SGD with momentum these are 32 bytes a
parameter, and 20 here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd
from torch.utils._python_dispatch import _disable_current_modes

from flnl.core.optimizer import MOMENTS, MOMENTUM, SGD, Adam, AdamW
from flnl.core.payload import Params
from flnl.core.training import Training
from flnl.engine.stacked import compiling

Some = Sequence[Tensor | None]
Buffers = Mapping[str, Sequence[Tensor]]
Step = Callable[[list[Tensor], list[Tensor], Buffers, Tensor | float], None]
"""Of parameters, gradients, buffers by name, and the rate."""
Update = Callable[[Sequence[Tensor], Some, Some, Some, Buffers, Tensor | float], None]
"""Of parameters, gradients in bfloat16 and in float32, copies in bfloat16, buffers by name, and the rate."""


class CompiledUpdate:
    """One client's weights in bfloat16, and the optimiser that keeps them equal to the parameters, rounded."""

    def __init__(
        self,
        training: Training,
        live: Params,
        converted: Sequence[str],
        buffers: Buffers,
        rate: Tensor | None,
        made: dict[Hashable, Update],
    ) -> None:
        """Copy the weights; compile nothing yet.

        Args:
            training: the optimiser, and its learning rate unless ``rate`` has it.
            live: the parameters, float32, by name.
            converted: names of those that have copies.
            buffers: the optimiser's, by their names, in the order of ``live``.
            rate: scalar tensor on the parameters' device.
            made: what is compiled is kept here, for other parameters of the same shapes.
        """
        self._training, self._live, self._buffers = training, list(live.values()), buffers
        self._rate, self._made = training.lr if rate is None else rate, made
        self.copies = {name: torch.empty_like(live[name], dtype=torch.bfloat16).requires_grad_() for name in converted}
        self._copies = [self.copies.get(name) for name in live]
        self.renew()

    def renew(self) -> None:
        """Copy the parameters, which others have written."""
        both = [(c, p) for c, p in zip(self._copies, self._live, strict=True) if c is not None]
        if both:
            torch._foreach_copy_([c.detach() for c, _ in both], [p.detach() for _, p in both])

    def step(self) -> None:
        """Update every parameter that has a gradient, itself or by its copy, and all copies of these.

        Raises:
            UserError: if the update cannot be compiled.
        """
        both = list(zip(self._live, self._copies, strict=True))
        reached = [i for i, (p, c) in enumerate(both) if p.grad is not None or (c is not None and c.grad is not None)]
        if not reached:
            return
        live, copies = [self._live[i] for i in reached], [self._copies[i] for i in reached]
        halves, wholes = ([_gradient(t) for t in tensors] for tensors in (copies, live))
        kind = (self._training.optimizer, self._training.momentum, self._training.weight_decay)
        key = (*kind, *((i, h is None, w is None) for i, h, w in zip(reached, halves, wholes, strict=True)))
        update = self._made.get(key) or compiling.compiler(compiling.apart(update_of(self._training)))
        attempt = nullcontext() if key in self._made else compiling.attempt("the optimiser's step")
        with torch.no_grad(), _disable_current_modes(), attempt:  # torch compiles nothing within modes
            update(
                [p.detach() for p in live],
                halves,
                wholes,
                [None if c is None else c.detach() for c in copies],
                {name: [kept[i] for i in reached] for name, kept in self._buffers.items()},
                self._rate,
            )
        self._made[key] = update


def update_of(training: Training) -> Update:
    """The step of the optimiser of ``training`` by torch's own formulas, to be compiled.

    Raises:
        TypeError: if there is no such optimiser.
    """
    kind = training.optimizer
    if isinstance(kind, SGD):
        step = _sgd(training)
    elif isinstance(kind, Adam):
        step = _adam(training, kind)
    else:
        raise TypeError(f"{type(kind).__name__} is no optimiser of local training")

    def update(
        values: Sequence[Tensor],
        halves: Some,
        wholes: Some,
        copies: Some,
        buffers: Buffers,
        rate: Tensor | float,
    ) -> None:
        gradients = [_sum(half, whole) for half, whole in zip(halves, wholes, strict=True)]
        step(list(values), gradients, buffers, rate)
        for copy, value in zip(copies, values, strict=True):  # not by a list's operation: that would read them again
            if copy is not None:
                copy.copy_(value)

    return update


def _sgd(training: Training) -> Step:
    decay, momentum = training.weight_decay, training.momentum

    def step(values: list[Tensor], gradients: list[Tensor], buffers: Buffers, rate: Any) -> None:
        momenta: list[Any] = list(buffers[MOMENTUM.name]) if momentum else [None] * len(values)
        sgd(
            values,
            gradients,
            momenta,
            foreach=True,
            weight_decay=decay,
            momentum=momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    return step


def _adam(training: Training, kind: Adam) -> Step:
    decay = training.weight_decay
    averages, squares, counts = (buffer.name for buffer in MOMENTS)

    def step(values: list[Tensor], gradients: list[Tensor], buffers: Buffers, rate: Any) -> None:
        adam(
            values,
            gradients,
            list(buffers[averages]),
            list(buffers[squares]),
            [],
            [count.view(()) for count in buffers[counts]],
            foreach=True,
            capturable=True,
            decoupled_weight_decay=isinstance(kind, AdamW),
            amsgrad=False,
            beta1=kind.beta1,
            beta2=kind.beta2,
            lr=rate,
            weight_decay=decay,
            eps=kind.eps,
            maximize=False,
        )

    return step


def _gradient(of: Tensor | None) -> Tensor | None:
    """The gradient with the strides of ``of``: those of dimensions of one may differ, and code is made for strides."""
    if of is None or of.grad is None:
        return None
    strides = zip(of.grad.stride(), of.stride(), of.shape, strict=True)
    if all(one == other for one, other, size in strides if size > 1):
        return of.grad.as_strided(of.shape, of.stride())
    return torch.empty_like(of, requires_grad=False).copy_(of.grad)


def _sum(half: Tensor | None, whole: Tensor | None) -> Tensor:
    """The gradient in float32, of one or two parts."""
    if half is None:
        assert whole is not None
        return whole
    return half.float() if whole is None else half.float() + whole
