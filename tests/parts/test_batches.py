"""Mixup against its definition; what it mixes with what is in ``losses/test_losses.py``."""

import numpy as np
import pytest

from flnl.parts.batches import Mixup


@pytest.mark.parametrize(
    ("rule", "stage", "mixes"),
    [
        (Mixup(1.0, True, None), 1, True),
        (Mixup(1.0, True, [2, 3]), 3, True),
        (Mixup(1.0, True, [2, 3]), 1, False),
        (Mixup(1.0, False, None), 1, False),
        (Mixup(0.0, True, None), 1, False),
    ],
)
def test_each_switch_alone_turns_mixup_off(rule: Mixup, stage: int, mixes: bool) -> None:
    assert (rule.mixing(np.random.default_rng(0), 4, stage) is not None) == mixes


def test_lambda_is_of_a_symmetric_beta() -> None:
    """Mean 1/2 and variance 1 / (4 (2α + 1)); of 4,000 draws, within four standard errors; partners permute."""
    rng = np.random.default_rng(0)
    drawn = [Mixup(0.4, True, None).mixing(rng, 5, 1) for _ in range(4000)]
    shares = np.array([one.share for one in drawn if one is not None])
    assert len(shares) == 4000
    variance = 1 / (4 * (2 * 0.4 + 1))
    assert shares.mean() == pytest.approx(0.5, abs=4 * np.sqrt(variance / 4000))
    assert shares.var() == pytest.approx(variance, rel=0.05)
    assert all(sorted(one.partner.tolist()) == [0, 1, 2, 3, 4] for one in drawn if one is not None)
