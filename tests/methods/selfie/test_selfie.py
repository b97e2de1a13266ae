"""SELFIE: uncertainty, what is clean, refurbished and trained on, from the definition and the vectors."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flnl.core.findings import SuspectedSamples
from flnl.core.messages import Broadcast
from flnl.core.parts import Setting
from flnl.core.payload import Payload
from flnl.methods.selfie.history import History, frequencies, uncertainty
from flnl.methods.selfie.loss import Selfie, Visit, clean
from flnl.parts.batches import Mixup, Plain
from flnl.parts.exchanges import OwnNoiseRate
from tests.toys import ONE_STEP, fitted, mlp, network, random_federation, step, task
from tests.vectors.vectors import label_noise

TERM = Selfie(0.5, length=3, epsilon=0.05, warmup=2, first_stage=1, append="after", empty="unknown")


def test_one_dissenting_vote() -> None:
    vector = label_noise("selfie_eps_meaning")
    for classes, expected in zip(vector.inputs["C"], vector.expected["uncertainty"], strict=True):
        slots = torch.zeros(1, vector.inputs["q"], dtype=torch.int16)
        slots[0, 4] = 1
        assert float(uncertainty(frequencies(slots, classes, "unknown"))) == vector.near(expected)


def test_a_history_that_is_not_full() -> None:
    """Slots that hold no prediction are not predictions of class 0, as they are in released programs."""
    vector = label_noise("selfie_partial_history")
    slots = torch.tensor(vector.inputs["histories"], dtype=torch.int16)
    for row, filled in zip(slots, vector.inputs["filled"], strict=True):
        row[filled:] = -1
    ours = uncertainty(frequencies(slots, 10, "unknown"))
    assert ours.tolist() == vector.approx("uncertainty_filled_slots")
    released = uncertainty(frequencies(slots, 10, "zero")).tolist()
    assert released == pytest.approx([0.106371759089, 0.0], abs=1e-6)
    nothing = torch.full((1, 15), -1, dtype=torch.int16)
    assert frequencies(nothing, 10, "unknown").sum() == 0
    assert frequencies(nothing, 10, "zero")[0, 0] == 1


def test_a_history_forgets_the_oldest() -> None:
    history, told = History.of(torch.zeros(4, dtype=torch.int64), 3), []
    for now in (2, 1, 1, 5, 7):
        history = history.adding(torch.tensor([2]), torch.tensor([now]))
        told.append(now)
        assert Counter(history.slots[2].tolist()) == Counter([-1] * (3 - len(told)) + told[-3:])
    assert history.seen.tolist() == [0, 0, 5, 0]
    assert (history.slots[[0, 1, 3]] == -1).all()


@pytest.mark.parametrize(("rate", "count"), [(0.0, 5), (0.1, 5), (0.2, 4), (0.5, 3), (0.8, 1), (1.0, 0)])
def test_how_many_are_clean(rate: float, count: int) -> None:
    """⌈(1 - τ) 5⌉, without the error of (1 - 0.8) · 5, which is above 1."""
    losses = torch.tensor([3.0, 1.0, 2.0, 9.0, 1.0])
    order = [1, 4, 2, 0, 3]
    everyone = torch.ones(5, dtype=torch.bool)
    chosen = clean(losses, everyone, torch.tensor(rate, dtype=torch.float64))
    assert sorted(chosen.nonzero()[:, 0].tolist()) == sorted(order[:count])
    assert not clean(losses, ~everyone, torch.tensor(rate, dtype=torch.float64)).any()


# ------------------------------------------------------------------------------------------------------------ steps

RNG = np.random.default_rng(0)
N, B, CLASSES = 8, 4, 3


def by_hand(batches: list[dict[str, Any]], labels: list[int], term: Selfie, start: int) -> list[float]:
    """The losses of one batch after the other, each in a round of its own, from round ``start`` on."""
    told: dict[int, list[int]] = {i: [] for i in range(N)}
    fixed: dict[int, int] = {}
    found = []
    for round, batch in enumerate(batches, start=start):
        z, at = batch["z"], batch["at"]
        logs = z - np.log(np.exp(z).sum(1, keepdims=True))
        predicted = z.argmax(1)
        if term.append == "before":
            for i, p in zip(at, predicted, strict=True):
                told[i].append(int(p))
        chosen = list(range(len(at)))
        if round >= term.warmup:
            losses = [-logs[row, labels[i]] for row, i in enumerate(at)]
            count = int(np.ceil((1 - term.noise_rate) * len(at) - 1e-9))
            small = sorted(range(len(at)), key=lambda row: losses[row])[:count]
            for i in at:
                last = told[i][-term.length :]
                last = last if term.empty == "unknown" else [0] * (term.length - len(last)) + last
                full = len(last) == term.length
                shares = np.array([last.count(c) / max(len(last), 1) for c in range(CLASSES)])
                entropy = -sum(s * np.log(s) for s in shares if s) / np.log(CLASSES)
                if full and entropy <= term.epsilon:
                    fixed[i] = int(shares.argmax())
            chosen = [row for row, i in enumerate(at) if row in small or i in fixed]
        each = [-logs[row, fixed.get(at[row], labels[at[row]])] for row in chosen]
        found.append(float(np.mean(each)) if each else 0.0)
        if term.append == "after":
            for i, p in zip(at, predicted, strict=True):
                told[i].append(int(p))
    return found


@pytest.mark.parametrize("append", ["after", "before"])
@pytest.mark.parametrize("empty", ["unknown", "zero"])
@pytest.mark.parametrize("epsilon", [0.05, 0.6])
def test_step_after_step(append: Any, empty: Any, epsilon: float) -> None:
    term = replace(TERM, append=append, empty=empty, epsilon=epsilon)
    labels = RNG.integers(0, CLASSES, N).tolist()
    batches = [
        {"z": RNG.normal(size=(B, CLASSES)) + 2 * np.eye(CLASSES)[0], "at": RNG.permutation(N)[:B].tolist()}
        for _ in range(24)
    ]
    held = torch.tensor(labels)
    state = Visit(History.of(held, 3), torch.tensor(0.5, dtype=torch.float64))
    ours = []
    for round, batch in enumerate(batches):
        one = step(logits=torch.tensor(batch["z"]), targets=held[batch["at"]])
        one = replace(
            one, labels=held[batch["at"]], positions=torch.tensor(batch["at"]), broadcast=Broadcast(round, 1, {})
        )
        loss, state = term(one, state)
        ours.append(float(loss))
    expected = by_hand(batches, labels, term, 0)
    np.testing.assert_allclose(ours, expected, rtol=1e-9)
    (found,) = term.findings({2: state.history}, {}, Payload())
    assert isinstance(found, SuspectedSamples)
    assert found.proposed is not None
    assert found.mask.any(), "some were refurbished to another label"
    assert torch.equal(found.mask, found.proposed != held)


def test_weights_count() -> None:
    """A sample of weight 0 is neither clean nor trained on."""
    held = torch.tensor([0, 1, 2, 0])
    z = torch.tensor(RNG.normal(size=(4, 3)))
    state = Visit(History.of(held, 3), torch.tensor(0.0, dtype=torch.float64))
    one = replace(step(logits=z, targets=held), labels=held, broadcast=Broadcast(5, 1, {}))
    weighted = replace(one, weight=torch.tensor([1.0, 0.0, 3.0, 0.0]))
    each = -torch.log_softmax(z, 1)[torch.arange(4), held]
    assert float(TERM(weighted, state)[0]) == pytest.approx(float((each[0] + 3 * each[2]) / 4))
    nothing = replace(one, weight=torch.zeros(4))
    assert float(TERM(nothing, state)[0]) == 0


@pytest.mark.parametrize("round", [0, 5])
def test_labels_that_a_batch_rule_gives_are_trained_on(round: int) -> None:
    """In the warm-up and after it: also where they are others than the client holds."""
    held = torch.tensor([0, 1, 2, 0])
    z = torch.tensor(RNG.normal(size=(4, 3)))
    state = Visit(History.of(held, 3), torch.tensor(0.0, dtype=torch.float64))
    given = (held + 1) % 3
    one = replace(step(logits=z, targets=given), labels=given, broadcast=Broadcast(round, 1, {}))
    expected = -torch.log_softmax(z, 1)[torch.arange(4), given].mean()
    assert float(TERM(one, state)[0]) == pytest.approx(float(expected))


def test_what_is_kept_between_visits() -> None:
    module = mlp(4, 3)
    net, work = network(module), task(module, random_federation((6,), classes=3).samples(0))
    fresh = TERM.begin(net, work, None)
    assert fresh.rate == 0.5
    assert torch.equal(fresh.history.held, work.labels)
    kept = TERM.finish(net, work, fitted(net.params()), fresh)
    assert kept is fresh.history
    changed = replace(work, state=replace(work.state, labels=(work.labels + 1) % 3))
    again = TERM.begin(net, changed, kept)
    assert torch.equal(again.history.held, changed.labels)
    assert again.history.slots is kept.slots
    own = task(module, work.samples, extras=Payload(OwnNoiseRate(torch.tensor(0.25, dtype=torch.float64))))
    assert TERM.begin(net, own, None).rate == 0.25


def test_what_it_says() -> None:
    setting = Setting({0: 10}, (3, 4), ONE_STEP, "method.local.selfie")
    later = replace(TERM, first_stage=2)
    assert later.begins((3, 4)) == 5
    assert later.caution(setting) is None
    assert "never chooses samples" in str(replace(later, warmup=4).caution(setting))
    assert TERM.refuses(mlp(4, 3), (Plain(),), setting) is None
    assert "Mixup mixes them" in str(TERM.refuses(mlp(4, 3), (Mixup(1.0, enabled=True, stages=None),), setting))
