"""Worker processes: the same bits as sequential whoever ran what, deaths and errors, and what is shared and sent."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from flnl.console.cores import usable_cores
from flnl.core.errors import UserError
from flnl.core.execution import Executor, as_list
from flnl.core.payload import Params
from flnl.core.state import RoundResult
from flnl.core.tally import Tally
from flnl.data.images import TensorImages
from flnl.data.transforms import Transform
from flnl.engine import network as scoring
from flnl.engine.executors import dispatch, processes
from flnl.engine.executors.processes import Local, Processes
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.serialization import Shared, decode, encode
from flnl.engine.executors.worker_context import Failure, WorkerContext
from flnl.engine.network import Network
from flnl.models.resnet import ResNet
from tests.engine.executors import jobs
from tests.properties.reference import References
from tests.properties.runs import assembled, difference
from tests.registry import BY_NAME, Entry, others_slow
from tests.toys import mlp, network


@contextmanager
def pool_of(
    net: Network,
    workers: int = 2,
    start: Literal["fork", "spawn"] = "fork",
    inner: Callable[[Network], Executor] = Sequential,
) -> Iterator[Processes]:
    """Worker processes that are ended with the block."""
    executor = Processes(net, inner, workers, start)
    try:
        yield executor
    finally:
        executor.close()


@pytest.fixture
def net() -> Network:
    return network(mlp(4, 3))


COLOURED = Transform(size=(12, 12), mean=(0.4,) * 3, std=(0.2,) * 3)
IMAGES = TensorImages(torch.arange(4000, dtype=torch.float32).reshape(1000, 1, 2, 2))


def received(net: Network) -> Params:
    return net.params()


# ----------------------------------------------------------------------------------------------------- the same bits


def same(one: Sequence[RoundResult], other: Sequence[RoundResult]) -> bool:
    """Whether two runs agree in every state and number."""
    assert len(one) == len(other)
    return all(
        difference(a.state, b.state) is None
        and (a.cohort, a.metrics, a.evaluation) == (b.cohort, b.metrics, b.evaluation)
        and difference(a.correction, b.correction) is None
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("entry", others_slow(), ids=str)
def test_they_agree_with_sequential_to_the_bit(
    entry: Entry, references: References, tmp_path: Path, handed: list[int]
) -> None:
    with assembled(entry.words, tmp_path / "run") as one, pool_of(one.evaluator.network, 2) as two:
        assert same(references.run(entry.words).rounds, one.results(executor=two))
        assert set(handed) == {0, 1}, "both workers had a part in it"


def test_so_do_three(references: References, tmp_path: Path, handed: list[int]) -> None:
    words = BY_NAME["fedcorr_and_parts_with_memory"].words
    with assembled(words, tmp_path / "run") as one, pool_of(one.evaluator.network, 3) as three:
        assert same(references.run(words).rounds, one.results(executor=three))
        assert set(handed) == {0, 1, 2}


@pytest.mark.slow
def test_so_do_those_that_inherit_nothing(references: References, tmp_path: Path, handed: list[int]) -> None:
    words = BY_NAME["fedcorr_with_batch_norm"].words
    with assembled(words, tmp_path / "run") as one, pool_of(one.evaluator.network, 2, "spawn") as spawned:
        assert same(references.run(words).rounds, one.results(executor=spawned))
        assert set(handed) == {0, 1}


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The worker of every piece of work, in the order of handing out."""
    found: list[int] = []
    submit = Local.submit

    def noted(self: Local, worker: int, work: bytes) -> None:
        found.append(worker)
        submit(self, worker, work)

    monkeypatch.setattr(Local, "submit", noted)
    return found


@pytest.mark.parametrize("count", [2, 3, 7, 10, 13])
@pytest.mark.parametrize("workers", [2, 4, 9])
def test_blocks_come_in_order_and_are_cut_by_position_alone(net: Network, count: int, workers: int) -> None:
    given = jobs.tasks(received(net), IMAGES, [1 + 7 * k % 11 for k in range(count)])
    with pool_of(net, workers) as executor:
        blocks = list(executor.map(jobs.Where(), given, jobs.clients))
    cut = [list(range(first, min(first + 5, count))) for first in range(0, count, 5)]
    assert [block.value[1] for block in blocks] == cut
    assert [[r.client for r in block.results] for block in blocks] == cut
    assert all(r.process != os.getpid() for block in blocks for r in block.results)


