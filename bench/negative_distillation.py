"""FedNed's step on the server, as its authors' program takes it and with its optimiser mended (docs/methods/fedned.md).

    python -m bench.negative_distillation

A good model has learned digits from right labels, a bad one from random labels; both are three-layer networks. The step
sees 128 images without labels, the server's public ones: 100 times, the global model's ``softmax(z / T)`` is to come
near ``softmax(1 / z_bad) / T``.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

TEMPERATURE, STEPS, RATE, WEIGHT_DECAY = 2.0, 100, 0.05, 0.002
SEEDS = (1, 2, 3)
PUBLIC, TEST = 128, 500


def trained(images: Tensor, labels: Tensor) -> nn.Module:
    """A network after 200 steps on all samples."""
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model


def distilled(model: nn.Module, bad: nn.Module, public: Tensor, *, mended: bool) -> nn.Module:
    """``model`` after the step. As released, the optimiser holds the parameters of another model than the loss has."""
    model = copy.deepcopy(model)
    held = model if mended else copy.deepcopy(model)
    optimizer = torch.optim.Adam(held.parameters(), RATE, weight_decay=WEIGHT_DECAY)
    target = (1 / bad(public).detach()).softmax(1) / TEMPERATURE
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.kl_div((model(public) / TEMPERATURE).log_softmax(1), target, reduction="batchmean").backward()
        optimizer.step()
    return model


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of right predictions, in percent."""
    return 100 * float((model(images).argmax(1) == labels).double().mean())


def furthest(one: nn.Module, other: nn.Module) -> float:
    """The largest difference of two parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def main() -> None:
    """Print a table."""
    pixels, classes = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels).float() / 16, torch.from_numpy(classes)
    print("| seed | accuracy before | as released | furthest parameter | mended | furthest parameter |")
    print("|---|---|---|---|---|---|")
    for seed in SEEDS:
        torch.manual_seed(seed)
        order = torch.randperm(len(images))
        test, public, train = order[:TEST], order[TEST : TEST + PUBLIC], order[TEST + PUBLIC :]
        good = trained(images[train], labels[train])
        bad = trained(images[train], labels[train][torch.randperm(len(train))])
        row = [f"{accuracy(good, images[test], labels[test]):.1f}"]
        for mended in (False, True):
            after = distilled(good, bad, images[public], mended=mended)
            row += [f"{accuracy(after, images[test], labels[test]):.1f}", f"{furthest(after, good):.2g}"]
        print(f"| {seed} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
