"""Clients side by side in one graph come out as each of them alone, to the bit, whoever is beside them.

On tapes (``tests/engine/stacked/tape.py``), and on the simulated GPU, a graph's branches run one after another. That
they wait for nothing but the beginning, and that what follows waits for them all, is tested on the order of calls. That
they share no memory, and that libraries work on several streams, only a real GPU shows (``tests/cuda``).
"""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flnl.core.messages import ClientTask, Fit
from flnl.core.model import Model
from flnl.core.parts import LossTerm
from flnl.core.step import Step
from flnl.core.tally import Tally
from flnl.engine.cuda_graph import WARM, GraphRecorder
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.stacked import graph as graphs
from flnl.engine.stacked.errors import NotStackable
from flnl.engine.stacked.network import StackedNetwork, stacked
from flnl.engine.stacked.training import train, train_apart
from flnl.parts.losses.cross_entropy import CrossEntropy
from tests.engine.executors.test_stacked import TERMS, TRAINING, job
from tests.engine.stacked import test_graph
from tests.engine.stacked.tape import Tape
from tests.engine.stacked.test_graph import NETWORKS, RECORDED, REFUSED, SIZES, rounds, spoil
from tests.properties.runs import difference
from tests.toys import mlp, network


def alone(
    job: LocalTraining, net: Network, many: StackedNetwork, tasks: Sequence[ClientTask], pooled: int
) -> list[Fit]:
    """Each client as a stack of one, whose steps are not recorded."""
    return [train(job, net, many, [task], pooled)[0] for task in tasks]


def same(net: Network, work: LocalTraining, *, replayed: bool = True, **given: Any) -> test_graph.Recorder:
    """Demand of clients side by side the bits and passes of each alone, and that there were replays; the recorder."""
    held, recorder = net.params(), test_graph.Recorder()
    one = rounds(net, work, None, way=alone, **given)
    passed = net.meter.pop()
    net.load(held)
    many = rounds(net, work, recorder.graphs, way=train_apart, **given)
    assert difference(many, one) is None
    assert net.meter.pop() == passed != Tally()
    assert bool(recorder.replays) == replayed, recorder.said
    return recorder


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.9, 0.01), (0.0, 0.0)])
def test_networks_and_optimisers(name: str, momentum: float, weight_decay: float) -> None:
    torch.manual_seed(0)
    same(NETWORKS[name](), job(replace(TRAINING, momentum=momentum, weight_decay=weight_decay)))


@pytest.mark.parametrize("name", RECORDED)
def test_parts(name: str) -> None:
    same(network(mlp(4, 3), precision=32), RECORDED[name])


def test_clients_continue_with_their_momentum_in_other_cohorts() -> None:
    """The branches of a round serve other clients in the next."""
    net, work = NETWORKS["cnn with batch norm"](), job(replace(TRAINING, keep_momentum=True))
    same(net, work, cohorts=[range(4), range(1, 6), (5, 0)])


def test_equal_clients_need_one_graph() -> None:
    recorder = same(network(mlp(4, 3), precision=32), job(), sizes=(24,) * 5)
    assert len(recorder.tapes) == 1
    assert recorder.replays == 3 * 3 * 6 - WARM