def test_whole_blocks_are_reduced_where_they_ran(net: Network) -> None:
    given = jobs.tasks(received(net), IMAGES, [3] * 30)
    with pool_of(net) as executor:
        blocks = list(executor.map(jobs.Where(), given, jobs.clients))
    reduced_there = [block for block in blocks if block.value[0] != os.getpid()]
    assert len(reduced_there) >= 4
    for block in reduced_there:
        assert {r.process for r in block.results} == {block.value[0]}


def test_one_task_runs_here(net: Network) -> None:
    before = children()
    with pool_of(net) as executor:
        (block,) = executor.map(jobs.Where(), jobs.tasks(received(net), IMAGES, [3]), as_list)
        assert [r.process for r in block.results] == [os.getpid()]
        assert list(executor.map(jobs.Where(), [], as_list)) == []
    assert children() == before


class Pairs(Sequential):
    """Runs clients two at a time, as an executor that stacks them does, and says which."""

    def groups(self, job: Any, tasks: Any) -> list[list[int]]:
        return [list(range(i, min(i + 2, len(tasks)))) for i in range(0, len(tasks), 2)]

    def map(self, job: Any, tasks: Any, reduce: Any) -> Iterator[Any]:
        results: list[Any] = []
        for group in self.groups(job, tasks):
            together = tuple(tasks[i].client for i in group)
            results += [jobs.Answer(tasks[i].client, os.getpid(), together) for i in group]
        for first in range(0, len(tasks), 5):
            yield reduce(results[first : first + 5])


@pytest.mark.parametrize("count", [2, 4, 9, 10, 23, 40])
def test_who_is_stacked_with_whom_does_not_depend_on_the_workers(net: Network, count: int) -> None:
    given = jobs.tasks(received(net), IMAGES, [1 + 7 * k % 11 for k in range(count)])
    alone = [(r.client, r.value) for block in Pairs(net).map(None, given, as_list) for r in block.results]
    with pool_of(net, inner=Pairs) as executor:
        blocks = list(executor.map(jobs.Where(), given, as_list))
    assert [(r.client, r.value) for block in blocks for r in block.results] == alone


def test_each_call_has_its_own_parameters_and_job(net: Network) -> None:
    with pool_of(net) as executor:
        for value in (1.0, 2.0, 5.0):
            params = {name: torch.full_like(p, value) for name, p in received(net).items()}
            given = jobs.tasks(params, IMAGES, [2] * 6)
            found = [r.value for b in executor.map(jobs.Sum(), given, as_list) for r in b.results]
            assert found == [value * sum(p.numel() for p in params.values())] * 6


def test_what_is_shared_comes_back_as_itself(net: Network) -> None:
    params = received(net)
    with pool_of(net) as executor:
        for block in executor.map(jobs.Received(), jobs.tasks(params, IMAGES, [2] * 6), as_list):
            for answer in block.results:
                assert answer.value[0] is params
                assert answer.value[1] is IMAGES


def test_other_images_are_noticed(net: Network) -> None:
    other = TensorImages(IMAGES.pixels + 1)
    with pool_of(net) as executor:
        for images in (IMAGES, other, IMAGES):
            given = jobs.tasks(received(net), images, [2] * 6)
            (one, _) = executor.map(jobs.Received(), given, as_list)
            assert one.results[0].value[1] is images


# -------------------------------------------------------------------------------------------------------- evaluations


