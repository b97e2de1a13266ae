"""Read one image file as pixels, safely and without guessing.

Files may come from any source. Only regular files of bounded size are read, only formats whose decoders start no
other program are decoded (PostScript's starts Ghostscript), and pixels without a defined range are refused.
"""

from __future__ import annotations

import os
import stat
import warnings
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_BYTES = 256 * 2**20
"""Larger files are not read; the largest photographs have a fifth of this size."""
MOST_PIXELS = 2**27
"""Images with more pixels are not decoded: 134 million at four bytes each; large cameras have 100 million."""
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""Formats that are decoded, by Pillow's names; the file's suffix does not matter."""

_ORIENTATION = 0x0112
_BITS, _PHOTOMETRIC, _WHITE_IS_ZERO = 258, 262, 0
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""The transposition that sets an image upright, by EXIF's orientation."""


class ImageError(Exception):
    """Why a file is refused, as a phrase for ``... cannot be read (PHRASE)``."""


def read_bytes(path: Path | str) -> bytes:
    """Read an image file. Devices and pipes are not opened: they could be endless or block forever.

    Raises:
        OSError: if the file does not exist or is not readable.
        ImageError: if it is not a regular file, or larger than ``MOST_BYTES``.
    """
    _refuse_special(os.stat(path))  # noqa: PTH116 (a call for every image of every batch)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(descriptor)
        _refuse_special(status)  # the path may refer to another file by now
        if status.st_size > MOST_BYTES:
            raise ImageError(f"it has {status.st_size / 2**20:,.0f} MiB; up to {MOST_BYTES // 2**20} are read")
        content = os.read(descriptor, status.st_size)
        while len(content) < status.st_size and (more := os.read(descriptor, status.st_size - len(content))):
            content += more
        return content
    finally:
        os.close(descriptor)


def _refuse_special(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ImageError("it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError("it is a device, a pipe or a socket, not a file")


def decode(encoded: bytes, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """Decode an image file to uint8 [C, H, W], resized with Pillow's bilinear filter.

    EXIF's orientation is applied, and transparent pixels become white. 16-bit grey values are divided by 65535 and
    rounded to 8 bits; of 16-bit colours, Pillow reads the upper byte, which is exact within one level.

    Args:
        encoded: content of the file.
        size: (H, W) of the result.
        channels: 3 for RGB (grey images get three equal channels), 1 for luma.

    Raises:
        ImageError: if there are too many pixels, or their values are floats or integers without a defined range.
        Exception: of any other kind, if Pillow cannot decode the file.
    """
    return _pixels(_decoded(encoded, MOST_PIXELS), size, channels)


def pixels_of(image: Image, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """An image of Pillow as ``decode`` gives the file that it was opened from: uint8 [C, H, W].

    Raises:
        ImageError: as ``decode``.
        Exception: of any other kind, if Pillow cannot decode it.
    """
    _check_size(image, MOST_PIXELS)
    return _pixels(_prepared(image), size, channels)


def _pixels(image: Image, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    pillow, (h, w) = _pillow(), size
    mode = "RGB" if channels == 3 else "L"
    if image.mode != mode:
        image = image.convert(mode)
    if image.size != (w, h):
        image = image.resize((w, h), pillow.Resampling.BILINEAR)
    return np.asarray(image).reshape(h, w, channels).transpose(2, 0, 1)


def small_copy(path: Path, longest: int, most_pixels: int) -> Image:
    """Read an image file as ``decode`` does, in its proportions and with no side longer than ``longest`` pixels.

    The result is grey ("L") if the file is, and otherwise in colour ("RGB").

    Raises:
        OSError: if the file does not exist or is not readable.
        ImageError: if ``read_bytes`` or ``decode`` refuse it, or it has more than ``most_pixels`` pixels.
        Exception: of any other kind, if Pillow cannot decode the file.
    """
    image = _decoded(read_bytes(path), most_pixels, (2 * longest, 2 * longest))
    image = image.convert("L" if image.mode in ("1", "L", "LA", "I;16") else "RGB")
    image.thumbnail((longest, longest))
    return image


def _decoded(encoded: bytes, most_pixels: int, draft: tuple[int, int] | None = None) -> Image:
    """The image in a file, upright, opaque and with 8 bits a channel.

    Args:
        encoded: content of the file.
        most_pixels: images with more are refused.
        draft: a size that is enough: a JPEG is decoded at the smallest fraction of its size that is not below it.

    Raises:
        ImageError: as ``decode``.
    """
    pillow = _pillow()
    try:
        opened = pillow.open(BytesIO(encoded), formats=FORMATS)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise ImageError(f"it has more than {most_pixels:,} pixels") from error
    with opened:
        _check_size(opened, most_pixels)
        if draft is not None:
            opened.draft(None, draft)
        return _prepared(opened)


def _check_size(image: Image, most_pixels: int) -> None:
    if image.width * image.height > most_pixels:
        raise ImageError(f"it has {image.width * image.height:,} pixels; up to {most_pixels:,} are read")


def _prepared(image: Image) -> Image:
    """Upright, opaque and with 8 bits a channel."""
    image.load()
    return _upright(_opaque(_of_eight_bits(image)), image)


@cache
def _pillow() -> Any:
    """Pillow's module ``Image``, with its warnings silenced: every relevant fault is raised as an error here."""
    from PIL import Image

    warnings.filterwarnings("ignore", module=r"PIL\.")
    return Image


def _of_eight_bits(image: Image) -> Image:
    """Convert ``image`` to 8 bits a channel: 16-bit values are scaled by their maximum and rounded.

    Raises:
        ImageError: if the file does not define the range of its values.
    """
    mode = image.mode
    # A grey PNG or PGM file has 16 bits at most; Pillow may hold them in 32.
    if not (mode.startswith("I;16") or (mode == "I" and image.format in ("PNG", "PPM"))):
        if mode == "I":
            raise ImageError("its pixels are 32-bit or signed integers, which have no range: store 8 or 16 bits")
        if mode == "F":
            raise ImageError("its pixels are floating-point numbers, which have no range: store 8 or 16 bits")
        return image
    values = np.asarray(image).astype(np.uint32)
    tags = getattr(image, "tag_v2", {})  # of a TIFF
    most = 2**12 - 1 if tags.get(_BITS) in (12, (12,)) else 2**16 - 1
    eight = (values * 255 + most // 2) // most
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        eight = 255 - eight
    if isinstance(transparent := image.info.get("transparency"), int):
        eight[values == transparent] = 255
    grey: Image = _pillow().fromarray(eight.astype(np.uint8))
    return grey


def _opaque(image: Image) -> Image:
    """Put ``image`` on a white background if it has transparency."""
    if not image.has_transparency_data:
        return image
    layered = image.convert("RGBA")
    canvas: Image = _pillow().new("RGB", image.size, "white")
    canvas.paste(layered, mask=layered.getchannel("A"))
    return canvas


def _upright(image: Image, source: Image) -> Image:
    """Apply the EXIF orientation of ``source`` to ``image``; for TIFF, Pillow has applied it while loading."""
    if source.format == "TIFF":
        return image
    try:
        turn = _TURNS.get(source.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF data can raise anything, and do not affect the pixels
        return image
    return image if turn is None else image.transpose(_pillow().Transpose[turn])
