"""Ray's actors: the same bits, deaths, and what can never be had, on one cluster a process of the tests."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flnl.config import compose
from flnl.config.folders import CONF
from flnl.core.errors import UserError
from flnl.core.execution import as_list
from flnl.engine.executors import ray as ray_executor
from flnl.engine.executors.dispatch import LostWorker
from flnl.engine.executors.processes import python_path
from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.worker_context import Recipe
from flnl.engine.network import Network
from tests.engine.executors import jobs
from tests.engine.executors.test_processes import IMAGES, same
from tests.engine.executors.test_stacks_in_workers import stacked
from tests.properties.reference import References
from tests.properties.runs import assembled, run, without_times
from tests.registry import BY_NAME, Entry, others_slow
from tests.toys import mlp, network

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"executor=ray needs Ray.*pip install .*\[ray\]'"):
        compose.build(compose.load(["executor=ray"]).executor)(network(mlp(4, 3)))


@pytest.mark.parametrize(("gpus", "device", "layout"), [(0.0, "cpu", "channels_last"), (0.5, "cuda", "auto")])
def test_workers_with_a_gpu_lay_out_the_network_for_it(
    gpus: float, device: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if this process is on a CPU, where ``auto`` is another layout."""
    recipes: list[Recipe] = []
    monkeypatch.setattr(ray_executor._Cluster, "of", lambda _: ray_executor._Cluster(2, started=False))
    monkeypatch.setattr(ray_executor, "Actors", lambda _, recipe, *more: recipes.append(recipe))
    on_ray(network(torch.nn.Conv2d(1, 3, 2), precision=32), gpus=gpus).open([], {})
    assert [(recipe.device, recipe.layout) for recipe in recipes] == [(device, layout)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A Ray of two cores that the tests join."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
    ray.init(num_cpus=2, _node_ip_address="127.0.0.1", runtime_env={"env_vars": {"PYTHONPATH": python_path()}}, **quiet)
    yield "auto"
    ray.shutdown()


def on_ray(
    net: Network,
    workers: int | None = 2,
    cpus: float = 1,
    gpus: float = 0,
    inner: Callable[[Network], Any] = Sequential,
) -> Any:
    from flnl.engine.executors.ray import Ray

    return Ray(net, inner, workers, cpus, gpus, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedcorr_with_batch_norm", "parts_with_memory", "fedavg_in_double"])
def test_they_agree_with_sequential_to_the_bit(name: str, references: References, tmp_path: Path, cluster: str) -> None:
    with assembled(BY_NAME[name].words, tmp_path / "run") as one:
        executor = on_ray(one.evaluator.network)
        try:
            assert same(references.run(BY_NAME[name].words).rounds, one.results(executor=executor))
        finally:
            executor.close()


def again(actor: Any, *kit: Any) -> None:
    """Make a new actor of one that has imported everything already."""
    actor.__init__(*kit)


@pytest.fixture
def kept(cluster: str, actors: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors outlive an executor: to import torch for each of the registry would take an hour."""
    import ray

    from flnl.engine.executors.ray import Actor, Actors

    def start_worker(pool: Actors, worker: int) -> Any:
        if worker in actors:
            actors[worker].__ray_call__.remote(again, *pool._kit)
        else:
            actors[worker] = ray.remote(num_cpus=0)(Actor).remote(*pool._kit)
        return actors[worker]

    monkeypatch.setattr(Actors, "_start_worker", start_worker)
    monkeypatch.setattr(Actors, "_end", lambda pool, worker: pool._at.pop(worker))


@pytest.fixture(scope="module")
def actors() -> dict[int, Any]:
    """Those that ``kept`` keeps, by worker."""
    return {}


FAST = ("fedavg", "fedcorr_with_batch_norm")
"""Entries that every run of the tests has on Ray: to run all takes many minutes."""


@pytest.mark.parametrize("entry", others_slow(FAST), ids=str)
def test_every_method_agrees_with_sequential_to_the_bit(
    entry: Entry, references: References, tmp_path: Path, kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flnl.engine.executors.ray import Actors

    handed, submit = set[int](), Actors.submit

    def counted(pool: Actors, worker: int, work: bytes) -> None:
        handed.add(worker)
        submit(pool, worker, work)

    monkeypatch.setattr(Actors, "submit", counted)
    with assembled(entry.words, tmp_path / "run") as one:
        executor = on_ray(one.evaluator.network)
        try:
            assert same(references.run(entry.words).rounds, one.results(executor=executor))
            assert handed == {0, 1}, "both workers had a part in it"
        finally:
            executor.close()


@pytest.mark.parametrize("entry", others_slow(FAST[1:]), ids=str)
def test_every_method_stacks_with_the_bits_of_one_process(entry: Entry, tmp_path: Path, kept: None) -> None:
    """In pairs, so that the few clients of a registry's round are several stacks."""
    with assembled(entry.words, tmp_path / "run") as one:
        net = one.evaluator.network
        executor = on_ray(net, inner=stacked())
        try:
            assert same(one.results(executor=stacked()(net)), one.results(executor=executor))
        finally:
            executor.close()


def test_an_actor_that_dies_is_replaced(tmp_path: Path, cluster: str, caplog: pytest.LogCaptureFixture) -> None:
    net = network(mlp(4, 3))
    executor = on_ray(net)
    try:
        given = jobs.tasks(net.params(), IMAGES, [3] * 6)
        with caplog.at_level(logging.WARNING):
            blocks = list(executor.map(jobs.Dies(2, 1, tmp_path), given, as_list))
        assert [r.client for block in blocks for r in block.results] == list(range(6))
        assert sum("was lost" in record.getMessage() for record in caplog.records) == 1
        with pytest.raises(UserError, match="gone"):
            list(executor.map(jobs.Raises(4), given, as_list))
    finally:
        executor.close()


@pytest.mark.parametrize("reason", ["OutOfMemoryError", "NodeDiedError"])
def test_an_actor_that_ends_with_its_machine_or_its_memory_is_replaced(reason: str) -> None:
    """Ray's memory monitor kills actors; the error is none of an actor."""
    import ray.exceptions

    ended = getattr(ray.exceptions, reason)
    assert not issubclass(ended, ray.exceptions.RayActorError | ray.exceptions.ObjectLostError)
    killed: list[str] = []

    def get(_: str) -> bytes:
        raise ended("the machine\nas it was")

    pool = object.__new__(ray_executor.Actors)
    pool._ray = SimpleNamespace(get=get, kill=killed.append, exceptions=ray.exceptions)
    pool._at, pool._begun, pool._busy = {1: "actor"}, {1}, {"answer": 1}
    worker, answer = pool._answer("answer")
    assert (worker, killed, pool._at, pool._begun) == (1, ["actor"], {}, set())
    assert isinstance(answer, LostWorker)
    assert "the machine" in answer.how


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"workers": 3}, r"executor\.workers=3 .* has room for 2"),
        ({"cpus": 5}, r"executor\.num_cpus=5: no machine of this Ray has more than 2"),
        ({"gpus": 0.1}, r"executor\.num_gpus=0\.1: no machine of this Ray has more than 0"),
    ],
)
def test_what_can_never_be_had_is_refused(asked: dict[str, Any], said: str, cluster: str) -> None:
    """Ray itself would wait for ever."""
    with pytest.raises(UserError, match=said):
        on_ray(network(mlp(4, 3)), **asked)


