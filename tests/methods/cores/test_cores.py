"""CORES2: its sieve and prior from the definition, ends, and what it tells."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flnl.core.findings import SuspectedSamples
from flnl.core.messages import Broadcast
from flnl.core.parts import Setting
from flnl.core.payload import Payload
from flnl.methods.cores.loss import Cores, Sieved, plausible
from tests.toys import ONE_STEP, fitted, mlp, network, random_federation, step, task
from tests.vectors.vectors import label_noise

TERM = Cores(2.0, ramp_start=2, ramp_length=3, sieve_from=4, first_stage=1, prior="own", rescaled=False)
LOGITS = torch.tensor([[2.0, 0.5, -1.0], [0.0, 0.0, 0.0], [-1.5, 3.0, 0.5], [5.0, -2.0, 1.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 2, 1])


def loss(term: Cores, round: int, state: Sieved, positions: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[float, Sieved]:
    batch = step(logits=LOGITS, targets=LABELS)
    batch = replace(batch, broadcast=Broadcast(round, 1, {}), positions=torch.tensor(positions))
    value, after = term(batch, state)
    return float(value), after


def state(prior: tuple[float, ...] = (0.5, 0.25, 0.25), n: int = 6) -> Sieved:
    shares = torch.tensor(prior, dtype=torch.float64)
    return Sieved(torch.zeros(n, dtype=torch.bool), torch.zeros(n, dtype=torch.int64), shares)


def by_definition(beta: float, prior: tuple[float, ...], kept: list[int]) -> float:
    rows = []
    for i in kept:
        p = np.exp(LOGITS[i].numpy())
        p /= p.sum()
        rows.append(-np.log(p[int(LABELS[i])]) + beta * float(np.dot(prior, np.log(p + 1e-8))))
    return float(np.mean(rows))


@pytest.mark.parametrize(("round", "beta"), [(0, 0.0), (2, 0.0), (3, 1.0), (4, 2.0), (40, 2.0)])
def test_the_loss_is_that_of_the_definition(round: int, beta: float) -> None:
    passed = [0, 1] if round >= 4 else [0, 1, 2, 3]
    prior = (0.5, 0.25, 0.25)
    value, after = loss(TERM, round, state(prior), (5, 0, 3, 1))
    assert value == pytest.approx(by_definition(beta, prior, passed), rel=1e-9)
    assert after.left_out.tolist() == ([False, True, False, True, False, False] if round >= 4 else [False] * 6)
    rescaled, _ = loss(replace(TERM, rescaled=True), round, state(prior))
    assert rescaled == pytest.approx(value / (1 + beta))


def test_rounds_count_from_the_first_stage_with_the_loss() -> None:
    batch = replace(step(logits=LOGITS, targets=LABELS), positions=torch.arange(4))
    later = replace(TERM, first_stage=2)
    in_second = replace(batch, broadcast=Broadcast(23, 2, {}, lengths=(20, 9)))
    assert float(later(in_second, state())[0]) == pytest.approx(loss(TERM, 3, state())[0])
    assert later.begins((20, 9)) == 24


def test_vector_without_a_floor_differs_in_the_ninth_digit() -> None:
    v = label_noise("cores_uniform")
    assert torch.tensor(v.inputs["logits"], dtype=torch.float64).tolist() == LOGITS.tolist()
    uniform = tuple(v.inputs["prior"])
    value, _ = loss(replace(TERM, sieve_from=99), 20, state(uniform))
    assert value == pytest.approx(v.expected["mean"], rel=1e-5)


def test_the_sieve_compares_with_the_mean_of_all_labels() -> None:
    """A sample on which all labels have one loss passes."""
    assert plausible(LOGITS, LABELS).tolist() == [True, True, False, False]


def test_nobody_passes() -> None:
    term = replace(TERM, sieve_from=0)
    batch = step(logits=LOGITS[2:], targets=LABELS[2:])
    batch = replace(batch, positions=torch.tensor([2, 3]))
    value, after = term(batch, state())
    assert float(value) == 0.0
    assert after.left_out.tolist() == [False, False, True, True, False, False]


def test_the_prior_is_that_of_labels_that_passed() -> None:
    module = mlp(4, 3)
    net, work = network(module), task(module, random_federation((6,), classes=3).samples(0))
    counts = np.bincount(work.labels, minlength=3)
    fresh = TERM.begin(net, work, None)
    np.testing.assert_allclose(fresh.prior, counts / 6)
    left = torch.tensor([True, False, False, True, False, False])
    counts = np.bincount(work.labels[~left], minlength=3)
    kept = TERM.begin(net, work, Sieved(left, work.labels, fresh.prior))
    np.testing.assert_allclose(kept.prior, counts / 4)
    assert torch.equal(kept.left_out, left)
    all_out = TERM.begin(net, work, Sieved(torch.ones(6, dtype=torch.bool), work.labels, fresh.prior))
    np.testing.assert_allclose(all_out.prior, 1 / 3)
    corrected = TERM.begin(net, work, Sieved(left, (work.labels + 1) % 3, fresh.prior))
    assert not corrected.left_out.any(), "labels that were corrected since are judged anew"
    np.testing.assert_allclose(replace(TERM, prior="uniform").begin(net, work, None).prior, 1 / 3)
    assert TERM.finish(net, work, fitted(net.params()), kept) is kept


def test_what_it_tells() -> None:
    left = torch.tensor([True, False])
    kept = {client: Sieved(mask, LABELS[:2], torch.ones(3)) for client, mask in ((3, left), (5, ~left & left))}
    found = TERM.findings(kept, {}, Payload())
    assert [(f.client, f.mask.tolist()) for f in found if isinstance(f, SuspectedSamples)] == [(3, [True, False])]
    setting = Setting({0: 10}, (4,), ONE_STEP, "method.local.cores")
    assert "method.local.cores.sieve_from=4: this loss has 4 rounds" in str(TERM.caution(setting))
    assert replace(TERM, sieve_from=3).caution(setting) is None
