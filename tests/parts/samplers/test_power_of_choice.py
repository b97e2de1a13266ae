"""Power-of-Choice: the vectors, who becomes a candidate, what a candidate answers, and what that costs."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flnl.config import compose
from flnl.core.messages import ClientState, Clock
from flnl.core.parts import Sampling
from flnl.core.payload import Payload, size_in_bytes
from flnl.parts.samplers.power_of_choice import MeanLoss, PowerOfChoice
from tests.toys import method, mlp, network, random_federation, rounds, stage, task
from tests.vectors.vectors import federated

PLAIN = PowerOfChoice(0.3, 6, "samples", None, "losses")


def chosen(
    sampler: PowerOfChoice, losses: Mapping[int, float], sizes: Mapping[int, int], *, round: int = 0
) -> tuple[list[int], list[int]]:
    """The cohort, and the candidates that were asked."""
    asked: list[int] = []

    def ask(job: Any, ids: Sequence[int]) -> list[Any]:
        assert isinstance(job, MeanLoss)
        asked.extend(ids)
        return [losses[i] for i in ids]

    return sampler(Sampling(1, Clock(round, 1), tuple(sorted(sizes)), sizes, Payload(), ask)), asked


def by_number(losses: Mapping[str, float]) -> dict[int, float]:
    return {int(client): loss for client, loss in losses.items()}


# --------------------------------------------------------------------------------------------------------- vectors


def test_vector_of_the_largest_losses():
    v = federated("poc.select")
    cohort, asked = chosen(
        replace(PLAIN, fraction=0.5), by_number(v.inputs["loss"]), dict.fromkeys(v.inputs["candidates"], 9)
    )
    assert sorted(asked) == sorted(v.inputs["candidates"])
    assert len(cohort) == v.inputs["m"]
    assert cohort == v.expected["selected"]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_the_largest(bad: float):
    losses = {k: float(k) for k in range(6)} | {1: bad, 3: 1e300}
    cohort, _ = chosen(replace(PLAIN, fraction=0.5), losses, dict.fromkeys(range(6), 10))
    assert cohort == [1, 3, 5]


def test_positions_among_the_candidates_are_no_clients():
    """The others hold next to nothing, so that the candidates are those of the vector."""
    v = federated("poc.FLGO_BUG")
    candidates = v.inputs["candidates_sorted"]
    sizes = {client: 10**9 if client in candidates else 1 for client in v.inputs["available"]}
    cohort, asked = chosen(PLAIN, by_number(v.inputs["loss"]), sizes)
    assert asked == candidates
    assert cohort == v.expected["correct"]
    assert cohort != v.expected["flgo_returns"]


# ------------------------------------------------------------------------------------------------------ candidates


def test_candidates_are_drawn_by_size_one_after_another_without_replacement():
    """A pair's probability is that of either order: p_i p_j / (1 − p_i) + p_j p_i / (1 − p_j)."""
    sizes = {0: 1, 3: 2, 4: 3, 7: 4}
    sampler = replace(PLAIN, fraction=0.5, d=2)
    drawn = 4000
    counts = Counter(tuple(chosen(sampler, dict.fromkeys(sizes, 1.0), sizes, round=r)[1]) for r in range(drawn))
    share = {client: n / 10 for client, n in sizes.items()}
    wanted: Counter[tuple[int, ...]] = Counter()
    for i, j in permutations(sizes, 2):
        wanted[tuple(sorted((i, j)))] += share[i] * share[j] / (1 - share[i])  # type: ignore[assignment]
    assert sum(wanted.values()) == pytest.approx(1)
    for pair, probability in wanted.items():
        assert counts[pair] / drawn == pytest.approx(probability, abs=0.025)


def test_or_all_alike():
    sizes = {0: 1, 3: 2, 4: 3, 7: 94}
    sampler = replace(PLAIN, fraction=0.25, d=1, draw="uniform")
    counts = Counter(chosen(sampler, dict.fromkeys(sizes, 1.0), sizes, round=r)[0][0] for r in range(2000))
    assert all(count / 2000 == pytest.approx(0.25, abs=0.04) for count in counts.values())
    assert len(counts) == 4


@pytest.mark.parametrize(("d", "asked"), [(1, 5), (5, 5), (7, 7), (10, 10), (30, 10)])
def test_there_are_at_least_as_many_as_the_cohort_and_at_most_all(d: int, asked: int):
    losses = {client: float(client) for client in range(10)}
    cohort, candidates = chosen(replace(PLAIN, fraction=0.5, d=d), losses, dict.fromkeys(range(10), 4))
    assert len(set(candidates)) == len(candidates) == asked
    assert cohort == sorted(candidates, reverse=True)[:5]


