"""The runs behind the measurements in methods' cards: ``python -m bench.card_runs FOLDER [--settings digits_iid,...]``.

Runs that FOLDER lacks are made, one after another; a command that was interrupted goes on where it stopped.
``mnist_features*`` read ``own/features.npz`` in ``FLNL_DATA``, as ``bench.frozen_features`` writes it.
``bench/results/card_runs.csv`` gets a line for each, from which ``tests/docs`` holds the numbers of the cards.
"""

from __future__ import annotations

import json
import re
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from bench.whole_runs import chosen, made, read_rows, write_rows
from flnl.audit.examination import examine
from flnl.audit.options import Options
from flnl.config.folders import CONF

HEADS = {"best": "best", "last": "last", "mean of the last 10": "mean_last_10"}
"""The metrics of a card's columns; others are called as they are."""
FILE = CONF.parent / "bench" / "results" / "card_runs.csv"
FEDRG = "method=fedrg method.projector=256 method.projection=64"
SETTINGS: Mapping[str, tuple[str, Sequence[str]]] = {
    "digits_iid": (
        "experiment=comparison/digits_iid",
        (
            "method=fedavg",
            "method=fedcorr",
            "method=fedgr",
            FEDRG,
            "method=clc",
            "method=clc method.T_ho=55 method.T=0",
            "method=elr",
            "method=fedelc",
            "method=fedelr",
            "method=fedln",
            "method=fedln method.suspects=below",
            "method=fedln_nnc",
            "method=fednoro",
            "method=fednoro method.s1=9 method.T=47",
            "method=fedstabilize",
            "method=fedstabilize method.relative=true",
            "method=m_dyr",
            "method=maskedoptim",
            "method=maskedoptim method.compatible=1",
            "method=maskedoptim method/aggregator=fednoro_distance_aware",
            "method=selfie",
        ),
    ),
    "digits_dirichlet": (
        "experiment=comparison/digits_iid partition=dirichlet partition.alpha=0.3",
        ("method=fedavg", "method=fedcorr", "method=fedgr", FEDRG),
    ),
    "digits_uneven_right": (
        "experiment=comparison/digits_dirichlet noise=none ~noise.mu",  # each at its rate in docs/comparison_newer.md
        (
            "method=fedavg train.lr=0.01",
            "method=fedexp train.lr=0.003",
            "method=fedln train.lr=0.01",
            "method=clc train.lr=0.03",
            "method=fedstabilize train.lr=0.1",
        ),
    ),
    "digits_iid_clean_samples": (
        "experiment=comparison/digits_iid eval.benchmark=0.2",
        (
            "method=fedavg method/exchange=[fnre]",
            "method=fedavg method/exchange=[fnre] method.exchange.fnre.rounds=[55,56]",
            "method=fedavg train.lr=0.01 method/exchange=[fnre] audit.record=true",
            "method=fedes train.lr=0.1",
        ),
    ),
    "digits_writers": (
        "experiment=benchmark/digits_writers",
        (
            "method=fedavg",
            "method=fedcorr",
            "method=fednoro",
            "method=forward_correction",
            "method=fedclean",
            "method=fedefc",
            "method=fedgr",
            "method=fedgr method.lambda_b=0 method.lambda_r=0",
            FEDRG,
            "method=fedsir method.fewest=5 method.fewest_shared=5",
        ),
    ),
    "digits_instance": (
        "dataset=digits partition=iid_uniform partition.num_clients=10 fraction=1.0 noise=instance noise.eta=0.3 "
        "protocol.name=mine protocol.rounds=40",
        ("method=fedavg", "method=forward_correction", "method=fedbeat"),
    ),
    "mnist_features": (
        "dataset=features model=mlp model.hidden=[64] partition=dirichlet partition.num_clients=10 noise=symmetric "
        "noise.eta=0.6 protocol.name=mine protocol.rounds=20 protocol.fraction=1.0 train/optimizer=adamw "
        "train.lr=1e-3 train.batch_size=16",
        ("method=fedavg", "method=fedreda"),
    ),
    "mnist_features_clients": (
        "dataset=features model=mlp model.hidden=[64] partition=dirichlet partition.num_clients=10 noise=fedcorr "
        "noise.rho=0.6 noise.tau=0.5 protocol.name=mine protocol.rounds=20 protocol.fraction=1.0 "
        "train/optimizer=adamw train.lr=1e-3 train.batch_size=16",
        ("method=fedavg", "method=fedcorr", "method=fedsir"),
    ),
}
"""By name: the overrides of all runs, and those of each."""


