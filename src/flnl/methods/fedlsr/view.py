"""The second view of a batch of images: each rotated, or mirrored, or mirrored and recoloured by chance."""

from dataclasses import dataclass
from math import pi
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.onto import onto
from flnl.methods.fedlsr.colour import ColourDraw, drawn_colours, recoloured

Kind = Literal["rotation", "mirror", "colour"]


@dataclass(frozen=True)
class Pixels:
    """How inputs are made of pixels in [0, 1]: ``(pixel - mean) / std``."""

    mean: Tensor  # [C, 1, 1]
    std: Tensor  # [C, 1, 1]


@dataclass(frozen=True)
class ViewDraw:
    """The random draw of the second view of a batch; for each image, what is done with it."""

    angle: Tensor | None = None  # float64 [B], radians; None: no rotation
    mirrored: Tensor | None = None  # bool [B]; None: no mirroring
    colours: ColourDraw | None = None  # None: colours stay


def drawn_view(rng: np.random.Generator, size: int, kind: Kind, degrees: float) -> ViewDraw:
    """Draw angles, uniform between ``-degrees`` and ``degrees``, or which images are mirrored, each with chance 1/2.

    Or which are mirrored, and how colours change.
    """
    if kind == "rotation":
        return ViewDraw(angle=torch.from_numpy(rng.uniform(-degrees, degrees, size) * (pi / 180)))
    mirrored = torch.from_numpy(rng.random(size) < 0.5)
    return ViewDraw(mirrored=mirrored, colours=drawn_colours(rng, size) if kind == "colour" else None)


def view(images: Tensor, draw: ViewDraw, pixels: Pixels | None = None) -> Tensor:
    """The second view of ``images`` [B, C, H, W], of the same shape; ``pixels`` are needed for colours."""
    if draw.angle is not None:
        images = rotated(images, draw.angle)
    if draw.mirrored is not None:
        mirrored = onto(draw.mirrored, images.device)
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    if draw.colours is not None and pixels is not None:
        images = (recoloured(images * pixels.std + pixels.mean, draw.colours) - pixels.mean) / pixels.std
    return images


def rotated(images: Tensor, angle: Tensor) -> Tensor:
    """``images`` [B, C, H, W] rotated by ``angle`` [B] in radians around their centres, with bilinear interpolation.

    Outside of the image, pixels are those of the nearest edge.
    """
    height, width = images.shape[2:]
    angle = onto(angle, images)[:, None, None]
    x = torch.arange(width, device=images.device, dtype=images.dtype) - (width - 1) / 2
    y = (torch.arange(height, device=images.device, dtype=images.dtype) - (height - 1) / 2)[:, None]
    cosine, sine = angle.cos(), angle.sin()
    grid = torch.stack([(cosine * x - sine * y) * (2 / width), (sine * x + cosine * y) * (2 / height)], -1)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
