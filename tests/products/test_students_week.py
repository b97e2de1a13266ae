"""A week before a deadline, by commands alone: a sweep that is killed and goes on, a table, a search, a method of one's
own as a row, and a repeat.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.products.conftest import PLUGIN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

SMALL = [
    "dataset.train_size=200",
    "dataset.test_size=60",
    "partition.num_clients=5",
    "rounds=4",
    "model=mlp",
    "model.hidden=[16]",
    "train.epochs=1",
    "products=false",
    "figures=false",
    "wandb.mode=disabled",
]
SWEEP = ["-m", "method=fedavg,fedprox", "noise.rho=0.2,0.6", "seed=1,2,3", *SMALL, "hydra.sweep.dir=week"]


class Desk:
    """A folder in which commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PLUGIN), "COLUMNS": "200"}

    def begun(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "flnl", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def typed(self, *words: str) -> str:
        """What a command prints, both streams; it must succeed."""
        process = self.begun(*words)
        out, err = process.communicate()
        assert process.returncode == 0, f"{words}\n{out}\n{err}"
        return out + err

    def finished(self) -> dict[str, float]:
        """When each finished run of the sweep wrote its record, by folder."""
        records = self.folder.glob("week/*/result.json")
        return {one.parent.name: one.stat().st_mtime for one in records if '"finished"' in one.read_text()}


def test_the_week(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    listed = desk.typed(*SWEEP, "--dry-run")
    assert "12 runs: 12 new" in listed
    assert not (tmp_path / "week").exists()

    running = desk.begun(*SWEEP)
    deadline = time.monotonic() + 300
    while len(desk.finished()) < 3:
        assert time.monotonic() < deadline
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    kept = desk.finished()
    assert 3 <= len(kept) < 12
    desk.typed(*SWEEP, "resume=true")
    assert len(desk.finished()) == 12
    assert {name: desk.finished()[name] for name in kept} == kept, "finished runs are not run again"

    said = desk.typed("compare", "week", "--columns", "noise.rho", "--against", "fedavg", "--latex", "table.tex")
    assert re.search(r"\bfedprox\b", said)
    assert "seeds" in said
    latex = (tmp_path / "table.tex").read_text()
    assert all(word in latex for word in (r"\toprule", r"\bottomrule", "0.2", "0.6"))

    desk.typed("tune", "method=fedavg", "train.lr=0.01,0.1", *SMALL, "--seeds", "11", "--out", "tuned.json")
    tuned = json.loads((tmp_path / "tuned.json").read_text())
    assert tuned["studies"][0]["chosen"]["train.lr"] in ("0.01", "0.1", 0.01, 0.1)

    own = ["--config-dir", str(PLUGIN / "my_parts" / "conf")]
    desk.typed("-m", "method=balanced", "noise.rho=0.2,0.6", "seed=1,2,3", *SMALL, "hydra.sweep.dir=mine", *own)
    both = desk.typed("compare", "week", "mine", "--columns", "noise.rho")
    assert all(re.search(rf"\b{name}\b", both) for name in ("fedavg", "fedprox", "balanced"))

    again = desk.typed("rerun", "week/0", "output=again")
    assert "again" in again
    first, second = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("week/0", "again"))
    assert second["metrics"] == first["metrics"]