@pytest.mark.parametrize(("idle", "recorded"), [(10_000, 1), (0, 3)])
def test_clients_that_end_leave_idle_branches_or_a_smaller_graph(
    idle: int, recorded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What idle branches compute is read by nobody; a graph without them is recorded once it is worth its time."""
    monkeypatch.setattr(graphs, "IDLE", idle)
    recorder = same(network(mlp(4, 3), precision=32), job(terms=TERMS["proximal"]), sizes=(48, 36, 24))
    assert len(recorder.tapes) == recorded


def test_a_round_waits_once_for_what_its_clients_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses, and whether models are finite, are read for all branches at once, not for each."""
    read, tolist = list[torch.Size](), Tensor.tolist

    def counted(tensor: Tensor) -> Any:
        if tensor.is_floating_point():
            read.append(tensor.shape)
        return tolist(tensor)

    monkeypatch.setattr(Tensor, "tolist", counted)
    net = network(mlp(4, 3), precision=32)
    rounds(net, job(), test_graph.Recorder().graphs, way=train_apart, sizes=(24,) * 5, count=2)
    assert read == [(5, 2)] * 2


def test_what_a_branch_held_is_never_read_again() -> None:
    for name, work in RECORDED.items():
        net, recorder = network(mlp(4, 3, norm=name == "mixup"), precision=32), test_graph.Recorder()
        held = net.params()
        clean = rounds(net, work, None, way=alone)
        net.load(held)
        spoilt = rounds(net, work, recorder.graphs, way=train_apart, between=lambda kept=recorder.graphs: spoil(kept))
        assert difference(spoilt, clean) is None, name
        assert recorder.replays


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_recorded_runs_as_it_is_and_is_said_once(reason: str) -> None:
    recorder = same(network(mlp(4, 3), precision=32), REFUSED[reason], replayed=False)
    assert len([said for said in recorder.said if reason in said]) >= 1
    assert len(recorder.graphs.refusals) == 1


class FailsAtTheThird(Tape):
    """Fails in the middle of the recording of branch 2."""

    def capture(self, steps: Sequence[tuple[int, Any]]) -> Tensor:
        def failing() -> Tensor:
            raise RuntimeError("operation not permitted when stream is capturing")

        return super().capture([(number, failing if number == 2 else step) for number, step in steps])


class FailsAtTheEnd(Tape):
    """Fails once all branches are recorded."""

    def capture(self, steps: Sequence[tuple[int, Any]]) -> Tensor:
        super().capture(steps)
        self._done.clear()
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("tape", [FailsAtTheThird, FailsAtTheEnd])
@pytest.mark.parametrize("name", ["proximal", "a state a sample", "mixup"])
def test_a_recording_that_fails_costs_nothing(name: str, tape: type[Tape]) -> None:
    net, recorder = network(mlp(4, 3, norm=True), precision=32), test_graph.Recorder(tape)
    held = net.params()
    one = rounds(net, RECORDED[name], None, way=alone)
    net.load(held)
    assert difference(rounds(net, RECORDED[name], recorder.graphs, way=train_apart), one) is None
    assert any("not permitted" in said for said in recorder.said)


@dataclass(frozen=True)
class Some(LossTerm):
    """Does of client 2 alone what cannot be recorded, or what cannot be run for many clients at once."""

    what: str

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        return task.client == 2

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        loss = step.logits.square().mean()
        if state and self.what == "waits":
            loss = torch.full((1,), 0.3).item() * loss
        if state and self.what == "branches" and loss > 0:
            loss = 2 * loss
        return loss, state


def test_a_client_that_cannot_be_recorded_runs_beside_the_others() -> None:
    recorder = same(
        network(mlp(4, 3), precision=32), job(terms={"cross_entropy": CrossEntropy(), "some": Some("waits")})
    )
    assert len([tape for tape in recorder.tapes if tape.replays]) >= 1
    assert any("reads a tensor's value" in said for said in recorder.said)


def test_a_client_that_cannot_be_stacked_is_told_and_the_others_are_trained() -> None:
    net, recorder = network(mlp(4, 3), precision=32), test_graph.Recorder()
    work = job(terms={"cross_entropy": CrossEntropy(), "some": Some("branches")})
    tasks = test_graph.cohort(net, SIZES)
    found = train_apart(work, net, stacked(net).network, tasks, 10_000, recorder.graphs)
    for k, (task, fit) in enumerate(zip(tasks, found, strict=True)):
        if k == 2:
            assert isinstance(fit, NotStackable)
            assert "branches on a value" in str(fit)
        else:
            assert isinstance(fit, Fit)
            assert difference(fit.params, train(work, net, stacked(net).network, [task], 10_000)[0].params) is None
    assert recorder.replays
    assert not any(branch.busy for branch in recorder.graphs.kept)


# ------------------------------------------------------------------------------------------------------------ streams


class Library:
    """Notes the order in which streams wait and work."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.made = 0
        self._current = self.Stream()

    def Stream(self) -> Any:  # noqa: N802 (torch's name)
        library, number = self, self.made
        self.made += 1

        class Stream:
            def wait_stream(self, other: Any) -> None:
                library.done.append((number, "waits for", other.number))

        stream = Stream()
        stream.number = number  # type: ignore[attr-defined]
        return stream

    def current_stream(self) -> Any:
        return self._current

    @contextmanager
    def stream(self, stream: Any) -> Any:
        before, self._current = self._current, stream
        yield
        self._current = before


@pytest.mark.parametrize("fails", [False, True])
def test_branches_wait_for_the_beginning_alone_and_the_end_for_them_all(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a failure: a recording whose branches have not joined cannot end."""
    library = Library()
    monkeypatch.setattr(torch, "get_device_module", lambda _: library)
    record = GraphRecorder(torch.device("cpu"))

    def step(number: int) -> Tensor:
        library.done.append((library.current_stream().number, "works"))
        if fails and number == 1:
            raise RuntimeError("not permitted")
        return torch.tensor([float(number)])

    steps = [(number, lambda number=number: step(number)) for number in range(3)]
    if fails:
        with pytest.raises(RuntimeError, match="not permitted"):
            record.side_by_side(steps)
    else:
        assert record.side_by_side(steps).tolist() == [0.0, 1.0, 2.0]
    check(library)


def test_a_step_to_warm_up_is_waited_for_even_if_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has begun computes on, while memory that it reads may be given to others."""
    library = Library()
    monkeypatch.setattr(torch, "get_device_module", lambda _: library)
    record = GraphRecorder(torch.device("cpu"))

    def step() -> Tensor:
        library.done.append((library.current_stream().number, "works"))
        raise NotStackable("no")

    with pytest.raises(NotStackable):
        record.warm(step, 0)
    (stream, _, _), works, end = library.done
    assert (works, end) == ((stream, "works"), (0, "waits for", stream))


def check(library: Library) -> None:
    """The order of a fork, the branches' work, and a join."""
    works = [k for k, event in enumerate(library.done) if event[1] == "works"]
    before, after = library.done[: works[0]], library.done[works[-1] + 1 :]
    streams = [event[0] for event in before]
    assert before == [(stream, "waits for", 0) for stream in streams]
    assert after == [(0, "waits for", stream) for stream in streams]
    assert len(set(streams)) == 3
    assert [library.done[k][0] for k in works] == streams[: len(works)]
