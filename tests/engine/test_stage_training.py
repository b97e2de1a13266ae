"""Training that changes between stages and rounds, and momentum that clients keep: by hand, under every executor."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flnl.core.messages import ClientState
from flnl.core.method import Method
from flnl.core.optimizer import Adam, AdamW
from flnl.core.stage import Stage
from flnl.core.state import RoundResult, Spilled
from flnl.core.training import Training
from flnl.engine import loop
from flnl.engine.executors.processes import Processes
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.momentum import continued
from flnl.engine.local.sgd import LocalTraining
from flnl.models.resnet import ResNet
from flnl.parts.batches import Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.parts.samplers.uniform import Uniform
from tests.engine.executors.test_stacked import EXACT, TRAINING, agree, job, tasks
from tests.properties.runs import assembled, difference, run
from tests.toys import (
    ONE_STEP,
    NoEvaluation,
    Point,
    Toward,
    federation,
    method,
    mlp,
    network,
    random_federation,
    rounds,
    stage,
    task,
)

# ------------------------------------------------------------------------------------------------------ the schedule


def rates(training: Training, own: Mapping[str, Any] | None = None, start: int = 0) -> list[float]:
    """The learning rates of six rounds of a stage that begins at round ``start``."""
    return [training.at(start + r, own, r).lr for r in range(6)]


def test_the_rate_falls_after_each_milestone() -> None:
    base = replace(ONE_STEP, lr=0.4)
    assert rates(base) == [0.4] * 6
    stepped = replace(base, milestones=[2, 4], milestone_decay=0.5)
    assert rates(stepped) == [0.4, 0.4, 0.2, 0.2, 0.1, 0.1]
    both = replace(stepped, lr_decay=0.5)
    assert rates(both) == [0.4, 0.2, 0.05, 0.025, 0.00625, 0.003125]
    assert replace(stepped, milestones=[4, 2]).at(4).lr == 0.1
    assert replace(base, milestones=[1]).at(1).lr == pytest.approx(0.04)


def test_a_schedule_counts_rounds_from_where_it_is_set() -> None:
    run_level = replace(ONE_STEP, lr=0.4, milestones=[12], milestone_decay=0.5)
    assert rates(run_level, {}, 10) == [0.4, 0.4, 0.2, 0.2, 0.2, 0.2]
    assert rates(run_level, {"lr": 0.8}, 10) == [0.8, 0.8, 0.4, 0.4, 0.4, 0.4]
    assert rates(run_level, {"milestones": [3]}, 10) == [0.4, 0.4, 0.4, 0.2, 0.2, 0.2]
    assert rates(run_level, {"milestones": []}, 10) == [0.4] * 6
    assert rates(run_level, {"milestone_decay": 0.25}, 10)[2] == 0.1
    fading = replace(ONE_STEP, lr=1.0, lr_decay=0.5)
    assert rates(fading, {}, 2)[:2] == [0.25, 0.125]
    assert rates(fading, {"lr_decay": 0.25}, 2)[:2] == [1.0, 0.25]


def test_a_stage_sets_every_value_of_training() -> None:
    own = {"momentum": 0.9, "weight_decay": 0.1, "batch_size": 7, "epochs": 3, "keep_momentum": True}
    here = ONE_STEP.at(4, own, 0)
    assert {name: getattr(here, name) for name in own} == own
    assert here.lr == ONE_STEP.lr
    assert replace(ONE_STEP, lr=0.5).at(0) == ONE_STEP


# -------------------------------------------------------------------------------------------------- by hand, in a run


def toward(*stages: Stage) -> Method:
    return method(*(replace(s, local={"toward": Toward()}) for s in stages))


def targets(values: Sequence[float]) -> Any:
    pixels = [torch.full((1, 1, 1, 1), value) for value in values]
    return federation(pixels, [torch.zeros(1)] * len(values), classes=2)


def position(result: RoundResult) -> float:
    return float(result.state.server.params["w"])


def test_each_stage_trains_with_its_own_values() -> None:
    """One sample at x: an epoch is a step, w ← w + r (x - w)."""
    toy = toward(
        stage(rounds=1), stage(rounds=3, train={"lr": 0.2, "epochs": 2, "milestones": [2], "milestone_decay": 0.5})
    )
    expected, w = [], 2.0
    for lr, epochs in ((0.5, 1), (0.2, 2), (0.2, 2), (0.1, 2)):
        for _ in range(epochs):
            w += lr * (5.0 - w)
        expected.append(w)
    found = [position(result) for result in rounds(toy, targets([5.0]), Point(2.0), ONE_STEP)]
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_stage_has_its_own_batch_size() -> None:
    """Four equal samples: batches of two are two steps."""
    toy = toward(stage(rounds=1), stage(rounds=1, train={"batch_size": 2}))
    dealt = federation([torch.full((4, 1, 1, 1), 5.0)], [torch.zeros(4)], classes=2)
    found = [position(result) for result in rounds(toy, dealt, Point(1.0), replace(ONE_STEP, batch_size=4))]
    assert found == pytest.approx([3.0, 4.5], rel=1e-12)


KEEPING = replace(ONE_STEP, lr=0.1, momentum=0.5, keep_momentum=True)


def heavy_ball(w: float, x: float, lr: float, momentum: float, steps: int, velocity: float = 0.0) -> list[float]:
    """``v ← m v + (w - x);  w ← w - r v``."""
    found = []
    for _ in range(steps):
        velocity = momentum * velocity + (w - x)
        w -= lr * velocity
        found.append(w)
    return found


def test_kept_momentum_continues_where_the_last_visit_ended() -> None:
    toy, dealt = toward(stage(rounds=4)), targets([5.0])
    kept = rounds(toy, dealt, Point(2.0), KEEPING)
    assert [position(r) for r in kept] == pytest.approx(heavy_ball(2.0, 5.0, 0.1, 0.5, 4), rel=1e-12)
    new = rounds(toy, dealt, Point(2.0), replace(KEEPING, keep_momentum=False))
    assert [position(r) for r in new] == pytest.approx([5 - 3 * 0.9**r for r in range(1, 5)], rel=1e-12)
    assert not new[-1].state.clients


def test_each_client_keeps_the_momentum_of_its_own_steps() -> None:
    toy = toward(stage(rounds=2))
    first, second = rounds(toy, targets([5.0, -1.0]), Point(2.0), KEEPING)
    velocity = [2.0 - 5.0, 2.0 + 1.0]
    assert [float(first.state.client(k).momentum["w"]) for k in (0, 1)] == velocity  # type: ignore[index]
    w = position(first)
    expected = [0.5 * v + w - x for v, x in zip(velocity, (5.0, -1.0), strict=True)]
    assert [float(second.state.client(k).momentum["w"]) for k in (0, 1)] == pytest.approx(expected)  # type: ignore[index]


def test_a_stage_continues_with_momentum_unless_it_restarts_or_keeps_none() -> None:
    dealt = targets([5.0])
    once = heavy_ball(2.0, 5.0, 0.1, 0.5, 2)

    def second(**values: Any) -> RoundResult:
        return rounds(toward(stage(rounds=1), stage(rounds=1, **values)), dealt, Point(2.0), KEEPING)[1]

    assert position(second()) == pytest.approx(once[1], rel=1e-12)
    dropped = second(train={"keep_momentum": False})
    assert position(dropped) == pytest.approx(once[0] + 0.1 * (5.0 - once[0]), rel=1e-12)
    assert not dropped.state.clients
    without = second(train={"momentum": 0.0})
    assert position(without) == position(dropped)
    assert not without.state.clients
    net = network(Point(2.0), classes=2, transform=dealt.dataset.transform)
    settings = loop.Settings(1, KEEPING, None, "drop", initial=net.params())
    restarting = toward(stage(rounds=1), stage(rounds=1, restart=True))
    again = loop.Federated(restarting, dealt, Sequential(net), NoEvaluation(), settings)
    first, last = (result.state for result in loop.rounds(again, loop.initial_state(net.params())))
    assert difference((first.server, first.clients), (last.server, last.clients)) is None


ALONE = Uniform(0.5)


def test_a_stage_that_keeps_no_momentum_forgets_that_of_clients_it_does_not_visit() -> None:
    toy = toward(
        stage(rounds=1),
        stage(rounds=1, sampler=ALONE, train={"keep_momentum": False}),
        stage(rounds=1),
    )
    first, second, third = rounds(toy, targets([5.0, -1.0]), Point(2.0), KEEPING)
    assert len(first.state.clients) == len(third.state.clients) == 2
    assert not second.state.clients
    w = position(second)
    assert float(third.state.client(1).momentum["w"]) == pytest.approx(w + 1.0)  # type: ignore[index]


ADAM = Adam(beta1=0.9, beta2=0.99, eps=1e-8)
ADAMW = AdamW(beta1=0.9, beta2=0.99, eps=1e-8)


@pytest.mark.parametrize(
    ("first", "then"),
    [({}, {"momentum": 0.0}), ({}, {"optimizer": ADAM}), ({"optimizer": ADAM}, {"optimizer": ADAMW})],
    ids=["without momentum", "SGD to Adam", "Adam to AdamW"],
)
def test_clients_that_a_stage_does_not_visit_drop_what_it_does_not_continue(
    first: Mapping[str, Any], then: Mapping[str, Any]
) -> None:
    """Nor does another optimiser; and a run that goes on at the border of the stages drops it, too."""
    toy, dealt = toward(stage(rounds=2, train=first), stage(rounds=1, sampler=ALONE, train=then)), targets([5.0, -1.0])
    before, border, after = rounds(toy, dealt, Point(2.0), KEEPING)
    assert len(before.state.clients) == len(border.state.clients) == 2
    visited = set(after.cohort) if then.get("momentum", 1.0) else set()
    assert set(after.state.clients) == visited
    fresh = replace(border.state, clients=Spilled())
    net = network(Point(2.0), classes=2, transform=dealt.dataset.transform)
    settings = loop.Settings(1, KEEPING, None, "drop")
    run = loop.Federated(toy, dealt, Sequential(net), NoEvaluation(), settings)
    for start in (border.state, fresh):
        (found,) = loop.rounds(run, start)
        assert difference(found.state, after.state) is None


def test_a_stage_continues_with_the_buffers_of_the_same_optimizer() -> None:
    """Whatever its values, and over a stage of another optimiser that has no round."""
    other = replace(ADAM, beta1=0.5)
    toy = toward(
        stage(rounds=1, train={"optimizer": ADAM}),
        stage(rounds=0, train={"optimizer": ADAMW}),
        stage(rounds=1, sampler=ALONE, train={"optimizer": other}),
    )
    _, last = rounds(toy, targets([5.0, -1.0]), Point(2.0), KEEPING)
    counts = {c: float((s.momentum or {})["w/step"]) for c, s in last.state.clients.items()}
    assert counts == {c: 2.0 if c in last.cohort else 1.0 for c in (0, 1)}


def test_buffers_that_fit_no_parameter_are_ignored() -> None:
    kept = {"a": torch.ones(2), "b": torch.ones(3), "gone": torch.ones(1)}
    parameters = {"a": torch.zeros(2, requires_grad=True), "b": torch.zeros(2), "new": torch.zeros(1)}
    found = continued(kept, parameters)
    assert {name: t.tolist() for name, t in found.items()} == {"a": [1, 1], "b": [0, 0], "new": [0]}
    assert not found["a"].requires_grad
    found["a"].add_(1)
    assert kept["a"].tolist() == [1, 1]


def test_a_client_that_diverges_keeps_its_earlier_momentum() -> None:
    net = network(mlp(4, 3))
    kept = {name: torch.ones_like(p) for name, p in net.trainable().items()}
    work = task(net.module, random_federation([7]).samples(0), state=ClientState(momentum=kept))
    training = replace(TRAINING, lr=1e200, keep_momentum=True)
    found = LocalTraining(training, Plain(), {"cross_entropy": CrossEntropy()}, None, {})(net, work)
    assert not found.finite
    assert found.state is work.state


# ----------------------------------------------------------------------------------------------------- executors


def test_stacked_clients_continue_with_their_own_momentum(caplog: pytest.LogCaptureFixture) -> None:
    """Some come for the first time; layouts of convolutions, linear layers and batch norm."""
    torch.manual_seed(0)
    for module in (mlp(4, 3, norm=True), ResNet(4, [1])((1, 2, 2), 3)):
        net = network(module)
        work = job(replace(TRAINING, keep_momentum=True))
        given = tasks(net)
        first = agree(net, work, given, caplog)
        assert all(r.state.momentum is not None for r in first)
        again = [replace(t, state=r.state) if t.client % 3 else t for t, r in zip(given, first, strict=True)]
        second = agree(net, work, again, caplog)
        assert difference(second[1].params, first[1].params) is not None
        assert difference(second[3].params, first[3].params, tolerance=EXACT) is None


WORDS = (
    *("method=t_revision", "method.T_wu=2", "method.T_lc=2", "method.T=2", "noise=symmetric", "noise.eta=0.4"),
    *("dataset.train_size=170", "dataset.test_size=50", "partition.num_clients=8", "fraction=0.75", "model=mlp"),
    *("model.hidden=[8]", "train.batch_size=7", "train.epochs=2", "executor=sequential", "wandb.mode=disabled"),
    *("figures=false", "train.keep_momentum=true", "train.milestones=[1]"),
    *("+method.stages.correct.train.epochs=1", "+method.stages.correct.train.batch_size=5"),
    *("+method.stages.correct.train.milestones=[1]", "+method.stages.correct.train.lr=0.1"),
    *("+method.stages.usual.train.momentum=0.9", "+method.stages.usual.train.lr_decay=0.5"),
)
"""Three stages, each with training of its own; clients keep momentum throughout."""


def test_executors_agree_and_a_resumed_run_is_the_same(tmp_path: Path) -> None:
    """Processes and resumed runs to the bit, stacked clients up to rounding in float64; stopped within each stage."""
    whole = run(WORDS, tmp_path / "whole")
    broken = tmp_path / "broken"
    for cut, resume in ((1, "false"), (3, "true"), (5, "true")):
        assert run(WORDS, broken, f"max_rounds={cut}", f"resume={resume}").record["rounds"] == cut
    resumed = run(WORDS, broken, "resume=true")
    assert difference(resumed.state, whole.state) is None
    assert resumed.lines == whole.lines
    assert all(isinstance(whole.state.client(k).momentum["head.weight"], Tensor) for k in whole.state.clients)  # type: ignore[index]
    with assembled(WORDS, tmp_path / "parts", "precision=64") as parts:
        one = parts.results()
        many = parts.results(executor=Stacked(parts.evaluator.network, 5, 1.0))
        assert difference(many, one, tolerance=EXACT) is None
        processes = Processes(parts.evaluator.network, Sequential, 2, "fork")
        try:
            assert difference(parts.results(executor=processes), one) is None
        finally:
            processes.close()
