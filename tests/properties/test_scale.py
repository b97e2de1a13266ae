"""Many clients: a round costs what its cohort costs, memory holds what the method must keep, disk the rest."""

import gc
import resource
import signal
import sys
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from flnl.config import compose
from flnl.core.errors import DiskFullError
from flnl.engine.loop import initial_state
from flnl.run import checkpoint
from flnl.run.checkpoint import Checkpoint
from flnl.run.opening import claim, open_session
from tests.properties.runs import difference

COHORT, ROUNDS, MODEL = 10, 3, 4 * (16 * 4 + 4 + 4 * 3 + 3)
"""Clients a round, rounds, and bytes of the model."""

METHODS = ["fedavg", "flr", "feddyn"]


def words(method: str, clients: int, folder: Path) -> list[str]:
    """A run of so many clients with three images each."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    np.savez(
        folder / "arrays.npz",
        x_train=rng.integers(0, 256, (3 * clients, 4, 4), np.uint8),
        y_train=rng.integers(0, 3, 3 * clients),
        x_test=rng.integers(0, 256, (20, 4, 4), np.uint8),
        y_test=np.arange(20) % 3,
        clients=np.repeat(np.arange(clients), 3),
    )
    return [
        f"method={method}",
        "dataset=arrays",
        f"dataset.root={folder}",
        "partition=file",
        "noise=symmetric",
        "model=mlp",
        "model.hidden=[4]",
        f"fraction={COHORT / clients}",
        f"rounds={ROUNDS}",
        "train.batch_size=3",
        "train.epochs=1",
        "executor=sequential",
        "client_memory=0",
        "wandb.mode=disabled",
        f"output={folder / 'run'}",
        f"cache={folder / 'cache'}",
    ]


class Calls:
    """Counts Python's calls while entered: the work beside tensors, whatever else the machine does."""

    def __enter__(self) -> "Calls":
        self.count = 0
        gc.disable()
        sys.setprofile(self._one)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        gc.enable()

    def _one(self, frame: FrameType, event: str, argument: Any) -> None:
        self.count += event == "call" or event == "c_call"


def calls_of_a_round(method: str, clients: int, folder: Path) -> int:
    """Of the last round with its evaluation and its lines; what clients keep is on disk."""
    overrides = words(method, clients, folder)
    cfg = compose.load(overrides)
    with open_session(cfg, overrides, claim(cfg, overrides, None)) as run:
        results = run.results()
        for _ in range(ROUNDS - 1):
            run.log(next(results))
        with Calls() as calls:
            run.log(next(results))
        assert run.state.clients.size == 0
        return calls.count


@pytest.mark.parametrize("method", METHODS)
def test_a_round_costs_no_more_with_ten_times_the_clients(method: str, tmp_path: Path) -> None:
    """As many are visited, so a look at each of them shows: 1,800 more clients, a call each and the tenth is gone."""
    few, many = (calls_of_a_round(method, clients, tmp_path / str(clients)) for clients in (200, 2000))
    assert many < 1.03 * few


def test_memory_holds_what_the_visited_keep_and_no_more(tmp_path: Path) -> None:
    overrides = [*words("feddyn", 2000, tmp_path / "a"), "client_memory=1"]
    cfg = compose.load(overrides)
    with open_session(cfg, overrides, claim(cfg, overrides, None)) as run:
        visited: set[int] = set()
        for result in run.results():
            run.log(result)
            visited |= {*result.cohort}
        assert set(run.state.clients) == visited
        assert len(visited) * MODEL <= run.state.clients.size < len(visited) * 1.05 * MODEL


# --------------------------------------------------------------------------------------------------------- checkpoints

LARGE = 20_000_000
"""Bytes of a state that shows beside everything else."""


def large() -> Checkpoint:
    """A checkpoint of ``LARGE`` bytes."""
    return Checkpoint(initial_state({"w": torch.arange(LARGE // 4, dtype=torch.float32)}), "key", "federation", 1.0)


def test_a_checkpoint_is_not_in_memory_as_bytes_too(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        path = checkpoint.save(tmp_path, large())
        saving = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        found = checkpoint.load(path)
        loading = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert difference(found, large()) is None
    assert max(saving, loading) < LARGE / 4


def test_a_disk_that_is_full_in_the_middle_of_a_tensor_is_called_that(tmp_path: Path) -> None:
    """Torch would make an error of its own of it."""
    path = checkpoint.save(tmp_path, large())
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE // 2, limits[1]))
    try:
        with pytest.raises(DiskFullError, match="the disk is full"):
            checkpoint.save(tmp_path, large())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert difference(checkpoint.load(path), large()) is None
