"""The strong view: three of fourteen operations on each image, then a cutout (as in FedGR's program)."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.onto import onto

KINDS = (
    *("autocontrast", "brightness", "colour", "contrast", "equalise", "identity", "posterise"),
    *("rotate", "sharpness", "shear_x", "shear_y", "solarise", "translate_x", "translate_y"),
)
"""The operations, as PIL has them; a draw has their numbers."""
OPERATIONS = 3
"""Operations on each image, drawn with replacement."""
DEGREES, SHEAR, SHIFT, SIDE = 30.0, 0.3, 0.3, 0.5
"""Largest angle, shear, shift as a share of the side, and side of a cutout as a share of the width."""
TOP = 255
"""The largest of 256 levels."""
RED, GREEN, BLUE = 0.299, 0.587, 0.114
"""Weights of the colours in grey."""


@dataclass(frozen=True)
class StrongDraw:
    """The random draw of one batch's strong view."""

    kinds: Tensor  # int64 [B, 3], numbers of operations
    strengths: Tensor  # float64 [B, 3], in [0, 1): where each is in the operation's range
    cut: Tensor  # float64 [B, 3], in [0, 1): side, and the middle's row and column


def drawn_view(rng: np.random.Generator, size: int) -> StrongDraw:
    """Draw operations, their strengths, and cutouts of ``size`` images."""
    kinds = torch.from_numpy(rng.integers(0, len(KINDS), (size, OPERATIONS)))
    return StrongDraw(kinds, *(torch.from_numpy(rng.random((size, 3))) for _ in range(2)))


def strong_view(pixels: Tensor, draw: StrongDraw) -> Tensor:
    """The strong view of ``pixels`` [B, C, H, W] in [0, 1], of the same shape.

    Every operation is computed for every image, so that many clients' batches can be changed as one.
    """
    kinds = onto(draw.kinds, pixels.device)
    strengths = onto(draw.strengths, pixels)
    for place in range(OPERATIONS):
        pixels = changed(pixels, kinds[:, place], strengths[:, place])
    return cut_out(pixels, onto(draw.cut, pixels))


def strong_inputs(inputs: Tensor, draw: StrongDraw, constants: tuple[Tensor, Tensor]) -> Tensor:
    """The strong view of ``inputs`` [B, C, H, W], which are ``(pixel - mean) / std`` with the two constants."""
    mean, std = constants
    return (strong_view((inputs * std + mean).clamp(0, 1), draw) - mean) / std


def changed(pixels: Tensor, kind: Tensor, strength: Tensor) -> Tensor:
    """``pixels`` [B, C, H, W] after one operation each: number ``kind`` int64 [B] of ``KINDS``, at ``strength`` [B]."""
    result = pixels
    for names, of in (
        (("rotate", "shear_x", "shear_y", "translate_x", "translate_y"), _moved(pixels, kind, strength)),
        (("brightness", "colour", "contrast", "sharpness"), _enhanced(pixels, kind, strength)),
        (("autocontrast",), _autocontrast(pixels)),
        (("equalise",), _equalised(pixels)),
        (("posterise",), _posterised(pixels, strength[:, None, None, None])),
        (("solarise",), torch.where(pixels * TOP < strength[:, None, None, None] * (TOP + 1), pixels, 1 - pixels)),
    ):
        result = torch.where(_is(kind, *names)[:, None, None, None], of, result)
    return result


def cut_out(pixels: Tensor, draw: Tensor) -> Tensor:
    """A square of a random side around a random point becomes grey; ``draw`` [B, 3] in [0, 1)."""
    height, width = pixels.shape[2:]
    side = draw[:, :1] * (SIDE * width)
    rows, columns = (
        (torch.arange(n, device=pixels.device) + 0.5 - draw[:, 1 + axis, None] * n).abs() * 2 < side
        for axis, n in enumerate((height, width))
    )
    return torch.where((rows[:, :, None] & columns[:, None, :])[:, None], 0.5, pixels)


def _is(kind: Tensor, *names: str) -> Tensor:
    """Whether each operation [B] is one of these."""
    found = torch.zeros_like(kind, dtype=torch.bool)
    for name in names:
        found = found | (kind == KINDS.index(name))
    return found