@pytest.mark.parametrize(("samples", "shares"), [(40, 4), (37, 4), (20, 3), (8, 0)])
@pytest.mark.parametrize("output", ["logits", "features"])
def test_workers_share_an_evaluation(
    samples: int, shares: int, output: str, handed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit and to the count, also another model on images that no client has; but no single batch."""
    monkeypatch.setattr(scoring, "SCORE_BATCH", 8)
    net = network(ResNet(8, [1, 1])((3, 12, 12), 3), precision=32, transform=COLOURED)
    index = torch.randperm(60)[:samples]
    tested = TensorImages(torch.randint(0, 256, (60, 3, 12, 12), dtype=torch.uint8))
    models = [net.params(), {n: 1.1 * p if p.is_floating_point() else p for n, p in net.params().items()}]
    found, passed = [], []
    with pool_of(net) as executor:
        for shared in (False, True):
            if shared:
                list(executor.map(jobs.Where(), jobs.tasks(models[0], IMAGES, [2] * 6), as_list))
                handed.clear()
            net.meter.pop()
            for params in models:
                net.load(params)
                found.append(net.shared_outputs(tested, index, output=output))
                assert difference(net.params(), params) is None
            passed.append(net.meter.pop())
    assert torch.equal(torch.stack(found[:2]), torch.stack(found[2:]))
    assert not torch.equal(found[0], found[1])
    assert passed[0] == passed[1] != Tally()
    assert len(handed) == 2 * shares
    assert set(handed) == ({0, 1} if shares else set())
    assert net.by_workers is None, "there are no workers any more"


def test_a_run_with_a_shared_evaluation_is_the_same(
    tmp_path: Path, handed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics, recorded probabilities and what passed, for one network and a validation set."""
    monkeypatch.setattr(scoring, "SCORE_BATCH", 8)
    words = (*BY_NAME["fedavg"].words, "audit.record=true", "eval.memorization=true", "eval.validation=0.2")
    found = []
    for workers in (1, 2):
        with assembled(words, tmp_path / str(workers)) as one, pool_of(one.evaluator.network, workers) as executor:
            handed.clear()
            rounds = one.results(executor=executor)
            recorder = one.evaluator.recorder
            assert recorder is not None
            found.append((rounds, recorder.means(), len(handed)))
    (one_by_one, means, _), (shared, other_means, pieces) = found
    assert same(one_by_one, shared)
    assert all((mean == other_means[name]).all() for name, mean in means.items())
    assert pieces > len(shared) * 10


def test_a_worker_that_dies_in_an_evaluation_is_replaced(net: Network, caplog: pytest.LogCaptureFixture) -> None:
    with pool_of(net) as executor:
        list(executor.map(jobs.Where(), jobs.tasks(received(net), IMAGES, [2] * 6), as_list))
        pool: Any = executor._pools[0][0]
        os.kill(pool._at[0].pid, signal.SIGKILL)
        index = torch.arange(1000)
        assert torch.equal(net.shared_outputs(IMAGES, index), net.outputs(IMAGES, index))
    assert "while it ran an evaluation" in caplog.text


@pytest.mark.slow
def test_workers_that_inherit_nothing_share_no_evaluation(net: Network) -> None:
    """They would start anew for the test samples, which takes seconds."""
    with pool_of(net, 2, "spawn") as executor:
        list(executor.map(jobs.Where(), jobs.tasks(received(net), IMAGES, [2] * 6), as_list))
        assert net.by_workers is None


# ---------------------------------------------------------------------------------------------------- what is shared


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_images_are_in_memory_once(net: Network, start: Literal["fork", "spawn"]) -> None:
    """100 MB of them; after reading every one a worker has some MB of its own more."""
    pixels = torch.zeros(100, 1, 512, 512, dtype=torch.float32)
    pixels[:, 0, 0, 0] = torch.arange(100)
    images = TensorImages(pixels)
    before = jobs.own_memory()
    with pool_of(net, 2, start) as executor:
        blocks = list(executor.map(jobs.Reading(), jobs.tasks(received(net), images, [1, 1]), as_list))
        found = [r.value for block in blocks for r in block.results]
        assert [total for _, total in found] == [4950.0, 4950.0]
        assert all(grown < 25_000 for grown, _ in found), found
        grown_here = jobs.own_memory() - before
        assert grown_here < (25_000 if start == "fork" else -75_000), "what is shared takes the place of what was not"


def test_neither_parameters_nor_images_go_through_the_pipes(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    large = network(mlp(1000, 3, hidden=300))
    params = received(large)
    size = sum(p.numel() * p.element_size() for p in params.values())
    assert size > 2_000_000
    sent: list[int] = []
    send = Connection.send_bytes

    def counted(self: Connection, data: Any) -> None:
        sent.append(len(data))
        send(self, data)

    monkeypatch.setattr(Connection, "send_bytes", counted)
    with pool_of(large) as executor:
        for _ in range(3):
            list(executor.map(jobs.Where(), jobs.tasks(params, IMAGES, [2] * 10), as_list))
    assert len(sent) > 6
    assert sum(sent) < 60_000


def test_the_received_model_is_that_of_the_call(net: Network) -> None:
    """Two calls of one round have different models, as training and correcting labels have; the memory is the same."""
    given = received(net)
    with pool_of(net, workers=2) as executor:
        for value in (1.0, 2.0):
            params = {name: torch.full_like(p, value) for name, p in given.items()}
            tasks = jobs.tasks(params, IMAGES, [2] * 10)
            net.load(params)
            right = [float(net.logits(task.samples)[0, 0]) for task in tasks]
            blocks = list(executor.map(jobs.Frozen(), tasks, as_list))
            assert [r.value for block in blocks for r in block.results] == right
            assert os.getpid() not in {r.process for block in blocks for r in block.results}


# ----------------------------------------------------------------------------------------------- deaths and failures


def test_what_workers_use_is_known_here(net: Network) -> None:
    """Seconds and memory of both; those of a worker that has ended, too."""
    given = jobs.tasks(received(net), IMAGES, [3] * 4)
    with pool_of(net) as executor:
        list(executor.map(jobs.Uses(0.0, 1), given, as_list))
        little = executor.usage()
        list(executor.map(jobs.Uses(0.1, 2**28), given, as_list))
        much = executor.usage()
    assert executor.usage() == much
    assert 0.4 <= much.cpu_seconds - little.cpu_seconds < 4
    assert 2**28 <= much.memory - little.memory < 3 * 2**28
    assert much.gpu_memory == 0


def test_what_a_lost_worker_had_begun_is_not_counted_twice(net: Network, tmp_path: Path) -> None:
    given = jobs.tasks(received(net), IMAGES, [3] * 12)
    with pool_of(net) as executor:
        list(executor.map(jobs.ScoresAndDies(4, 2, tmp_path), given, as_list))
        assert executor.pop_tally() == Tally(scored=36)
        assert executor.pop_tally() == Tally()


def test_a_worker_that_dies_is_replaced(net: Network, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = jobs.tasks(received(net), IMAGES, [3] * 12)
    with pool_of(net) as executor, caplog.at_level(logging.WARNING):
        blocks = list(executor.map(jobs.Dies(2, 2, tmp_path), given, jobs.clients))
    assert [block.value[1] for block in blocks] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(list(tmp_path.iterdir())) == 2
    assert all("was killed by signal 9 while it ran client" in line and "again" in line for line in said)


def test_clients_that_cost_three_workers_end_the_run(net: Network, tmp_path: Path) -> None:
    given = jobs.tasks(received(net), IMAGES, [3] * 2)
    with pool_of(net) as executor:
        with pytest.raises(dispatch.WorkerLostError, match=r"client 1 cost 3 workers.*signal 9.*executor\.workers"):
            list(executor.map(jobs.Dies(1, 99, tmp_path), given, as_list))
        assert len(list(tmp_path.iterdir())) == 3
        blocks = list(executor.map(jobs.Where(), given, as_list))  # and whoever goes on can
        assert [r.client for block in blocks for r in block.results] == [0, 1]


def test_an_idle_worker_that_dies_is_replaced(net: Network) -> None:
    given = jobs.tasks(received(net), IMAGES, [3] * 6)
    with pool_of(net) as executor:
        first = {r.process for block in executor.map(jobs.Where(), given, as_list) for r in block.results}
        for process in first:
            os.kill(process, signal.SIGKILL)
        until(lambda: all(zombie(process) for process in first))
        second = [r for block in executor.map(jobs.Where(), given, as_list) for r in block.results]
        assert [r.client for r in second] == list(range(6))
        assert not {r.process for r in second} & first


def zombie(process: int) -> bool:
    return ") Z " in Path(f"/proc/{process}/stat").read_text()


def test_an_error_comes_back_as_it_is_with_the_traceback_of_its_worker(net: Network) -> None:
    given = jobs.tasks(received(net), IMAGES, [3] * 6)
    with pool_of(net) as executor:
        with pytest.raises(UserError, match=r"^dataset\.root: gone$") as caught:
            list(executor.map(jobs.Raises(4), given, as_list))
        assert "jobs.py" in str(caught.value.__cause__)
        assert "raise AwkwardError" in str(caught.value.__cause__)
        with pytest.raises(RuntimeError, match="AwkwardError: 1 and 2"):
            list(executor.map(jobs.Raises(4, awkward=True), given, as_list))
        assert len(list(executor.map(jobs.Where(), given, as_list))) == 2


def test_an_error_at_the_start_of_a_call_is_the_answer_to_its_work(net: Network) -> None:
    """Not the result of the call before, with its parameters and its job."""
    given = jobs.tasks(received(net), IMAGES, [3] * 6)
    bench, shared = WorkerContext(net, Sequential, [IMAGES]), Shared([IMAGES], received(net), net.device)
    work = encode((given[:1], ((0,),), False), shared)
    bench.begin(received(net), encode((jobs.Where(), as_list, ()), shared))
    assert isinstance(decode(bench.work(work), shared).results[0], jobs.Answer)
    bench.begin(received(net), b"not a message")
    failure = decode(bench.work(work), shared)
    assert isinstance(failure, Failure)
    assert "UnpicklingError" in failure.cause.trace
    bench.begin(received(net), encode((jobs.Where(), as_list, ()), shared))
    assert isinstance(decode(bench.work(work), shared).results[0], jobs.Answer)


class Unsendable(torch.nn.Module):
    """Holds a function that another process cannot import."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.scale: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """[B, 3]."""
        return self.scale(self.layer(inputs.flatten(1)))


def test_a_network_that_cannot_be_sent_is_named() -> None:
    net = network(Unsendable())
    given = jobs.tasks(received(net), IMAGES, [3] * 6)
    with pool_of(net) as executor:
        assert len(list(executor.map(jobs.Where(), given, as_list))) == 2
    with (
        pool_of(net, start="spawn") as executor,
        pytest.raises(UserError, match=r"test_processes\.Unsendable cannot be sent to a new worker process .*lambda"),
    ):
        list(executor.map(jobs.Where(), given, as_list))


def test_a_call_that_is_given_up_leaves_nothing_for_the_next(net: Network) -> None:
    given = jobs.tasks(received(net), IMAGES, [3] * 40)
    with pool_of(net) as executor:
        unfinished = executor.map(jobs.Where(), given, jobs.clients)
        next(unfinished)
        unfinished.close()  # type: ignore[attr-defined]
        blocks = list(executor.map(jobs.Sum(), given, as_list))
        assert all(r.value is not None for block in blocks for r in block.results)


def test_closing_ends_the_workers(net: Network) -> None:
    before = children()
    with pool_of(net, 3) as executor:
        list(executor.map(jobs.Where(), jobs.tasks(received(net), IMAGES, [3] * 6), as_list))
        assert len(children()) == len(before) + 3
        opened = len(list(Path("/proc/self/fd").iterdir()))
    assert children() == before
    assert len(list(Path("/proc/self/fd").iterdir())) < opened


def children() -> list[int]:
    """Processes that this one has started and that have not ended."""
    found = []
    for stat in sorted(Path("/proc").glob("[0-9]*/stat")):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.append(int(stat.parent.name))
    return found


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# ---------------------------------------------------------------------------------------------------------- settings


def test_workers_are_as_many_as_cores_that_threads_leave(net: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "usable_cores", lambda: 7)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    executor = Processes(net, Sequential, None, "auto")
    assert executor.settings() == {"workers": 3, "start": "spawn", "inner": {"name": "sequential"}}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert executor.settings() == {"workers": 7, "start": "fork", "inner": {"name": "sequential"}}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert executor.settings()["start"] == "spawn"
    assert Processes(net, Sequential, 5, "auto").count == 5


def test_cores_are_those_that_the_process_is_bound_to() -> None:
    bound = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(bound)})
    try:
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, bound)
