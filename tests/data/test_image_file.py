"""Pixels are what the file says, in every mode; what has no range, no end or too many pixels is refused by name."""

import io
import os
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import EpsImagePlugin, Image

from flnl.data import image_file
from flnl.data.image_file import ImageError, decode, read_bytes

ROOT = Path(__file__).resolve().parents[2]
WIDE = np.random.default_rng(0).integers(0, 2**16, (12, 16)).astype(np.uint16)
"""Grey values of 16 bits."""
WIDE[0, :4] = (0, 128, 129, 65535)  # 128 / 257 rounds down, 129 / 257 up
ROUNDED = np.rint(WIDE / 257).astype(np.uint8)
GREY = ROUNDED
COLOUR = np.random.default_rng(1).integers(0, 256, (12, 16, 3)).astype(np.uint8)
ALPHA = np.random.default_rng(2).integers(0, 256, (12, 16)).astype(np.uint8)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels(content: bytes, channels: int = 3, shape: tuple[int, int] = (12, 16)) -> NDArray[np.uint8]:
    """The image as [H, W, C], in its own size."""
    found = decode(content, shape, channels)
    assert found.dtype == np.uint8
    assert found.shape == (channels, *shape)
    return found.transpose(1, 2, 0)


def grey(content: bytes) -> NDArray[np.uint8]:
    """The image as [H, W], after checking that it is as grey in colour."""
    assert (pixels(content, 3) == pixels(content, 1)).all()
    return pixels(content, 1)[..., 0]


def on_white(values: NDArray[np.uint8], alpha: NDArray[np.uint8]) -> NDArray[np.float64]:
    """What shows of ``values`` on white, not rounded."""
    share = alpha / 255
    return np.asarray(values * share + 255 * (1 - share))


# ------------------------------------------------------------------------------------------------------------- modes


@pytest.mark.parametrize(
    "content",
    {
        "png": encoded(Image.fromarray(WIDE), "PNG"),
        "tiff, little endian": encoded(Image.fromarray(WIDE), "TIFF"),
        "tiff, big endian": encoded(Image.frombytes("I;16B", (16, 12), WIDE.astype(">u2").tobytes()), "TIFF"),
        "tiff, packed": encoded(Image.fromarray(WIDE), "TIFF", compression="tiff_lzw"),
        "pgm": b"P5 16 12 65535\n" + WIDE.astype(">u2").tobytes(),
    }.items(),
    ids=lambda item: item[0],
)
def test_sixteen_bits_are_divided_by_their_largest_number_and_rounded(content: tuple[str, bytes]) -> None:
    assert (grey(content[1]) == ROUNDED).all()


def test_twelve_bits_and_white_as_zero_are_what_a_tiff_says() -> None:
    """Tags 258 (bits) and 262 (photometric), written by hand: Pillow writes neither."""
    twelve = WIDE >> 4
    first, second = twelve.reshape(-1, 2).T.astype(np.uint32)
    packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], 1).astype(np.uint8)
    assert (grey(tiff(packed.tobytes(), bits=12, photometric=1)) == np.rint(twelve / 4095 * 255)).all()
    assert (grey(tiff(WIDE.astype("<u2").tobytes(), bits=16, photometric=0)) == 255 - ROUNDED).all()


def tiff(data: bytes, *, bits: int, photometric: int) -> bytes:
    """A grey TIFF of 16x12 in one strip, little endian."""
    tags = {256: 16, 257: 12, 258: bits, 259: 1, 262: photometric, 273: 8, 277: 1, 278: 12, 279: len(data)}
    entries = b"".join(
        tag.to_bytes(2, "little") + b"\4\0" + b"\1\0\0\0" + value.to_bytes(4, "little") for tag, value in tags.items()
    )
    directory = len(tags).to_bytes(2, "little") + entries + bytes(4)
    return b"II*\0" + (8 + len(data)).to_bytes(4, "little") + data + directory


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (encoded(Image.fromarray(WIDE.astype(np.int32)), "TIFF"), "32-bit or signed integers"),
        (encoded(Image.fromarray(WIDE.astype(np.float32)), "TIFF"), "floating-point"),
        (encoded(Image.fromarray(np.linspace(0, 1, 192, dtype=np.float32).reshape(12, 16)), "TIFF"), "floating-point"),
    ],
)
def test_numbers_without_a_range_are_refused_by_name(content: bytes, named: str) -> None:
    with pytest.raises(ImageError, match=named) as caught:
        pixels(content)
    assert "\n" not in str(caught.value)


