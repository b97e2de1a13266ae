"""The strong view against PIL, and of many clients' images as of one's."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from flnl.parts.strong_view import KINDS, changed, cut_out, drawn_view, strong_inputs, strong_view


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


RNG = np.random.default_rng(0)
IMAGE = RNG.integers(30, 200, (12, 12, 3)).astype(np.uint8)
PIL = Image.fromarray(IMAGE)


def one(name: str, strength: float, image: Any = IMAGE) -> Any:
    """The operation on one image, as levels [H, W, C]."""
    pixels = torch.from_numpy(np.asarray(image)).double().permute(2, 0, 1)[None] / 255
    made = changed(pixels, torch.tensor([KINDS.index(name)]), f64([strength]))
    return (made[0].permute(1, 2, 0) * 255).numpy()


@pytest.mark.parametrize(
    ("name", "expected", "within"),
    [
        ("autocontrast", lambda f: ImageOps.autocontrast(PIL), 1.01),
        ("equalise", lambda f: ImageOps.equalize(PIL), 0.01),
        ("brightness", lambda f: ImageEnhance.Brightness(PIL).enhance(0.05 + 0.9 * f), 1.01),
        ("colour", lambda f: ImageEnhance.Color(PIL).enhance(0.05 + 0.9 * f), 2.01),
        ("contrast", lambda f: ImageEnhance.Contrast(PIL).enhance(0.05 + 0.9 * f), 2.01),
        ("sharpness", lambda f: ImageEnhance.Sharpness(PIL).enhance(0.05 + 0.9 * f), 2.01),
        ("posterise", lambda f: ImageOps.posterize(PIL, 4 + int(5 * f)), 0.01),
        ("solarise", lambda f: ImageOps.solarize(PIL, int(256 * f)), 0.01),
        ("identity", lambda f: PIL, 0.01),
    ],
)
@pytest.mark.parametrize("strength", [0.125, 0.5, 0.875])
def test_operations_are_those_of_pil(name: str, expected: Any, within: float, strength: float) -> None:
    np.testing.assert_allclose(one(name, strength), np.asarray(expected(strength)).astype(float), atol=within)


def test_geometry() -> None:
    image = np.zeros((10, 10, 1), np.uint8)
    image[5, 2] = 255
    assert np.argwhere(one("translate_x", 0.5, image))[:, :2].tolist() == [[5, 2]], (
        "the middle of the range moves nothing"
    )
    assert np.argwhere(one("translate_x", 0.0, image))[:, :2].tolist() == [[5, 5]], "by 0.3 of ten columns"
    assert np.argwhere(one("translate_y", 0.999999, image))[:, :2].tolist() == [[2, 2]]
    assert not one("translate_x", 0.999999, image).any(), "moved out, and nothing comes in"
    column = np.zeros((11, 11, 1), np.uint8)
    column[:, 5] = 255
    moved = one("shear_x", 1 - 1e-9, column)
    expected = [[row, round(5 - 0.3 * (row - 5))] for row in range(11)]
    assert np.argwhere(moved)[:, :2].tolist() == expected
    assert np.argwhere(one("shear_y", 1 - 1e-9, column.transpose(1, 0, 2)))[:, [1, 0]].tolist() != []
    turned = np.argwhere(one("rotate", 1 - 1e-9, column))[:, :2] - 5
    far = turned[np.abs(turned[:, 0]) == 4]
    slope = np.abs(far[:, 1] / far[:, 0]).mean()
    assert slope == pytest.approx(np.tan(np.pi / 6), abs=0.13)


def test_a_cutout_is_a_grey_square() -> None:
    cut = cut_out(torch.ones(1, 1, 8, 8), f64([[0.99, 0.5, 0.25]]))[0, 0]
    rows, columns = (cut == 0.5).any(1).nonzero()[:, 0].tolist(), (cut == 0.5).any(0).nonzero()[:, 0].tolist()
    assert (rows, columns) == ([2, 3, 4, 5], [0, 1, 2, 3]), "of side 3.96 around row 4 and column 2"
    assert int((cut == 0.5).sum()) == 16
    assert torch.equal(cut_out(torch.ones(1, 1, 8, 8), f64([[0.0, 0.5, 0.5]])), torch.ones(1, 1, 8, 8))


def test_a_strong_view_is_three_operations_each_and_a_cutout_for_one_client_as_for_many() -> None:
    draw = drawn_view(np.random.default_rng(3), 40)
    assert {*draw.kinds.flatten().tolist()} == {*range(14)}
    pixels = torch.from_numpy(np.random.default_rng(4).random((40, 3, 8, 8)))
    view = strong_view(pixels, draw)
    assert view.shape == pixels.shape
    assert bool(((view >= 0) & (view <= 1)).all())
    by_hand = pixels[7:8]
    for kind, strength in zip(draw.kinds[7], draw.strengths[7], strict=True):
        by_hand = changed(by_hand, kind[None], strength[None])
    torch.testing.assert_close(view[7:8], cut_out(by_hand, draw.cut[7:8]))
    halves = replace(draw, **{n: getattr(draw, n).unflatten(0, (2, 20)) for n in ("kinds", "strengths", "cut")})

    def alone(of: Tensor, kinds: Tensor, strengths: Tensor, cut: Tensor) -> Tensor:
        return strong_view(of, replace(draw, kinds=kinds, strengths=strengths, cut=cut))

    many = torch.func.vmap(alone)(pixels.unflatten(0, (2, 20)), halves.kinds, halves.strengths, halves.cut)
    torch.testing.assert_close(many.flatten(0, 1), view)


def test_inputs_are_changed_as_pixels() -> None:
    draw, pixels = drawn_view(np.random.default_rng(3), 5), torch.rand(5, 1, 8, 8, dtype=torch.float64)
    constants = f64([[[0.3]]]), f64([[[0.5]]])
    inputs = (pixels - 0.3) / 0.5
    torch.testing.assert_close(strong_inputs(inputs, draw, constants), (strong_view(pixels, draw) - 0.3) / 0.5)
