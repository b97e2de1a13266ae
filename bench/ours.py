"""Our loop with one of its executors, as in a run: rounds are logged; no checkpoints, figures or W&B.

``python -m bench.ours JOB.json EXECUTOR FOLDER [OVERRIDE...]``
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.turns import Turns
from bench.workloads import SEED, Job
from flnl.config import compose
from flnl.config.check import check_config
from flnl.core.execution import described
from flnl.engine.executors.auto import shown
from flnl.run import opening
from flnl.run.session import Session

PUBLIC = ["model=lenet5", "model._target_=bench.networks.PublicCNN", "~model.batch_norm"]


def overrides_of(job: Job, executor: str, folder: Path) -> list[str]:
    """The overrides that describe the job."""
    w = job.workload
    return [
        "method=fedavg",
        "dataset=arrays",
        f"dataset.root={job.data.parent}",
        f"dataset.file={job.data.name}",
        "dataset.normalize=half",
        *(["dataset.padding=4", "dataset.flip=true"] if w.crop else []),
        "partition=file",
        "noise=none",
        *(PUBLIC if w.model == "public" else [f"model={w.model}"]),
        f"executor={executor}",
        f"fraction={w.cohort / w.clients}",
        "rounds=1000000",
        f"train.lr={w.lr}",
        f"train.momentum={w.momentum}",
        f"train.batch_size={w.batch}",
        f"train.epochs={w.epochs}",
        f"seed={SEED}",
        "device=cpu",
        f"precision={64 if w.double else 32}",
        "threads=1",
        "wandb.mode=disabled",
        "figures=false",
        "products=false",
        "checkpoint.every=1000000",
        f"output={folder}",
        f"cache={folder.parent / 'cache'}",
    ]


def opened(job: Job, executor: str, folder: Path, *more: str) -> Session:
    """Open a run of the job, before its first round."""
    overrides = [*overrides_of(job, executor, folder), *more]
    cfg = compose.load(overrides)
    check_config(cfg)
    return opening.open_session(cfg, overrides, opening.claim(cfg, overrides, None))


def main() -> None:
    """Run rounds on request."""
    turns = Turns()
    with opened(Job.load(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3]), *sys.argv[4:]) as run:
        about = {"executor": shown(described(run.executor))}
        for result in run.results():
            run.log(result)
            run.keep(now=False)
            score = float("nan") if result.evaluation is None else result.evaluation["accuracy"]
            if not turns.border(accuracy=score, **about):
                break


if __name__ == "__main__":
    main()
