"""Runs of their own process finish beside W&B, whatever executor trains and whatever a later stage needs first.

A process of tests has imported everything already, so that a worker of it imports nothing late.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flnl.config.folders import CONF
from tests.registry import BY_NAME

EXECUTORS = {
    "sequential": ("executor=sequential",),
    "stacked": ("executor=stacked",),
    "processes": ("executor=processes", "executor.workers=2"),
    "stacks in processes": (
        *("executor=processes", "executor.workers=2"),
        *("executor/inner=stacked", "executor.inner.stack=2"),
    ),
    "ray": ("executor=ray", "executor.workers=2", "executor.num_cpus=0.5"),
}
METHODS = sorted(file.stem for file in CONF.joinpath("method").glob("*.yaml"))


def finishes(method: str, executor: str, folder: Path) -> None:
    """Run the registry's entry of a method with W&B offline."""
    words = [word for word in BY_NAME[method].words if not word.startswith(("executor=", "wandb.mode="))]
    command = [sys.executable, "-m", "flnl", *words, *EXECUTORS[executor], "wandb.mode=offline", f"output={folder}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder.parent, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    record = json.loads((folder / "result.json").read_text())
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert record["status"] == "finished"
    assert {row["stage"] for row in rounds if "stage" in row} == set(BY_NAME[method].acting)
    assert list(folder.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.parametrize(
    "executor",
    [one if one == "stacks in processes" else pytest.param(one, marks=pytest.mark.slow) for one in EXECUTORS],
)
def test_every_executor_finishes(executor: str, tmp_path: Path) -> None:
    """The first stage can be stacked, the second cannot: its clients run one by one, as Lightning's modules."""
    finishes("dividemix", executor, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_finishes_with_stacks_in_workers(method: str, tmp_path: Path) -> None:
    """Workers are then forked before W&B is asked anything, and train what cannot be stacked themselves."""
    finishes(method, "stacks in processes", tmp_path / "run")
