"""The start-up time of commands."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from bench.measure import Spread, Tell
from bench.ways import ROOT, environment

COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "import torch": ("-c", "import torch"),
    "import torch, lightning": ("-c", "import torch, lightning"),
    "--help": ("-m", "flnl", "--help"),
    "--cfg job --resolve": ("-m", "flnl", "method=fedcorr", "--cfg", "job", "--resolve"),
    "flnl list": ("-m", "flnl", "list"),
}


def startup(repeats: int, folder: Path, tell: Tell) -> dict[str, Spread]:
    """Seconds of each command, measured in alternation; failed ones are left out."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for repeat in range(repeats):
        tell(f"startup: repeat {repeat + 1} of {repeats}")
        for name, arguments in COMMANDS.items():
            began = time.perf_counter()
            done = subprocess.run(
                [sys.executable, *arguments], cwd=ROOT, env=environment(), capture_output=True, timeout=120, check=False
            )
            if done.returncode == 0:
                times[name].append(time.perf_counter() - began)
    return {name: Spread.of(seconds) for name, seconds in times.items() if seconds}
