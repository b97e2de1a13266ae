"""FedEFC against the vectors, the definition of its counts, and a visit of clients."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flnl.core.findings import EstimatedNoise, Scalar
from flnl.core.messages import Broadcast, ClientResult, ClientState, Clock, Gathered
from flnl.core.parts import Setting
from flnl.core.payload import Payload
from flnl.methods.fedefc.exchange import Corrects, LabelAccuracy, Prestopping, PrestoppingState
from flnl.methods.fedefc.loss import FedEFC, Running
from flnl.methods.fedefc.matrix import NoiseMatrix, confident_joint
from tests.toys import ONE_STEP, Logits, federation, fitted, network, step, task
from tests.vectors.vectors import NEWER, entries

TERM = FedEFC()
EXCHANGE = Prestopping(patience=6, monitor_after=40, monitor="training")
NOTHING = Running(torch.tensor(0), torch.tensor(0))


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ------------------------------------------------------------------------------------------------------------- loss


def corrected(inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The losses [B] under the noise matrix, and the gradient of their mean by the logits."""
    logits = f64(inputs["logits"]).requires_grad_()
    visit = Payload(NoiseMatrix(f64(inputs["N"]), f64(0.5)))
    loss, state = TERM(replace(step(logits=logits, targets=torch.tensor(inputs["labels"])), visit=visit), NOTHING)
    assert state is NOTHING, "nothing is counted once clients correct"
    (gradient,) = torch.autograd.grad(loss.mean(), logits)
    return loss.detach(), gradient


def test_the_loss_is_that_of_the_vector_and_not_of_the_transposed_matrix() -> None:
    vector, wrong = entries(NEWER)["fedefc.loss"], entries(NEWER)["fedefc.WRONG_transposed"]
    loss, gradient = corrected(vector.inputs)
    assert loss.tolist() == vector.approx("per_sample")
    assert float(loss.mean()) == vector.approx("loss")
    np.testing.assert_allclose(gradient, vector.expected["grad"], atol=vector.absolute)
    assert wrong.inputs == vector.inputs
    assert loss.tolist() != wrong.approx("per_sample")


def test_without_a_matrix_it_is_cross_entropy_and_counts_what_is_right() -> None:
    logits = f64([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 3.0], [5.0, 0.0, 0.0]])
    labels = torch.tensor([0, 2, 2, 1])
    batch = replace(step(logits=logits, targets=labels), labels=labels)
    losses, state = TERM(batch, NOTHING)
    expected = [-np.log(np.exp(z[y]) / np.exp(z).sum()) for z, y in zip(logits.numpy(), labels, strict=True)]
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    assert (int(state.right), int(state.seen)) == (2, 4)
    _, state = TERM(replace(batch, weight=f64([0.0, 1.0, 0.5, 0.0])), state)
    assert (int(state.right), int(state.seen)) == (3, 6), "rows of weight 0 are not there"
    assert state.accuracy == 0.5
    assert NOTHING.accuracy == 0


# ----------------------------------------------------------------------------------------------------------- matrix


def by_hand(p: Sequence[Sequence[float]], labels: Sequence[int]) -> list[list[float]]:
    """The counts, from their definition."""
    classes = len(p[0])
    thresholds = []
    for c in range(classes):
        own = [row[c] for row, y in zip(p, labels, strict=True) if y == c]
        largest = max(max(row) for row in p)
        thresholds.append(max(2e-6, sum(own) / len(own) if own else 2 * largest))
    counts = [[0.0] * classes for _ in range(classes)]
    for row, y in zip(p, labels, strict=True):
        reached = [c for c in range(classes) if row[c] >= thresholds[c] - 1e-6]
        if reached:
            counts[y][reached[0] if len(reached) == 1 else row.index(max(row))] += 1
    for c in range(classes):
        counts[c][c] = max(1.0, counts[c][c])
    return counts


@pytest.mark.parametrize("seed", range(8))
def test_counts_follow_their_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet([0.5] * 4, size=30)
    labels = rng.integers(0, 4 if seed % 2 else 3, size=30)  # in every other case nobody holds class 3
    expected = by_hand(p.tolist(), labels.tolist())
    counts = confident_joint(torch.from_numpy(p), torch.from_numpy(labels))
    assert counts.tolist() == expected
    found = NoiseMatrix.of(counts)
    for j in range(4):
        total = sum(row[j] for row in expected)
        assert found.values[:, j].tolist() == pytest.approx([row[j] / total for row in expected], abs=1e-12)
    wrong = sum(expected[i][j] for i in range(4) for j in range(4) if i != j)
    assert float(found.noise) == pytest.approx(wrong / sum(map(sum, expected)), abs=1e-12)
    assert 0 < float(found.noise) < 1


def test_counts_by_arithmetic() -> None:
    """Thresholds 0.7, 0.5 and, as nobody holds class 2, 1.8."""
    p = f64([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0], [0.3, 0.7, 0.0], [0.8, 0.1, 0.1], [0.2, 0.3, 0.5], [0.29, 0.71, 0.0]])
    labels = torch.tensor([0, 0, 1, 0, 0, 1])
    # class 0: (0.9 + 0.5 + 0.8 + 0.2) / 4 = 0.6; class 1: (0.7 + 0.71) / 2 = 0.705
    # reached: {0}, nothing, nothing, {0}, nothing, {1}
    assert confident_joint(p, labels).tolist() == [[2, 0, 0], [0, 1, 0], [0, 0, 1]]
    both = f64([[0.5, 0.5], [0.4, 0.6], [0.55, 0.45]])
    # thresholds 0.525 and 0.6 of labels 0, 1, 0: {}, {1}, {0}; with labels 0, 0, 1 they are 0.45 and 0.45
    assert confident_joint(both, torch.tensor([0, 1, 0])).tolist() == [[1, 0], [0, 1]]
    # {0, 1}: the larger probability, of equal ones the first; {1}; {0, 1}: class 0
    assert confident_joint(both, torch.tensor([0, 0, 1])).tolist() == [[1, 1], [1, 1]]


