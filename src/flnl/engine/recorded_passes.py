"""Scores of batches by CUDA graphs, each recorded once for a size of batch and replayed in every round.

A module's tensors stay where they are when others are loaded into them, so a graph computes with the parameters that
are loaded; only the inputs are copied in. What it computes has the bits of a pass that is not recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

from torch import Tensor, nn

from flnl.engine.cuda_graph import WARM, Capture, Captures, Waits
from flnl.engine.stacked.errors import line
from flnl.models import outputs as by_name

RARE = 3
"""So many batches of another size than a full batch's pass as they are, before one is to be recorded."""
MOST = 8
"""Maximum number of sizes that are recorded for an output of a module; that of a full batch always is."""


class RecordedPasses:
    """The recorded passes of the modules of one network, in eval mode and without gradients.

    ``say`` is called with the reason if one cannot be recorded.
    """

    def __init__(self, captures: Captures, say: Callable[[str], object]) -> None:
        self._captures, self._say = captures, say
        self._outputs: dict[tuple[int, str], _Sizes] = {}  # each keeps its module alive, so that its id stays unique

    def __call__(self, module: nn.Module, output: str, inputs: Tensor, *, full: bool) -> Tensor:
        """One output of ``module`` on a batch, which may be a full one."""
        key = id(module), output
        if key not in self._outputs:
            self._outputs[key] = _Sizes(module, output)
        sizes, size = self._outputs[key], len(inputs)
        if size not in sizes.passes:
            sizes.seen[size] += 1
            often = size > 0 and sizes.seen[size] > RARE and len(sizes.passes) < MOST
            if not (full or often):
                return by_name.output(module, output, inputs)
            sizes.passes[size] = _Pass(self._captures, self._say, module, output, inputs)
        return sizes.passes[size](inputs)


@dataclass
class _Sizes:
    """What has passed for an output of a module, by the size of the batch."""

    module: nn.Module
    output: str
    seen: Counter[int] = field(default_factory=Counter)  # batches that passed as they are
    passes: dict[int, _Pass] = field(default_factory=dict)


class _Pass:
    """One output of a module on batches of a size, eagerly at first, then recorded."""

    def __init__(
        self, captures: Captures, say: Callable[[str], object], module: nn.Module, output: str, inputs: Tensor
    ) -> None:
        self._captures, self._say, self._module, self._output = captures, say, module, output
        self._refused = False
        self._inputs, self._steps = inputs.clone(), 0
        self._recorded: tuple[Capture, Tensor] | None = None  # with the tensor that replays write to

    def __call__(self, inputs: Tensor) -> Tensor:
        if self._refused:
            return by_name.output(self._module, self._output, inputs)
        self._inputs.copy_(inputs)
        if self._steps < WARM:
            self._steps += 1
            with Waits(self._refuse) if self._steps == WARM else nullcontext():
                return self._captures.warm(self._eager, 0)
        if self._recorded is None:
            capture = self._captures()
            try:
                self._recorded = capture, capture.capture([(0, self._eager)])
            except Exception as error:  # any library may fail during a recording
                self._refuse(line(error))
                return self._eager()
        capture, scores = self._recorded
        capture.replay()
        return scores.clone()

    def _eager(self) -> Tensor:
        return by_name.output(self._module, self._output, self._inputs)

    def _refuse(self, reason: str) -> None:
        self._refused = True
        self._say(reason)
