"""The record of a run: a line per round and per evaluation, and the result.

The files in the run's folder are the complete record; copies elsewhere, as in W&B, are not needed.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from flnl.config.folders import CONF
from flnl.console.cores import processor
from flnl.core.errors import UserError
from flnl.core.payload import CPU
from flnl.core.state import PASSES, RoundResult
from flnl.engine.placement import visible
from flnl.record import lines, metric_names
from flnl.record.lines import Checksums, DamagedLinesError, Lines
from flnl.record.run import RunRecord
from flnl.storage.atomic import write_atomically

TABLE = "metrics.csv"


class Record:
    """``metrics.jsonl``, ``metrics.csv``, ``corrections.jsonl`` and ``result.json`` of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics = Lines(folder / lines.METRICS)
        self.corrections = Lines(folder / lines.CORRECTIONS)

    def go_on_after(self, rounds: int, known: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Continue after the lines of the first ``rounds`` rounds; return those of ``metrics.jsonl``.

        Args:
            rounds: the checkpoint's round.
            known: the checkpoint's checksums of these lines, by file.

        Raises:
            UserError: if the lines do not match the checksums.
        """
        checksums = {name: Checksums.read(checksum) for name, checksum in known.items()}
        try:
            self.corrections.go_on_after(rounds, checksums.get(lines.CORRECTIONS))
            return self.metrics.go_on_after(rounds, checksums.get(lines.METRICS))
        except DamagedLinesError as error:
            raise UserError(f"{error}: put back a copy of the file, or start a new run in another folder") from None

    def cut(self) -> None:
        """Delete the lines after those that ``go_on_after`` kept."""
        self.corrections.cut()
        self.metrics.cut()

    @property
    def checksums(self) -> dict[str, Any]:
        """Checksums of the lines so far, as stored in checkpoints and ``result.json``."""
        return lines.described((self.metrics, self.corrections))

    def round(self, result: RoundResult, seconds: float) -> dict[str, float | str]:
        """Write the lines of a round; return its values for loggers."""
        counters = result.state.counters
        row: dict[str, Any] = {
            "kind": "round",
            "round": result.state.round,
            "stage": result.stage,
            "cohort": list(result.cohort),
            "participations": counters.participations,
            "bytes_down": counters.bytes_down,
            "bytes_up": counters.bytes_up,
            **{name: getattr(counters, name) for name in PASSES},
            "seconds": round(seconds, 3),
            **result.metrics,
        }
        if result.correction is not None:
            row["correction"] = {k: v for k, v in result.correction.items() if k not in ("clients", "confusion")}
            self.corrections.write({"round": result.state.round, "stage": result.stage, **result.correction})
        self.metrics.write(row)
        if result.evaluation is not None:
            place = {k: row[k] for k in ("round", "stage", "participations")}
            self.metrics.write({"kind": "evaluation", **place, **result.evaluation})
        return metric_names.of_round(row, result.evaluation)

    def write_table(self) -> None:
        """Write ``metrics.csv`` from the lines in ``metrics.jsonl``."""
        rows = [json.loads(line) for line in (self.folder / lines.METRICS).read_text(encoding="utf-8").splitlines()]
        write_atomically(self.folder / TABLE, metric_names.table(rows).encode())

    def sync(self) -> None:
        """Flush all lines to disk."""
        self.metrics.sync()
        self.corrections.sync()

    def result(self, record: RunRecord) -> RunRecord:
        """Write ``result.json`` with the checksums of the lines so far; return it."""
        return replace(record, lines=self.checksums).write(self.folder)

    def as_read(self, record: RunRecord) -> RunRecord:
        """The record with the checksums of the lines so far, as readers will have it once it is written."""
        return replace(record, lines=self.checksums).as_read(self.folder)


def environment(device: torch.device = CPU) -> RunRecord:
    """A record of commit, versions and machine, as far as they are known; processor and GPU decide about last bits.

    ``gpu`` says which of the machine's GPUs ``device`` is, as ``CUDA_VISIBLE_DEVICES`` would.
    """
    machine = [platform.platform(), processor(), torch.backends.cpu.get_cpu_capability()]
    gpu = {}
    if device.type != "cpu":
        name = str(torch.get_device_module(device).get_device_name(device))
        machine.append(name)
        gpu = {"id": visible(device.type)[device.index], "name": name}
    if device.type == "cuda":
        machine.append(f"CUDA {torch.version.cuda}")
    return RunRecord(commit=_commit(), versions=dict(_versions()), machine=", ".join(machine), gpu=gpu)


@cache
def _versions() -> Mapping[str, str]:
    """Versions of Python and of the packages that results depend on; read once, as they are imported once."""
    names = (
        "torch",
        "torchvision",
        "lightning",
        "hydra-core",
        "omegaconf",
        "numpy",
        "scipy",
        "scikit-learn",
        "pillow",
        "flnl",
    )
    versions = {"python": platform.python_version()}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _commit() -> str | None:
    """The commit of this package's checkout, with ``+changes`` if files other than records and pages have been changed.

    None for an installed package, even inside some other repository.
    """
    if not (CONF.parent / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        # --no-optional-locks: a killed run must leave no lock behind
        command = ["git", "--no-optional-locks", "-C", str(CONF.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs", ":!results")
        return git("rev-parse", "HEAD") + ("+changes" if changes else "")
    except (OSError, subprocess.SubprocessError):
        return None
