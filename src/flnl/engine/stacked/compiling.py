"""Compiles parts of one client's steps by ``torch.compile``: fewer kernels, which read less.

A network's forward and backward pass are here, the optimiser's step in ``compiled_update``. Batch norm, ReLU, sums and
changes of type become part of a few kernels. They round in other places than torch's own, so compiled steps have bits
of their own. The code depends on the network, the shape of the batch, the versions of torch and Triton and the kind of
device, not on who runs it: parameters, buffers and inputs are its arguments.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from flnl.core.errors import UserError
from flnl.engine.stacked.errors import line
from flnl.models import outputs as by_name

Function = Callable[..., Any]

OPTIONS: dict[str, Any] = {
    "deterministic": True,  # no choice between sums in different orders by their time
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
    "emulate_precision_casts": False,  # in bf16, what stays within a kernel is not rounded
    "triton.cudagraphs": False,  # steps are recorded by flnl.engine.stacked.graph
}
"""Inductor's options. They are given, so that environment variables do not change bits."""

WORKERS = 8
"""Maximum number of processes that compile at the same time."""


def compiler(function: Function) -> Function:
    """``function`` by inductor as one graph for each shape of its input, or an exception."""
    from torch._inductor import config

    config.compile_threads = min(config.compile_threads or WORKERS, WORKERS)
    return torch.compile(function, fullgraph=True, dynamic=False, options=OPTIONS)


def apart(function: Function) -> Function:
    """The same with a code object of its own: torch keeps what it has compiled with that, and little for each."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)


@contextmanager
def attempt(what: str) -> Iterator[None]:
    """Within this, ``what`` is compiled, which torch does when code first runs.

    Raises:
        UserError: if it cannot be.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own code
            yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of Dynamo, of the compiler behind it, or of a user's network
        raise UserError(
            f"executor.compile=true, but {what} cannot be compiled here ({line(error)}): use executor.compile=false"
        ) from error
    finally:
        _end_workers()


class Compiled:
    """Outputs of a module by compiled code, with the tensors that it holds at the time."""

    def __init__(
        self, module: nn.Module, names: Sequence[str], on_copies: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Compile nothing yet.

        Args:
            module: its tensors may be others at each call, of the same shapes and layouts.
            names: of the outputs.
            on_copies: within this, the module holds copies of its tensors.
        """

        def forward(inputs: Tensor) -> tuple[Tensor, ...]:
            named = by_name.outputs(module, inputs)
            return tuple([named[name] for name in names])

        self._module, self._on_copies = module, on_copies
        self._run: Callable[[Tensor], tuple[Tensor, ...]] = compiler(apart(forward))
        self._tried = set[tuple[Any, ...]]()

    def __call__(self, inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs on ``inputs`` [B, C, H, W]; compiled when a shape is new.

        Raises:
            UserError: if the network cannot be compiled.
        """
        inputs = inputs.contiguous()
        kind = inputs.shape, inputs.dtype, self._module.training
        with _disable_current_modes():  # torch compiles nothing within them
            if kind not in self._tried:
                self._try(inputs)
                self._tried.add(kind)
            return self._run(inputs)

    def _try(self, inputs: Tensor) -> None:
        """Compile the forward pass and then the backward pass, which torch does when they first run: on copies."""
        with attempt("the network"), self._on_copies():
            outputs = self._run(inputs)
            sum(output.sum() for output in outputs).backward()  # type: ignore[union-attr]


def _end_workers() -> None:
    """End the processes that have compiled; torch would keep them for other networks."""
    if "torch._inductor.async_compile" in sys.modules:
        sys.modules["torch._inductor.async_compile"].shutdown_compile_workers()
