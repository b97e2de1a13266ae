"""Phases, views and second pools of a batch rule, as steps see them; by hand."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import BatchRule, LossTerm
from flnl.core.step import Phase, Progress, Step
from flnl.core.training import Training
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform
from flnl.engine.local.batching import batch_sizes
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.parts.batches import Mixup, Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from tests.properties.parts import EasyThenHard
from tests.toys import mlp, network, random_federation, task

TRAINING = Training(lr=0.2, momentum=0.0, weight_decay=0.0, batch_size=4, epochs=2, lr_decay=1.0)
CROPPED = Transform(size=(2, 2), mean=(0.1,), std=(0.7,), scale=1.0, padding=1, flip=True)


@dataclass(frozen=True)
class Recorder(LossTerm):
    """Notes every step; draws one number a row."""

    seen: list[Step] = field(default_factory=list)

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        return rng.random(size)

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        self.seen.append(replace(step))
        return 0.0 * step.logits.sum(1), state


def steps(net: Network, work: ClientTask, rule: BatchRule, training: Training = TRAINING) -> list[Step]:
    recorder = Recorder()
    terms = {"recorder": recorder, "cross_entropy": CrossEntropy()}
    LocalTraining(training, rule, terms, None, {})(net, work)
    return recorder.seen


@dataclass(frozen=True)
class Planned(BatchRule):
    """The phases that it is given, in each epoch; notes the model that it sees before each."""

    plan: tuple[Phase, ...]
    models: list[dict[str, Tensor]] = field(default_factory=list)
    views: ClassVar[int] = 2

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        for phase in self.plan:
            self.models.append(dict(network.params()))
            yield phase


def test_each_phase_is_planned_after_the_one_before_it_was_trained() -> None:
    """By SGD by hand: two epochs of two phases, of some samples with labels of their own and of all others."""
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([9]).samples(0))
    some, others = torch.tensor([8, 1, 4]), torch.tensor([0, 2, 3, 5, 6, 7])
    labels = (work.labels + 1) % 3
    rule = Planned((Phase("some", some, labels, facts="known"), Phase("others", others)))
    seen = steps(net, work, rule)
    assert [s.phase.name for s in seen] == ["some", "others", "others"] * 2
    assert [s.phase.facts for s in seen[:2]] == ["known", None]
    assert [s.progress for s in seen] == [Progress(e, 2, b) for e in range(2) for b in (1, 2, 2)]
    assert [s.number for s in seen] == [0, 0, 1] * 2
    for first in (0, 3):
        assert sorted(seen[first].positions.tolist()) == [1, 4, 8]
        assert torch.equal(seen[first].labels, labels[seen[first].positions])
        later = torch.cat([s.positions for s in seen[first + 1 : first + 3]])
        assert sorted(later.tolist()) == others.tolist()
        for s in seen[first + 1 : first + 3]:
            assert torch.equal(s.labels, work.labels[s.positions])

    module, images = mlp(4, 3).double(), work.samples.read().double()
    planned = []
    for number, s in enumerate(seen):
        if number in (0, 1, 3, 4):
            planned.append({name: t.clone() for name, t in module.state_dict().items()})
        used = labels if s.phase.name == "some" else work.labels
        loss = F.cross_entropy(module(images[s.positions]), used[s.positions])
        grads = torch.autograd.grad(loss, list(module.parameters()))
        with torch.no_grad():
            for p, grad in zip(module.parameters(), grads, strict=True):
                p.sub_(0.2 * grad)
    for held, wanted in zip(rule.models, planned, strict=True):
        for name, tensor in held.items():
            torch.testing.assert_close(tensor, wanted[name], rtol=1e-9, atol=1e-12)


def test_a_second_pool_starts_over_when_it_is_exhausted() -> None:
    """Its batches are as large as the others; its last one may be short, and a new order follows."""
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([40]).samples(0))
    pool = torch.arange(30, 40)
    seen = steps(net, work, Planned((Phase(positions=torch.arange(30), beside=pool),)))
    assert len(seen) == 2 * 8
    for epoch in (seen[:8], seen[8:]):
        batches = [s.beside.positions.tolist() for s in epoch if s.beside is not None]
        assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2, 4, 4]
        passes = [[i for batch in batches[first : first + 3] for i in batch] for first in (0, 3)]
        assert [sorted(p) for p in passes] == [pool.tolist()] * 2
        assert passes[0] != passes[1]
    images = work.samples.read().double()
    for s in seen:
        assert s.beside is not None
        assert torch.equal(s.beside.views[0], images[s.beside.positions])
        assert len(s.draws["recorder"]) == len(s.labels) + len(s.beside.positions)
    plain = steps(net, replace(work), Planned((Phase(positions=torch.arange(30)),)))
    assert [s.positions.tolist() for s in plain] == [s.positions.tolist() for s in seen]


@pytest.mark.parametrize("pool", [None, torch.empty(0, dtype=torch.int64)])
def test_without_a_second_pool_there_is_nothing_beside(pool: Tensor | None) -> None:
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([6]).samples(0))
    seen = steps(net, work, Planned((Phase(beside=pool),)))
    assert [s.beside for s in seen] == [None] * 4
    assert [len(s.draws["recorder"]) for s in seen] == [4, 2] * 2


def test_a_batch_norm_pool_has_no_batch_of_one() -> None:
    net = network(mlp(4, 3, norm=True))
    work = task(net.module, random_federation([13]).samples(0))
    seen = steps(net, work, Planned((Phase(positions=torch.arange(8), beside=torch.arange(8, 13)),)))
    assert [len(s.beside.positions) for s in seen if s.beside is not None] == [5, 5] * 2
    assert batch_sizes(5, 4, join_last_of_one=True) == [5]


def test_each_view_has_crops_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same images; also of a second pool, and whatever the number of images that are prepared at once."""
    net = network(mlp(4, 3), transform=CROPPED)
    work = task(net.module, random_federation([30]).samples(0))
    rule = Planned((Phase(positions=torch.arange(20), beside=torch.arange(20, 30)),))
    for chunk in (10**6, 8 * 4 * 5):
        monkeypatch.setattr("flnl.engine.network.CHUNK_BYTES", chunk)
        seen = steps(net, work, rule)
        padded = F.pad(work.samples.read().double(), [1] * 4)
        windows = torch.stack([padded[:, :, i : i + 2, j : j + 2] for i in range(3) for j in range(3)], 1)
        windows = (torch.cat([windows, windows.flip(-1)], 1) - 0.1) / 0.7  # [n, 18, 1, 2, 2]
        cuts = []
        for s in seen:
            assert s.beside is not None
            for positions, views in ((s.positions, s.views), (s.beside.positions, s.beside.views)):
                assert len(views) == 2
                for view in views:
                    hits = (windows[positions] - view[:, None]).abs().flatten(2).amax(2) < 1e-12
                    assert hits.any(1).all()
                    cuts.append(hits.int().argmax(1))
        agree = [float((a == b).double().mean()) for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
        assert sum(agree) / len(agree) < 0.4  # independent: one in 18, more where windows are alike
        assert all(s.views[0] is s.unmixed for s in seen)


@pytest.mark.parametrize("chunk", [10**6, 8 * 4 * 5])
def test_random_crops_are_of_the_larger_images(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a data set that has them; whatever the number of images that are prepared at once."""
    monkeypatch.setattr("flnl.engine.network.CHUNK_BYTES", chunk)
    net = network(mlp(4, 3))
    samples = random_federation([9]).samples(0)
    larger = torch.arange(9 * 16.0).reshape(9, 1, 4, 4)
    work = task(net.module, replace(samples, images=TensorImages(samples.read(), larger)))
    windows = torch.stack([larger[:, :, i : i + 2, j : j + 2] for i in range(3) for j in range(3)], 1).double()
    for s in steps(net, work, Plain()):
        assert (windows[s.positions] == s.inputs[:, None]).flatten(2).all(2).any(1).all()


@pytest.mark.parametrize("transform", [None, CROPPED])
def test_more_views_change_no_other_draw(transform: Transform | None) -> None:
    """Neither order nor first view nor mixing; without augmentation, views are one tensor."""
    net = network(mlp(4, 3), transform=transform)
    work = task(net.module, random_federation([10]).samples(0))

    class Seen(Mixup):
        views = 3

    plain, several = (steps(net, work, rule(1.0, True, None)) for rule in (Mixup, Seen))
    for one, other in zip(plain, several, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.positions, other.positions)
        assert len(one.views) == 1
        assert len(other.views) == 3
        assert torch.equal(one.views[0], other.views[0])
        assert all(view is other.views[0] for view in other.views[1:]) == (transform is None)


def test_an_epoch_is_whole_unless_a_rule_says_otherwise() -> None:
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([6]).samples(0))
    seen = steps(net, work, Plain())
    assert [s.phase for s in seen] == [Phase()] * 4
    assert [s.progress for s in seen] == [Progress(e, 2, 2) for e in (0, 0, 1, 1)]


def test_a_rule_plans_by_the_model_in_training() -> None:
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([12]).samples(0))
    seen = steps(net, work, EasyThenHard(), replace(TRAINING, epochs=1, lr=0.5))
    assert [s.phase.name for s in seen] == ["easy", "easy", "hard", "hard"]
    easy, hard = seen[0].phase, seen[2].phase
    assert easy.positions is not None
    assert hard.positions is not None
    assert not torch.equal(easy.facts, hard.facts)
    assert float(easy.facts[easy.positions].max()) <= float(easy.facts[easy.beside].min())
    assert float(hard.facts[hard.positions].min()) >= hard.facts.median()