def test_one_class_everywhere_and_nobody_sure_give_the_identity() -> None:
    alike = torch.full((5, 3), 1 / 3, dtype=torch.float64)
    found = NoiseMatrix.of(confident_joint(alike, torch.zeros(5, dtype=torch.int64)))
    assert found.values.tolist() == torch.eye(3).tolist()
    assert float(found.noise) == 0


# ------------------------------------------------------------------------------------------------------ prestopping


def after(exchange: Prestopping, accuracies: Sequence[Sequence[float]]) -> list[PrestoppingState]:
    """The server's states after rounds in which clients reported these accuracies."""
    state, states = exchange.init(3, {}), []
    for number, each in enumerate(accuracies):
        results = [
            ClientResult(k, 5, None, ClientState(), Payload(LabelAccuracy(a)), 0.0, 1, finite=True)
            for k, a in enumerate(each)
        ]
        state = exchange.gathered(state, Gathered(Broadcast(number, 1, {}), results, None, Payload(), 1))
        states.append(state)
    return states


def test_correction_begins_after_the_round_of_the_vector() -> None:
    vector = entries(NEWER)["fedefc.prestop"]
    exchange = Prestopping(vector.inputs["patience"], vector.inputs["monitor_after"], "training")
    means = vector.inputs["reported_mean_accuracy_by_round"]
    states = after(exchange, [[a - 0.05, a + 0.05] for a in means])
    stopped = [number for number, state in enumerate(states) if state.stopped]
    assert stopped[0] == vector.expected["stop_after_round"]
    assert stopped[0] + 1 == vector.expected["first_corrected_round"]
    assert stopped == list(range(stopped[0], len(means))), "and never ends"
    assert states[stopped[0]].latest == pytest.approx(means[stopped[0]])
    assert [len(exchange.broadcast(state, Clock(51, 1))) for state in states[stopped[0] - 1 : stopped[0] + 1]] == [0, 1]


def test_ties_are_no_new_best_and_rounds_without_reports_count_for_nothing() -> None:
    exchange = Prestopping(patience=2, monitor_after=0, monitor="training")
    tied = after(exchange, [[0.9], [0.5], [0.5], [], [0.5]])
    assert [state.stopped for state in tied] == [False, False, False, False, True]
    assert [state.without for state in tied] == [0, 0, 1, 1, 2]
    assert exchange.begins((9,)) == 4, "rounds 1, 2 and 3 are seen before"
    assert after(exchange, [[0.9], [0.5], [0.5], [0.5]])[-1].stopped, "so that round 4 is the first"


def test_a_run_that_ends_before_is_warned_of() -> None:
    def said(rounds: int) -> str | None:
        return EXCHANGE.caution(Setting({}, (rounds,), ONE_STEP, "method.exchange.prestopping"))

    assert said(49) is None
    warning = said(48)
    assert warning is not None
    assert "round 48 at the earliest" in warning


# ------------------------------------------------------------------------------------------------------------ visit


def test_a_visit() -> None:
    module = Logits()
    rng = torch.Generator().manual_seed(3)
    pixels = torch.randn(12, 1, 2, 2, generator=rng)
    labels = torch.randint(0, 4, (12,), generator=rng)
    toy = federation([pixels], [labels], classes=4)
    net = network(module, classes=4, transform=toy.dataset.transform)
    logits = pixels.flatten(1).double()
    accuracy = float((logits.argmax(1) == labels).double().mean())

    work = task(module, toy.samples(0))
    assert [len(part) for part in EXCHANGE.begin(net, work)] == [0, 0]
    fit = replace(fitted(net.params()), states={"fedefc": Running(torch.tensor(3), torch.tensor(4))})
    sent, kept = EXCHANGE.report(net, work, fit)
    assert (sent.one(LabelAccuracy).value, len(kept)) == (0.75, 0)
    sent, _ = replace(EXCHANGE, monitor="received").report(net, work, fit)
    assert sent.one(LabelAccuracy).value == pytest.approx(accuracy)

    work = task(module, toy.samples(0), extras=Payload(Corrects()))
    visit, kept = EXCHANGE.begin(net, work)
    expected = NoiseMatrix.of(confident_joint(logits.softmax(1), labels))
    torch.testing.assert_close(visit.one(NoiseMatrix).values, expected.values, rtol=0, atol=1e-12)
    assert [len(part) for part in EXCHANGE.report(net, work, fit)] == [0, 0], "accuracies are no longer sent"

    state = PrestoppingState(3, latest=0.75, stopped=True)
    monitored, corrects, noise = EXCHANGE.findings(state, {1: ClientState(extras=kept)}, Payload())
    assert (monitored, corrects) == (Scalar("monitored", 0.75), Scalar("corrects", 1.0))
    assert isinstance(noise, EstimatedNoise)
    assert noise.values.isnan().tolist() == [True, False, True]
    assert float(noise.values[1]) == pytest.approx(float(expected.noise))


def test_the_exchange_asks_for_its_term() -> None:
    assert EXCHANGE.lacks([TERM]) == ()
    assert EXCHANGE.lacks([]) == ("method/local=[fedefc]",)
