"""What this machine has, and what runs would use of it."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from glob import iglob
from pathlib import Path

import torch
from omegaconf import DictConfig

from flnl.config import compose
from flnl.console.cores import usable_cores
from flnl.core.errors import UserError, in_one_line
from flnl.core.grouping import group_by_key
from flnl.run.mirror import effective_mode
from flnl.run.record import environment

GIB = 2**30
OPTIONAL = {"ray": "executor=ray", "optuna": "flnl tune --trials", "scikit_posthocs": "flnl tables render"}
"""Packages of the extras, and what needs them."""
LITTLE_SPACE = 5.0
"""GiB of free disk below which a folder gets a note."""


@dataclass(frozen=True)
class Row:
    """One fact about the machine."""

    name: str
    value: str
    problem: bool = False  # something will not work
    note: bool = False  # something may not work later


def surroundings(cfg: DictConfig, kind: str = "cuda") -> Iterator[Row]:
    """The facts, for runs with the configuration ``cfg``; ``kind`` is torch's name of the GPUs to look for."""
    about = environment()
    versions = dict(about.versions)
    yield Row("flnl", f"{versions.pop('flnl', 'not installed')}, commit {about.commit}")
    yield Row("Python", versions.pop("python"))
    yield Row("packages", ", ".join(f"{name} {version}" for name, version in versions.items()))
    absent = [f"{name} ({use})" for name, use in OPTIONAL.items() if importlib.util.find_spec(name) is None]
    if absent:
        yield Row("not installed", ", ".join(absent))
    yield Row("machine", str(about.machine))
    yield Row("cores", f"{usable_cores()} usable; {_memory():.0f} GiB of memory")
    yield from _gpus(kind)
    yield from _folders(cfg)
    yield Row("W&B", _wandb(effective_mode(cfg.wandb.mode)))


def _memory() -> float:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    except (OSError, ValueError):
        return float("nan")


def _gpus(kind: str) -> Iterator[Row]:
    library = torch.get_device_module(kind)
    if not library.is_available():
        built = f"torch is built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch is built without CUDA"
        yield Row("GPU", f"none ({built})")
        return
    for number in range(library.device_count()):
        try:
            properties = library.get_device_properties(number)
            free, total = library.mem_get_info(number)
        except Exception as error:  # drivers may raise anything, as of a GPU that another process has for itself
            yield Row(f"GPU {number}", in_one_line(error), problem=True)
            continue
        facts = [properties.name, f"{total / GIB:.0f} GiB of memory, {free / GIB:.0f} free"]
        if hasattr(properties, "major"):
            facts.append(f"compute capability {properties.major}.{properties.minor}")
        if kind == "cuda" and torch.version.cuda:
            facts.append(f"CUDA {torch.version.cuda}")
        yield Row(f"GPU {number}", "; ".join(facts))


def _folders(cfg: DictConfig) -> Iterator[Row]:
    for title, folder in (("runs", cfg.output_root), ("cache", cfg.cache)):
        yield _writable(title, Path(folder).expanduser())
    roots = ((_root(name), name) for name in compose.options("dataset"))
    yield from (_readable(root, names) for root, names in group_by_key(roots).items() if root is not None)


def _readable(root: Path, datasets: Sequence[str]) -> Row:
    whose = f"{root}, for {', '.join(datasets)}"
    try:
        content = sorted(p.name for p in root.iterdir() if not p.name.startswith(".") and _has_files(p))
    except FileNotFoundError:
        content = []
    except OSError as error:
        return Row("data", f"{whose}: cannot be read ({error.strerror})", problem=True)
    held = ", ".join(content[:6]) + (" ..." if len(content) > 6 else "") if content else "nothing there yet"
    return Row("data", f"{whose}: {held}")


def _has_files(path: Path) -> bool:
    """Whether the path is a file, or has one or a link below it; hidden ones, as locks of downloads, do not count."""
    found = iglob("**", root_dir=path, recursive=True)  # noqa: PTH207 (it leaves hidden ones out)
    inside = (path / name for name in found)
    return not path.is_dir() or any(not one.is_dir() or one.is_symlink() for one in inside)


def _writable(title: str, folder: Path) -> Row:
    try:
        there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        if not there.is_dir():
            return Row(title, f"{folder}: {there} is not a folder", problem=True)
        if not os.access(there, os.W_OK | os.X_OK):
            return Row(title, f"{folder}: cannot be written", problem=True)
        free = shutil.disk_usage(there).free / GIB
    except OSError as error:
        return Row(title, f"{folder}: cannot be reached ({error.strerror})", problem=True)
    few = free < LITTLE_SPACE
    return Row(title, f"{folder}: {f'only {free:.1f}' if few else f'{free:.0f}'} GiB free", note=few)


def _root(dataset: str) -> Path | None:
    """The folder of a data set's files; None if it has none, or if the user must name it."""
    try:
        root = compose.resolved(compose.load([f"dataset={dataset}"]))["dataset"].get("root")
    except UserError:
        return None
    return Path(root).expanduser() if root else None


def _wandb(mode: str) -> str:
    return {
        "online": "online: metrics are sent",
        "offline": "offline: metrics stay in the run's folder; wandb login, or WANDB_API_KEY, sends them",
        "disabled": "disabled",
    }[mode]