def test_black_and_white_grey_and_colour() -> None:
    lit = GREY > 100
    assert (grey(encoded(Image.fromarray(lit), "PNG")) == np.where(lit, 255, 0)).all()
    assert (grey(encoded(Image.fromarray(GREY), "PNG")) == GREY).all()
    colour = encoded(Image.fromarray(COLOUR), "PNG")
    assert (pixels(colour) == COLOUR).all()
    assert (pixels(colour, 1)[..., 0] == np.asarray(Image.fromarray(COLOUR).convert("L"))).all()


def test_a_palette_is_looked_up() -> None:
    image = Image.fromarray(COLOUR).quantize(16)
    content = encoded(image, "PNG")
    assert image.mode == "P"
    assert (pixels(content) == np.asarray(image.convert("RGB"))).all()


def test_printers_colours_are_converted() -> None:
    image = Image.new("CMYK", (16, 12), (0, 255, 255, 0))
    assert (pixels(encoded(image, "TIFF")) == (255, 0, 0)).all()


def test_sixteen_bit_colours_are_exact_within_a_level() -> None:
    """Pillow reads the upper byte; a PNG written by hand, since Pillow writes none."""
    wide = np.random.default_rng(3).integers(0, 2**16, (12, 16, 3)).astype(np.uint16)
    found = pixels(png(wide, colour_type=2)).astype(int)
    assert (found == wide >> 8).all()
    assert np.abs(found - wide / 257).max() <= 1


def test_sixteen_bits_with_alpha_show_white_through() -> None:
    wide = np.stack([WIDE, ALPHA.astype(np.uint16) * 257], -1)
    found = grey(png(wide, colour_type=4)).astype(float)
    assert np.abs(found - on_white(GREY, ALPHA)).max() <= 1.5  # the upper byte, and one rounding


def png(wide: NDArray[np.uint16], colour_type: int) -> bytes:
    """A PNG of 16 bits a channel."""
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in wide)
    return png_of(wide.shape[1], wide.shape[0], 16, colour_type, rows)


