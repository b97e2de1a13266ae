"""Compiles a network's forward and backward pass of one client by ``torch.compile``: fewer kernels, which read less.

Batch norm, ReLU, sums and changes of type become part of a few kernels. They round in other places than torch's own,
so compiled steps have bits of their own. The code depends on the network, the shape of the batch, the versions of torch
and Triton and the kind of device, not on who runs it: parameters, buffers and inputs are its arguments.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from flnl.core.errors import UserError
from flnl.engine.stacked.errors import line
from flnl.models import outputs as by_name

Forward = Callable[[Tensor], tuple[Tensor, ...]]

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


def compiler(forward: Forward) -> Forward:
    """``forward`` by inductor as one graph for each shape of its input, or an exception."""
    from torch._inductor import config

    config.compile_threads = min(config.compile_threads or WORKERS, WORKERS)
    compiled: Forward = torch.compile(forward, fullgraph=True, dynamic=False, options=OPTIONS)
    return compiled


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

        # torch keeps what it has compiled with the code object, and little for each: every network has one of its own
        own = FunctionType(forward.__code__.replace(), forward.__globals__, "forward", None, forward.__closure__)
        self._module, self._on_copies, self._run = module, on_copies, compiler(own)
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
        try:
            with self._on_copies(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch's own code
                outputs = self._run(inputs)
                sum(output.sum() for output in outputs).backward()  # type: ignore[union-attr]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of Dynamo, of the compiler behind it, or of a user's network
            raise UserError(
                f"executor.compile=true, but the network cannot be compiled here ({line(error)}): use "
                "executor.compile=false"
            ) from error
        finally:
            _end_workers()


def _end_workers() -> None:
    """End the processes that have compiled; torch would keep them for other networks."""
    if "torch._inductor.async_compile" in sys.modules:
        sys.modules["torch._inductor.async_compile"].shutdown_compile_workers()