def test_workers_are_as_many_as_there_is_room_for(cluster: str) -> None:
    assert on_ray(network(mlp(4, 3)), None).count == 2
    assert on_ray(network(mlp(4, 3)), None, cpus=2).count == 1


@pytest.mark.slow
def test_a_sweep_runs_on_one_cluster(tmp_path: Path, cluster: str) -> None:
    """As ``docs/sweeps.md`` has it: two jobs at once, each with an actor on the cluster that is there."""
    import ray

    address, words = ray.get_runtime_context().gcs_address, [w for w in BY_NAME["fedavg"].words if "executor=" not in w]
    words = [*words, "max_rounds=2", "dataset.test_size=20"]
    sweep = ["seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    ours = ["executor=ray", f"executor.address='{address}'", "executor.workers=1", "checkpoint.every=1"]
    command = [sys.executable, "-m", "flnl", "-m", *words, *sweep, *ours]
    environment = {**os.environ, "PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=200)
    assert found.returncode == 0, found.stdout + found.stderr
    for number, seed in enumerate((1, 2)):
        folder = tmp_path / "sweep" / str(number)
        record = json.loads((folder / "result.json").read_text())
        assert (record["status"], record["executor"]["name"]) == ("stopped", "ray")
        alone = run([*words, f"seed={seed}", "executor=sequential"], tmp_path / f"alone{seed}")
        assert without_times(folder / "metrics.jsonl") == alone.lines


ALONE = """
from flnl.engine.executors.ray import Ray
from flnl.engine.executors.sequential import Sequential
from tests.toys import mlp, network
from flnl.core.execution import as_list
from tests.engine.executors import jobs
from tests.engine.executors.test_processes import IMAGES
net = network(mlp(4, 3))
executor = Ray(net, Sequential, 2, 0.5, 0, None)
import ray
address = ray.get_runtime_context().gcs_address
print([node["NodeManagerAddress"] for node in ray.nodes()])
found = list(executor.map(jobs.Where(), jobs.tasks(net.params(), IMAGES, [3] * 6), as_list))
print(len({answer.process for block in found for answer in block.results}))
print(ray.get_runtime_context().gcs_address == address)
executor.close()
print(ray.is_initialized())
"""


@pytest.mark.slow
def test_a_ray_of_its_own_listens_to_this_machine_alone_and_ends_with_it() -> None:
    """Its workers belong to it, not to another Ray that they start."""
    found = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, cwd=CONF.parent)
    assert found.stdout.split() == ["['127.0.0.1']", "2", "True", "False"], found.stderr
