"""The network whose features stand for a frozen backbone's."""

import torch

from bench.frozen_features import WIDTH, learned


def test_it_learns_without_labels_and_again_the_same() -> None:
    images = torch.rand(150, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    one, other = learned(images), learned(images)
    with torch.no_grad():
        assert one(images).shape == (150, WIDTH)
        assert torch.equal(one(images), other(images))
