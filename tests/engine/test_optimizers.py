"""Adam, AdamW, clipped gradients and a number of steps: against torch's own, one by one, stacked and recorded."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flnl.core.messages import ClientResult, ClientTask
from flnl.core.optimizer import SGD, Adam, AdamW, Buffer, Optimizer
from flnl.core.parts import LossTerm
from flnl.core.step import Step
from flnl.core.training import Training
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from flnl.engine.local.optimizer import made
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.stacked.eligibility import clients_in, why_not
from flnl.engine.stacked.step import clip
from flnl.models.resnet import ResNet
from flnl.parts.batches import Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from tests.engine.executors.test_stacked import CROPPED, TRAINING, agree, job, results, tasks
from tests.engine.stacked.test_graph import same
from tests.properties.parts import HalfTheSamples
from tests.properties.runs import assembled, difference, run
from tests.toys import Point, mlp, network, random_federation, task
from tests.vectors.vectors import field as vector

EXACT = 1e-12
ADAM, ADAMW = Adam(0.8, 0.95, 1e-6), AdamW(0.9, 0.999, 1e-8)
KINDS = {"sgd": SGD(), "adam": ADAM, "adamw": ADAMW}


def training(kind: Optimizer, **values: Any) -> Training:
    momentum = 0.9 if isinstance(kind, SGD) else 0.0
    return replace(TRAINING, **{"lr": 0.05, "momentum": momentum, "optimizer": kind, **values})


def by_torch(kind: Optimizer, parameters: Sequence[Tensor], settings: Training) -> torch.optim.Optimizer:
    """Torch's plain form, without fused kernels."""
    plain: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay, "foreach": False}
    if isinstance(kind, Adam):
        form = torch.optim.AdamW if isinstance(kind, AdamW) else torch.optim.Adam
        return form(parameters, betas=(kind.beta1, kind.beta2), eps=kind.eps, **plain)
    return torch.optim.SGD(parameters, momentum=settings.momentum, **plain)


@dataclass(frozen=True)
class Positions(LossTerm):
    """Adds nothing to the loss; writes down which samples each batch has."""

    seen: list[Tensor] = field(default_factory=list)

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """Zeros."""
        self.seen.append(step.positions)
        return step.logits[:, 0] * 0.0, state


def batches(net: Network, work: LocalTraining, given: ClientTask) -> list[Tensor]:
    """The positions of a client's batches."""
    term = Positions()
    LocalTraining(work.training, work.batch, {"positions": term}, None, {})(net, given)
    return term.seen


def by_hand(module: nn.Module, work: LocalTraining, given: ClientTask, seen: Sequence[Tensor]) -> dict[str, Tensor]:
    """Torch's loop over these batches."""
    module.load_state_dict(given.broadcast.params)
    module.train()
    settings = work.training
    optimizer = by_torch(settings.optimizer, list(module.parameters()), settings)
    inputs, labels = given.samples.read().double(), given.labels
    for positions in seen:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs[positions]), labels[positions]).backward()
        if settings.clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), settings.clip, foreach=False)
        optimizer.step()
    return {name: t.detach().clone() for name, t in module.state_dict().items()}


def near(found: Sequence[ClientResult], expected: Sequence[dict[str, Tensor]]) -> None:
    for one, params in zip(found, expected, strict=True):
        assert one.params is not None
        assert difference(dict(one.params), params, tolerance=EXACT) is None, one.client


# ------------------------------------------------------------------------------------------------- against torch


CASES: dict[str, Training] = {
    **{name: training(kind) for name, kind in KINDS.items()},
    **{f"{name}, clipped": training(kind, clip=0.3) for name, kind in KINDS.items()},
    **{f"{name}, steps": training(kind, steps=7) for name, kind in KINDS.items()},
    "sgd, steps of less than an epoch": training(SGD(), steps=2),
}


@pytest.mark.parametrize("case", CASES)
def test_clients_train_as_with_torch_one_by_one_and_stacked(case: str) -> None:
    """Of different sizes: their batches, and so their steps, differ in number, and in size."""
    net, work = network(mlp(4, 3)), job(CASES[case])
    given = tasks(net)
    expected = [by_hand(mlp(4, 3).double(), work, t, batches(net, work, t)) for t in given]
    near(results(Sequential(net), work, given), expected)
    near(results(Stacked(net, 15, 1.0), work, given), expected)


