"""DivideMix with batch norm beside the loop of its authors' program, written here in plain torch.

``python -m bench.dividemix FOLDER --data DATA [--ways authors,all,mixed] [--seeds 1,2,3]``

1,500 images of CIFAR-10 at 16x16, of which 45 % have wrong labels, and ResNet-8; DATA has ``cifar-10-batches-py``. All
ways train on the same images and labels: ``authors`` is the loop, ``all`` and ``mixed`` are this package, centralized,
with that value of ``method.running_statistics``. FOLDER gets ``dividemix.csv``, a line for each run. The loop's random
numbers are its own, and its warm-up has batches of twice the size; ``tests/methods/dividemix`` compares steps.
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn
from torch.optim import SGD

import flnl
from bench.whole_runs import chosen, finished, read_rows, write_rows
from flnl.models.resnet import ResNet

TRAIN, TEST, SIDE, WRONG = 1500, 1000, 16, 0.45
WARM_UP, EPOCHS, DROP, BATCH, RATE = 5, 20, 15, 64, 0.02
"""Epochs of cross-entropy, all epochs, the one from which the rate is a tenth; batch size and rate."""
LAMBDA_U, RAMP, ALPHA, THRESHOLD = 25.0, 16, 4.0, 0.5


@dataclass(frozen=True)
class Row:
    """A run, measured; accuracies in [0, 1]."""

    way: str
    seed: int
    accuracy: float  # of both networks' mean logits, last epoch
    last_five: float  # mean of the last five epochs'
    auc: float  # of right labels by the last division, mean of both networks


def write_data(data: Path, file: Path, seed: int) -> None:
    """Write images, the same number of each class, right labels, and given ones, of which exactly 45 % are others."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}
    for split, name, count in (("train", "data_batch_1", TRAIN), ("test", "test_batch", TEST)):
        with (data / "cifar-10-batches-py" / name).open("rb") as opened:
            batch = pickle.load(opened, encoding="latin1")
        labels = np.asarray(batch["labels"])
        keep = np.concatenate([np.flatnonzero(labels == c)[: count // 10] for c in range(10)])
        pixels = np.asarray(batch["data"])[keep].reshape(-1, 3, SIDE, 2, SIDE, 2).mean((3, 5)).round()
        arrays |= {f"x_{split}": pixels.astype(np.uint8).transpose(0, 2, 3, 1), f"y_{split}": labels[keep]}
    moved = rng.permutation(TRAIN)[: round(WRONG * TRAIN)]
    given = arrays["y_train"].copy()
    given[moved] = (given[moved] + rng.integers(1, 10, len(moved))) % 10
    np.savez(file, y_given=given, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for options


def ours(way: str, seed: int, folder: Path) -> Row:
    """A run of this package."""
    output = folder / way / str(seed)
    words = (
        *("dataset=arrays", f"dataset.root={folder}", f"dataset.file={seed}.npz", "dataset.padding=2"),
        *("dataset.flip=true", "model=resnet8", "method=dividemix", f"method.running_statistics={way}"),
        *("centralized=true", "partition=iid_uniform", "partition.num_clients=10", "noise=none"),
        *(f"method.T_wu={WARM_UP}", f"method.T={EPOCHS - WARM_UP}", "train.epochs=1", "method.epochs=1"),
        *(f"train.lr={RATE}", "train.momentum=0.9", "train.weight_decay=0.0005", f"train.batch_size={BATCH}"),
        *("train.keep_momentum=true", f"train.milestones=[{DROP}]", "eval.every=1", f"seed={seed}"),
        *("executor=sequential", "threads=1", "device=cpu", "wandb.mode=disabled", "figures=false"),
        *("resume=true", f"output={output}"),
    )
    if not finished(output):
        flnl.run(words)
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    shown = [line for line in lines if line["kind"] == "evaluation"]
    accuracies = [line["accuracy"] for line in shown]
    return Row(way, seed, accuracies[-1], mean(accuracies[-5:]), shown[-1]["filter_auc"])


class Images:
    """Normalised images; crops and flips of them, a draw for each image."""

    def __init__(self, pixels: np.ndarray, like: np.ndarray) -> None:
        scaled = like / 255
        self.all = torch.from_numpy((pixels / 255 - scaled.mean((0, 1, 2))) / scaled.std((0, 1, 2))).float()
        self.all = self.all.permute(0, 3, 1, 2).contiguous()
        self.black = torch.from_numpy(-scaled.mean((0, 1, 2)) / scaled.std((0, 1, 2))).float()[:, None, None]

    def view(self, at: Tensor) -> Tensor:
        """[B, 3, 16, 16]: padded by 2 black pixels, cropped, half of them mirrored."""
        padded = F.pad(self.all[at] - self.black, (2, 2, 2, 2)) + self.black
        places = torch.randint(0, 5, (len(at), 2)).tolist()
        crops = [image[:, y : y + SIDE, x : x + SIDE] for image, (y, x) in zip(padded, places, strict=True)]
        return torch.stack([c.flip(2) if u < 0.5 else c for c, u in zip(crops, torch.rand(len(at)), strict=True)])


@torch.no_grad()
def scores(net: nn.Module, images: Tensor) -> Tensor:
    """Logits in eval mode."""
    net.eval()
    return torch.cat([net(part) for part in images.split(500)])


def clean_probability(net: nn.Module, images: Images, given: Tensor) -> np.ndarray:
    """Posterior of the component of smaller mean, of a mixture of two fitted to the scaled losses."""
    losses = F.cross_entropy(scores(net, images.all), given, reduction="none").double().numpy()[:, None]
    losses = (losses - losses.min()) / (losses.max() - losses.min())
    mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4).fit(losses)
    return np.asarray(mixture.predict_proba(losses)[:, mixture.means_.argmin()])


def mixmatch(
    nets: Sequence[nn.Module], optimizer: SGD, images: Images, given: Tensor, right: np.ndarray, epoch: int
) -> None:
    """An epoch of the first of ``nets``, which is in training mode also where it guesses and refines labels."""
    net, other = nets[0].train(), nets[1].eval()
    w = torch.from_numpy(right).float()
    known, unknown = (part.nonzero()[:, 0] for part in (w > THRESHOLD, w <= THRESHOLD))
    batches, pool = known[torch.randperm(len(known))].split(BATCH), list[Tensor]()
    for number, x in enumerate(batches):
        pool = pool or list(unknown[torch.randperm(len(unknown))].split(BATCH))
        u = pool.pop(0)
        x1, x2, u1, u2 = images.view(x), images.view(x), images.view(u), images.view(u)
        with torch.no_grad():
            q = sum(net(v).softmax(1) for v in (u1, u2)) + sum(other(v).softmax(1) for v in (u1, u2))
            p = (net(x1).softmax(1) + net(x2).softmax(1)) / 2
            refined = (w[x, None] * F.one_hot(given[x], 10) + (1 - w[x, None]) * p) ** 2
            guessed = (q / 4) ** 2
            soft = torch.cat([t / t.sum(1, keepdim=True) for t in (refined, refined, guessed, guessed)])
        lam = max(draw := float(np.random.beta(ALPHA, ALPHA)), 1 - draw)  # noqa: NPY002
        rows, partner = torch.cat([x1, x2, u1, u2]), torch.randperm(len(soft))
        logs = net(lam * rows + (1 - lam) * rows[partner]).log_softmax(1)
        soft, cut = lam * soft + (1 - lam) * soft[partner], 2 * len(x)
        weight = LAMBDA_U * min(1.0, (epoch + number / len(batches) - WARM_UP) / RAMP)
        loss = -(soft[:cut] * logs[:cut]).sum(1).mean() + weight * (logs[cut:].exp() - soft[cut:]).square().mean()
        loss = loss + (0.1 * (0.1 / logs.exp().mean(0)).log()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def authors(seed: int, folder: Path) -> Row:
    """The loop of the authors' program."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # scikit-learn's mixture draws from it, too
    arrays = np.load(folder / f"{seed}.npz")
    images, test = (Images(arrays[f"x_{split}"], arrays["x_train"]) for split in ("train", "test"))
    given, truth = (torch.from_numpy(arrays[name]) for name in ("y_given", "y_test"))
    nets = [ResNet(16, [1, 1, 1])((3, SIDE, SIDE), 10) for _ in range(2)]
    optimizers = [SGD(net.parameters(), RATE, momentum=0.9, weight_decay=0.0005) for net in nets]
    accuracies, right = [], []
    for epoch in range(EPOCHS):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = RATE * (0.1 if epoch >= DROP else 1)
        if epoch < WARM_UP:
            for net, optimizer in zip(nets, optimizers, strict=True):
                net.train()
                for at in torch.randperm(TRAIN).split(2 * BATCH):
                    optimizer.zero_grad()
                    F.cross_entropy(net(images.view(at)), given[at]).backward()
                    optimizer.step()
        else:
            right = [clean_probability(net, images, given) for net in nets]
            for own in (0, 1):
                mixmatch((nets[own], nets[1 - own]), optimizers[own], images, given, right[1 - own], epoch)
        guess = torch.stack([scores(net, test.all) for net in nets]).sum(0).argmax(1)
        accuracies.append(float((guess == truth).double().mean()))
    auc = roc_auc_score(arrays["y_given"] == arrays["y_train"], np.mean(right, axis=0))
    return Row("authors", seed, accuracies[-1], mean(accuracies[-5:]), float(auc))


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of cifar-10-batches-py")
    args = chosen(parser, {"ways": ("authors", "all", "mixed")}, argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    rows = read_rows(args.folder / "dividemix.csv", Row)
    torch.set_num_threads(1)
    for seed in args.seeds:
        if not (args.folder / f"{seed}.npz").exists():
            write_data(args.data, args.folder / f"{seed}.npz", seed)
        for way in args.ways:
            if not any((row.way, row.seed) == (way, seed) for row in rows):
                rows.append(authors(seed, args.folder) if way == "authors" else ours(way, seed, args.folder))
                write_rows(args.folder / "dividemix.csv", Row, rows)
                print(rows[-1], flush=True)


if __name__ == "__main__":
    main()
