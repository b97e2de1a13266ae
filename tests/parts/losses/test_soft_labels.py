"""Soft labels: the shares of people who gave each class, in the loss and in whole runs, however clients are run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flnl
from flnl.parts.batches import Mixup
from flnl.parts.losses.soft_labels import Shares, SoftLabels, shares
from tests.toys import step

PEOPLE = torch.tensor([[0, 1, 2], [2, -1, 2], [2, -1, 0]])


def test_the_loss_is_the_mean_over_people_and_of_corrected_labels_their_own() -> None:
    q = shares(PEOPLE, 3).double()
    assert q.tolist() == pytest.approx(np.array([[1 / 3, 0, 2 / 3], [0, 1, 0], [1 / 3, 0, 2 / 3]]), abs=1e-7)
    logits = torch.tensor([[0.3, -1.0, 2.0], [1.0, 0.0, 0.5], [-0.2, 0.4, 0.1]], dtype=torch.float64)
    labels, positions = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2])  # the last one is nobody's: it is corrected
    batch = replace(step(logits=logits, targets=labels), labels=labels, positions=positions)
    losses, _ = SoftLabels()(batch, Shares(q))
    each = -logits.log_softmax(1)
    assert losses.tolist() == pytest.approx(
        [float(each[0, 0] + 2 * each[0, 2]) / 3, float(each[1, 1]), float(each[2, 1])]
    )


def test_a_class_that_nobody_gave_may_be_impossible() -> None:
    logits = torch.tensor([[0.0, -torch.inf]], requires_grad=True)
    label = torch.tensor([0])
    batch = replace(step(logits=logits, targets=label), labels=label, positions=label)
    losses, _ = SoftLabels()(batch, Shares(torch.tensor([[1.0, 0.0]])))
    assert losses.tolist() == [0.0]


def test_mixed_batches_have_no_single_samples() -> None:
    said = SoftLabels().refuses(torch.nn.Linear(2, 2), [Mixup(1.0, True, None)], None)  # type: ignore[arg-type]
    assert said is not None
    assert "method/batch=plain" in said


def run(folder: Path, name: str, *words: str) -> Any:
    data = ["dataset=arrays", f"dataset.root={folder}", "dataset.labels=labels.csv", "noise=none", "model=mlp"]
    short = ["method=fedavg", "rounds=2", "fraction=1", "partition.num_clients=3", "model.hidden=[5]", "train.epochs=2"]
    quiet = ["wandb.mode=disabled", "figures=false", f"output={folder / name}"]
    return flnl.run([*data, *short, *quiet, *words]).metrics["train/loss"].tolist()


def test_people_reach_the_loss_in_every_executor(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 1, 4, 4), dtype=np.uint8), np.arange(60) % 3
    np.savez(tmp_path / "arrays.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    lines = [f"{i},{y[i]},{rng.integers(3)},{rng.integers(3)}" for i in range(60)]
    (tmp_path / "labels.csv").write_text("\n".join(["id,label,label_2,label_3", *lines]) + "\n")
    term = "method/local=[soft_labels]"
    alone = run(tmp_path, "alone", term, "executor=sequential")
    for executor in ("stacked", "processes", "sites"):
        more = ["executor.workers=2"] if executor == "processes" else []
        together = run(tmp_path, executor, term, f"executor={executor}", *more)
        assert together == pytest.approx(alone, rel=1e-5), executor
    assert run(tmp_path, "hard", "executor=sequential") != pytest.approx(alone, rel=1e-3)
