"""Memory and CPU time of a tree of processes, from ``/proc``.

Only anonymous and shared memory counts, each page divided by the number of processes that map it (PSS). Pages of files,
i.e. the code of libraries, are excluded: processes of other ways map the same pages, so their share would depend on
which others are running.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
COUNTED = ("Pss_Anon", "Pss_Shmem")


def tree(root: int) -> list[int]:
    """The process ``root`` and all its current descendants."""
    children: dict[int, list[int]] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    members, at = [root], 0
    while at < len(members):
        members += children.get(members[at], [])
        at += 1
    return members


def own_bytes(process: int) -> int:
    """The memory of one process in bytes; 0 if it has ended or cannot be read."""
    try:
        lines = (PROC / str(process) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    sizes = dict(line.split(":", 1) for line in lines[1:])
    return sum(int(sizes.get(name, "0 kB").split()[0]) * 1024 for name in COUNTED)


def cpu_seconds(processes: list[int]) -> float:
    """CPU seconds of the processes so far, to a hundredth of a second each, including ended children."""
    ticks = 0
    for process in processes:
        with suppress(OSError):
            fields = (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def started(process: int) -> str | None:
    """Start time of a process, which distinguishes it from a later one with the same id; None if ended or a zombie."""
    with suppress(OSError):
        fields = (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    return None


class Sampler:
    """Samples a process tree regularly in a thread, and once at the end; records the peak and the processes.

    A sample takes some milliseconds of a core, so it should be rare during a measurement.
    """

    def __init__(self, root: int, every: float) -> None:
        self.peak, self.processes = 0, 1
        self.seen: dict[int, str] = {}  # start time of each process
        self._root, self._every, self._over = root, every, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self.look()

    def look(self) -> None:
        """Take one sample."""
        members = tree(self._root)
        self.seen |= {member: at for member in members if (at := started(member)) is not None}
        self.peak = max(self.peak, sum(map(own_bytes, members)))
        self.processes = max(self.processes, len(members))

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            self.look()
