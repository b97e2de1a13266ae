"""Features of MNIST from a network that has learned without labels, for methods that start from a frozen backbone.

    python -m bench.frozen_features FOLDER FILE.npz

A convolutional autoencoder learns the first half of MNIST's training images, for two epochs and without labels. FOLDER
is as torchvision has it. FILE gets the 64 numbers of the narrow layer for 4,000 images of the other half, and for 1,000
test images.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.datasets import MNIST

HALF, TRAIN, TEST, WIDTH = 30_000, 4_000, 1_000, 64


def networks() -> tuple[nn.Module, nn.Module]:
    """The encoder, of 28x28 pixels to 64 numbers, and the decoder."""
    encoder = nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1568, WIDTH),
    )
    decoder = nn.Sequential(
        nn.Linear(WIDTH, 1568), nn.ReLU(), nn.Unflatten(1, (32, 7, 7)), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, 2, 1),
    )  # fmt: skip
    return encoder, decoder


def learned(images: Tensor) -> nn.Module:
    """The encoder after two epochs on images [n, 1, 28, 28]."""
    torch.manual_seed(1)
    encoder, decoder = networks()
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], 0.002)
    for _ in range(2):
        for batch in images[torch.randperm(len(images))].split(100):
            optimizer.zero_grad()
            F.mse_loss(decoder(encoder(batch)), batch).backward()
            optimizer.step()
    return encoder.eval()


def main() -> None:
    """Write the file."""
    folder, file = Path(sys.argv[1]), Path(sys.argv[2])
    train, test = (MNIST(str(folder), train=part) for part in (True, False))
    images, tested = (of.data[:, None].float() / 255 for of in (train, test))
    encoder = learned(images[:HALF])
    with torch.no_grad():
        x_train, x_test = encoder(images[HALF : HALF + TRAIN]).numpy(), encoder(tested[:TEST]).numpy()
    y_train, y_test = train.targets[HALF : HALF + TRAIN].numpy(), test.targets[:TEST].numpy()
    np.savez(file, x_train=x_train, x_test=x_test, y_train=y_train, y_test=y_test)


if __name__ == "__main__":
    main()
