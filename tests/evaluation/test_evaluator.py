"""What the evaluator counts of labels and shares, by hand: eight samples of two clients, in a toy that tells apart."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from flnl.core.findings import EstimatedQuality, Finding, LabelShares, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Correction
from flnl.core.model import Model
from flnl.core.parts import Exchange, LabelCorrector
from flnl.core.payload import Payload
from flnl.core.stage import Correcting
from flnl.core.state import FederatedState
from flnl.data.federation.build import Federation
from flnl.engine.loop import initial_state
from flnl.evaluation.estimates import summary
from flnl.evaluation.evaluator import Evaluator
from tests.toys import Point, federation, method, network, stage

TRUE = ([0, 1, 2, 0, 1], [0, 0, 1])
GIVEN = ([1, 1, 2, 2, 0], [0, 1, 1])  # wrong: the first, fourth and fifth; the second
HELD = ([0, 1, 0, 0, 0], None)  # changed: the first and fourth rightly, the third wrongly
SUSPECTED = ([1, 1, 0, 0, 0], [0, 1, 1])


@dataclass(frozen=True)
class Sure(LabelCorrector):
    """Suspects the same samples whatever happens."""

    rules: ClassVar[tuple[str, ...]] = ("never",)

    def correct(self, network: Model, task: ClientTask, rule: str) -> Correction:
        raise AssertionError("no rule of the method asks for a correction")

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        return tuple(SuspectedSamples(c, torch.tensor(mask).bool()) for c, mask in enumerate(SUSPECTED))


@dataclass(frozen=True)
class Sharing(Exchange):
    """Says that classes have these shares, the rarest one below zero before it was projected."""

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        return (LabelShares(torch.tensor([0.75, 0.25, 0.0]), least=-0.125, epsilon=2.0),)


def dealt() -> Federation:
    pixels = [torch.zeros(len(labels), 1, 2, 2) for labels in TRUE]
    made = federation(pixels, [torch.tensor(labels) for labels in TRUE])
    return replace(made, given=torch.tensor([label for labels in GIVEN for label in labels]))


@pytest.fixture
def evaluator() -> Evaluator:
    made = method(stage(correct=Correcting(Sure(), "never", "end")), exchange={"sharing": Sharing()})
    return Evaluator(dealt(), network(Point()), made)


@pytest.fixture
def states() -> tuple[FederatedState, FederatedState]:
    """Before a correction, when all hold what they were given, and after it."""
    before = initial_state({})
    held = {c: ClientState(labels=torch.tensor(labels)) for c, labels in enumerate(HELD) if labels is not None}
    return before, before.keeping(held)


def test_a_correction_is_measured_on_the_labels_that_it_changed(
    evaluator: Evaluator, states: tuple[FederatedState, FederatedState]
) -> None:
    """Two of the three changes are right; of all eight labels five are."""
    found = evaluator.correction(*states, asked=[0])
    assert found["correction_accuracy"] == pytest.approx(2 / 3)
    assert (found["asked"], found["relabelled"], found["changed"]) == (1, 3, 3)
    assert (found["noise_given"], found["noise_final"]) == (4 / 8, 3 / 8)
    assert found["clients"] == {
        "client": [0, 1],
        "asked": [True, False],
        "true_noise_before": [3 / 5, pytest.approx(1 / 3)],
        "true_noise_after": [2 / 5, pytest.approx(1 / 3)],
        "true_positives": [1, 1],  # suspected, and wrong before the correction
        "false_positives": [1, 1],
        "false_negatives": [2, 0],
        "true_negatives": [1, 1],
    }


def test_detected_is_what_is_suspected_or_changed(
    evaluator: Evaluator, states: tuple[FederatedState, FederatedState]
) -> None:
    """Six labels, three of which are among the four wrong ones."""
    found = evaluator.labels(states[1])
    assert (found["labels"], found["flagged"], found["changed"]) == (8, 6, 3)
    assert found["correction_accuracy"] == pytest.approx(2 / 3)
    rates = [found[f"detection_{name}"] for name in ("precision", "recall", "f1")]
    assert rates == pytest.approx([3 / 6, 3 / 4, 2 * 3 / (6 + 4)])


def test_shares_of_labels_are_compared_with_the_given_ones(evaluator: Evaluator) -> None:
    """Of the given labels, 2 are of class 0, 4 of class 1, 2 of class 2."""
    assert evaluator.shared(initial_state({})) == {
        "label_distribution_error": pytest.approx(abs(0.75 - 2 / 8) + abs(0.25 - 4 / 8) + 2 / 8),
        "label_distribution_least": -0.125,  # before the projection, not the smallest of the shares
        "label_privacy_epsilon": 2.0,
        "label_privacy_simulated": True,
    }


def test_estimates_of_quality_are_compared_with_the_true_shares() -> None:
    """The order of clients by hand: neither right nor the reverse; the floor is of a perfect estimate in [0, 1]."""
    right = [4, 3, 2, 0]  # of four labels each
    true = [torch.zeros(4, dtype=torch.int64)] * 4
    given = torch.cat([torch.tensor([0] * n + [1] * (4 - n)) for n in right])
    made = replace(federation([torch.zeros(4, 1, 2, 2)] * 4, true), given=given)
    quality, estimated = np.array(right) / 4, np.array([0.25, 1.0, 0.75, 0.0])
    found = summary(made, [EstimatedQuality(torch.from_numpy(estimated), {})])
    assert found == {
        "quality_error": pytest.approx(np.mean((estimated - quality) ** 2)),
        "quality_error_floor": 0.0,  # the qualities are in [0, 1] and reach both ends
        "quality_rank_correlation": pytest.approx(spearmanr(estimated, quality).statistic),
    }
    assert found["quality_rank_correlation"] == pytest.approx(1 - 6 * (4 + 1 + 1) / (4 * 15))  # 1 - 6 Σd² / N(N² - 1)
    known = replace(made, clients=made.clients[:3])
    found = summary(known, [EstimatedQuality(torch.from_numpy(estimated[:3]), {})])
    scaled = np.array([1.0, 0.5, 0.0])  # (q - min q) / (max q - min q) of 1, 3/4 and 1/2
    assert found["quality_error_floor"] == pytest.approx(np.mean((scaled - quality[:3]) ** 2))
