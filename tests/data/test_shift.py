"""``shift``: what becomes of the images of each client, and that nothing else changes."""

import numpy as np
import pytest
import torch

from flnl.config import compose
from flnl.core.errors import UserError
from flnl.core.shift import Shift
from flnl.core.streams import stream
from flnl.data.federation.build import Federation, from_config

WORDS = ["partition.num_clients=4", "noise=symmetric"]


def drawn(*words: str) -> Federation:
    return from_config(compose.load([*WORDS, *words]))


def pixels(federation: Federation, client: int) -> torch.Tensor:
    samples = federation.samples(client)
    return samples.images.read(samples.index).double() / federation.dataset.transform.scale


@pytest.mark.parametrize("kind", ["device", "gaussian"])
def test_the_training_images_of_clients_change_and_nothing_else(kind: str) -> None:
    plain, shifted = drawn(), drawn("shift.level=0.5", f"shift.kind={kind}")
    for k in range(4):
        assert not torch.equal(pixels(plain, k), pixels(shifted, k))
    everything = torch.arange(len(plain.dataset.test))
    assert torch.equal(plain.dataset.test.read(everything), shifted.dataset.test.read(everything))
    assert torch.equal(plain.given, shifted.given)
    assert all(np.array_equal(a, b) for a, b in zip(plain.clients, shifted.clients, strict=True))
    assert plain.fingerprint != shifted.fingerprint


def test_level_0_keeps_pixels_and_fingerprint() -> None:
    assert drawn("shift.kind=gaussian").fingerprint == drawn().fingerprint


def test_a_device_has_one_curve_for_all_images_of_its_client() -> None:
    plain, shifted = drawn(), drawn("shift.level=0.5")
    curves = []
    for k in range(4):
        before, after = pixels(plain, k), pixels(shifted, k)
        levels = before.unique()
        curves.append([after[before == level].unique().tolist() for level in levels])
        assert all(len(values) == 1 for values in curves[-1])
        rng = stream(1, "shift", k)
        gamma, gain = 2.0 ** rng.uniform(-0.5, 0.5, 2)
        expected = (gain * levels.numpy() ** gamma + rng.uniform(-0.125, 0.125)).clip(0, 1)
        assert np.allclose([values[0] for values in curves[-1]], expected, atol=0.5 / 16 + 1e-9)
    assert len({str(curve) for curve in curves}) == 4


def test_gaussian_noise_grows_from_client_to_client() -> None:
    x = torch.full((400, 1, 10, 10), 0.5, dtype=torch.float64)
    variances = [float(Shift(0.01, "gaussian").of(x, k, 4, seed=3).var()) for k in range(4)]
    assert variances == pytest.approx([0.0025, 0.005, 0.0075, 0.01], rel=0.03)


def test_one_client_of_all_samples_has_the_images_of_the_clients() -> None:
    apart, together = drawn("shift.level=0.5"), drawn("shift.level=0.5", "centralized=true")
    images = [one.dataset.train.read(torch.arange(len(one.given))) for one in (apart, together)]
    assert torch.equal(*images)


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(UserError, match=r"shift\.level=0\.5 changes images in memory, of uint8 pixels; or set it to 0"):
        drawn("dataset=wine", "shift.level=0.5")


def test_validation_samples_are_of_their_clients_device() -> None:
    plain, shifted = drawn("eval.validation=0.2"), drawn("eval.validation=0.2", "shift.level=0.5")
    index = torch.from_numpy(plain.validation)
    assert not torch.equal(plain.dataset.train.read(index), shifted.dataset.train.read(index))