def test_ties_are_broken_at_random():
    sizes = dict.fromkeys(range(6), 5)
    losses = {0: 9.0, **dict.fromkeys(range(1, 6), 1.0)}
    cohorts = [chosen(replace(PLAIN, fraction=0.34), losses, sizes, round=r)[0] for r in range(1000)]
    assert all(cohort[0] == 0 for cohort in cohorts)
    counts = Counter(cohort[1] for cohort in cohorts)
    assert all(counts[client] / 1000 == pytest.approx(0.2, abs=0.05) for client in range(1, 6))


def test_a_first_round_without_asking():
    losses, sizes = {client: float(client) for client in range(10)}, dict.fromkeys(range(10), 4)
    sampler = replace(PLAIN, first_round="uniform")
    first, asked = chosen(sampler, losses, sizes)
    assert (len(first), asked) == (3, [])
    later, asked = chosen(sampler, losses, sizes, round=1)
    assert later == sorted(asked, reverse=True)[:3]


# ---------------------------------------------------------------------------------------------------------- answers


def test_a_candidate_answers_with_its_mean_loss():
    """In eval mode, on the labels that it holds now."""
    module = mlp(4, 3, dropout=0.5, norm=True).double()
    net = network(module)
    samples = random_federation([30]).samples(0)
    corrected = samples.given.roll(1)
    asked = task(module, samples, state=ClientState(labels=corrected))
    before = net.params()
    module.train()
    found = MeanLoss(None)(net, asked)
    module.eval()
    with torch.no_grad():
        wanted = F.cross_entropy(module(samples.read().double()), corrected)
    assert found == pytest.approx(wanted.item(), rel=1e-12)
    assert all(torch.equal(p, before[name]) for name, p in net.params().items())


def test_the_model_is_the_one_that_was_sent():
    module = mlp(4, 3).double()
    asked = task(module, random_federation([30]).samples(0))
    net = network(mlp(4, 3).double())
    net.load({name: torch.full_like(p, 3) for name, p in net.params().items()})
    assert MeanLoss(None)(net, asked) == MeanLoss(None)(network(module), asked)


def test_or_with_that_of_one_batch():
    """Some of its samples, each at most once, others in another round."""
    module = mlp(4, 3).double()
    samples = random_federation([6]).samples(0)
    net = network(module)
    with torch.no_grad():
        losses = F.cross_entropy(module(samples.read().double()), samples.given, reduction="none").numpy()
    possible = [np.mean(losses[list(some)]) for some in permutations(range(6), 2)]
    found = [MeanLoss(2)(net, task(module, samples, round=r)) for r in range(40)]
    assert all(np.isclose(possible, value, rtol=1e-12).any() for value in found)
    assert len({round(value, 9) for value in found}) > 8
    assert MeanLoss(2)(net, task(module, samples, round=3)) == found[3]
    whole = MeanLoss(None)(net, task(module, samples))
    assert MeanLoss(6)(net, task(module, samples)) == MeanLoss(60)(net, task(module, samples)) == whole


# ------------------------------------------------------------------------------------------------------------- runs


def test_a_run_takes_the_largest_losses_and_counts_the_questions():
    dealt = random_federation([6, 9, 5, 12, 7, 8, 10, 4])
    sampler = replace(PLAIN, fraction=0.25, d=5)
    module = mlp(4, 3).double()
    start = network(module).params()
    found = rounds(method(stage(sampler=sampler, rounds=3)), dealt, module)
    received, net, before = start, network(mlp(4, 3).double()), (0, 0)
    for number, result in enumerate(found):
        asked: list[float] = []

        def ask(
            job: Any, ids: Sequence[int], net: Any = net, received: Any = received, asked: Any = asked
        ) -> list[Any]:
            net.load(received)
            losses = [job(net, task(net.module, dealt.samples(k), client=k)) for k in ids]
            asked.extend(losses)
            return losses

        cohort = sampler(Sampling(1, Clock(number, 1), tuple(range(8)), dealt.sizes, Payload(), ask))
        assert result.cohort == tuple(sorted(cohort))
        assert len(asked) == 5
        size = size_in_bytes(received)
        counters = result.state.counters
        assert (counters.bytes_down - before[0], counters.bytes_up - before[1]) == ((5 + 2) * size, 2 * size + 5 * 8)
        assert counters.participations == 2 * (number + 1)
        received, before = result.state.server.params, (counters.bytes_down, counters.bytes_up)


@pytest.mark.parametrize("protocol", ["cifar10", "cifar100", "clothing1m"])
def test_the_papers_values_are_the_defaults(protocol: str):
    found = compose.resolved(compose.load(["method=power_of_choice", f"protocol={protocol}"]))
    sampler = found["method"]["sampler"]
    assert (sampler["d"], sampler["draw"], sampler["batch"], sampler["first_round"]) == (30, "samples", None, "losses")
    assert found["train"]["lr"] == 0.01
    assert found["method"]["aggregator"]["weights"] == "uniform"
    other = compose.resolved(compose.load(["method=power_of_choice", "method.candidates=12"]))
    assert other["method"]["sampler"]["d"] == 12
