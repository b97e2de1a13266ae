"""Thumbnails of training images as data URIs, decoded and re-encoded, so that nothing but pixels gets onto a page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.data.dataset import Dataset
from flnl.data.image_file import small_copy
from flnl.data.images import ImageFiles

if TYPE_CHECKING:
    from PIL.Image import Image

LONGEST = 64
"""Longest side of a thumbnail, in pixels; smaller images keep their size."""
MOST_PIXELS = 64_000_000
"""Files with more pixels are not decoded."""
PNG_BYTES = 1024
"""Up to this many bytes of pixels, a thumbnail is encoded without loss."""
MOST_CHARACTERS = 600
"""A longer text is cut."""
THREADS = 4


def check_pictures(dataset: Dataset) -> None:
    """Check that the images can be shown.

    Raises:
        UserError: if they have other channels than grey or red, green and blue.
    """
    if dataset.transform.kind != "image":
        return
    channels = dataset.train.shape[0]
    if channels not in (1, 3):
        raise UserError(
            f"{dataset.name} has images of {channels} channels, which cannot be shown: use --thumbnails none, or leave "
            "out the page by --formats csv,json"
        )


def thumbnails(dataset: Dataset, positions: Sequence[int]) -> list[str | None]:
    """The data URIs of the training images at ``positions`` [n]; None for one that cannot be decoded."""
    images = dataset.train
    with ThreadPoolExecutor(THREADS) as pool:
        if isinstance(images, ImageFiles):
            return list(pool.map(_of_file, [images.root / images.paths[position] for position in positions]))
        stored = images.read(torch.tensor(positions, dtype=torch.int64)).cpu().double().numpy()
        return list(pool.map(lambda pixels: _encoded(_image(pixels)), _shown(stored / dataset.transform.scale)))


def excerpts(dataset: Dataset, positions: Sequence[int]) -> list[str | None]:
    """What a reader sees of training samples that are no images, at ``positions`` [n]; None where that is nothing."""
    texts = dataset.texts or ()
    return [_cut(texts[i]) or None if i < len(texts) else None for i in positions]


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ..."


def _of_file(file: Path) -> str | None:
    try:
        return _encoded(small_copy(file, LONGEST, MOST_PIXELS))
    except Exception:  # a broken or missing file can make a decoder raise anything
        return None


def _shown(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values of images [n, C, H, W] as they are shown, 0 for black and 1 for white.

    Numbers of another range, such as standardised ones, are shown from their lowest to their highest percent.
    """
    if values.size == 0:
        return values
    lowest, highest = (float(bound) for bound in np.percentile(values, (1, 99)))
    lowest, highest = min(0.0, lowest), max(1.0, highest)
    return (values - lowest) / (highest - lowest)


def _image(values: NDArray[np.float64]) -> Image:
    """An image of ``values`` [C, H, W], black at 0 and white at 1, no side longer than ``LONGEST``."""
    from PIL import Image

    levels = np.nan_to_num(values.clip(0, 1) * 255).round().astype(np.uint8)
    image = Image.fromarray(levels[0] if len(levels) == 1 else np.ascontiguousarray(levels.transpose(1, 2, 0)))
    image.thumbnail((LONGEST, LONGEST))
    return image


def _encoded(image: Image) -> str:
    """A data URI of the pixels of a grey or a colour image."""
    from PIL import Image

    pixels = np.asarray(image)
    kind = "png" if pixels.nbytes <= PNG_BYTES else "webp"
    buffer = BytesIO()
    Image.fromarray(pixels).save(buffer, kind.upper(), quality=80)  # a new image has no metadata
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
