"""Pretrained weights: torchvision's, downloaded once, or a state dict in torchvision's names.

They must match exactly, except for a head with another number of classes, which keeps its initial values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flnl.core.errors import UserError
from flnl.core.special import refuse_special


def fetched(weights: Any, key: str) -> Any:
    """Load torchvision's ``weights`` from torch.hub's cache, or download them.

    Args:
        weights: a member of one of torchvision's enumerations of weights.
        key: the configuration key with its value, for messages.

    Raises:
        UserError: if they cannot be downloaded or read.
    """
    file = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name)
    try:
        return weights.get_state_dict(check_hash=True, map_location="cpu", weights_only=True)
    except Exception as error:  # network, disk and damaged files raise many kinds of errors
        raise UserError(
            f"{key} needs {file.name}, which could not be downloaded or read "
            f"({_line(error)}); put {weights.url} at {file}"
        ) from error


def read(path: str, key: str, others: str) -> Any:
    """Load the file at ``path``, restricted to plain values and tensors.

    Args:
        path: the file.
        key: the configuration key with its value, for messages.
        others: what may stand there instead of a path, for messages.

    Raises:
        UserError: if there is no such file, or it is damaged or holds other objects.
    """
    try:
        refuse_special(Path(path).expanduser())
        return torch.load(Path(path).expanduser(), map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"{key} is not a file; give {others}, or the path of a state dict") from error
    except Exception as error:  # damaged files raise many kinds of errors
        raise UserError(
            f"{key} cannot be read as weights ({_line(error)}); give a state dict of tensors written by torch.save"
        ) from error


def fill(network: nn.Module, state: Any, head: str, key: str, model: str) -> None:
    """Load the tensors of ``state`` into ``network``, except for a head of another size.

    Args:
        network: the network, with its head in place.
        state: the state dict.
        head: the name of the head in the network.
        key: the configuration key of the weights with its value, for messages.
        model: the key that chooses the network with its value, for messages.

    Raises:
        UserError: if any other tensor is missing, unknown, of another shape or not finite.
    """
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        held = f"{_few(state)} that are not all tensors" if isinstance(state, dict) else f"a {type(state).__name__}"
        raise UserError(f"{key} holds {held}; give a state dict of tensors by name")
    initial = network.state_dict()
    reshaped = [name for name, t in state.items() if name in initial and t.shape != initial[name].shape]
    replaced = [name for name in initial if name.startswith(f"{head}.")]
    if not any(name in reshaped for name in replaced):
        replaced = []
    tensors = OrderedDict((n, t) for n, t in state.items() if n not in reshaped and n not in replaced)
    if hasattr(state, "_metadata"):  # versions of layers, by which torch reads older files
        tensors._metadata = state._metadata  # type: ignore[attr-defined]
    try:
        names = network.load_state_dict(tensors, strict=False)
    except Exception as error:  # a layer that reads older files may refuse one in any way
        raise UserError(f"{key} does not fit {model} ({_line(error)})") from error
    wrong = {
        # Files from before torch 0.4.1 lack num_batches_tracked, which nothing reads.
        "without": [
            n for n in names.missing_keys if n not in (*reshaped, *replaced) and not n.endswith("num_batches_tracked")
        ],
        "with unknown": names.unexpected_keys,
        "with other shapes of": [name for name in reshaped if name not in replaced],
        "with infinite or undefined values in": [n for n, t in tensors.items() if not bool(t.isfinite().all())],
    }
    if any(wrong.values()):
        differences = ", ".join(f"{what} {_few(names)}" for what, names in wrong.items() if names)
        raise UserError(f"{key} does not fit {model}: the file is {differences}")


def _few(names: Iterable[Any]) -> str:
    """The first few names."""
    first = list(map(str, names))
    return ", ".join(first[:3]) + (f" and {len(first) - 3} more" if len(first) > 3 else "")


def _line(error: Exception) -> str:
    """An error on one line, beginning with its type."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