def test_stacks_of_convolutions_and_batch_norm_agree(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    net = network(ResNet(4, [1])((1, 2, 2), 3))
    for kind in (ADAM, ADAMW):
        agree(net, job(training(kind, clip=0.5, weight_decay=0.1)), tasks(net, SOME), caplog)


SOME = (9, 8, 4, 23, 5, 13)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", [ADAM, ADAMW])
def test_steps_are_torchs_even_if_a_gradient_comes_late(kind: Adam, memory_format: torch.memory_format) -> None:
    """The number of steps, on which the correction of the averages depends, is that of each parameter."""
    draw = torch.Generator().manual_seed(0)
    starts = [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((4, 3, 2, 2), (4,), (5, 7))]
    starts[0] = starts[0].contiguous(memory_format=memory_format)
    ours, theirs = ([nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    settings = training(kind, weight_decay=0.1)
    optimizer, reference = made(settings, ours), by_torch(kind, theirs, settings)
    optimizer.step()
    assert all(torch.equal(p, start) for p, start in zip(ours, starts, strict=True)), "no gradient, no step"
    for step in range(4):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            drawn = torch.randn(pair[0].shape, generator=draw, dtype=torch.float64)
            for parameter in pair:
                late = number == 1 and step < 2
                parameter.grad = None if late else torch.empty_like(parameter).copy_(drawn)
        optimizer.step()
        reference.step()
        for own, their in zip(ours, theirs, strict=True):
            torch.testing.assert_close(own, their, rtol=EXACT, atol=EXACT)


@dataclass(frozen=True)
class Pulls(LossTerm):
    """With ``Point``, w has the gradients of this list, one a step."""

    gradients: Sequence[float]

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """[B]."""
        return step.logits[:, 0] * self.gradients[step.number], state


def test_adamw_begins_anew_at_every_visit_unless_it_is_told_to_continue() -> None:
    reset, carried = vector("adamw.two_visits_reset"), vector("adamw.two_visits_carried")
    given = reset.inputs
    beta1, beta2 = given["betas"]
    kind = AdamW(beta1, beta2, given["eps"])
    net = network(Point(given["w"]))
    data = random_federation([2], classes=2)

    def visit(start: float, gradients: Sequence[float], *, keep: bool, after: ClientResult | None = None) -> Any:
        """The result and the positions after each step."""
        path = []
        for count in range(1, len(gradients) + 1):
            settings = training(
                kind, lr=given["lr"], weight_decay=given["weight_decay"], batch_size=1, steps=count, keep_momentum=keep
            )
            work = LocalTraining(settings, Plain(), {"pulls": Pulls(gradients)}, None, {})
            client = task(Point(start), data.samples(0))
            result = work(net, client if after is None else replace(client, state=after.state))
            assert result.params is not None
            path.append(result.params["w"].item())
        return result, path

    for keep, expected in ((False, reset), (True, carried)):
        first, path = visit(given["w"], given["grads_visit1"], keep=keep)
        assert path == reset.approx("visit1")
        _, path = visit(given["received"], given["grads_visit2"], keep=keep, after=first)
        assert path == expected.approx("visit2")


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_that_falls_within_each_visit(kind: str) -> None:
    """In epochs as in steps; the next visit begins with the rate of the round."""
    v = vector("cosine.per_visit")
    count, lr = v.inputs["S"], v.inputs["lr"]
    rates = [training(SGD(), lr=lr, min_lr=v.inputs["min"]).within_visit(s / count) for s in range(count)]
    assert rates == v.approx("lr")
    net, data = network(mlp(4, 3)), random_federation([8])
    shared: dict[str, Any] = {"lr": lr, "visit_cosine": True}
    for settings in (
        training(KINDS[kind], batch_size=4, epochs=2, **shared),
        training(KINDS[kind], batch_size=8, steps=count, **shared),
        training(KINDS[kind], batch_size=4, epochs=2, **shared, min_lr=0.002),
    ):
        work = job(settings)
        given = task(net.module, data.samples(0))
        module = mlp(4, 3).double()
        module.load_state_dict(given.broadcast.params)
        theirs = by_torch(KINDS[kind], list(module.parameters()), settings)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, count, settings.min_lr)
        for positions in batches(net, job(replace(settings, visit_cosine=False)), given):
            theirs.zero_grad()
            logits = module(given.samples.read().double()[positions])
            nn.functional.cross_entropy(logits, given.labels[positions]).backward()
            theirs.step()
            schedule.step()
        expected = {name: t.detach().clone() for name, t in module.state_dict().items()}
        for _ in range(2):
            near([work(net, given)], [expected])
        near(results(Stacked(net, 15, 1.0), work, [given]), [expected])
        assert "visit_cosine" in (why_not(work, net) or "")


def test_the_first_step_of_adam_has_the_length_of_the_rate() -> None:
    v = vector("adam.first_step")
    parameters = [nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in v.inputs["grads"]]
    for parameter, gradient in zip(parameters, v.inputs["grads"], strict=True):
        parameter.grad = torch.tensor([gradient], dtype=torch.float64)
    made(training(Adam(0.9, 0.999, 1e-8), lr=v.inputs["lr"], weight_decay=0.0), parameters).step()
    assert [p.item() for p in parameters] == pytest.approx(v.expected["step"], rel=v.absolute)


def test_each_client_of_a_stack_is_clipped_by_its_own_norm() -> None:
    draw = torch.Generator().manual_seed(0)
    shapes, sizes = ((2, 3), (4,)), (0.01, 1.0, 30.0)
    alone = [[torch.randn(s, generator=draw, dtype=torch.float64) * size for s in shapes] for size in sizes]
    stacked = [torch.cat([client[i].flatten() for client in alone]) for i in range(len(shapes))]
    clip(stacked, len(sizes), 1.5)
    clip([], len(sizes), 1.5)
    for k, gradients in enumerate(alone):
        parameters = [nn.Parameter(torch.zeros_like(g)) for g in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        nn.utils.clip_grad_norm_(parameters, 1.5, foreach=False)
        for i, parameter in enumerate(parameters):
            found = stacked[i].view(len(sizes), -1)[k]
            torch.testing.assert_close(found, parameter.grad.flatten(), rtol=EXACT, atol=0.0)  # type: ignore[union-attr]


class UnknownOptimizer(Optimizer):
    def buffers(self, momentum: float) -> tuple[Buffer, ...]:
        return ()


def test_an_optimizer_without_a_kernel_is_refused() -> None:
    with pytest.raises(TypeError, match="Optimizer is no optimiser of local training"):
        made(training(UnknownOptimizer()), [nn.Parameter(torch.zeros(1))])


# ------------------------------------------------------------------------------------------------------- steps


def test_every_client_takes_as_many_steps() -> None:
    net, work = network(mlp(4, 3)), job(training(SGD(), steps=11))
    given = tasks(net)
    for executor in (Sequential(net), Stacked(net, 15, 1.0)):
        assert [r.steps for r in results(executor, work, given)] == [11] * len(given)


def test_steps_of_whole_epochs_are_these_epochs() -> None:
    """23 samples in batches of 4: 6 steps an epoch."""
    net = network(mlp(4, 3))
    given = tasks(net, (23, 21, 24))
    for executor in (Sequential(net), Stacked(net, 15, 1.0)):
        epochs = results(executor, job(training(ADAM, epochs=3)), given)
        steps = results(executor, job(training(ADAM, steps=18)), given)
        assert difference(steps, epochs) is None


def test_steps_agree_with_augmented_images(caplog: pytest.LogCaptureFixture) -> None:
    """Crops are drawn for the batches that are taken alone: in stacks and one by one."""
    net = network(mlp(4, 3), transform=CROPPED)
    dealt = random_federation(SOME, transform=CROPPED)
    for steps in (3, 8):
        agree(net, job(training(SGD(), steps=steps)), tasks(net, SOME, dealt=dealt), caplog)


def test_a_rule_that_plans_epochs_ends_after_the_steps() -> None:
    """Half of the samples in an epoch: 10 of 20 are 3 steps, so 7 steps are two epochs and a step of the third."""
    net = network(mlp(4, 3))
    given = task(net.module, random_federation([20]).samples(0))
    work = LocalTraining(training(SGD(), steps=7), HalfTheSamples(), {"cross_entropy": CrossEntropy()}, None, {})
    assert [len(p) for p in batches(net, work, given)] == [4, 4, 2, 4, 4, 2, 4]
    assert work(net, given).steps == 7


def test_a_visit_ends_if_a_rule_chooses_no_sample() -> None:
    @dataclass(frozen=True)
    class Nothing(Plain):
        def phases(self, *_: Any) -> Any:
            return (replace(next(iter(Plain().phases(*_))), positions=torch.zeros(0, dtype=torch.int64)),)

    net = network(mlp(4, 3))
    given = task(net.module, random_federation([20]).samples(0))
    work = LocalTraining(training(SGD(), steps=7), Nothing(), {"cross_entropy": CrossEntropy()}, None, {})
    assert work(net, given).steps == 0


# ------------------------------------------------------------------------------------------- recorded, kept, in a run


@pytest.mark.parametrize("kind", [ADAM, ADAMW])
def test_recorded_steps_have_the_same_bits(kind: Adam) -> None:
    """Of clients that continue with their averages and their number of steps, in cohorts that change."""
    work = job(training(kind, lr=0.01, keep_momentum=True, clip=1.0))
    same(network(mlp(4, 3, norm=True), precision=32), work, cohorts=[range(4), range(1, 6), range(6)])


def test_clients_continue_with_the_averages_of_their_last_visit(caplog: pytest.LogCaptureFixture) -> None:
    """Two visits of one epoch from where the first ended are one visit of two epochs, to torch."""
    net, work = network(mlp(4, 3)), job(training(ADAM, epochs=1, keep_momentum=True))
    given = tasks(net, SOME)
    first = agree(net, work, given, caplog)
    again = [
        replace(t, state=r.state, broadcast=replace(t.broadcast, params=r.params or {}, round=4))
        for t, r in zip(given, first, strict=True)
    ]
    second = agree(net, work, again, caplog)
    for one, both, t in zip(given, again, second, strict=True):
        seen = [*batches(net, work, one), *batches(net, work, both)]
        near([t], [by_hand(mlp(4, 3).double(), work, one, seen)])
    steps = first[0].state.momentum
    assert steps is not None
    assert {float(t) for name, t in steps.items() if name.endswith("/step")} == {3.0}, "9 samples: 3 batches"


def test_buffers_of_another_optimizer_are_not_continued_with() -> None:
    net = network(mlp(4, 3))
    given = task(net.module, random_federation([9]).samples(0))
    after_sgd = job(training(SGD(), keep_momentum=True))(net, given).state
    adam = job(training(ADAM, keep_momentum=True))
    new = adam(net, given)
    continued = adam(net, replace(given, state=after_sgd))
    assert difference(continued, new) is None
    assert set(continued.state.momentum or {}).isdisjoint(after_sgd.momentum or {})


def test_a_stack_leaves_room_for_both_averages() -> None:
    net = network(mlp(4, 3))
    size = sum(p.numel() * 8 for p in net.params().values())
    limit = 40 * (4 * size + 4 * 200)
    counts = [clients_in(job(training(kind)), net, 60, limit) for kind in (SGD(), ADAM)]
    assert counts[0] > counts[1] > 0


def test_branches_leave_room_for_the_workspaces_of_their_streams() -> None:
    net, limit = network(mlp(4, 3)), 1000 * 2**20
    counts = [clients_in(job(training(SGD())), net, 60, limit, graphs=True, branches=on) for on in (False, True)]
    assert counts == [60, 15]  # of 64 MiB and little more


WORDS = (
    *("method=fedavg", "rounds=4", "noise=symmetric", "noise.eta=0.4", "dataset.train_size=170"),
    *("dataset.test_size=50", "partition=dirichlet", "partition.num_clients=8", "fraction=0.75", "model=mlp"),
    *("model.hidden=[8]", "train.batch_size=7", "train.steps=9", "executor=sequential", "wandb.mode=disabled"),
    *("figures=false", "train/optimizer=adamw", "train.clip=1.0", "train.keep_momentum=true"),
)


@pytest.mark.parametrize("schedule", [("cosine",), ("linear", "train.linear_from=1")], ids="-".join)
def test_a_run_is_the_same_stacked_and_if_it_is_resumed(schedule: tuple[str, ...], tmp_path: Path) -> None:
    words = (*WORDS, f"train/schedule={schedule[0]}", *schedule[1:])
    whole = run(words, tmp_path / "whole")
    broken = tmp_path / "broken"
    run(words, broken, "max_rounds=2")
    resumed = run(words, broken, "resume=true")
    assert difference(resumed.state, whole.state) is None
    assert resumed.lines == whole.lines
    with assembled(words, tmp_path / "parts", "precision=64") as parts:
        many = parts.results(executor=Stacked(parts.evaluator.network, 5, 1.0))
        assert difference(many, parts.results(), tolerance=1e-9) is None
