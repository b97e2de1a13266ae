"""Memory and CPU time of a tree of processes, from ``/proc``.

The memory that counts is what a tree has of its own: anonymous and shared memory, each page divided by the number of
processes that map it (PSS). Pages of files, which are the libraries' code, are left out: processes of other ways map
the same ones, so their share would depend on who else is running.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
COUNTED = ("Pss_Anon", "Pss_Shmem")


def tree(root: int) -> list[int]:
    """The process ``root`` and all its descendants that are there now."""
    children: dict[int, list[int]] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, at = [root], 0
    while at < len(found):
        found += children.get(found[at], [])
        at += 1
    return found


def own_bytes(process: int) -> int:
    """What one process has, 0 where it is gone or cannot be read."""
    try:
        lines = (PROC / str(process) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    sizes = dict(line.split(":", 1) for line in lines[1:])
    return sum(int(sizes.get(name, "0 kB").split()[0]) * 1024 for name in COUNTED)


def cpu_seconds(processes: list[int]) -> float:
    """What the processes have spent on the CPU so far, to a hundredth of a second each; ended children included."""
    ticks = 0
    for process in processes:
        with suppress(OSError):
            fields = (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def started(process: int) -> str | None:
    """When a process was started, which tells it from a later one of its number; None where it is gone or a zombie."""
    with suppress(OSError):
        fields = (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    return None


class Sampler:
    """While entered, looks at a tree every so often in a thread, and once when left; remembers the most, and whom.

    Looking takes some milliseconds of a core, so during a measurement it should be rare.
    """

    def __init__(self, root: int, every: float) -> None:
        self.peak, self.processes = 0, 1
        self.seen: dict[int, str] = {}  # when each process was started
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
        """Look once."""
        members = tree(self._root)
        self.seen |= {member: at for member in members if (at := started(member)) is not None}
        self.peak = max(self.peak, sum(map(own_bytes, members)))
        self.processes = max(self.processes, len(members))

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            self.look()
