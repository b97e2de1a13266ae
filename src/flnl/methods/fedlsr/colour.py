"""Colour jitter and removal of colours by image, as torchvision's ColorJitter and RandomGrayscale define them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flnl.core.onto import onto

JITTER, HUE = 0.8, 0.2
"""Largest change of brightness, contrast and saturation, as a factor from 1, and of hue, in turns (FedLSR's code)."""
JITTERED, GREYED = 0.8, 0.2
"""Share of images whose colours change, and of those that lose them (FedLSR's code)."""
BRIGHTNESS, CONTRAST, SATURATION = range(3)
GREY = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R BT.601)."""


@dataclass(frozen=True)
class ColourDraw:
    """How the colours of a batch of images change.

    Each of brightness, contrast and saturation has a slot before or after the change of hue; in the slots that an image
    does not use, the factor is 1.
    """

    kind: Tensor  # int64 [B, 6], what the factor of a slot is of; slots 0 to 2 come before the hue, the others after it
    factor: Tensor  # float64 [B, 6]
    hue: Tensor  # float64 [B], in turns
    grey: Tensor  # bool [B], whether the image loses its colours at the end


def drawn_colours(rng: np.random.Generator, size: int) -> ColourDraw:
    """Draw the changes of ``size`` images: factors, hue, and the order of the four changes, which is random."""
    applied = rng.random(size) < JITTERED
    factors = np.where(applied[:, None], rng.uniform(1 - JITTER, 1 + JITTER, (size, 3)), 1.0)
    hue = np.where(applied, rng.uniform(-HUE, HUE, size), 0.0)
    order = rng.permuted(np.tile(np.arange(4), (size, 1)), axis=1)  # 3: the hue
    after = np.cumsum(order == 3, axis=1).astype(bool)
    kind, factor = np.zeros((size, 6), np.int64), np.ones((size, 6))
    for place in range(4):
        rows = np.flatnonzero(order[:, place] != 3)
        slot = np.where(after[rows, place], place + 2, place)  # after the hue, place is 1 to 3
        kind[rows, slot] = order[rows, place]
        factor[rows, slot] = factors[rows, order[rows, place]]
    return ColourDraw(*map(torch.from_numpy, (kind, factor, hue, rng.random(size) < GREYED)))


def recoloured(pixels: Tensor, draw: ColourDraw) -> Tensor:
    """``pixels`` [B, 3, H, W] in [0, 1] with changed colours."""
    kind = onto(draw.kind, pixels.device)
    factor = onto(draw.factor, pixels)
    for slot in range(3):
        pixels = _blended(pixels, kind[:, slot], factor[:, slot])
    pixels = _turned(pixels, onto(draw.hue, pixels))
    for slot in range(3, 6):
        pixels = _blended(pixels, kind[:, slot], factor[:, slot])
    greyed = onto(draw.grey, pixels.device)[:, None, None, None]
    return torch.where(greyed, _grey(pixels).expand_as(pixels), pixels)


def _grey(pixels: Tensor) -> Tensor:
    """Grey values [B, 1, H, W]."""
    red, green, blue = pixels.unbind(1)
    return (GREY[0] * red + GREY[1] * green + GREY[2] * blue)[:, None]


def _blended(pixels: Tensor, kind: Tensor, factor: Tensor) -> Tensor:
    """``f x + (1 - f) r``, within [0, 1]: r is black, the image's mean grey, or its grey, by ``kind`` [B]."""
    grey, kind = _grey(pixels), kind[:, None, None, None]
    mean = grey.mean((1, 2, 3), keepdim=True)
    towards = torch.where(kind == SATURATION, grey, torch.where(kind == CONTRAST, mean, torch.zeros_like(mean)))
    factor = factor[:, None, None, None]
    return (factor * pixels + (1 - factor) * towards).clamp(0, 1)


def _turned(pixels: Tensor, turn: Tensor) -> Tensor:
    """The images with hues ``turn`` [B] turns further; saturation and value of HSV stay."""
    red, green, blue = pixels.unbind(1)
    value = pixels.amax(1)
    chroma = value - pixels.amin(1)
    over = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    sixths = torch.where(
        value == red,
        (green - blue) / over,
        torch.where(value == green, (blue - red) / over + 2, (red - green) / over + 4),
    )
    sixths = sixths + 6 * turn[:, None, None]
    away = [(first + sixths).remainder(6) for first in (5, 3, 1)]
    turned = torch.stack([value - chroma * torch.minimum(k, 4 - k).clamp(0, 1) for k in away], 1)
    return torch.where((turn == 0)[:, None, None, None], pixels, turned)