@dataclass(frozen=True)
class Row:
    """A run: its overrides and seed, its closing numbers, and what it cost."""

    setting: str
    run: str
    seed: int
    metrics: str  # a JSON object
    training_passes: int
    forward_passes: int
    bytes: int
    cpu_time_s: float
    machine: str
    commit: str


def audited(folder: Path) -> dict[str, float]:
    """How far an audit's estimates of clients' shares of wrong labels are from the truth, as ``noise_level_error`` is.

    And for how many clients the truth lies in the estimate's interval.
    """
    examined = examine(folder, Options(formats=()), lambda line: None)
    quality = examined.run.record.clients["true_quality"]
    estimates = [(row.wrong, row.samples, quality[row.clients[0]]) for row in examined.audit.by_client if row.wrong]
    return {
        "audit_error": fmean(abs(one.expected / samples - (1 - share)) for one, samples, share in estimates),
        "audit_within": sum(one.low <= round(samples * (1 - share)) <= one.high for one, samples, share in estimates),
    }


def line(rows: Sequence[Row], heads: Sequence[str]) -> str:
    """A line of a card's table: a run, and under each head its numbers by seed; accuracies are in percent.

    A cell is empty where the method has no such metric.

    >>> def of(seed: int) -> Row:
    ...     return Row("s", "method=a", seed, f'{{"last": 0.{seed}, "error": 0.0{seed}}}', 0, 0, 0, 0, "", "")
    >>> line([of(4), of(5)], ["last", "error"])
    '| `method=a` | 40.0, 50.0 | 0.040, 0.050 |'
    """
    cells = [f"`{rows[0].run}`"]
    by_seed = [json.loads(row.metrics) for row in sorted(rows, key=lambda row: row.seed)]
    for head in heads:
        metric = HEADS.get(head, head)
        numbers = [one[metric] for one in by_seed if metric in one]
        percent = head in HEADS or head.endswith("accuracy")
        told = ", ".join(f"{100 * one:.1f}" if percent else f"{one:.3f}" for one in numbers)
        if head == "mean of the last 10" and len(numbers) > 1:
            told += f": {100 * fmean(numbers):.1f} ± {100 * stdev(numbers):.1f}"
        cells.append(told)
    return f"| {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Make the runs that are missing, and write the lines of all that are there."""
    parser = ArgumentParser(prog="python -m bench.card_runs", description=__doc__.split("\n", 1)[0])
    args = chosen(parser, {"settings": [*SETTINGS]}, argv)
    rows = {(row.setting, row.run, row.seed): row for row in read_rows(FILE, Row)}
    for name in args.settings:
        setting, runs = SETTINGS[name]
        for run, seed in ((run, seed) for run in runs for seed in args.seeds):
            folder = args.folder / name / re.sub(r"\W+", "_", run) / str(seed)
            record = made([*setting.split(), *run.split()], folder, seed, "stacked")
            if record is not None:
                counts = record.training_passes, record.forward_passes, record.bytes, record.cpu_time_s
                about = record.machine, record.commit
                metrics = {**record.metrics, **(audited(folder) if "audit.record=true" in run else {})}
                rows[name, run, seed] = Row(name, run, seed, json.dumps(metrics), *counts, *about)  # type: ignore[arg-type]  # of a finished run
                write_rows(FILE, Row, [rows[key] for key in sorted(rows)])


if __name__ == "__main__":
    main()
