"""Move tensors to a device without a wait."""

from __future__ import annotations

import torch
from torch import Tensor


def onto(tensor: Tensor, place: Tensor | torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``tensor`` on a device, in ``dtype``, or on the device and in the type of another tensor.

    The host does not wait for the device, as it does in a plain ``Tensor.to`` until the device has done all that it was
    given before. Only a copy to the host is waited for: its values would not be there yet.
    """
    device, dtype = (place.device, place.dtype) if isinstance(place, Tensor) else (place, dtype)
    return tensor.to(device, dtype, non_blocking=device.type != "cpu")
