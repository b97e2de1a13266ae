"""What clients are worth on clean samples, as FedES takes it from S-FedAvg and FAIR for its indicators of quality."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flnl.core.messages import Broadcast, ClientResult, ClientState, Combined, Gathered, ServerSamples
from flnl.core.payload import Params, Payload
from flnl.methods.fedes.contribution import OnBenchmark
from flnl.methods.fedes.quality import quality_of_relevance
from flnl.parts.contribution import Drops, Relevance

BENCHMARK = OnBenchmark(memory=0.5, keep=0.75, gain=0.25, temperature=1.0, permutations=10, tolerance=0.005)


def test_quality_of_relevances_is_their_softmax_scaled() -> None:
    phi = [0.2375, 0.25, 0.1, 0.0875]
    e = np.exp(np.array(phi))
    assert quality_of_relevance(phi) == pytest.approx((e - e.min()) / (e.max() - e.min()))


# -------------------------------------------------------------------------------------------- models and their scores


def sent(client: int, value: Tensor, count: int, steps: Tensor) -> ClientResult:
    params = {"w": value, "seen": steps}
    return ClientResult(client, count, params, ClientState(), Payload(), 0.0, 3, True)


def score(params: Params) -> tuple[float, float]:
    """Accuracy that grows with w but not evenly, and a loss of its own."""
    w = float(params["w"].sum())
    return w / (1 + w), 3 - w**2


def round_of(results: list[ClientResult], received: Tensor) -> Gathered:
    broadcast = Broadcast(2, 1, {"w": received, "seen": torch.tensor(1)}, Payload(), (5,))
    return Gathered(broadcast, results, Combined({}), Payload(ServerSamples(score)), 1)


def test_fair_scores_each_model_and_sfedavg_plain_means_of_them() -> None:
    received = torch.tensor([0.5], dtype=torch.float64)
    values = {1: 1.5, 2: 0.2, 6: 3.0}
    results = [sent(c, torch.tensor([v], dtype=torch.float64), 10 * c, torch.tensor(c)) for c, v in values.items()]
    gathered = round_of(results, received)

    drops = BENCHMARK.after(Drops.of(8), gathered)
    assert isinstance(drops, Drops)
    expected = {c: (3 - 0.25) - (3 - v**2) for c, v in values.items()}
    assert drops.mean.tolist() == pytest.approx([expected.get(c, 0.0) for c in range(8)])

    def worth(*members: int) -> float:
        mean = np.mean([values[c] for c in members]) if members else 0.5  # plain: sizes do not count
        return float(mean / (1 + mean))

    by_hand = dict.fromkeys(values, 0.0)
    for order in permutations(values):
        for i, c in enumerate(order):
            by_hand[c] += (worth(*order[: i + 1]) - worth(*order[:i])) / 6
    found = BENCHMARK.after(Relevance.of(8), gathered)
    assert isinstance(found, Relevance)
    phi = [0.75 / 8 + 0.25 * by_hand[c] if c in by_hand else 1 / 8 for c in range(8)]
    assert found.phi.tolist() == pytest.approx(phi)


def test_a_loss_that_is_larger_everywhere_drops_as_far() -> None:
    results = [sent(c, torch.tensor([0.1 * c], dtype=torch.float64), 1, torch.tensor(0)) for c in range(3)]
    plain = round_of(results, torch.ones(1, dtype=torch.float64))
    shifted = replace(plain, aid=Payload(ServerSamples(lambda params: (0.0, score(params)[1] + 5))))
    one, other = (BENCHMARK.after(Drops.of(3), g) for g in (plain, shifted))
    assert isinstance(one, Drops)
    assert isinstance(other, Drops)
    assert one.mean.tolist() == pytest.approx(other.mean.tolist())


def test_orders_are_the_rounds_own() -> None:
    """Of nine clients, so that orders are drawn; another round draws others, the same round the same."""
    results = [sent(c, torch.tensor([0.3 * c], dtype=torch.float64), 1, torch.tensor(0)) for c in range(9)]
    gathered = round_of(results, torch.ones(1, dtype=torch.float64))
    later: Any = replace(gathered, broadcast=replace(gathered.broadcast, round=3))
    found = [BENCHMARK.after(Relevance.of(9), g) for g in (gathered, gathered, later)]
    phi = [r.phi for r in found if isinstance(r, Relevance)]
    assert torch.equal(phi[0], phi[1])
    assert not torch.equal(phi[0], phi[2])
