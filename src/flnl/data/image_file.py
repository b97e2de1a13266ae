"""One image file as pixels: which files are read, what their numbers mean, and what is refused.

A file comes from anywhere. It is read only if it is a file of bounded size, decoded only by decoders that run no
program (that of PostScript starts Ghostscript), and its pixels are what it says they are or it is refused by name.
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
"""A larger file is not read; the largest photographs are a fifth of it."""
MOST_PIXELS = 2**27
"""An image of more pixels is not decoded: 134 million, four bytes each, and a camera has 100 million."""
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""Pillow's names of the formats that are decoded, whatever a file is called."""

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
"""By EXIF's number of how the camera was held: what sets the image upright."""


class ImageError(Exception):
    """Why a file is not taken for an image, as a phrase for ``... cannot be read (PHRASE)``."""


def read_bytes(path: Path | str) -> bytes:
    """The content of an image file. No device or pipe is opened: one may have no end, another waits for ever.

    Raises:
        OSError: if it is not there or may not be read.
        ImageError: if it is no regular file, or larger than ``MOST_BYTES``.
    """
    _refuse_special(os.stat(path))  # noqa: PTH116 (a call for every image of every batch)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(descriptor)
        _refuse_special(status)  # another may lie there by now
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
        raise ImageError("it is a device, a pipe or a socket, no file")


def decode(encoded: bytes, size: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """An image file's content as uint8 [C, H, W], resized to ``size`` (H, W) by Pillow's bilinear filter.

    It is set upright as EXIF says, and what is transparent shows white. With 3 ``channels`` grey images get three equal
    ones; with 1, colours become their luma. Grey values of 16 bits are divided by 65535 and rounded to 8 bits; of
    16-bit colours Pillow reads the upper byte, so that they are exact within one level.

    Raises:
        ImageError: if there are too many pixels, or they are floats or integers without a range.
        Exception: of any other kind, if it is no image that Pillow can decode.
    """
    pillow, (h, w) = _pillow(), size
    try:
        opened = pillow.open(BytesIO(encoded), formats=FORMATS)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
        raise ImageError(f"it has more than {MOST_PIXELS:,} pixels") from error
    with opened:
        if opened.width * opened.height > MOST_PIXELS:
            raise ImageError(f"it has {opened.width * opened.height:,} pixels; up to {MOST_PIXELS:,} are read")
        opened.load()
        image = _upright(_opaque(_of_eight_bits(opened)), opened)
        wanted = "RGB" if channels == 3 else "L"
        if image.mode != wanted:
            image = image.convert(wanted)
        if image.size != (w, h):
            image = image.resize((w, h), pillow.Resampling.BILINEAR)
        return np.asarray(image).reshape(h, w, channels).transpose(2, 0, 1)


@cache
def _pillow() -> Any:
    """Pillow's module ``Image``, whose warnings would be raw lines between ours; what matters here is an error."""
    from PIL import Image

    warnings.filterwarnings("ignore", module=r"PIL\.")
    return Image


def _of_eight_bits(image: Image) -> Image:
    """``image`` with 8 bits a channel: values of 16 bits divided by the largest there is, and rounded.

    Raises:
        ImageError: if its values have no range that the file would say.
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
    """``image`` on white, where any of it is transparent."""
    if not image.has_transparency_data:
        return image
    layered = image.convert("RGBA")
    canvas: Image = _pillow().new("RGB", image.size, "white")
    canvas.paste(layered, mask=layered.getchannel("A"))
    return canvas


def _upright(image: Image, source: Image) -> Image:
    """``image`` turned as the EXIF data of its ``source`` say; Pillow itself has turned a TIFF when it was loaded."""
    if source.format == "TIFF":
        return image
    try:
        turn = _TURNS.get(source.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF data make their reader fail in any way, and say nothing of the pixels
        return image
    return image if turn is None else image.transpose(_pillow().Transpose[turn])
