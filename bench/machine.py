"""The machine and the versions of a measurement."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version

from bench.ways import PEERS_PYTHON, ROOT
from flnl.console.cores import processor

OURS = ("torch", "torchvision", "lightning", "numpy")
PEERS = ("flwr", "ray", "pfl", "fluke-fl", "torch")


@dataclass(frozen=True)
class Machine:
    """The conditions of a measurement."""

    cpu: str
    cores: int
    memory_gib: float
    load: tuple[float, float, float]  # at the start, over 1, 5 and 15 minutes
    python: str
    versions: str
    peers: str
    commit: str


def machine() -> Machine:
    """Describe the current machine."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=pages * size / 2**30,
        load=os.getloadavg(),
        python=platform.python_version(),
        versions=", ".join(f"{name} {version(name)}" for name in OURS),
        peers=_peers(),
        commit=_commit(),
    )


def _peers() -> str:
    """Versions in the environment of other frameworks; missing packages are left out."""
    script = (
        "from importlib.metadata import version, PackageNotFoundError\n"
        f"for name in {PEERS}:\n"
        "    try: print(name, version(name))\n"
        "    except PackageNotFoundError: pass\n"
    )
    try:
        done = subprocess.run([PEERS_PYTHON, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return "not installed"
    return ", ".join(done.stdout.splitlines())


def _commit() -> str:
    """The commit, with a plus if there are uncommitted changes."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!bench/results")
        return git("rev-parse", "--short", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
