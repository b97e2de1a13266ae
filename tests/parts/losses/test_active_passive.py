"""Active and passive losses: the vectors with their gradients, what symmetric noise adds, soft targets, saturation."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.parts import LossTerm, Setting
from flnl.parts.losses.active_passive import Focal, MeanAbsoluteError, Normalised, ReverseCrossEntropy
from tests.toys import ONE_STEP, step
from tests.vectors.vectors import field

A = float(np.log(1e-4))
NCE = Normalised("cross_entropy", 1.0, gamma=0.5, detach=True, q=0.7)
NFL = Normalised("focal", 1.0, gamma=0.5, detach=True, q=0.7)
MAE, RCE = MeanAbsoluteError(1.0, normalised=False), ReverseCrossEntropy(1.0, A)


def nce(weight: float) -> Normalised:
    return Normalised("cross_entropy", weight, gamma=0.5, detach=True, q=0.7)


VECTORS: dict[str, list[LossTerm]] = {
    "mae": [MAE],
    "mae.paper_scale": [MeanAbsoluteError(2.0, normalised=False)],
    "nce": [NCE],
    "focal.g0.5_exact": [Focal(1.0, 0.5, detach=False)],
    "nfl.g0.5": [NFL],
    "nfl.g0.5_exact": [Normalised("focal", 1.0, gamma=0.5, detach=False, q=0.7)],
    "ngce.q0.7": [Normalised("generalized_cross_entropy", 1.0, gamma=0.5, detach=True, q=0.7)],
    "nmae_nrce": [MeanAbsoluteError(1.0, normalised=True)],
    "nce_rce.c10": [nce(1.0), RCE],
    "nce_mae.c10": [nce(1.0), MAE],
    "nce_mae.c100": [nce(10.0), MAE],
    "nfl_rce": [NFL, RCE],
    "nce.saturated": [NCE],
    "nfl.saturated": [NFL],
}


def evaluated(terms: list[LossTerm], logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The losses [B] of a sum of terms, and the gradient of their mean."""
    logits = logits.clone().requires_grad_()
    total = torch.stack([term(step(logits=logits, targets=targets), None)[0] for term in terms]).sum(0)
    total.mean().backward()
    assert logits.grad is not None
    return total.detach(), logits.grad


def test_a_weight_that_is_small_for_so_many_classes_is_warned_of() -> None:
    setting = Setting({0: 3}, (4,), ONE_STEP, "method.local.nce", classes=100)
    assert str(NCE.caution(setting)).startswith("method.local.nce.weight=1 is small for 100 classes: at first the")
    assert "0.0022 of cross-entropy's" in str(NCE.caution(setting))
    assert NFL.caution(setting) is not None
    assert nce(10.0).caution(setting) is None
    assert NCE.caution(replace(setting, classes=50)) is None
    assert NCE.caution(replace(setting, classes=None)) is None
    assert nce(0.02).caution(replace(setting, classes=2)) is None


@pytest.mark.parametrize("name", VECTORS)
def test_vectors(name: str) -> None:
    v = field(name)
    logits, labels = torch.tensor(v.inputs["logits"], dtype=torch.float64), torch.tensor(v.inputs["labels"])
    losses, gradient = evaluated(VECTORS[name], logits, labels)
    np.testing.assert_allclose(losses, v.expected["per_sample"], atol=v.absolute)
    np.testing.assert_allclose(gradient, v.expected["grad_logits"], atol=v.absolute)
    assert losses.mean().item() == v.approx("value")


def test_the_sum_over_all_labels_is_the_same_for_every_sample() -> None:
    """Therefore symmetric noise adds a constant to the expected loss, and moves no minimum."""
    v = field("apl.symmetry")
    logits = torch.tensor(v.inputs["logits"], dtype=torch.float64)
    terms: dict[str, Any] = {"mae": MAE, "nce": NCE, "nfl": NFL, "ngce": VECTORS["ngce.q0.7"][0], "rce": RCE}
    for name, term in terms.items():
        every = [evaluated([term], logits, torch.full((4,), label))[0] for label in range(4)]
        np.testing.assert_allclose(torch.stack(every).sum(0), v.expected[name], atol=1e-6)


@pytest.mark.parametrize("term", [MAE, RCE, NCE, NFL, Focal(0.7, 2.0, detach=True)], ids=str)
def test_of_mixed_labels_it_is_the_mixed_loss(term: LossTerm) -> None:
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    one, other = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([1, 1, 0, 2, 3])
    soft = 0.3 * F.one_hot(one, 4).double() + 0.7 * F.one_hot(other, 4).double()
    first, second, mixed = (evaluated([term], logits, targets)[0] for targets in (one, other, soft))
    np.testing.assert_allclose(mixed, 0.3 * first + 0.7 * second, rtol=1e-12)


@pytest.mark.parametrize("terms", [[NCE], [NFL], VECTORS["nfl.g0.5_exact"], VECTORS["ngce.q0.7"], [MAE, RCE]], ids=str)
def test_float32_stays_finite_at_any_logits(terms: list[LossTerm]) -> None:
    logits = torch.tensor([[1000.0, -1000.0, 0.0], [0.0, 0.0, 0.0], [50.0, -50.0, -50.0], [50.0, -50.0, -50.0]])
    losses, gradient = evaluated(terms, logits, torch.tensor([1, 0, 0, 2]))
    assert bool(losses.isfinite().all())
    assert bool(gradient.isfinite().all())
