"""Compiles and loads ``device.cpp``, once for each version of it, of torch and of Python."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

SOURCE = Path(__file__).with_name("device.cpp")
LOCK = Path(__file__).resolve().parents[2] / "requirements.lock"
MODULE = "simulated_gpu"
COMPILER = "g++"


class UnavailableError(Exception):
    """The simulated GPU cannot be built here; the message says why."""


@cache
def load() -> Any:
    """The compiled module.

    Raises:
        UnavailableError: if there is no compiler, or torch is of another version than the lock's.
    """
    spec = importlib.util.spec_from_file_location(MODULE, built())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built() -> Path:
    """The compiled file, built at the first call on this machine.

    Raises:
        UnavailableError: as ``load``.
    """
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    content = hashlib.sha256(SOURCE.read_bytes() + f"{torch.__version__} {suffix}".encode()).hexdigest()
    target = _cache() / content[:16] / f"{MODULE}{suffix}"
    if not target.exists():
        _check()
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_suffix(".lock")):  # several test processes may ask at a time
            if not target.exists():
                _compile(target)
    return target


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flnl" / MODULE


def _check() -> None:
    locked = re.search(r"^torch==([\d.]+)", LOCK.read_text(), re.MULTILINE)
    version = torch.__version__.partition("+")[0]
    if locked is None or locked[1] != version:
        raise UnavailableError(f"it is written for torch {locked and locked[1]}, this is torch {version}")
    if shutil.which(COMPILER) is None:
        raise UnavailableError(f"there is no {COMPILER} to compile it")
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not headers.exists():
        raise UnavailableError(f"there are no headers of Python to compile it: {headers}")


def _compile(target: Path) -> None:
    """Compile, and put the whole file in its place at once."""
    root = Path(torch.__file__).parent
    folders = [root / "include", root / "include/torch/csrc/api/include", Path(sysconfig.get_paths()["include"])]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        command = [
            *(COMPILER, "-std=c++20", "-O1", "-g0", "-fPIC", "-shared", "-w"),
            f"-DTORCH_EXTENSION_NAME={MODULE}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(f"-I{folder}" for folder in folders),
            *(str(SOURCE), "-o", str(made), f"-L{root / 'lib'}"),
            *("-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python", f"-Wl,-rpath,{root / 'lib'}"),
        ]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}\n{result.stderr[-4000:]}")
        made.replace(target)