def _moved(pixels: Tensor, kind: Tensor, strength: Tensor) -> Tensor:
    """Rotated, sheared or shifted around the middle, nearest pixels, black outside; others as they are."""
    height, width = pixels.shape[2:]
    amount = 2 * strength - 1
    angle = torch.where(_is(kind, "rotate"), amount * (DEGREES * torch.pi / 180), 0)
    shear_x, shear_y = (torch.where(_is(kind, name), SHEAR * amount, 0) for name in ("shear_x", "shear_y"))
    shift_x, shift_y = (torch.where(_is(kind, name), SHIFT * amount, 0) for name in ("translate_x", "translate_y"))
    cosine, sine, shear_x, shear_y, shift_x, shift_y = (
        entry[:, None, None] for entry in (angle.cos(), angle.sin(), shear_x, shear_y, shift_x, shift_y)
    )
    x = torch.arange(width, device=pixels.device, dtype=pixels.dtype) - (width - 1) / 2
    y = (torch.arange(height, device=pixels.device, dtype=pixels.dtype) - (height - 1) / 2)[:, None]
    from_x = cosine * x - sine * y + shear_x * y + shift_x * width
    from_y = sine * x + cosine * y + shear_y * x + shift_y * height
    grid = torch.stack([from_x * (2 / width), from_y * (2 / height)], -1)
    return F.grid_sample(pixels, grid, mode="nearest", padding_mode="zeros", align_corners=False)


def _enhanced(pixels: Tensor, kind: Tensor, strength: Tensor) -> Tensor:
    """``f x + (1 - f) r`` with f from 0.05 to 0.95; r is black, grey, the mean grey, or the smoothed image."""
    factor = (0.05 + 0.9 * strength)[:, None, None, None]
    weights = (RED, GREEN, BLUE) if pixels.shape[1] == 3 else (1 / pixels.shape[1],) * pixels.shape[1]
    by_channel = torch.cat([pixels.new_full((1, 1, 1), weight) for weight in weights])  # a GPU does not wait for it
    grey = (pixels * by_channel).sum(1, keepdim=True)
    towards = torch.zeros_like(pixels)
    mean = grey.mean((2, 3), keepdim=True)
    for name, other in (("colour", grey), ("contrast", mean), ("sharpness", _smooth(pixels))):
        towards = torch.where(_is(kind, name)[:, None, None, None], other, towards)
    return (factor * pixels + (1 - factor) * towards).clamp(0, 1)


def _smooth(pixels: Tensor) -> Tensor:
    """Smoothed by a 3x3 kernel of ones with 5 in the middle; the edge stays as it is."""
    channels, height, width = pixels.shape[1:]
    if min(height, width) < 3:
        return pixels
    kernel = F.pad(pixels.new_full((1, 1), 5 / 13), (1, 1, 1, 1), value=1 / 13)
    inner = F.conv2d(pixels, kernel.expand(channels, 1, 3, 3), groups=channels)
    edge = torch.ones(height, width, dtype=torch.bool, device=pixels.device)
    edge[1:-1, 1:-1] = False
    return torch.where(edge, pixels, F.pad(inner, (1, 1, 1, 1)))


def _autocontrast(pixels: Tensor) -> Tensor:
    """Each channel is stretched to [0, 1]."""
    low, high = pixels.amin((2, 3), keepdim=True), pixels.amax((2, 3), keepdim=True)
    return torch.where(high > low, (pixels - low) / (high - low).clamp_min(1e-9), pixels)


def _histogram(levels: Tensor) -> Tensor:
    """How often each of 0 to ``TOP`` is among ``levels`` int64 [B, C, n]: int64 [B, C, TOP + 1]."""
    if levels.device.type == "cpu":
        none = torch.zeros_like(levels[..., :1]).expand(*levels.shape[:2], TOP + 1)
        return none.scatter_add(2, levels, torch.ones_like(levels))
    # by sorting, since a scattered sum waits there; the same edges for each row, contiguous under vmap, too
    edges = torch.arange(TOP + 2, device=levels.device) + torch.zeros_like(levels[..., :1])
    rows = levels.sort(2).values, edges
    return torch.searchsorted(*(row.clone(memory_format=torch.contiguous_format) for row in rows)).diff(dim=2)


def _equalised(pixels: Tensor) -> Tensor:
    """Each channel's histogram of 256 levels is made even."""
    levels = (pixels * TOP).round().clamp(0, TOP).long().flatten(2)
    counts = _histogram(levels)
    highest = TOP - (counts > 0).flip(2).long().argmax(2, keepdim=True)
    width = (counts.sum(2, keepdim=True) - counts.gather(2, highest)) // TOP
    table = (counts.cumsum(2) - counts + width // 2) // width.clamp_min(1)
    even = table.clamp(max=TOP).gather(2, levels).view(pixels.shape).to(pixels.dtype) / TOP
    return torch.where(width[..., None] > 0, even, pixels)


def _posterised(pixels: Tensor, strength: Tensor) -> Tensor:
    """The upper 4 to 8 bits of 8 stay."""
    width = 2.0 ** (4 - (strength * 5).floor())
    return ((pixels * TOP).round() / width).floor() * width / TOP
