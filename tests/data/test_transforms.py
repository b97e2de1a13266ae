"""Augmentation and normalisation against torchvision, which works one Pillow image at a time."""

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as reference

from flnl.core.inputs import Augmentation
from flnl.core.streams import stream
from flnl.data.transforms import Transform, _crop_by_copy, _crop_by_gather

CIFAR = Transform((32, 32), (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), padding=4, flip=True)


def random_images(*shape: int) -> torch.Tensor:
    return torch.from_numpy(stream(7, "images").integers(0, 256, shape, dtype=np.uint8))


def by_torchvision(transform: Transform, image: torch.Tensor, top: int, left: int, flip: bool) -> torch.Tensor:
    picture = Image.fromarray(image.permute(1, 2, 0).numpy().squeeze())
    picture = reference.pad(picture, transform.padding, fill=0)
    picture = reference.crop(picture, top, left, *transform.size)
    if flip:
        picture = reference.hflip(picture)
    normalized: torch.Tensor = reference.normalize(reference.to_tensor(picture), transform.mean, transform.std)
    return normalized


def test_every_crop_and_flip_is_torchvisions_to_the_bit():
    """A swapped axis, a flip before the crop, zeros padded after normalisation: each changes a picture here."""
    offsets = [(top, left, flip) for top in range(9) for left in range(9) for flip in (False, True)]
    images = random_images(len(offsets), 3, 32, 32)
    draws = Augmentation(torch.tensor([o[:2] for o in offsets]), torch.tensor([o[2] for o in offsets]))
    ours = CIFAR.normalize(CIFAR.augment(images, draws))
    theirs = torch.stack([by_torchvision(CIFAR, image, *o) for image, o in zip(images, offsets, strict=True)])
    assert torch.equal(ours, theirs)


def test_a_crop_from_a_larger_grey_image_is_torchvisions():
    transform = Transform((20, 24), (0.5,), (0.25,), flip=True)
    images = random_images(30, 1, 28, 31)
    draws = transform.draw(stream(1, "draws"), 30, (28, 31))
    assert draws is not None
    theirs = [
        by_torchvision(transform, image, top, left, flip)
        for image, (top, left), flip in zip(images, draws.offset.tolist(), draws.flip.tolist(), strict=True)
    ]
    assert torch.equal(transform.normalize(transform.augment(images, draws)), torch.stack(theirs))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_form_for_accelerators_gives_the_same_pixels(dtype: torch.dtype):
    images = random_images(50, 3, 40, 40).to(dtype)
    draws = CIFAR.draw(stream(1, "draws"), 50, (32, 32))
    assert draws is not None
    copied, gathered = (crop(images, draws, (32, 32)) for crop in (_crop_by_copy, _crop_by_gather))
    assert copied.dtype == gathered.dtype == dtype
    assert torch.equal(copied, gathered)


def test_draws_reach_every_offset_and_both_sides_equally_often():
    draws = CIFAR.draw(stream(3, "draws"), 81_000, (32, 32))
    assert draws is not None
    cells = np.bincount((draws.offset[:, 0] * 9 + draws.offset[:, 1]).numpy(), minlength=81)
    assert len(cells) == 81
    assert abs(cells - 1000).max() < 5 * 1000**0.5
    assert abs(draws.flip.double().mean().item() - 0.5) < 5 * 0.5 / 81_000**0.5


def test_nothing_is_drawn_where_nothing_is_random():
    plain = Transform((28, 28), (0.1307,), (0.3081,))
    rng = stream(1, "draws")
    assert plain.draw(rng, 10, (28, 28)) is None
    assert rng.random() == stream(1, "draws").random()
    images = random_images(4, 1, 28, 28)
    assert torch.equal(plain.augment(images, None), images)


def test_without_flip_nothing_is_flipped():
    draws = Transform((32, 32), (0.0,), (1.0,), padding=4).draw(stream(1, "draws"), 100, (32, 32))
    assert draws is not None
    assert not draws.flip.any()


def test_a_crop_larger_than_the_image_is_refused():
    with pytest.raises(ValueError, match="cannot crop"):
        CIFAR.draw(stream(1, "draws"), 1, (20, 32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normalising_leaves_what_is_stored_alone(dtype: torch.dtype):
    """In-place arithmetic on float inputs would change the data set with every batch."""
    images = torch.rand(2, 3, 4, 4, dtype=dtype)
    before = images.clone()
    transform = Transform((4, 4), (0.5, 0.4, 0.3), (0.1, 0.2, 0.3), scale=1.0)
    out = transform.normalize(images, dtype)
    assert torch.equal(images, before)
    expected = (before.numpy() - np.array([0.5, 0.4, 0.3])[:, None, None]) / np.array([0.1, 0.2, 0.3])[:, None, None]
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert out.dtype == dtype


def test_constants_first_used_in_inference_mode_serve_training():
    """They are kept: a tensor made in inference mode would fail in the first backward pass through it."""
    transform = Transform((2, 2), (0.123,), (0.456,))
    with torch.inference_mode():
        transform.normalize(random_images(1, 1, 2, 2))
    inputs = torch.rand(1, 1, 2, 2, requires_grad=True)
    transform.normalize(inputs).sum().backward()
    assert inputs.grad is not None
    torch.testing.assert_close(inputs.grad, torch.full_like(inputs, 1 / 255 / 0.456))
