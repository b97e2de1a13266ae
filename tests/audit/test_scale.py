"""A million samples: time of the processor and memory of an audit, all of its files included."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]

AUDIT = """
import resource, sys, time
from pathlib import Path
import numpy as np
from flnl.audit import source
from flnl.commands.audit import main
from flnl.audit.clean_samples import CleanSamples
from flnl.audit.audited_run import AuditedRun
from flnl.audit.probability_table import InFile
from flnl.audit.result import ProbabilitySource

def recorded(run, options, report):
    where = ProbabilitySource("window", (1,), True, "synthetic")
    file = place / "window.npz"
    with np.load(file) as held:
        test = CleanSamples(run.federation.dataset.test_labels, held["test_window"].astype(float))
    return where, InFile.open(file, "window"), test

source.find = recorded
place = Path(sys.argv.pop(1))
main()
print("measured", time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.slow
def test_a_million_samples_take_a_minute_and_two_gigabytes(tmp_path: Path) -> None:
    samples, tests, classes = 1_000_000, 10_000, 10
    rng = np.random.default_rng(0)
    truth, test = rng.integers(0, classes, samples), rng.integers(0, classes, tests)
    pixels = rng.integers(0, 256, (samples, 2, 2), np.uint8)
    np.savez(tmp_path / "data.npz", x_train=pixels, y_train=truth, x_test=pixels[:tests], y_test=test)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    words = [
        *(
            "dataset=arrays",
            f"dataset.file={tmp_path / 'data.npz'}",
            "partition=iid_uniform",
            "partition.num_clients=100",
        ),
        *("noise=symmetric", "noise.eta=0.2", "method=fedavg", "rounds=1", "fraction=0.01", "train.batch_size=1000"),
        *(
            "model=mlp",
            "model.hidden=[8]",
            "audit.record=false",
            "figures=false",
            "wandb.mode=disabled",
            "train.epochs=1",
        ),
        *(f"output={tmp_path / 'run'}", f"cache={tmp_path / 'cache'}"),
    ]
    subprocess.run(
        [sys.executable, "-m", "flnl", *words], env=environment, cwd=tmp_path, check=True, capture_output=True
    )
    window = rng.dirichlet(np.full(classes, 0.2), samples).astype(np.float32)
    order = np.argsort(window, axis=1)
    labels = [line.split(",")[-1] for line in (tmp_path / "run" / "labels.csv").read_text().splitlines()[1:]]
    true = np.array(labels, np.int64)
    rows, best = np.arange(samples), order[:, -1]
    top = window[rows, best].copy()
    window[rows, best], window[rows, true] = window[rows, true], top  # the model is right
    np.savez(tmp_path / "window.npz", window=window, test_window=np.eye(classes, dtype=np.float32)[test] * 0.9 + 0.01)
    del window, order, pixels
    command = [sys.executable, "-c", AUDIT, str(tmp_path), str(tmp_path / "run"), "--corrections", "suggested"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    measured = done.stdout.splitlines()[-1].split()
    seconds, gigabytes = float(measured[1]), float(measured[2])
    print(f"{seconds:.1f} s, {gigabytes:.2f} GiB")
    found = json.loads((tmp_path / "run" / "audit" / "audit.json").read_text())
    assert found["samples"] == samples
    assert found["measured"]["average_precision"] > 0.98
    assert (seconds < 60, gigabytes < 2) == (True, True), done.stdout
