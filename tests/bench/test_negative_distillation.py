"""FedNed's step on the server."""

import torch

from bench.negative_distillation import accuracy, distilled, furthest, trained


def test_as_released_nothing_moves_and_mended_it_forgets() -> None:
    torch.manual_seed(0)
    images, labels = torch.rand(200, 64), torch.arange(200) % 10
    images += torch.nn.functional.one_hot(labels, 64)
    good, bad = trained(images, labels), trained(images, labels[torch.randperm(200)])
    assert accuracy(good, images, labels) == 100
    assert furthest(distilled(good, bad, images, mended=False), good) == 0
    mended = distilled(good, bad, images, mended=True)
    assert furthest(mended, good) > 0.01
    assert accuracy(mended, images, labels) < 100
