"""What a CUDA graph does, on a CPU: a step's operations are written down once and done again on the same tensors.

As with the real one no Python runs in a replay, what was a number stays that number, and a recording changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BATCH_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
"""They move running statistics, which their schemas do not say."""


class Tape:
    """A recording on this CPU; ``flnl.engine.cuda_graph.Capture``."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.replays = 0

    def capture(self, steps: Sequence[tuple[int, Callable[[], Tensor]]]) -> Tensor:
        """Write down what ``steps`` do, one after another; whatever they changed is as it was."""
        writing = _Writing(self._done)
        try:
            with writing:
                return torch.cat([step() for _, step in steps])
        except BaseException:
            self._done.clear()
            raise
        finally:
            writing.undo()

    def replay(self) -> None:
        """Do it again."""
        self.replays += 1
        with torch.no_grad():
            for func, args, kwargs, outs in self._done:
                new = [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, Tensor)]
                for out, now in zip(outs, new, strict=True):
                    if out.data_ptr() != now.data_ptr():
                        out.copy_(now)


class _Writing(TorchDispatchMode):
    def __init__(self, done: list[tuple[Any, Any, Any, list[Tensor]]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._done, self._made = done, set[int]()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in _changed(func, args, kwargs):
            whole = _whole(tensor)
            if whole.data_ptr() not in self._made:
                self._before.setdefault(whole.data_ptr(), (whole, whole.clone()))
        found = func(*args, **kwargs)
        outs = [t for t in tree_leaves(found) if isinstance(t, Tensor)]
        given = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        self._made |= {p for t in outs if (p := t.untyped_storage().data_ptr()) not in given}
        self._done.append((func, args, kwargs, outs))  # which keeps every tensor in its place
        return found

    def undo(self) -> None:
        """Put back what was changed and not made by the step."""
        with torch.no_grad():
            for whole, before in self._before.values():
                whole.copy_(before)


def _whole(tensor: Tensor) -> Tensor:
    """All of the memory that a tensor is a part of."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((count,), (1,), 0)


def _changed(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    if func.name().removeprefix("aten::").partition(".")[0] in BATCH_NORMS:
        return [t for t in args[3:5] if isinstance(t, Tensor)]
    found = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += [t for t in tree_leaves(value) if isinstance(t, Tensor)]
    return found
