"""A command finishes whatever its process lacks: standard streams, a home, a reader. A caller's Hydra is left alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize

import flnl
from flnl.core.errors import UserError
from tests.cli.conftest import ROOT, Command
from tests.registry import BY_NAME

WORDS = [*BY_NAME["fedavg"].words, "rounds=1", "products=false", "output=run"]
COMMAND = f"{sys.executable} -m flnl {' '.join(WORDS)}"
NOBODY = (
    "import pwd; pwd.getpwuid = pwd.getpwnam = lambda one: {}[one]; import sys; from flnl.__main__ import main; main()"
)


def shell(text: str, folder: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **more}
    return subprocess.run(
        ["bash", "-c", text], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "text",
    [
        f"{COMMAND} >&-",
        pytest.param(f"{COMMAND} 2>&-", marks=pytest.mark.slow),
        pytest.param(f"{COMMAND} <&- >&- 2>&-", marks=pytest.mark.slow),
        f"{COMMAND} | true; exit ${{PIPESTATUS[0]}}",  # as head, once it has its lines
        pytest.param(f"{COMMAND} 2>&1 >/dev/null | true; exit ${{PIPESTATUS[0]}}", marks=pytest.mark.slow),
    ],
)
def test_nobody_need_read_what_a_run_prints(text: str, tmp_path: Path):
    said = shell(text, tmp_path, HOME=str(tmp_path))
    assert said.returncode == 0, said.stderr
    assert "Traceback" not in said.stderr
    assert '"finished"' in (tmp_path / "run" / "result.json").read_text()


def test_a_user_may_have_no_home(tmp_path: Path):
    """In a container: an id without an entry in ``/etc/passwd``, and no HOME."""
    words = " ".join(word for word in WORDS if not word.startswith("cache="))
    said = shell(f'{sys.executable} -c "{NOBODY}" {words}', tmp_path)
    assert said.returncode == 0, said.stderr
    assert '"finished"' in (tmp_path / "run" / "result.json").read_text()


def test_the_folder_of_a_run_is_not_hydra_s(command: Command, tmp_path: Path):
    said = command(*WORDS, "hydra.run.dir=elsewhere")
    assert said.code == 2
    assert (
        said.err
        == "error: hydra.run.dir=elsewhere: a run's folder is set by output=..., a sweep's by hydra.sweep.dir\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_caller_s_hydra_is_as_before(tmp_path: Path):
    with initialize(version_base=None, config_path=None):
        assert compose(overrides=["+a=1"]).a == 1
        flnl.run([*WORDS[:-1], f"output={tmp_path / 'run'}"])
        assert compose(overrides=["+a=2"]).a == 2
        with pytest.raises(UserError):
            flnl.run(["nothing=1"])
        assert compose(overrides=["+a=3"]).a == 3
