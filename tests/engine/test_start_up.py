"""What a run imports before its first round: the seconds that every run, worker and job of a sweep pays."""

import subprocess
import sys
from pathlib import Path

import pytest

from flnl.engine.executors.processes import python_path

RUN = """
import sys
from flnl.config import compose
from flnl.run.train import train

overrides = sys.argv[1:]
train(compose.load(overrides), overrides)
print(*sys.modules)
"""
WORDS = ("method=fedavg", "max_rounds=1", "wandb.mode=disabled", "figures=false", "products=false")
SLOW = {"lightning", "torchmetrics", "torchvision", "torch._dynamo", "matplotlib"}
"""Each takes a second or more to import."""


def imported(folder: Path, *more: str) -> set[str]:
    """The modules that a process has imported after one round."""
    command = [sys.executable, "-c", RUN, *WORDS, f"output={folder}", *more]
    environment = {"PYTHONPATH": python_path(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder.parent, env=environment)
    return set(done.stdout.splitlines()[-1].split())


def test_clients_in_stacks_need_neither_lightning_nor_the_compiler(tmp_path: Path) -> None:
    """Neither does the choice of the executor, which counts the network's products, nor what a worker does."""
    assert not imported(tmp_path / "run", "executor.processes.workers=1") & SLOW


@pytest.mark.slow
def test_clients_one_by_one_are_lightning_modules(tmp_path: Path) -> None:
    assert "lightning" in imported(tmp_path / "run", "executor=sequential")


@pytest.mark.slow
def test_workers_that_stack_share_what_clients_one_by_one_will_need(tmp_path: Path) -> None:
    """The first stage is stacked, in workers that are forked; the second will not be."""
    words = ("method=dividemix", "method.T_wu=1", "executor=processes", "executor/inner=stacked", "executor.workers=2")
    assert "lightning" in imported(tmp_path / "run", *words)