def png_of(width: int, height: int, bits: int, colour_type: int, rows: bytes) -> bytes:
    """A PNG with these rows, each after the number of its filter."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


# ------------------------------------------------------------------------------------------------------ transparency


def test_alpha_shows_white() -> None:
    colour = encoded(Image.fromarray(np.dstack([COLOUR, ALPHA])), "PNG")
    assert np.abs(pixels(colour) - on_white(COLOUR, ALPHA[..., None])).max() <= 0.5 + 1e-9
    shaded = encoded(Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)]), "PNG")
    assert np.abs(grey(shaded) - on_white(GREY, ALPHA)).max() <= 0.5 + 1e-9


def test_what_is_wholly_transparent_is_white_whatever_lies_below() -> None:
    """Editors leave black there, or what had been painted."""
    assert (pixels(encoded(Image.new("RGBA", (16, 12), (0, 90, 0, 0)), "PNG")) == 255).all()
    assert (pixels(encoded(Image.new("RGBA", (16, 12), (0, 90, 0, 255)), "PNG")) == (0, 90, 0)).all()


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_transparent_entry_of_a_palette_shows_white(kind: str) -> None:
    image = Image.fromarray(COLOUR).quantize(16)
    clear = np.asarray(image) == 3
    assert clear.any()
    assert not clear.all()
    expected = np.where(clear[..., None], 255, np.asarray(image.convert("RGB")))
    assert (pixels(encoded(image, kind, transparency=3)) == expected).all()


def test_half_transparent_entries_of_a_palette_show_white_through() -> None:
    image = Image.fromarray(COLOUR).quantize(4)
    content = encoded(image, "PNG", transparency=bytes([0, 85, 170, 255]))
    alpha = np.array([0, 85, 170, 255], np.uint8)[np.asarray(image)]
    expected = on_white(np.asarray(image.convert("RGB")), alpha[..., None])
    assert np.abs(pixels(content) - expected).max() <= 0.5 + 1e-9


@pytest.mark.parametrize(("values", "clear"), [(GREY, int(GREY[5, 5])), (WIDE, int(WIDE[5, 5]))])
def test_a_grey_that_a_png_calls_transparent_shows_white(values: NDArray[Any], clear: int) -> None:
    found = grey(encoded(Image.fromarray(values), "PNG", transparency=clear))
    assert (found == np.where(values == clear, 255, GREY)).all()
    assert GREY[5, 5] != 255


def test_a_colour_that_a_png_calls_transparent_shows_white() -> None:
    content = encoded(Image.fromarray(COLOUR), "PNG", transparency=tuple(COLOUR[5, 5].tolist()))
    assert (pixels(content)[5, 5] == 255).all()
    assert (pixels(content)[0] == COLOUR[0]).all()


# ------------------------------------------------------------------------------------------------------- orientation

STORED = {  # how an upright image lies in a file whose EXIF orientation is the key, by EXIF 2.3, 4.6.4
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", STORED)
def test_images_are_set_upright_as_exif_says(kind: str, orientation: int) -> None:
    upright = np.kron(np.random.default_rng(4).integers(0, 2, (3, 5, 1)) * 255, np.ones((16, 16, 3))).astype(np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](upright)))
    found = pixels(encoded(stored, kind, exif=exif), 3, (48, 80))
    assert np.abs(found.astype(int) - upright).mean() < 10  # JPEG and WebP lose a little


@pytest.mark.filterwarnings(r"ignore::UserWarning:PIL\.")  # as the module has it, until a test resets the filters
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("damaged", [b"garbage", b"II*\0\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff\x12"])
def test_damaged_exif_data_cost_no_image(kind: str, damaged: bytes) -> None:
    exif = b"Exif\0\0" + damaged if kind == "JPEG" else damaged
    plain = pixels(encoded(Image.fromarray(COLOUR), kind))
    assert (pixels(encoded(Image.fromarray(COLOUR), kind, exif=exif)) == plain).all()


# ---------------------------------------------------------------------------------------------------------- refusals


def test_too_many_pixels_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    content = png_of(20_000, 10_000, 1, 0, b"")  # more than Pillow itself takes
    with pytest.raises(ImageError, match=r"it has more than 134,217,728 pixels"):
        pixels(content)
    monkeypatch.setattr(image_file, "MOST_PIXELS", 191)
    with pytest.raises(ImageError, match=r"it has 192 pixels; up to 191 are read"):
        pixels(encoded(Image.fromarray(GREY), "PNG"))


def test_no_warning_of_pillow_is_printed(tmp_path: Path) -> None:
    """In a process of its own, where warnings are printed as they are for a user: 90 million pixels are read."""
    (tmp_path / "large.png").write_bytes(png_of(9_000, 10_000, 1, 0, bytes((1 + 1_125) * 10_000)))
    code = (
        "from pathlib import Path; from flnl.data.image_file import decode;"
        "print(decode(Path('large.png').read_bytes(), (2, 2), 1).shape)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (said.returncode, said.stdout, said.stderr) == (0, "(1, 2, 2)\n", "")


def test_a_program_that_calls_itself_an_image_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow hands PostScript to Ghostscript, whatever the file's name ends in."""
    ran: list[object] = []

    def ghostscript(*words: object) -> Any:
        ran.append(words)
        return Image.new("RGB", (4, 4)).im

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", "gs")
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n(owned) print\n%%EOF\n"
    with pytest.raises(Exception, match="cannot identify image file"):
        pixels(content, 3, (4, 4))
    assert ran == []


def test_only_files_of_bounded_size_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.png").write_bytes(b"123456")
    (tmp_path / "link.png").symlink_to("a.png")
    assert read_bytes(tmp_path / "a.png") == read_bytes(str(tmp_path / "link.png")) == b"123456"
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "endless.png").symlink_to("/dev/zero")
    for name, reason in (("pipe.png", "pipe"), ("endless.png", "device"), (".", "folder")):
        with pytest.raises(ImageError, match=reason):
            read_bytes(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "gone.png")
    with (tmp_path / "vast.png").open("wb") as file:
        file.truncate(image_file.MOST_BYTES + 1)  # takes no room on the disk
    with pytest.raises(ImageError, match="it has 256 MiB; up to 256 are read"):
        read_bytes(tmp_path / "vast.png")
    monkeypatch.setattr(image_file, "MOST_BYTES", 5)
    with pytest.raises(ImageError):
        read_bytes(tmp_path / "a.png")


def test_a_pipe_that_takes_a_file_s_place_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a file and its opening: whoever opens a pipe waits for its other end."""
    (tmp_path / "a.png").write_bytes(b"123456")
    before = (tmp_path / "a.png").stat()
    (tmp_path / "a.png").unlink()
    os.mkfifo(tmp_path / "a.png")
    monkeypatch.setattr("flnl.data.image_file.os", SimpleNamespace(**vars(os) | {"stat": lambda path: before}))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_bytes, tmp_path / "a.png")
        try:
            with pytest.raises(ImageError, match="pipe"):
                reading.result(10)
        finally:
            os.close(os.open(tmp_path / "a.png", os.O_RDWR | os.O_NONBLOCK))  # the other end, for who waits after all
