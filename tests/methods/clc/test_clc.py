"""CLC: confidences, consensus, what is held out and what labels become, from the definition and the vectors."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flnl.core.findings import SuspectedSamples
from flnl.core.messages import ClientState, Clock
from flnl.core.payload import Payload
from flnl.methods.clc.batch import HoldOut
from flnl.methods.clc.consensus import (
    ClassConfidence,
    ClassThresholds,
    confidence,
    consensus,
    corrected,
    doubt,
)
from flnl.methods.clc.corrector import ByConsensus
from flnl.methods.clc.exchange import Consensus, HeldOut
from flnl.parts.messages import UsedSamples
from tests.toys import Logits, federation, fitted, network, task
from tests.vectors.vectors import field

P = [torch.tensor(client, dtype=torch.float64) for client in field("clc.confidence").inputs["softmax"]]
Y = [torch.tensor(client) for client in field("clc.confidence").inputs["labels"]]


def test_confidences() -> None:
    vector = field("clc.confidence")
    found = [confidence(p, y) for p, y in zip(P, Y, strict=True)]
    np.testing.assert_allclose([c.means.tolist() for c in found], vector.expected["confidence"], atol=vector.absolute)
    assert [c.counts.tolist() for c in found] == vector.expected["counts"]
    assert confidence(P[1], Y[1], 1).means.tolist() == pytest.approx([0.3, 0.3, 0.6])
    without = confidence(P[0][:2], Y[0][:2])
    assert without.means.tolist() == [0.5 * (0.7 + 0.3), 0, 0]


def test_their_consensus() -> None:
    vector = field("clc.consensus_weighted")
    sent = [
        ClassConfidence(torch.tensor(c, dtype=torch.float64), torch.tensor(n))
        for c, n in zip(vector.inputs["confidence"], vector.inputs["counts"], strict=True)
    ]
    assert consensus(sent).values.tolist() == vector.approx("consensus")
    pooled = confidence(torch.cat(P), torch.cat(Y)).means
    torch.testing.assert_close(consensus(sent).values, pooled, rtol=0, atol=1e-12)


def test_a_class_of_nobody_is_never_likely() -> None:
    alone = consensus([confidence(P[0][:2], Y[0][:2])]).values
    assert alone.tolist() == [0.5, torch.inf, torch.inf]
    certain = torch.tensor([[0.0, 1.0, 0.0]], dtype=torch.float64)
    assert not doubt(certain, torch.tensor([0]), alone, 0.1).held_out.any()


def by_hand(p: torch.Tensor, y: torch.Tensor, t: list[float], margin: float) -> list[bool]:
    out = []
    for row, label in zip(p.tolist(), y.tolist(), strict=True):
        above = [c for c in range(len(row)) if row[c] > t[c]]
        best = max(above, key=lambda c: row[c]) if above else None
        out.append(best is not None and best != label and max(row) - row[label] > margin)
    return out


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.25, 0.6])
def test_what_is_held_out(margin: float) -> None:
    thresholds = field("clc.correct").inputs["thresholds"]
    t = torch.tensor(thresholds, dtype=torch.float64)
    for p, y in zip(P, Y, strict=True):
        assert doubt(p, y, t, margin).held_out.tolist() == by_hand(p, y, thresholds, margin)


def test_thresholds_and_the_margin_must_be_exceeded() -> None:
    """Values that are exact in binary: a probability at its threshold, a difference at the margin."""
    p, y = torch.tensor([[0.25, 0.5, 0.25]], dtype=torch.float64), torch.tensor([0])
    low = torch.tensor([1.0, 0.25, 1.0], dtype=torch.float64)
    assert doubt(p, y, low, 0.125).held_out.tolist() == [True]
    assert doubt(p, y, low, 0.25).held_out.tolist() == [False]
    assert doubt(p, y, 2 * low, 0.125).held_out.tolist() == [False]


def test_corrected_labels() -> None:
    vector = field("clc.correct")
    t = torch.tensor(vector.inputs["thresholds"], dtype=torch.float64)
    assert [corrected(p, t).tolist() for p in P] == vector.expected["labels"]


# ------------------------------------------------------------------------------------------------- in a federation

EXCHANGE = Consensus(margin=0.1, decimals=None)
TOY = federation([p.log().reshape(-1, 1, 1, 3) for p in P], Y)
"""Two clients whose images are the logarithms of the vectors' probabilities; the network returns its inputs."""
THRESHOLDS = field("clc.consensus_weighted").expected["consensus"]


def test_a_round_of_the_exchange() -> None:
    module = Logits()
    net = network(module, transform=TOY.dataset.transform)
    job = EXCHANGE.before_round(None, Clock(3, 2))
    opened = [job(net, task(module, TOY.samples(k), client=k)) for k in (0, 1)]
    state = EXCHANGE.receive(None, {answer.client: answer.reports for answer in opened}, 1)
    assert state is not None
    assert state.values.tolist() == pytest.approx(THRESHOLDS, abs=1e-6)
    assert EXCHANGE.receive(state, {0: Payload()}, 1) is state, "reports of training change no threshold"
    assert EXCHANGE.broadcast(None, Clock(0, 1)) == ()

    work = task(module, TOY.samples(0), extras=Payload(*EXCHANGE.broadcast(state, Clock(3, 2))))
    visit, kept = EXCHANGE.begin(net, work)
    expected = by_hand(P[0], Y[0], THRESHOLDS, 0.1)
    assert visit.one(HeldOut).mask.tolist() == expected
    assert any(expected)
    work = replace(work, visit=visit)
    (phase,) = HoldOut().phases(net, work, 0, 5)
    assert phase.positions is not None
    assert phase.positions.tolist() == [i for i, out in enumerate(expected) if not out]
    assert phase.labels is None
    sent, _ = EXCHANGE.report(net, work, fitted(net.params()))
    assert sent.one(UsedSamples).count == expected.count(False)

    (found,) = EXCHANGE.findings(None, {4: ClientState(extras=kept)}, Payload())
    assert isinstance(found, SuspectedSamples)
    assert (found.client, found.mask.tolist()) == (4, expected)
    assert found.score is not None
    assert found.judged is not None
    behind = [max(p) - p[y] for p, y in zip(P[0].tolist(), Y[0].tolist(), strict=True)]
    np.testing.assert_allclose(found.score, behind, atol=1e-6)
    assert found.judged.tolist() == Y[0].tolist()


def test_correction_takes_the_thresholds_that_were_sent() -> None:
    module = Logits()
    net = network(module, transform=TOY.dataset.transform)
    vector = field("clc.correct")
    thresholds = ClassThresholds(torch.tensor(vector.inputs["thresholds"], dtype=torch.float64))
    for k in (0, 1):
        done = ByConsensus().correct(net, task(module, TOY.samples(k), extras=Payload(thresholds)), "consensus")
        assert done.labels.tolist() == vector.expected["labels"][k]
    assert ByConsensus().chosen("consensus", Payload(), (0, 1)) == [0, 1]
