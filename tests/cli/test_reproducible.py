"""``reproducible=true``: the instruction sets that all x86 machines have, chosen before torch is imported."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from flnl.config.pinning import PINS
from flnl.core.errors import UserError
from tests.registry import TINY

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="pins are of x86")


def python(*arguments: str, folder: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """A process of its own, without the pins of this one."""
    environment = {name: value for name, value in os.environ.items() if name not in PINS}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True)


def flnl(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command in a process of its own."""
    return python("-m", "flnl", *arguments, folder=folder)


def capability(folder: Path) -> str:
    """The instruction set that a run's record names."""
    machine: str = json.loads((folder / "result.json").read_text())["machine"]
    return machine.rsplit(", ", 1)[1]


@pytest.mark.parametrize("launcher", ["joblib", "basic"])
def test_every_job_of_a_sweep_is_pinned(tmp_path: Path, launcher: str) -> None:
    sweep = ("-m", f"hydra/launcher={launcher}", "hydra.sweep.dir=sweep", "seed=1,2")
    said = flnl(tmp_path, *sweep, *TINY, "method=fedavg", "rounds=1", "reproducible=true", "logger=csv")
    assert said.returncode == 0, said.stderr
    assert [capability(tmp_path / "sweep" / job) for job in ("0", "1")] == ["AVX2"] * 2


def test_a_run_whose_file_asks_for_it_is_pinned_and_its_repetition_as_well(tmp_path: Path) -> None:
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / "sure.yaml").write_text("# @package _global_\nreproducible: true\n")
    own = ("--config-dir", "own", "experiment=sure")
    said = flnl(tmp_path, *own, *TINY, "method=fedavg", "rounds=1", "logger=csv", "output=run")
    assert said.returncode == 0, said.stderr
    assert capability(tmp_path / "run") == "AVX2"
    again = flnl(tmp_path, "rerun", "run", "output=again")
    assert again.returncode == 0, again.stderr
    assert capability(tmp_path / "again") == "AVX2"


def test_after_torch_it_is_refused_with_what_to_set() -> None:
    import torch  # noqa: F401

    from flnl.config.pinning import pin

    with pytest.raises(UserError, match=r"set ATEN_CPU_CAPABILITY=avx2 .*NPY_DISABLE_CPU_FEATURES='X86_V4 "):
        pin()


def test_numpy_and_its_blas_have_no_wider_vectors_than_torch() -> None:
    """Their code for AVX-512 gives other bits: of products of matrices, of exponentials and of logarithms."""
    script = (
        "import sys; from flnl.config.pinning import pin; pin()\n"
        "import numpy, scipy.linalg, threadpoolctl\n"
        "from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__\n"
        "print([name for name in __cpu_dispatch__ if __cpu_features__[name] and name[:6] in ('AVX512', 'X86_V4')])\n"
        "print({one['architecture'] for one in threadpoolctl.threadpool_info() if one['internal_api'] == 'openblas'})"
    )
    said = python("-c", script)
    assert said.stdout.splitlines() == ["[]", "{'Haswell'}"], said.stderr
    assert not said.stderr


def test_numpy_is_refused_as_torch_is() -> None:
    script = "import numpy; from flnl.config.pinning import pin; pin()"
    said = python("-c", script)
    assert "numpy has been imported" in said.stderr


def test_it_does_not_change_what_a_run_is(tmp_path: Path) -> None:
    """A run that was made without it counts as the same."""
    words = (*TINY, "method=fedavg", "rounds=1", "logger=csv", "resume=true")
    for pinned in ("false", "true"):
        assert flnl(tmp_path, *words, f"reproducible={pinned}").returncode == 0
    assert len([*(tmp_path / "outputs").glob("*/result.json")]) == 1
